// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a call on the node that has its key, and follows the key if its slot moves.

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use retryproof_core::Backoff;
use retryproof_store_kit::jitter;
use tokio::time::{Instant, sleep, timeout};

use super::slots::slot;
use super::{Cluster, ClusterMember, no_owner};
use crate::connection::Request;
use crate::error::{Failure, Recovery, Redirection};
use crate::pool::node::Node;
use crate::statement::asking;

/// The pauses of a call that was not served. For seconds after the death of a primary, the other
/// nodes still name it, or serve no key at all.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));

impl Cluster {
    /// Sends a request about one key, and waits for the answer. While the key's node fails over, or
    /// its slot moves, the request is sent again, until the call timeout is over. Owner ids make
    /// the repetition safe (ACQ-9, CMP-3).
    pub(crate) async fn run(
        self: &Arc<Self>,
        key: &[u8],
        request: Request<'_>,
        waits: bool,
    ) -> Result<Value, Failure> {
        let slot = slot(key);
        let mut deadline = None;
        let (mut tries, mut lost) = (0, false);
        let (mut target, mut asks) = (self.owner(slot), false);
        loop {
            let failure = match target.as_deref() {
                None => no_owner(slot),
                Some(ClusterMember { node, .. }) => {
                    let deadline =
                        *deadline.get_or_insert_with(|| Instant::now() + node.call_timeout(waits));
                    match attempt(node, request, asks, waits, deadline, tries > 0).await {
                        Ok(answer) => return Ok(answer),
                        Err(failure) => failure,
                    }
                }
            };
            let failed = target.as_ref().map(|member| &member.at);
            let redirection = failed.and_then(|at| failure.redirection(at));
            let is_passing = failure.is_passing_in_cluster();
            let recovery = failure.recovery();
            lost |= recovery == Recovery::RetryOnNewConnection;
            if recovery == Recovery::ReconnectForNextCall {
                self.refresh();
            }
            let pause = jitter(PAUSES.after(tries));
            let is_late = deadline.is_some_and(|deadline| Instant::now() + pause >= deadline);
            if !is_passing || is_late {
                let failure = match failed {
                    Some(at) => failure.on_node(at),
                    None => failure,
                };
                // The server's answer to a repeated request decides, as it does without a cluster.
                let is_answer = matches!(failure, Failure::OnNode(..)) && !is_passing;
                return Err(if lost && !is_answer { failure.after_lost_answer() } else { failure });
            }
            tries += 1;
            deadline.get_or_insert_with(|| Instant::now() + self.connector.config().call_timeout);
            // The first redirection is followed at once. A further one may point to a dead node.
            if tries > 1 || redirection.is_none() {
                self.pause(tries, pause).await;
            }
            (target, asks) = match redirection {
                Some(Redirection::Moved(to)) => {
                    self.refresh();
                    (Some(self.moved(slot, &to)), false)
                }
                Some(Redirection::Asked(to)) => (Some(self.member_at(&to)), true),
                None => (self.owner(slot), false),
            };
        }
    }

    /// Reads the map again. The first pause ends when the map has been read.
    async fn pause(self: &Arc<Self>, tries: u32, pause: Duration) {
        let refreshed = self.refreshed.notified();
        self.refresh();
        if tries > 1 {
            sleep(pause).await;
        } else {
            let _ = timeout(PAUSES.after(u32::MAX), refreshed).await;
        }
    }
}

/// Sends a request to a node. If the node is only about to receive the slot (`asks`), ASKING goes
/// before each command, because it is valid for one command.
async fn attempt(
    node: &Node,
    request: Request<'_>,
    asks: bool,
    waits: bool,
    deadline: Instant,
    has_waited: bool,
) -> Result<Value, Failure> {
    if !asks {
        return node.attempt(request, waits, deadline, has_waited).await;
    }
    let mut batch = Pipeline::new();
    let mut add = |cmd: &redis::Cmd| {
        batch.add_command(asking()).add_command(cmd.clone());
    };
    match request {
        Request::One(cmd) => add(cmd),
        Request::Batch(commands) => commands.cmd_iter().for_each(add),
    }
    let answer = node.attempt(Request::Batch(&batch), waits, deadline, has_waited).await?;
    let Value::Array(answers) = answer else { return Ok(answer) };
    let mut answers: Vec<_> = answers.into_iter().skip(1).step_by(2).collect();
    Ok(match request {
        Request::One(_) => answers.pop().unwrap_or(Value::Nil),
        Request::Batch(_) => Value::Array(answers),
    })
}
