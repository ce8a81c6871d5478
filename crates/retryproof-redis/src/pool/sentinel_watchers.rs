// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SentinelWatchers`]: one watcher for each sentinel, so that the store follows a failover
//! immediately.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::primary::PrimaryLocator;
use super::sentinel::address;
use crate::config::Address;
use crate::connection::{Connection, Purpose, Request};
use crate::statement::primary_address;

/// The pause before connecting to a sentinel again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const MOVED: &str = "+switch-master";

/// The watchers' tasks. Dropping this value ends the tasks.
#[derive(Debug, Default)]
pub(crate) struct SentinelWatchers(Vec<AbortHandle>);

impl SentinelWatchers {
    /// Starts one task for each sentinel. The tasks also end with the runtime; after that, only a
    /// broken connection reveals that the primary has moved.
    pub(crate) fn start(locator: &Arc<PrimaryLocator>) -> Self {
        let Some((nodes, service)) = locator.sentinels() else { return Self::default() };
        let task = |at| {
            tokio::spawn(watch(Arc::downgrade(locator), at, service.to_owned())).abort_handle()
        };
        Self((0..nodes.len()).map(task).collect())
    }
}

impl Drop for SentinelWatchers {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

async fn watch(locator: Weak<PrimaryLocator>, at: usize, service: String) {
    // `named` is the address that this sentinel reported last.
    let mut named = None;
    loop {
        let (to, pushed) = mpsc::unbounded_channel();
        let connection = {
            let Some(locator) = locator.upgrade() else { return };
            let Some((nodes, _)) = locator.sentinels() else { return };
            locator.connector().connect_sentinel(&nodes[at], &Purpose::Messages(to)).await
        };
        if let Ok(connection) = connection {
            let _ = listen(&locator, at, &service, connection, pushed, &mut named).await;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Subscribes to announcements, queries the address, and then follows the announcements. In this
/// order, the task misses no move. Returns when the connection ends.
///
/// An answer counts as a failover only if it differs from the previous answer of the same sentinel.
/// The first answer does not count, because the sentinel may be behind or cut off from the others.
/// Instead, if that answer differs from the known primary, all sentinels are queried again,
/// beginning with the sentinel that answered last. A sentinel therefore moves the store only when
/// its answer changes, which happens only in a failover. Reconnecting to a sentinel that still
/// reports the old primary does not move the store back.
async fn listen(
    locator: &Weak<PrimaryLocator>,
    at: usize,
    service: &str,
    mut connection: Connection,
    mut pushed: mpsc::UnboundedReceiver<PushInfo>,
    named: &mut Option<Address>,
) -> RedisResult<()> {
    connection.driver.subscribe(MOVED).await?;
    let answer = connection.send(Request::One(&primary_address(service))).await?;
    if let Value::Array(pair) = answer
        && let Some(found) = address(&pair)
    {
        match named.replace(found.clone()) {
            Some(before) if before == found => {}
            Some(_) => follow(locator, at, found),
            None => {
                if let Some(locator) = locator.upgrade() {
                    locator.check(&found).await;
                }
            }
        }
    }
    while let Some(push) = pushed.recv().await {
        if push.kind == PushKind::Disconnection {
            break;
        }
        if let Some(to) = moved_to(&push, service) {
            *named = Some(to.clone());
            follow(locator, at, to);
        }
    }
    Ok(())
}

/// Follows the primary to `to`. The next lookup begins with sentinel `at`, which reported the move.
fn follow(locator: &Weak<PrimaryLocator>, at: usize, to: Address) {
    if let Some(locator) = locator.upgrade() {
        locator.last_sentinel.store(at, Ordering::Relaxed);
        locator.announced(to);
    }
}

/// Returns the service's new address if `push` announces that the service has moved. The message is
/// `service old-host old-port new-host new-port`.
fn moved_to(push: &PushInfo, service: &str) -> Option<Address> {
    if push.kind != PushKind::Message {
        return None;
    }
    let Some(Value::BulkString(payload)) = push.data.get(1) else { return None };
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    if words.next()? != service {
        return None;
    }
    let host = words.nth(2)?.to_owned();
    Some(Address { host, port: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_1_a_move_is_read_for_the_own_service_alone() {
        let message = |kind, text: &str| PushInfo {
            kind,
            data: vec![Value::BulkString(MOVED.into()), Value::BulkString(text.into())],
        };
        let to = moved_to(&message(PushKind::Message, "main 10.0.0.1 6379 10.0.0.2 6380"), "main");
        assert_eq!(to, Some(Address { host: "10.0.0.2".to_owned(), port: 6380 }));
        assert_eq!(
            moved_to(&message(PushKind::Message, "other 10.0.0.1 6379 10.0.0.2 6380"), "main"),
            None
        );
        assert_eq!(
            moved_to(&message(PushKind::Subscribe, "main 10.0.0.1 6379 10.0.0.2 6380"), "main"),
            None
        );
        assert_eq!(
            moved_to(&message(PushKind::Message, "main 10.0.0.1 6379 10.0.0.2 x"), "main"),
            None
        );
        assert_eq!(moved_to(&message(PushKind::Message, ""), "main"), None);
    }
}
