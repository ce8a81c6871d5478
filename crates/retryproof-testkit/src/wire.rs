// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WireProxy`]: sits between a store and its server, counts round trips, and cuts, stalls or
//! delays connections.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use retryproof_testkit::wire::WireProxy;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! // A server that answers each byte with one.
//! let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let at = server.local_addr()?;
//! tokio::spawn(async move {
//!     let (mut line, _) = server.accept().await?;
//!     let mut byte = [0];
//!     while line.read_exact(&mut byte).await.is_ok() {
//!         line.write_all(&byte).await?;
//!     }
//!     std::io::Result::Ok(())
//! });
//!
//! let proxy = WireProxy::to(at).await?;
//! let mut client = tokio::net::TcpStream::connect(proxy.addr()).await?;
//! for _ in 0..3 {
//!     client.write_all(b"x").await?;
//!     client.read_exact(&mut [0]).await?;
//! }
//! assert_eq!(proxy.flights(), 3);
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// A TCP proxy on a free loopback port.
///
/// Dropping the proxy closes every connection through it.
#[derive(Debug)]
pub struct WireProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    flights: AtomicU64,
    lines: AtomicU64,
    refusing: AtomicBool,
    /// Each change to this value cuts every connection.
    cuts: watch::Sender<u64>,
    /// While `true`, nothing is forwarded in either direction.
    stalled: watch::Sender<bool>,
    /// How long the proxy delays a burst from the client.
    delay: watch::Sender<Duration>,
}

impl WireProxy {
    /// Listens on a free port of 127.0.0.1 and forwards everything to `target`.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn to(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            flights: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            delay: watch::Sender::new(Duration::ZERO),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, accepting })
    }

    /// Returns the address to connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of round trips so far. A round trip is one burst of data from the client
    /// that the server has answered, no matter how many messages or packets it has. Data that the
    /// server sends without a request does not count. Opening a connection counts as many round
    /// trips as the protocol needs.
    #[must_use]
    pub fn flights(&self) -> u64 {
        self.shared.flights.load(Ordering::SeqCst)
    }

    /// Returns the number of connections opened so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.shared.lines.load(Ordering::SeqCst)
    }

    /// Cuts every open connection, and loses the data in flight. New connections are still
    /// accepted.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Sets whether new connections are closed as soon as they are opened.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
    }

    /// Starts or ends a stall, in which connections stay open but nothing gets through in either
    /// direction. Data sent during the stall arrives after it.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.send_replace(stalled);
    }

    /// Simulates a distant server. Each round trip takes `round_trip` longer, on open connections
    /// too. Opening a connection also takes `round_trip`, in addition to the delay of its first
    /// burst.
    pub fn delay(&self, round_trip: Duration) {
        self.shared.delay.send_replace(round_trip);
    }
}

impl Drop for WireProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.refusing.load(Ordering::SeqCst) {
            continue;
        }
        shared.lines.fetch_add(1, Ordering::SeqCst);
        // Subscribe before starting the task, so that a cut right after the accept reaches this
        // connection too.
        let cut = shared.cuts.subscribe();
        tokio::spawn(pass(client, Arc::clone(&shared), cut));
    }
}

/// Forwards one connection until either side closes it or the proxy cuts it.
async fn pass(mut client: TcpStream, shared: Arc<Shared>, mut cut: watch::Receiver<u64>) {
    let Ok(mut server) = TcpStream::connect(shared.target).await else { return };
    // Send small packets immediately, as the drivers do on their side.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut stalled = shared.stalled.subscribe();
    let (mut asked, mut answer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    // `open` says whether the client has sent bytes that the server has not answered yet.
    let mut open = false;
    let mut under_way = VecDeque::<(Instant, Vec<u8>)>::new();
    let opened = Instant::now() + *shared.delay.borrow();
    loop {
        tokio::select! {
            biased;
            _ = cut.changed() => return,
            // The wait never fails, because the sender lives as long as this task.
            running = stalled.wait_for(|stalled| !stalled) => if running.is_err() { return },
        }
        tokio::select! {
            biased;
            _ = cut.changed() => return,
            _ = stalled.changed() => {}
            () = until_first(&under_way) => {
                let Some((_, burst)) = under_way.pop_front() else { continue };
                open = true;
                if server.write_all(&burst).await.is_err() {
                    return;
                }
            }
            read = client.read(&mut asked) => match read {
                Ok(bytes @ 1..) => {
                    let at = Instant::now().max(opened) + *shared.delay.borrow();
                    under_way.push_back((at, asked[..bytes].to_vec()));
                }
                _ => return,
            },
            read = server.read(&mut answer) => match read {
                Ok(bytes @ 1..) => {
                    // Count the round trip before forwarding the answer, so that the count is
                    // already correct when the client has the answer.
                    if std::mem::take(&mut open) {
                        shared.flights.fetch_add(1, Ordering::SeqCst);
                    }
                    if client.write_all(&answer[..bytes]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

/// Waits until the first burst is due. If there is no burst, waits forever.
async fn until_first(under_way: &VecDeque<(Instant, Vec<u8>)>) {
    match under_way.front() {
        Some((at, _)) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}
