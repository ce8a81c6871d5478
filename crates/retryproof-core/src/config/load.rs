// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the configuration from a TOML file and from `IDEMPOTENCY_*` variables (CFG-1).
