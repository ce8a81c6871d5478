// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who the primary is, asked of the sentinels; and a watch on each of them, so that a fail-over is
//! followed at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use retryproof_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::config::{Address, Target};
use crate::connection::{Conn, Purpose};
use crate::error::Failure;
use crate::pool::primary::Route;

/// Before a sentinel that went away is tried again.
const AGAIN: Duration = Duration::from_secs(1);
const MOVED: &str = "+switch-master";

/// Asks the sentinels, the one that answered last first.
///
/// # Errors
/// `Config` when one of them answers and knows no such service; else what the last of them failed
/// with.
pub(crate) async fn primary(route: &Route, nodes: &[Address], service: &str) -> Result<Address> {
    let cmd = ask(service);
    let from = route.last_sentinel.load(Ordering::Relaxed);
    let mut last = None;
    for at in (0..nodes.len()).map(|step| (from + step) % nodes.len()) {
        let asked = async {
            let mut conn = route.dialer().sentinel(&nodes[at], &Purpose::Calls).await?;
            let answer = conn.driver.send_packed_command(&cmd).await.map_err(Failure::Connection);
            answer.map_err(|failure| failure.into_error().with("sentinel", &nodes[at]))
        };
        match asked.await {
            Ok(Value::Array(pair)) => {
                if let Some(found) = address(&pair) {
                    route.last_sentinel.store(at, Ordering::Relaxed);
                    return Ok(found);
                }
                last = Some(Error::new(
                    ErrorKind::Unexpected,
                    "the sentinel's answer is not an address",
                ));
            }
            Ok(Value::Nil) => {
                last = Some(
                    Error::new(ErrorKind::Config, "the sentinels watch no service of that name")
                        .with("service", format_args!("{service:?}")),
                );
            }
            Ok(Value::ServerError(error)) => {
                // A server that is no sentinel knows no such command.
                last = Some(match error.code() {
                    "ERR" => Error::new(
                        ErrorKind::Config,
                        "the server is no sentinel; for one server alone write `redis://HOST:PORT`",
                    ),
                    _ => Failure::Server(error).into_error(),
                });
            }
            Ok(_) => {
                last = Some(Error::new(
                    ErrorKind::Unexpected,
                    "the sentinel's answer is not an address",
                ))
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Config, "no sentinel is configured")))
}

fn ask(service: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("SENTINEL").arg("get-master-addr-by-name").arg(service);
    cmd
}

fn address(pair: &[Value]) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = pair else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    Some(Address { host, port: std::str::from_utf8(port).ok()?.parse().ok()? })
}

/// The watches on the sentinels; ended by the drop.
#[derive(Debug, Default)]
pub(crate) struct Watches(Vec<AbortHandle>);

impl Watches {
    /// Starts one task for each sentinel. They end with the runtime, too: then a broken connection
    /// is what tells of a move.
    pub(crate) fn start(route: &Arc<Route>) -> Self {
        let Target::Sentinel { nodes, service } = &route.config().target else {
            return Self::default();
        };
        let task =
            |at| tokio::spawn(watch(Arc::downgrade(route), at, service.clone())).abort_handle();
        Self((0..nodes.len()).map(task).collect())
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

async fn watch(route: Weak<Route>, at: usize, service: String) {
    // What this sentinel named last.
    let mut named = None;
    loop {
        let (to, pushed) = mpsc::unbounded_channel();
        let conn = {
            let Some(route) = route.upgrade() else { return };
            let Target::Sentinel { nodes, .. } = &route.config().target else { return };
            route.dialer().sentinel(&nodes[at], &Purpose::Messages(to)).await
        };
        if let Ok(conn) = conn {
            let _ = listen(&route, at, &service, conn, pushed, &mut named).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Listens, then looks, then hears: a move before the subscription, or while the watch was lost, is
/// seen; a later one is announced. Ends with the connection.
///
/// What a look finds moves us as an announcement does when this sentinel has changed its mind since
/// it was last heard. What it names at first is no news, for it may be behind, or cut off from the
/// others: then all are asked, the one that we follow first, as for every connection. So a sentinel
/// that stays with the old primary cannot fetch us back as often as its watch is made anew, to be
/// sent off again by the others, for ever: each moves us as often as it changes its mind, which it
/// does in a fail-over alone.
async fn listen(
    route: &Weak<Route>,
    at: usize,
    service: &str,
    mut conn: Conn,
    mut pushed: mpsc::UnboundedReceiver<PushInfo>,
    named: &mut Option<Address>,
) -> RedisResult<()> {
    conn.driver.subscribe(MOVED).await?;
    let looked = conn.driver.send_packed_command(&ask(service)).await?;
    if let Value::Array(pair) = looked
        && let Some(found) = address(&pair)
    {
        match named.replace(found.clone()) {
            Some(before) if before == found => {}
            Some(_) => follow(route, at, found),
            None => {
                if let Some(route) = route.upgrade() {
                    route.check(&found).await;
                }
            }
        }
    }
    while let Some(push) = pushed.recv().await {
        if push.kind == PushKind::Disconnection {
            break;
        }
        if let Some(to) = moved(&push, service) {
            *named = Some(to.clone());
            follow(route, at, to);
        }
    }
    Ok(())
}

/// The next connection asks the sentinel that told.
fn follow(route: &Weak<Route>, at: usize, to: Address) {
    if let Some(route) = route.upgrade() {
        route.last_sentinel.store(at, Ordering::Relaxed);
        route.has_moved(to);
    }
}

/// Where the service went: the message is `service old-host old-port new-host new-port`.
fn moved(push: &PushInfo, service: &str) -> Option<Address> {
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
        let said = |kind, text: &str| PushInfo {
            kind,
            data: vec![Value::BulkString(MOVED.into()), Value::BulkString(text.into())],
        };
        let to = moved(&said(PushKind::Message, "main 10.0.0.1 6379 10.0.0.2 6380"), "main");
        assert_eq!(to, Some(Address { host: "10.0.0.2".to_owned(), port: 6380 }));
        assert_eq!(
            moved(&said(PushKind::Message, "other 10.0.0.1 6379 10.0.0.2 6380"), "main"),
            None
        );
        assert_eq!(
            moved(&said(PushKind::Subscribe, "main 10.0.0.1 6379 10.0.0.2 6380"), "main"),
            None
        );
        assert_eq!(moved(&said(PushKind::Message, "main 10.0.0.1 6379 10.0.0.2 x"), "main"), None);
        assert_eq!(moved(&said(PushKind::Message, ""), "main"), None);
    }
}
