// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PrimaryLocator`]: where the primary is now, and whether it has moved.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use tokio::sync::Notify;

use super::sentinel::ask_primary;
use crate::config::{Address, RedisConfig, Target};
use crate::connection::{Connection, Connector, Purpose};

/// Finds the primary for all connections of a store.
#[derive(Debug)]
pub(crate) struct PrimaryLocator {
    connector: Connector,
    /// How many times the primary has moved.
    epoch: AtomicU64,
    moves: Notify,
    known: Mutex<KnownPrimary>,
    /// The sentinel that answered last; the next lookup asks it first.
    pub(super) last_sentinel: AtomicUsize,
}

/// The latest report of where the primary is.
#[derive(Debug, Default)]
struct KnownPrimary {
    address: Option<Address>,
    /// The number of reports, including repeated reports of the same address.
    reports: u64,
}

impl PrimaryLocator {
    pub(crate) fn new(config: RedisConfig) -> Result<Self> {
        Ok(Self {
            connector: Connector::new(config)?,
            epoch: AtomicU64::new(0),
            moves: Notify::new(),
            known: Mutex::default(),
            last_sentinel: AtomicUsize::new(0),
        })
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        self.connector.config()
    }

    /// Whether the primary can move, which is possible only with Sentinel.
    pub(crate) fn can_move(&self) -> bool {
        matches!(self.config().target, Target::Sentinel { .. })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Handles a sentinel's announcement that the primary is at `to`. If the address is new, all
    /// connections opened before the announcement go out of use immediately.
    pub(super) fn announced(&self, to: Address) {
        let from = self.record(&mut self.known.lock(), &to);
        log_move(from.as_ref(), &to);
    }

    /// Stores a report that the primary is at `at`. Returns the previous address if the primary has
    /// moved.
    fn record(&self, known: &mut KnownPrimary, at: &Address) -> Option<Address> {
        known.reports += 1;
        // The address is already known, because every sentinel announces the same move.
        if known.address.as_ref() == Some(at) {
            return None;
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.moves.notify_waiters();
        known.address.replace(at.clone())
    }

    fn reports(&self) -> u64 {
        self.known.lock().reports
    }

    /// Stores that a connection to `at` has been opened, and returns the connection's epoch; `None`
    /// if the primary has moved elsewhere. `reports` is the number of reports before the sentinels
    /// were asked: any later report is newer than their answer and takes precedence.
    fn reached(&self, at: &Address, reports: u64) -> Option<u64> {
        let (from, epoch) = {
            let mut known = self.known.lock();
            if known.reports != reports && known.address.as_ref() != Some(at) {
                return None;
            }
            // Read the epoch under the lock, so that any later move makes it higher than the
            // connection's epoch.
            (self.record(&mut known, at), self.epoch())
        };
        log_move(from.as_ref(), at);
        Some(epoch)
    }

    /// Returns once the primary has moved since `epoch`.
    pub(crate) async fn moved(&self, epoch: u64) {
        loop {
            // Register for notifications before reading the epoch, so that no move is missed in
            // between.
            let moves = self.moves.notified();
            if self.epoch() != epoch {
                return;
            }
            moves.await;
        }
    }

    /// Opens a connection to the primary, and returns it with its epoch.
    pub(crate) async fn connect(&self, purpose: &Purpose) -> Result<(Connection, u64)> {
        match &self.config().target {
            Target::Single(at) => {
                Ok((self.connector.connect_server(at, purpose).await?, self.epoch()))
            }
            // The loop repeats only if a different address was reported during the previous round.
            Target::Sentinel { nodes, service } => loop {
                let (reports, epoch) = (self.reports(), self.epoch());
                let connected = async {
                    let at = self.ask(nodes, service).await?;
                    let connection = self.connector.connect_server(&at, purpose).await?;
                    Result::Ok((at, connection))
                };
                let (at, connection) = tokio::select! {
                    biased;
                    connected = connected => connected?,
                    // Stop connecting after a move, because the old primary may never answer.
                    () = self.moved(epoch) => continue,
                };
                if let Some(epoch) = self.reached(&at, reports) {
                    return Ok((connection, epoch));
                }
            },
        }
    }

    /// If one sentinel reports the primary at `named`, but the known primary is elsewhere, asks the
    /// sentinels again.
    pub(super) async fn check(&self, named: &Address) {
        let Target::Sentinel { nodes, service } = &self.config().target else { return };
        if self.known.lock().address.as_ref() == Some(named) {
            return;
        }
        let reports = self.reports();
        if let Ok(at) = self.ask(nodes, service).await {
            self.reached(&at, reports);
        }
    }

    async fn ask(&self, nodes: &[Address], service: &str) -> Result<Address> {
        ask_primary(&self.connector, nodes, service, &self.last_sentinel).await
    }
}

fn log_move(from: Option<&Address>, to: &Address) {
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

    fn locator() -> PrimaryLocator {
        PrimaryLocator::new(RedisConfig::new("10.0.0.1", 1))
            .expect("the configuration should be valid")
    }

    #[test]
    fn acq_2_sto_1_a_connection_to_another_primary_is_a_move() {
        let locator = locator();
        let shared = locator.reached(&at(1), locator.reports());
        assert_eq!(shared, Some(locator.epoch()), "in use");
        assert_eq!(
            locator.reached(&at(1), locator.reports()),
            shared,
            "another connection to the same address is no move"
        );
        // The sentinels name B when asked, before they announce it.
        let other = locator.reached(&at(2), locator.reports());
        assert_eq!(other, Some(locator.epoch()), "in use");
        assert!(shared < other, "the connection to the old primary is out of use");
        locator.announced(at(2));
        assert_eq!(other, Some(locator.epoch()), "the announcement is not another move");
    }

    #[test]
    fn acq_2_sto_1_of_answers_that_race_the_newer_one_counts() {
        let locator = locator();
        let reports = locator.reports();
        let first = locator.reached(&at(1), reports);
        // Another shared connection asked earlier, and got the old or the new answer.
        assert_eq!(locator.reached(&at(1), reports), first);
        assert_eq!(locator.reached(&at(2), reports), None, "the sentinels are asked again");
        assert_eq!(first, Some(locator.epoch()));

        // A connection asks; then all sentinels announce the move; then it reaches the old primary.
        let reports = locator.reports();
        locator.announced(at(2));
        let moved = locator.epoch();
        assert_eq!(locator.reached(&at(1), reports), None);
        assert_eq!(locator.reached(&at(2), reports), Some(moved));
        // The same happens if the announcement repeats a known address.
        let reports = locator.reports();
        locator.announced(at(2));
        assert_eq!(locator.reached(&at(1), reports), None);
        assert_eq!(locator.epoch(), moved);
    }
}
