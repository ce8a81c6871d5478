// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contains only tests: what `#[idempotent]` refuses, case by case. The tests have a separate crate
//! because each case is compiled against the crate's dependencies, which are built again for it. In
//! the facade, these would be all stores, brokers and frameworks.
