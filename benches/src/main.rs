// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench [SUITE ..]`, or `cargo run --release -p retryproof-benches -- [SUITE ..]`.
//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    retryproof_benches::main(|| None)
}
