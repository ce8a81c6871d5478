// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adapters for joined transactions (CMP-7) of drivers that retryproof does not support itself.
//! Copy the file whose first line names your driver. Each file works without the others.
//!
//! The adapters are files and not crates, because the application chooses the version of its
//! driver. A crate would delay the application's upgrade to the driver's next version.

#[expect(missing_debug_implementations, reason = "users copy this file, so it is short")]
pub mod diesel_mysql;
#[expect(missing_debug_implementations, reason = "users copy this file, so it is short")]
pub mod diesel_postgres;
pub mod guide;
pub mod sea_orm_1_mysql;
pub mod sea_orm_1_postgres;
pub mod sea_orm_mysql;
pub mod sea_orm_postgres;
