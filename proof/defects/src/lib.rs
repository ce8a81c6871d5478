// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted defects: [`Defective`] wraps any store and breaks one promise, as its [`Defect`] says.
//!
//! The conformance kit, the kill tests and the simulation have to catch each defect (`cargo xtask
//! bite`). A test that stays green with a defect proves nothing.

mod defect;
mod store;

pub use defect::Defect;
pub use store::Defective;
