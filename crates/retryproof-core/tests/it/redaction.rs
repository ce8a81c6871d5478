// SPDX-License-Identifier: MIT OR Apache-2.0
//! ID-4: keys and values contain canary strings, and everything that is logged or printed is
//! searched for them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{Acquisition, IdempotencyContext, IdempotencyEngine};
use retryproof_memory::MemoryStore;

/// Collects what is logged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// Collects what this thread logs, until the guard is dropped.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let sink = Self::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        (sink, tracing::subscriber::set_default(subscriber))
    }

    /// Returns what was logged since the last call.
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn id_4_no_key_and_no_value_in_any_log_line_or_debug_output() {
    let (sink, _guard) = Sink::start();

    let engine = IdempotencyEngine::new(MemoryStore::new());
    let ctx = |key: &str| {
        let lease = Duration::from_millis(100);
        IdempotencyContext::builder("scope", key)
            .lease(lease)
            .wait_timeout(lease / 2)
            .build()
            .unwrap()
    };
    let mut printed = String::new();
    let mut print = |thing: &dyn std::fmt::Debug| printed.push_str(&format!("{thing:?}\n"));
    let run = |key: &'static str| {
        engine.execute(ctx(key), || async { Ok::<_, &str>("canary-value".to_owned()) })
    };
    assert!(run("canary-key").await.unwrap().is_executed());
    assert!(run("canary-key").await.unwrap().is_replayed());
    let wrong = engine.execute(ctx("canary-key"), || async { Ok::<_, &str>(7_u32) }).await;
    print(&wrong);
    let Acquisition::Granted(held) = engine.try_acquire(&ctx("canary-held")).await.unwrap() else {
        panic!()
    };
    print(&held);
    print(&held.lease());
    held.hold();
    // A takeover is logged with its identity.
    tokio::time::sleep(Duration::from_millis(150)).await;
    print(&engine.try_acquire(&ctx("canary-held")).await.unwrap());
    print(&engine.try_acquire(&ctx("canary-key")).await.unwrap());
    print(&engine);
    print(&ctx("canary-key"));
    print(&IdempotencyContext::builder("scope", "canary\u{7}").build());
    print(&IdempotencyContext::builder("scope", "canary".repeat(100)).build());

    let logged = String::from_utf8(sink.0.lock().clone()).unwrap();
    assert!(logged.contains("took over"), "the log must not be empty: {logged}");
    assert!(!logged.contains("canary"), "{logged}");
    assert!(!printed.contains("canary"), "{printed}");
}
