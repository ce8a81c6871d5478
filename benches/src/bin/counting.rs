// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmark program with an allocator that counts. Only `heap::counted` starts it.

use std::alloc::System;
use std::process::ExitCode;

use retryproof_benches::heap::Heap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    retryproof_benches::main(|| {
        let stats = COUNTED.stats();
        Some(Heap {
            allocations: (stats.allocations + stats.reallocations) as u64,
            bytes: (stats.bytes_allocated - stats.bytes_deallocated) as u64,
        })
    })
}
