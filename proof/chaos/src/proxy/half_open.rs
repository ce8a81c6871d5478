// SPDX-License-Identifier: MIT OR Apache-2.0
//! Half-open connections: the peer is gone, but has sent neither FIN nor RST.

use std::pin::pin;

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Duration, sleep, timeout};

use super::spoilt::Harm;

/// How long a client may use a half-open connection before it gives the connection up. A store
/// waits at most 5 s for an answer; the rest allows for delays on a shared machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a half-open connection is kept if no client uses it.
const UNUSED: Duration = Duration::from_millis(30_000);

/// How half-open connections ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stranded {
    /// Connections that clients gave up by themselves.
    pub(crate) left: u64,
    /// Connections on which clients sent requests for [`PATIENCE`] without an answer.
    pub(crate) stuck: u64,
}

impl Stranded {
    pub(crate) fn and(self, other: Self) -> Self {
        Self { left: self.left + other.left, stuck: self.stuck + other.stuck }
    }
}

/// Swallows what the client sends, until the client gives the connection up or has used it for too
/// long.
pub(super) async fn swallow(from: &mut OwnedReadHalf, harm: &Harm) {
    let mut buffer = vec![0; 4_096];
    // A pool may keep an unused connection for long, and cannot notice that it is half-open.
    let Ok(read) = timeout(UNUSED, from.read(&mut buffer)).await else { return };
    if matches!(read, Ok(0) | Err(_)) {
        return harm.strand(false);
    }
    let first = shown(&buffer[..read.unwrap_or_default()]);
    let (mut over, mut reads) = (pin!(sleep(PATIENCE)), 1);
    loop {
        tokio::select! {
            () = &mut over => {
                eprintln!(
                    "a client used a half-open connection for more than {PATIENCE:?}: {reads} \
                     requests, the first {first}"
                );
                return harm.strand(true);
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return harm.strand(false),
                Ok(_) => reads += 1,
            },
        }
    }
}

/// Returns the beginning of a request as text.
fn shown(request: &[u8]) -> String {
    request[..request.len().min(300)].escape_ascii().to_string()
}
