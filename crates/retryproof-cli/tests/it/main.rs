// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the built command `retryproof`: each starts it as a user does.
#![cfg(unix)]

mod kills;
mod manual;
mod operate;
mod output;
mod run;
mod servers;
mod settings;
mod support;
mod verbs;
