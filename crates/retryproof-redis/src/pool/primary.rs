// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Route`]: where the primary is now, and whether it has moved.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use tokio::sync::Notify;

use super::sentinel;
use crate::config::{Address, RedisConfig, Target};
use crate::connection::{Conn, Dialer, Purpose};

/// The way to the primary, shared by all connections of a store.
#[derive(Debug)]
pub(crate) struct Route {
    dialer: Dialer,
    /// How often the primary has moved.
    epoch: AtomicU64,
    moves: Notify,
    belief: Mutex<Belief>,
    /// Which sentinel answered last: the first to be asked.
    pub(crate) last_sentinel: AtomicUsize,
}

/// Where the primary is, as far as we were told.
#[derive(Debug, Default)]
struct Belief {
    primary: Option<Address>,
    /// How often we were told, of the same place too.
    told: u64,
}

impl Route {
    pub(crate) fn new(config: RedisConfig) -> Self {
        Self {
            dialer: Dialer::new(config),
            epoch: AtomicU64::new(0),
            moves: Notify::new(),
            belief: Mutex::default(),
            last_sentinel: AtomicUsize::new(0),
        }
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        self.dialer.config()
    }

    pub(crate) fn may_move(&self) -> bool {
        matches!(self.config().target, Target::Sentinel { .. })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Says where the primary is. If that was not known, every connection made before is out of use
    /// at once.
    pub(crate) fn has_moved(&self, to: Address) {
        let from = self.believe(&mut self.belief.lock(), &to);
        say(from.as_ref(), &to);
    }

    /// Where it was until now.
    fn believe(&self, belief: &mut Belief, at: &Address) -> Option<Address> {
        belief.told += 1;
        // Each sentinel tells of a move.
        if belief.primary.as_ref() == Some(at) {
            return None;
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.moves.notify_waiters();
        belief.primary.replace(at.clone())
    }

    fn told(&self) -> u64 {
        self.belief.lock().told
    }

    /// Whether a connection to `at` is one to the primary: then the epoch that it belongs to,
    /// raised if the others led elsewhere. `told` was read before the sentinels were asked: what
    /// came in since then is newer than their answer, and wins.
    fn reached(&self, at: &Address, told: u64) -> Option<u64> {
        let (from, epoch) = {
            let mut belief = self.belief.lock();
            if belief.told != told && belief.primary.as_ref() != Some(at) {
                return None;
            }
            // Still under the lock: a move from here on raises it above what the connection gets.
            (self.believe(&mut belief, at), self.epoch())
        };
        say(from.as_ref(), at);
        Some(epoch)
    }

    /// Ends when the primary has moved since `epoch`.
    pub(crate) async fn moved(&self, epoch: u64) {
        loop {
            // Registered before the look, so that no move is lost between them.
            let moves = self.moves.notified();
            if self.epoch() != epoch {
                return;
            }
            moves.await;
        }
    }

    /// A connection to the primary, and how often that had moved before.
    pub(crate) async fn open(&self, purpose: &Purpose) -> Result<(Conn, u64)> {
        match &self.config().target {
            Target::Single(at) => Ok((self.dialer.server(at, purpose).await?, self.epoch())),
            // Each further round follows news of another place that came in during the last one.
            Target::Sentinel { nodes, service } => loop {
                let (told, epoch) = (self.told(), self.epoch());
                let dialed = async {
                    let at = sentinel::primary(self, nodes, service).await?;
                    let conn = self.dialer.server(&at, purpose).await?;
                    Result::Ok((at, conn))
                };
                let (at, conn) = tokio::select! {
                    biased;
                    dialed = dialed => dialed?,
                    // What is dialed may be the old primary, which may hang.
                    () = self.moved(epoch) => continue,
                };
                if let Some(epoch) = self.reached(&at, told) {
                    return Ok((conn, epoch));
                }
            },
        }
    }

    /// Asks the sentinels, should the primary not be where one of them says.
    pub(crate) async fn check(&self, said: &Address) {
        let Target::Sentinel { nodes, service } = &self.config().target else { return };
        if self.belief.lock().primary.as_ref() == Some(said) {
            return;
        }
        let told = self.told();
        if let Ok(at) = sentinel::primary(self, nodes, service).await {
            self.reached(&at, told);
        }
    }
}

fn say(from: Option<&Address>, to: &Address) {
    if let Some(from) = from {
        tracing::warn!(%from, %to, "the primary has moved");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn route() -> Route {
        Route::new(RedisConfig::new("10.0.0.1", 1))
    }

    #[test]
    fn acq_2_sto_1_a_connection_to_another_primary_is_a_move() {
        let route = route();
        let shared = route.reached(&at(1), route.told());
        assert_eq!(shared, Some(route.epoch()), "in use");
        assert_eq!(
            route.reached(&at(1), route.told()),
            shared,
            "another one to the same place is none"
        );
        // The sentinels name B to whoever asks, before they announce it.
        let other = route.reached(&at(2), route.told());
        assert_eq!(other, Some(route.epoch()), "in use");
        assert!(shared < other, "the one to the old primary is out of use");
        route.has_moved(at(2));
        assert_eq!(other, Some(route.epoch()), "the announcement is no other move");
    }

    #[test]
    fn acq_2_sto_1_of_answers_that_race_the_newer_one_counts() {
        let route = route();
        let told = route.told();
        let first = route.reached(&at(1), told);
        // Asked before, by another link, and answered as it was then or as it is since.
        assert_eq!(route.reached(&at(1), told), first);
        assert_eq!(route.reached(&at(2), told), None, "asks again");
        assert_eq!(first, Some(route.epoch()));

        // Asked; then all announce the move; then the old one is reached.
        let told = route.told();
        route.has_moved(at(2));
        let moved = route.epoch();
        assert_eq!(route.reached(&at(1), told), None);
        assert_eq!(route.reached(&at(2), told), Some(moved));
        // As well when the announcement was of what was known already.
        let told = route.told();
        route.has_moved(at(2));
        assert_eq!(route.reached(&at(1), told), None);
        assert_eq!(route.epoch(), moved);
    }
}
