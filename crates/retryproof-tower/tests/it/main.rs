// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer over the memory store.
