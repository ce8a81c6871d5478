// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing but tests: what `#[idempotent]` refuses, case by case. They are a crate of their own
//! because each case is compiled against this crate's dependencies, which are built once more for
//! it: the facade's would be all stores, brokers and frameworks.
