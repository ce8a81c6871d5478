// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Front`]: stands in front of the nodes of a cluster, and delays what they send to replicas. On
//! one machine, a replica has each write so soon that a failover hardly ever loses one.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, sleep_until};

/// The command after which a replica receives its primary's writes.
const REPLICATES: &[u8] = b"PSYNC";

/// Listeners in front of servers. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Front {
    delay: Duration,
    bound: Vec<(TcpListener, u16)>,
    serving: Option<oneshot::Sender<()>>,
}

impl Front {
    pub(crate) fn new(delay: Duration) -> Self {
        Self { delay, bound: Vec::new(), serving: None }
    }

    /// Returns a port in front of the server's port.
    pub(crate) fn port_of(&mut self, server: u16) -> io::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.bound.push((listener, server));
        Ok(port)
    }

    /// Begins to pass connections on.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (serving, dropped) = oneshot::channel();
        self.serving = Some(serving);
        let (bound, delay) = (std::mem::take(&mut self.bound), self.delay);
        std::thread::spawn(move || {
            runtime.block_on(async {
                for (listener, server) in bound {
                    tokio::spawn(accept(listener, server, delay));
                }
                let _ = dropped.await;
            });
        });
        Ok(())
    }
}

async fn accept(listener: TcpListener, server: u16, delay: Duration) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(connection(client, server, delay));
    }
}

async fn connection(client: TcpStream, server: u16, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let replicates = Arc::new(AtomicBool::new(false));
    let is_late = Arc::clone(&replicates);
    let requests = async {
        let mut buffer = vec![0; 16 * 1_024];
        loop {
            let read = from_client.read(&mut buffer).await?;
            let sent = &buffer[..read];
            if sent.windows(REPLICATES.len()).any(|part| part == REPLICATES) {
                replicates.store(true, Ordering::Relaxed);
            }
            if read == 0 {
                return Ok(());
            }
            to_server.write_all(sent).await?;
        }
    };
    let delay = move || if is_late.load(Ordering::Relaxed) { delay } else { Duration::ZERO };
    // If one direction ends, end both. What is still on its way is lost.
    tokio::select! {
        ended = requests => ended,
        ended = pass(from_server, to_client, delay) => ended,
    }
}

/// Passes each piece on after the delay that holds when it arrives.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: impl Fn() -> Duration,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1_024];
    let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    loop {
        let due = waiting.front().map(|(at, _)| *at);
        tokio::select! {
            read = from.read(&mut buffer) => match read? {
                0 => return Ok(()),
                read if delay().is_zero() => to.write_all(&buffer[..read]).await?,
                read => waiting.push_back((Instant::now() + delay(), buffer[..read].to_vec())),
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some((_, piece)) = waiting.pop_front() {
                    to.write_all(&piece).await?;
                }
            }
        }
    }
}
