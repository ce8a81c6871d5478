// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP filter of retryproof.
#![allow(dead_code)]

mod key;
