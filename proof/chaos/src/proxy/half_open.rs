// SPDX-License-Identifier: MIT OR Apache-2.0
//! Half-open connections: the peer is gone, but has sent neither FIN nor RST.

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Duration, Instant, timeout};

use super::spoilt::Harm;

/// How long a client may use a half-open connection before it gives the connection up, without the
/// time in which its process is stopped. A store waits at most 5 s for an answer; the rest allows
/// for delays on a shared machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The step in which the use of a half-open connection is counted.
const TICK: Duration = Duration::from_millis(100);

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
    let (mut used, mut reads) = (Duration::ZERO, 1);
    while used < PATIENCE {
        let since = Instant::now();
        match timeout(TICK, from.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => return harm.strand(false),
            Ok(Ok(_)) => reads += 1,
            Err(_) => {}
        }
        // A stopped process cannot give up a connection.
        if !harm.is_client_standing() {
            used += since.elapsed();
        }
    }
    eprintln!(
        "a client used a half-open connection for more than {PATIENCE:?}: {reads} requests, the \
         first {first}"
    );
    harm.strand(true);
}

/// Returns the beginning of a request as text.
fn shown(request: &[u8]) -> String {
    request[..request.len().min(300)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_stuck_after_the_time_in_which_its_client_ran() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut from, _to) = listener.accept().await.unwrap().0.into_split();
        let harm = Arc::new(Harm::new());
        client.write_all(b"a request").await.unwrap();
        harm.client_stands(true);
        let goes_on = Arc::clone(&harm);
        tokio::spawn(async move {
            sleep(Duration::from_secs(20)).await;
            goes_on.client_stands(false);
        });
        let began = Instant::now();
        swallow(&mut from, &harm).await;
        assert_eq!(harm.stranded(), Stranded { left: 0, stuck: 1 });
        let lasted = began.elapsed();
        assert!((Duration::from_secs(30)..Duration::from_secs(31)).contains(&lasted), "{lasted:?}");
    }
}
