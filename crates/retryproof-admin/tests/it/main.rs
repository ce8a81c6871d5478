// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page for operators (OPS-9): who can see it, what it shows, and what it never shows.

mod access;
mod content;
mod support;
