// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a verdict reaches Kafka: as an offset to commit.

pub(crate) mod offsets;
