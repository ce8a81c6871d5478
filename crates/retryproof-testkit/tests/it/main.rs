// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the kit itself: it passes a correct store, and catches planted defects.

mod books;
mod defects;
mod flawed;
mod modest;
mod needs;
mod wrappers;
