// SPDX-License-Identifier: MIT OR Apache-2.0
//! How messages reach the listener.

pub(crate) mod connection;
pub(crate) mod ramp_up;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod url;
