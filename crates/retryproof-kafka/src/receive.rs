// SPDX-License-Identifier: MIT OR Apache-2.0
//! How messages reach the listener.

pub(crate) mod assignment;
