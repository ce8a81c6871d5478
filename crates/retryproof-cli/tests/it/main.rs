// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the built command `retryproof`. Each test starts the command as a user does.
#![cfg(unix)]

mod advice;
mod audit;
mod bad_input;
mod doctor;
mod hashed;
mod kills;
mod manual;
mod operate;
mod output;
mod run;
mod scan;
#[cfg(feature = "seal")]
mod sealed;
mod servers;
mod settings;
mod support;
mod terminal;
mod top;
mod transfer;
mod verbs;
mod versions;
