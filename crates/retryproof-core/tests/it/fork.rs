// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owner ids are unique in a process and in its forks, such as the workers of a server (ACQ-9).

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

use fork::{Fork, fork, waitpid_nohang};
use retryproof_core::{IdempotencyContext, IdempotencyEngine, OwnerId, SharedStore};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, FaultStore, Faults, Operation, Recorder};

/// Generates owner ids on one side of a fork: first those of an engine's acquires, and then ids
/// without an engine.
fn draw() -> Vec<u8> {
    let log = CallLog::new();
    let store = Recorder::new(FaultStore::new(MemoryStore::new(), Faults::none()), log.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = IdempotencyEngine::new(SharedStore::new(store));
        for key in 0..4 {
            let ctx = IdempotencyContext::builder("fork", format!("{key}")).build().unwrap();
            drop(engine.try_acquire(&ctx).await.unwrap());
        }
    });
    let sent = log.entries().into_iter().filter(|entry| entry.operation == Operation::Acquire);
    let sent: Vec<_> = sent.filter_map(|entry| entry.owner).collect();
    assert_eq!(sent.len(), 4);
    sent.into_iter().chain((0..4).map(|_| OwnerId::new())).flat_map(|id| *id.as_bytes()).collect()
}

#[test]
fn acq_9_owner_ids_are_unique_on_all_sides_of_a_fork() {
    // Warm up the parent before it forks: this thread generates ids, and at least one of them is
    // left unused by a replay.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let ctx = IdempotencyContext::builder("fork", "warm-up").build().unwrap();
        for _ in 0..3 {
            let _ =
                engine.execute(ctx.clone(), || async { Ok::<_, std::io::Error>(1) }).await.unwrap();
            drop(engine.begin_acquire(&ctx));
        }
    });
    drop(runtime);
    let folder = std::env::temp_dir().join(format!("retryproof-fork-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut children = Vec::new();
    for worker in 0..3 {
        let path = folder.join(worker.to_string());
        let mut file = File::create(&path).unwrap();
        match fork().unwrap() {
            Fork::Child => {
                // Do not return into the test harness: its other threads do not exist in the child.
                let written = file.write_all(&draw()).is_ok();
                std::process::exit(i32::from(!written));
            }
            Fork::Parent(child) => children.push((child, path)),
        }
    }
    let mut sides = vec![draw()];
    for (child, path) in children {
        let ended = (0..3_000).find_map(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            waitpid_nohang(child).unwrap()
        });
        assert_eq!(ended, Some(0), "the child should succeed");
        sides.push(std::fs::read(path).unwrap());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let ids: HashSet<_> = sides.iter().flat_map(|side| side.chunks(16)).collect();
    assert_eq!(ids.len(), 4 * 8, "both sides drew the same id");
}
