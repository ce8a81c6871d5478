// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facade's integration tests.

#[cfg(all(feature = "macros", feature = "actix", feature = "sqlite"))]
mod actix;
#[cfg(feature = "macros")]
mod annotation;
mod connect;
#[cfg(all(feature = "macros", feature = "axum", feature = "blocking", feature = "sqlite"))]
mod expand;
#[cfg(all(feature = "macros", feature = "axum", feature = "blocking", feature = "sqlite"))]
mod joined;
#[cfg(all(feature = "macros", feature = "axum", feature = "sqlite"))]
mod manual;
mod promises;
#[cfg(feature = "axum")]
mod stack;
