// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PrimaryLocator`] finds the primary, and notices when the primary moves. Each node of a cluster
//! has a locator of its own, which always finds that node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use tokio::sync::Notify;

use super::sentinel::ask_primary;
use crate::config::{Address, RedisConfig};
use crate::connection::{Connection, Connector, Purpose};

/// Where to find a primary.
#[derive(Debug)]
pub(crate) enum PrimaryPlace {
    Server(Address),
    Sentinel { nodes: Vec<Address>, service: String },
}

/// Finds the primary for all connections of a store.
#[derive(Debug)]
pub(crate) struct PrimaryLocator {
    connector: Arc<Connector>,
    place: PrimaryPlace,
    /// How many times the primary has moved.
    epoch: AtomicU64,
    moves: Notify,
    known: Mutex<KnownPrimary>,
    /// The sentinel that answered last. The next lookup begins with that sentinel.
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
    pub(crate) fn new(connector: Arc<Connector>, place: PrimaryPlace) -> Self {
        Self {
            connector,
            place,
            epoch: AtomicU64::new(0),
            moves: Notify::new(),
            known: Mutex::default(),
            last_sentinel: AtomicUsize::new(0),
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        self.connector.config()
    }

    /// Whether the primary can move, which is possible only with Sentinel.
    pub(crate) fn can_move(&self) -> bool {
        self.sentinels().is_some()
    }

    /// Returns the sentinels and the name of the service that they watch.
    pub(super) fn sentinels(&self) -> Option<(&[Address], &str)> {
        match &self.place {
            PrimaryPlace::Server(_) => None,
            PrimaryPlace::Sentinel { nodes, service } => Some((nodes, service)),
        }
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
        // Every sentinel announces each move, so a repeated address is not a further move.
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

    /// Notes that a connection to `at` has been opened, and returns the connection's epoch; `None`
    /// if the primary has moved elsewhere. `reports` is the number of reports before the sentinels
    /// were queried. Any later report is newer than their answer and takes precedence.
    fn reached(&self, at: &Address, reports: u64) -> Option<u64> {
        let (from, epoch) = {
            let mut known = self.known.lock();
            if known.reports != reports && known.address.as_ref() != Some(at) {
                return None;
            }
            // Read the epoch under the lock. If the primary moves after that, the new epoch is
            // higher than the epoch that this connection gets.
            (self.record(&mut known, at), self.epoch())
        };
        log_move(from.as_ref(), at);
        Some(epoch)
    }

    /// Waits until the primary has moved since `epoch`.
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
        match &self.place {
            PrimaryPlace::Server(at) => {
                Ok((self.connector.connect_server(at, purpose).await?, self.epoch()))
            }
            // The loop repeats only if a different address was reported during the previous round.
            PrimaryPlace::Sentinel { nodes, service } => loop {
                let (reports, epoch) = (self.reports(), self.epoch());
                let connected = async {
                    let at = self.ask(nodes, service).await?;
                    let connection = self.connector.connect_server(&at, purpose).await?;
                    Result::Ok((at, connection))
                };
                let (at, connection) = tokio::select! {
                    biased;
                    connected = connected => connected?,
                    // If a failover moves the primary before the attempt ends, abandon the attempt
                    // and start again, because the old primary might never answer.
                    () = self.moved(epoch) => continue,
                };
                if let Some(epoch) = self.reached(&at, reports) {
                    return Ok((connection, epoch));
                }
            },
        }
    }

    /// Queries the sentinels again if one of them reports the primary at `named` and the known
    /// primary is elsewhere.
    pub(super) async fn check(&self, named: &Address) {
        let Some((nodes, service)) = self.sentinels() else { return };
        if self.known.lock().address.as_ref() == Some(named) {
            return;
        }
        let reports = self.reports();
        if let Ok(at) = self.ask(nodes, service).await {
            self.reached(&at, reports);
        }
    }

    /// Returns the address where the primary should be: the configured server, or the server that a
    /// sentinel names.
    pub(crate) async fn address(&self) -> Result<Address> {
        match &self.place {
            PrimaryPlace::Server(at) => Ok(at.clone()),
            PrimaryPlace::Sentinel { nodes, service } => self.ask(nodes, service).await,
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
        let connector = Connector::new(RedisConfig::new("10.0.0.1", 1));
        let connector = Arc::new(connector.expect("the configuration should be valid"));
        PrimaryLocator::new(connector, PrimaryPlace::Server(at(1)))
    }

    #[test]
    fn acq_2_sto_1_a_connection_to_another_primary_is_a_move() {
        let locator = locator();
        let shared = locator.reached(&at(1), locator.reports());
        assert_eq!(shared, Some(locator.epoch()), "in use");
        assert_eq!(
            locator.reached(&at(1), locator.reports()),
            shared,
            "a new connection to the same address is not a move"
        );
        // A query returns the new primary before the sentinels announce the move.
        let other = locator.reached(&at(2), locator.reports());
        assert_eq!(other, Some(locator.epoch()), "in use");
        assert!(shared < other, "the connection to the old primary should no longer be used");
        locator.announced(at(2));
        assert_eq!(
            other,
            Some(locator.epoch()),
            "the announcement should not count as a second move"
        );
    }

    #[test]
    fn acq_2_sto_1_of_answers_that_race_the_newer_one_counts() {
        let locator = locator();
        let reports = locator.reports();
        let first = locator.reached(&at(1), reports);
        // The sentinels answered another connection at the same time. If that answer names the
        // address that is already in use, it is accepted. If it names a different address, it is
        // refused, because it can be the older of the two answers.
        assert_eq!(locator.reached(&at(1), reports), first);
        assert_eq!(
            locator.reached(&at(2), reports),
            None,
            "the store should query the sentinels again"
        );
        assert_eq!(first, Some(locator.epoch()));

        // A connection attempt queries the sentinels, then the sentinels announce the move, and
        // then the attempt reaches the old primary.
        let reports = locator.reports();
        locator.announced(at(2));
        let moved = locator.epoch();
        assert_eq!(locator.reached(&at(1), reports), None);
        assert_eq!(locator.reached(&at(2), reports), Some(moved));
        // The attempt is also refused if the sentinels announce the address that is already in use.
        let reports = locator.reports();
        locator.announced(at(2));
        assert_eq!(locator.reached(&at(1), reports), None);
        assert_eq!(locator.epoch(), moved);
    }
}
