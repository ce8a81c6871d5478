// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HostSelector`] finds the primary among the hosts of a URL, and notices when another host
//! becomes the primary (STO-7).
//!
//! A connection belongs to an *epoch*. Each move to another primary begins a new epoch, and no
//! connection of an older epoch is used again. With one host, there is only one epoch, and the host
//! its role is not queried here.

mod query;
mod report;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Result;
use retryproof_store_kit::jitter;
use sqlx_core::connection::ConnectOptions as _;
use sqlx_postgres::{PgConnectOptions, PgConnection, PgListener};
use tokio::sync::Notify;

use crate::config::{PostgresConfig, Source, hosts::node};
use crate::connection::role::{HostVerdict, Role, dial};
use crate::error::{Failure, is_connection_limit};

/// The pause between two looks at the hosts that are not the primary.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// Finds the primary for all connections of a store.
pub(crate) struct HostSelector {
    source: Source,
    /// The time limit for opening a connection to one of several hosts and querying its role.
    dial_timeout: Duration,
    /// How many times the primary has moved.
    epoch: AtomicU64,
    moves: Notify,
    known: Mutex<KnownHosts>,
}

/// What this process has seen of the hosts.
#[derive(Debug, Default)]
struct KnownHosts {
    primary: Option<PrimaryHost>,
    /// How many times a connection has failed in a way that a failover can cause.
    doubts: u64,
    /// The number of doubts when the comparison of all hosts began that found `primary`. While the
    /// numbers differ, `primary` may be an old primary.
    settled: u64,
    /// The second server that accepts writes of which the last warning was.
    second: Option<PrimaryHost>,
}

/// The primary, and the role that it reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrimaryHost {
    host: usize,
    role: Role,
}

/// A new connection to the primary.
pub(crate) struct OpenedConnection {
    pub(crate) conn: PgConnection,
    pub(crate) epoch: u64,
    /// The number of the host.
    pub(crate) host: usize,
}

/// A host's answer to the query of its role.
pub(crate) struct HostAnswer {
    pub(crate) host: usize,
    pub(crate) role: Result<(PgConnection, Role), HostVerdict>,
}

impl HostSelector {
    pub(crate) fn new(config: &PostgresConfig) -> Arc<Self> {
        Arc::new(Self {
            source: config.source.clone(),
            dial_timeout: config.connect_timeout / 4,
            epoch: AtomicU64::new(0),
            moves: Notify::new(),
            known: Mutex::default(),
        })
    }

