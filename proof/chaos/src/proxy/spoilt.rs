// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Harm`]: what the proxy has done to connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Stranded;
use crate::mono;

/// What the moods have done to connections.
#[derive(Debug, Default)]
pub(super) struct Harm {
    /// The number of open connections that have lost data.
    spoilt: AtomicUsize,
    /// When the last mood first harmed a connection; 0 if it has harmed none.
    since: AtomicU64,
    away: Mutex<Away>,
    left: AtomicU64,
    stuck: AtomicU64,
    /// Whether the client's process is stopped.
    stands: AtomicBool,
}

/// The intervals without any connection to the server, in which nothing could reach it.
#[derive(Debug, Default)]
struct Away {
    links: usize,
    since: u64,
    /// The intervals that have ended.
    over: Vec<(u64, u64)>,
}

impl Harm {
    pub(super) fn new() -> Self {
        let harm = Self::default();
        harm.away.lock().since = mono::now();
        harm
    }

    pub(super) fn begin(&self) {
        let _ = self.since.compare_exchange(0, mono::now(), Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(super) fn forget(&self) {
        self.since.store(0, Ordering::SeqCst);
    }

    pub(super) fn since(&self) -> Option<u64> {
        Some(self.since.load(Ordering::SeqCst)).filter(|since| *since > 0)
    }

    pub(super) fn away(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.away.lock().over)
    }

    #[cfg(test)]
    pub(super) fn links(&self) -> usize {
        self.away.lock().links
    }

    pub(super) fn spoilt(&self) -> usize {
        self.spoilt.load(Ordering::SeqCst)
    }

    pub(super) fn stranded(&self) -> Stranded {
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Stranded { left: read(&self.left), stuck: read(&self.stuck) }
    }

    pub(super) fn client_stands(&self, still: bool) {
        self.stands.store(still, Ordering::SeqCst);
    }

    pub(super) fn is_client_standing(&self) -> bool {
        self.stands.load(Ordering::SeqCst)
    }

    /// Counts a client that has left a half-open connection, or that has used one for too long
    /// (`stuck`).
    pub(super) fn strand(&self, stuck: bool) {
        let count = if stuck { &self.stuck } else { &self.left };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Counts as a connection to the server until it is dropped.
pub(super) struct Link<'a>(&'a Harm);

impl<'a> Link<'a> {
    pub(super) fn new(harm: &'a Harm) -> Self {
        let mut away = harm.away.lock();
        if away.links == 0 {
            let since = away.since;
            away.over.push((since, mono::now()));
        }
        away.links += 1;
        Self(harm)
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let mut away = self.0.away.lock();
        away.links -= 1;
        away.since = mono::now();
    }
}

/// Counts as an open connection that has lost data until it is dropped.
pub(super) struct Spoilt(Arc<Harm>);

impl Spoilt {
    pub(super) fn new(harm: &Arc<Harm>) -> Self {
        harm.spoilt.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(harm))
    }
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        self.0.spoilt.fetch_sub(1, Ordering::SeqCst);
    }
}
