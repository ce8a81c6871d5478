// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each adapter against the real server: record and writes are one commit or none (CMP-7).

mod diesel;
mod sea;
mod suite;
mod text;
