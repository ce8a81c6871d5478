// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joined transactions of drivers that no crate of ours knows (CMP-7). Each file is an adapter to
//! copy: it stands alone, but for the features of `retryproof` and the driver that its first lines
//! name.
//!
//! They are files and not crates because the version of a driver is its application's, and a crate
//! would be one more to wait for when the driver's next version is out.

#[expect(missing_debug_implementations, reason = "to copy, and short")]
pub mod diesel_mysql;
#[expect(missing_debug_implementations, reason = "to copy, and short")]
pub mod diesel_postgres;
pub mod guide;
pub mod sea_orm_1_mysql;
pub mod sea_orm_1_postgres;
pub mod sea_orm_mysql;
pub mod sea_orm_postgres;