    /// Whether the primary can move, which is possible only with several hosts.
    pub(crate) fn can_move(&self) -> bool {
        self.source.count() > 1
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the address of the primary, if there are several hosts and one of them was found to
    /// be the primary.
    pub(crate) fn primary(&self) -> Option<String> {
        let primary = self.known.lock().primary?;
        self.can_move().then(|| node(&self.source.options(primary.host)))
    }

    /// Waits until the primary has moved since `epoch`. With one host, never returns.
    async fn moved(&self, epoch: u64) {
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

    /// Returns the output of `running`, or `None` if the primary has moved since `epoch`.
    pub(crate) async fn unless_moved<T>(
        &self,
        epoch: u64,
        running: impl Future<Output = T>,
    ) -> Option<T> {
        if !self.can_move() {
            return Some(running.await);
        }
        let (mut running, mut moved) = (pin!(running), pin!(self.moved(epoch)));
        poll_fn(|cx| {
            if moved.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            let output = running.as_mut().poll(cx);
            // The primary may have moved while the answer was read.
            output.map(|output| (self.epoch() == epoch).then_some(output))
        })
        .await
    }

    /// Notes that a connection of this epoch failed in a way that a failover can cause. The next
    /// connection is opened only after all hosts were compared.
    pub(crate) fn doubt(&self, epoch: u64) {
        if self.can_move() && self.epoch() == epoch {
            self.known.lock().doubts += 1;
        }
    }

    /// Opens a connection to the primary.
    ///
    /// # Errors
    /// With several hosts, the error names each of them with the reason why it cannot be used.
    pub(crate) async fn connect(&self) -> Result<OpenedConnection, Failure> {
        if !self.can_move() {
            let conn = self.source.options(0).connect().await?;
            return Ok(OpenedConnection { conn, epoch: 0, host: 0 });
        }
        if let Some((last, epoch)) = self.trusted() {
            match dial(self.source.options(last.host), self.dial_timeout).await {
                Ok((conn, role)) if role == last.role => {
                    // The primary may have moved meanwhile. The connection is then of an older
                    // epoch, and is not used.
                    return Ok(OpenedConnection { conn, epoch, host: last.host });
                }
                // The primary is there, and other connections to it may become free.
                Err(HostVerdict::Failed(error)) if is_connection_limit(&error) => {
                    return Err(Failure::Driver(error));
                }
                _ => self.doubt(epoch),
            }
        }
        self.compare().await
    }

    /// Returns the primary and its epoch, unless the primary may be an old one.
    fn trusted(&self) -> Option<(PrimaryHost, u64)> {
        // The epoch changes only under the lock.
        let known = self.known.lock();
        let primary = known.primary.filter(|_| known.settled == known.doubts)?;
        Some((primary, self.epoch()))
    }

    /// Queries the roles of all hosts at the same time, and opens a connection to the primary on
    /// the highest timeline.
    async fn compare(&self) -> Result<OpenedConnection, Failure> {
        let (doubts, is_first) = {
            let known = self.known.lock();
            (known.doubts, known.primary.is_none())
        };
        let mut answers = self.query_roles(None).await;
        let Some(best) = self.best_of(&answers) else { return Err(self.none_of(answers)) };
        let is_other = |role: &Role| role.is_writable() && role.cluster != best.role.cluster;
        let roles = || answers.iter().filter_map(|answer| answer.role.as_ref().ok());
        if is_first && roles().any(|(_, role)| is_other(role)) {
            return Err(Failure::Store(self.strangers(&answers)));
        }
        self.warn(&answers, best, is_first);
        let epoch = self.adopt(best, doubts);
        let at = answers.iter().position(|answer| answer.host == best.host);
        if let (Some(epoch), Some(at)) = (epoch, at)
            && let Ok((conn, _)) = answers.swap_remove(at).role
        {
            return Ok(OpenedConnection { conn, epoch, host: best.host });
        }
        Err(self.none_of(answers))
    }

    /// Returns why no host can be used. If the last primary accepts no more connections, that is
    /// the reason, because others to it may become free.
    fn none_of(&self, answers: Vec<HostAnswer>) -> Failure {
        let last = self.known.lock().primary.map(|primary| primary.host);
        let error = self.no_primary(&answers);
        let of_last = answers.into_iter().find(|answer| Some(answer.host) == last);
        match of_last.map(|answer| answer.role) {
            Some(Err(HostVerdict::Failed(error))) if is_connection_limit(&error) => {
                Failure::Driver(error)
            }
            _ => Failure::Store(error),
        }
    }

    /// Returns the server on the highest timeline that accepts writes; of several, the last primary
    /// or else the first. Once a primary is known, only its copies count, and no old primary.
    fn best_of(&self, answers: &[HostAnswer]) -> Option<PrimaryHost> {
        let last = self.known.lock().primary;
        let writable = answers.iter().filter_map(|answer| {
            let (_, role) = answer.role.as_ref().ok()?;
            let fits = role.is_writable() && last.is_none_or(|last| role.may_follow(&last.role));
            fits.then_some(PrimaryHost { host: answer.host, role: *role })
        });
        let rank = |primary: &PrimaryHost| (primary.role.timeline, Some(*primary) == last);
        writable.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best })
    }

    /// Makes a server the primary, unless this process has seen a higher timeline, or a server that
    /// is no copy of this one. Returns the epoch of connections to the primary.
    fn adopt(&self, primary: PrimaryHost, doubts: u64) -> Option<u64> {
        let mut known = self.known.lock();
        if let Some(last) = known.primary
            && !primary.role.may_follow(&last.role)
        {
            return None;
        }
        known.settled = known.settled.max(doubts);
        if known.primary != Some(primary) {
            let from = known.primary.replace(primary);
            self.epoch.fetch_add(1, Ordering::AcqRel);
            self.moves.notify_waiters();
            if let Some(from) = from.filter(|from| from.host != primary.host) {
                let [from, to] = [from, primary].map(|at| node(&self.source.options(at.host)));
                tracing::warn!(%from, %to, "the primary has moved");
            }
        }
        Some(self.epoch())
    }

