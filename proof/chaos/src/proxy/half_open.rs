// SPDX-License-Identifier: MIT OR Apache-2.0
//! Half-open connections: the peer is gone, and neither FIN nor RST has said so.

use std::pin::pin;

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Duration, sleep, timeout};

use super::spoilt::Harm;

/// How long a client may use one before it gives it up. A store gives a connection no more than 5 s
/// to answer; the rest is what a shared machine adds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long one is kept that no client uses.
const UNUSED: Duration = Duration::from_millis(30_000);

/// What became of half-open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stranded {
    /// The client gave them up by itself.
    pub(crate) left: u64,
    /// The client sent requests for [`PATIENCE`], and got no answer.
    pub(crate) stuck: u64,
}

impl Stranded {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { left: self.left + other.left, stuck: self.stuck + other.stuck }
    }
}

/// Swallows what the client sends, until it gives the connection up or has used it for too long.
pub(super) async fn swallow(from: &mut OwnedReadHalf, harm: &Harm) {
    let mut buffer = vec![0; 4_096];
    // A pool may keep a connection for long without using it, and cannot notice.
    let Ok(read) = timeout(UNUSED, from.read(&mut buffer)).await else { return };
    if matches!(read, Ok(0) | Err(_)) {
        return harm.strand(false);
    }
    let mut over = pin!(sleep(PATIENCE));
    loop {
        tokio::select! {
            () = &mut over => return harm.strand(true),
            read = from.read(&mut buffer) => if matches!(read, Ok(0) | Err(_)) {
                return harm.strand(false);
            },
        }
    }
}
