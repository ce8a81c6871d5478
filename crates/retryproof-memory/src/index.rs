// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two index values that do not refer to a slot.

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// The slot is in no list of the wheel.
pub(crate) const UNFILED: u32 = u32::MAX - 1;
