// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs except `run`. Each verb has one function.

pub(crate) mod audit;
pub(crate) mod change;
pub(crate) mod config;
mod confirm;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod key;
#[cfg(feature = "seal")]
pub(crate) mod keys;
pub(crate) mod list;
mod locate;
pub(crate) mod manual;
pub(crate) mod scan;
pub(crate) mod store;
pub(crate) mod top;