    /// Starts a task that looks every 10 s whether another host has become the primary, although
    /// the connections to the present one still work. That happens if the present primary was cut
    /// off or frozen, but not ended, when a standby was promoted. The task ends with the store.
    /// Call this inside a tokio runtime.
    pub(crate) fn watch(self: &Arc<Self>) {
        if !self.can_move() {
            return;
        }
        let hosts = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(jitter(WATCH_INTERVAL)).await;
                let Some(hosts) = hosts.upgrade() else { return };
                hosts.look_around().await;
            }
        });
    }

    async fn look_around(&self) {
        let (known, doubts) = {
            let known = self.known.lock();
            (known.primary, known.doubts)
        };
        let Some(known) = known else { return };
        let answers = self.query_roles(Some(known.host)).await;
        self.warn(&answers, known, false);
        if let Some(best) = self.best_of(&answers)
            && best.role.timeline > known.role.timeline
        {
            self.adopt(best, doubts);
        }
    }

    /// Returns the options for a connection to a host.
    pub(crate) fn options_of(&self, host: usize) -> PgConnectOptions {
        self.source.options(host)
    }

    /// Whether a listener is connected to the primary of this epoch.
    pub(crate) async fn is_primary(
        &self,
        listener: &mut PgListener,
        epoch: u64,
    ) -> Result<bool, sqlx_core::Error> {
        if !self.can_move() {
            return Ok(true);
        }
        let role = Role::query(listener).await?;
        Ok(self.epoch() == epoch
            && self.known.lock().primary.is_some_and(|primary| primary.role == role))
    }

    /// Returns the address of a host, without user and password (ID-4).
    pub(crate) fn node(&self, host: usize) -> String {
        node(&self.source.options(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector() -> Arc<HostSelector> {
        let config = PostgresConfig::from_url("postgres://u@a:1,b:2/d").expect("a valid URL");
        HostSelector::new(&config)
    }

    fn at(host: usize, timeline: i64) -> PrimaryHost {
        let (is_standby, is_read_only, started) = (false, false, 1);
        PrimaryHost { host, role: Role { is_standby, is_read_only, timeline, cluster: 7, started } }
    }

    #[test]
    fn sto_7_a_lower_timeline_or_another_cluster_is_never_adopted() {
        let hosts = selector();
        assert_eq!(hosts.adopt(at(0, 1), 0), Some(1));
        assert_eq!(hosts.adopt(at(0, 1), 0), Some(1), "the same server is not a move");
        assert_eq!(hosts.adopt(at(1, 2), 0), Some(2));
        assert_eq!(hosts.adopt(at(0, 1), 0), None);
        let mut stranger = at(0, 9);
        stranger.role.cluster = 8;
        assert_eq!(hosts.adopt(stranger, 0), None);
        assert!(matches!(
            hosts.verdict(at(0, 1).role),
            Some(HostVerdict::Outdated { timeline: 1, newest: 2 })
        ));
        assert!(matches!(hosts.verdict(stranger.role), Some(HostVerdict::Unrelated)));
        assert!(hosts.verdict(at(1, 2).role).is_none());
        // A server that restarted may have missed a promotion, so its older connections are not
        // used again.
        let mut restarted = at(1, 2);
        restarted.role.started = 2;
        assert_eq!(hosts.adopt(restarted, 0), Some(3));
    }

    #[test]
    fn sto_7_a_doubt_during_a_comparison_is_not_settled_by_it() {
        let hosts = selector();
        hosts.adopt(at(0, 1), 0);
        assert_eq!(hosts.trusted(), Some((at(0, 1), 1)));
        hosts.doubt(1);
        let began = hosts.known.lock().doubts;
        hosts.doubt(1);
        hosts.adopt(at(0, 1), began);
        assert_eq!(hosts.trusted(), None);
        hosts.adopt(at(0, 1), began + 1);
        assert!(hosts.trusted().is_some());
        // A failure of an older connection casts no doubt on the present primary.
        hosts.adopt(at(1, 2), began + 1);
        hosts.doubt(1);
        assert_eq!(hosts.trusted(), Some((at(1, 2), 2)));
    }

    #[tokio::test]
    async fn sto_7_an_answer_after_a_move_counts_as_lost() {
        let hosts = selector();
        hosts.adopt(at(0, 1), 0);
        assert_eq!(hosts.unless_moved(1, async { 5 }).await, Some(5));
        let answer = hosts.unless_moved(1, async {
            hosts.adopt(at(1, 2), 0);
            5
        });
        assert_eq!(answer.await, None);
        assert_eq!(hosts.unless_moved(1, std::future::pending::<()>()).await, None);
    }
}
