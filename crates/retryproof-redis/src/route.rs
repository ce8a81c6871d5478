// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Route`]: where the primary is now, and whether it has moved.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use tokio::sync::Notify;

use crate::config::{Address, RedisConfig, Target};
use crate::sentinel;
use crate::server::{Conn, Dialer, Purpose};

/// The way to the primary, shared by all connections of a store.
#[derive(Debug)]
pub(crate) struct Route {
    dialer: Dialer,
    /// How often the primary has moved.
    epoch: AtomicU64,
    moves: Notify,
    /// Where it is, as far as we were told.
    primary: Mutex<Option<Address>>,
    /// Which sentinel answered last: the first to be asked.
    pub(crate) last_sentinel: AtomicUsize,
}

impl Route {
    pub(crate) fn new(config: RedisConfig) -> Self {
        Self {
            dialer: Dialer::new(config),
            epoch: AtomicU64::new(0),
            moves: Notify::new(),
            primary: Mutex::new(None),
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

    /// Says that the primary has moved: every connection made before is out of use at once.
    pub(crate) fn has_moved(&self, to: Address) {
        {
            let mut primary = self.primary.lock();
            // Each sentinel tells of it.
            if primary.as_ref() == Some(&to) {
                return;
            }
            *primary = Some(to);
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        self.moves.notify_waiters();
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
        let epoch = self.epoch();
        let conn = match &self.config().target {
            Target::Single(at) => self.dialer.server(at, purpose).await?,
            Target::Sentinel { nodes, service } => {
                let at = sentinel::primary(self, nodes, service).await?;
                let conn = self.dialer.server(&at, purpose).await?;
                *self.primary.lock() = Some(at);
                conn
            }
        };
        Ok((conn, epoch))
    }
}
