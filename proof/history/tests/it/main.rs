// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the checker: correct histories pass, and a wrong history is flagged only by the rule
//! that it breaks.

mod bad;
mod clock;
mod excuses;
mod good;
mod legal;
mod loss;
mod pace;
mod random;
mod script;
mod void;
