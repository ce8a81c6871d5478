// SPDX-License-Identifier: MIT OR Apache-2.0
//! One function for each verb except `run`.

pub(crate) mod change;
pub(crate) mod config;
pub(crate) mod get;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod store;
