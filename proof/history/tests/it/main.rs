// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checker, checked: what is right passes, what is wrong is flagged by the rule that it breaks,
//! and by no other.

mod bad;
mod good;
mod legal;
mod pace;
mod random;
mod script;
mod void;
