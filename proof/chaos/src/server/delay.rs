// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delay`]: a link to a server on which everything arrives late, which can break with all that is
//! under way, and which can lead to another server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant, sleep_until};

/// A link with a port of its own, which ends when it is dropped.
pub(super) struct Delay {
    pub(super) port: u16,
    /// The port of the server.
    target: Arc<AtomicU16>,
    is_broken: Arc<AtomicBool>,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
    /// Each change closes all connections.
    breaks: watch::Sender<()>,
}

impl Delay {
    /// Starts a link to a server on this port of 127.0.0.1.
    pub(super) fn to(port: u16, delay: Duration) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let own = listener.local_addr()?.port();
        let (breaks, broken) = watch::channel(());
        let is_broken = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let target = Arc::new(AtomicU16::new(port));
        let (refuses, counts) = (Arc::clone(&is_broken), Arc::clone(&open));
        let leads_to = Arc::clone(&target);
        std::thread::spawn(move || {
            runtime.block_on(async {
                let mut ends = broken.clone();
                let accepting = async {
                    loop {
                        let Ok((client, _)) = listener.accept().await else { continue };
                        if !refuses.load(Ordering::SeqCst) {
                            let (broken, counts) = (broken.clone(), Arc::clone(&counts));
                            let port = leads_to.load(Ordering::SeqCst);
                            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                            tokio::spawn(async move {
                                counts.fetch_add(1, Ordering::SeqCst);
                                connection(client, target, delay, broken).await;
                                counts.fetch_sub(1, Ordering::SeqCst);
                            });
                        }
                    }
                };
                // Serve until the `Delay` is dropped.
                let dropped = async { while ends.changed().await.is_ok() {} };
                tokio::select! {
                    () = accepting => {}
                    () = dropped => {}
                }
            });
        });
        Ok(Self { port: own, target, is_broken, open, breaks })
    }

    /// Lets new connections lead to another server. Open ones stay with theirs.
    pub(super) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }

    /// Returns whether a connection is open.
    pub(super) fn is_used(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Breaks the link: closes all connections, loses what is under way, and refuses new
    /// connections until the link is mended.
    pub(super) fn set_broken(&self, broken: bool) {
        self.is_broken.store(broken, Ordering::SeqCst);
        if broken {
            self.breaks.send_replace(());
        }
    }
}

async fn connection(
    client: TcpStream,
    target: SocketAddr,
    delay: Duration,
    mut broken: watch::Receiver<()>,
) {
    broken.mark_unchanged();
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // If one direction ends, end both.
    tokio::select! {
        _ = broken.changed() => {}
        () = pass(from_client, to_server, delay) => {}
        () = pass(from_server, to_client, delay) => {}
    }
}

/// Passes on each piece after the delay, however many pieces are under way.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (pieces, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if pieces.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
        drop(pieces);
    };
    let writing = async {
        while let Some((at, piece)) = due.recv().await {
            sleep_until(at).await;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
    };
    // What was sent before the end of the stream still arrives.
    tokio::join!(reading, writing);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::mono::{self, MS};

    #[test]
    fn pieces_arrive_late_and_in_order_and_a_break_loses_what_is_under_way() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let link =
            Delay::to(server.local_addr().unwrap().port(), Duration::from_millis(150)).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", link.port)).unwrap();
        let (mut other, _) = server.accept().unwrap();
        let began = mono::now();
        for piece in [b"a", b"b", b"c"] {
            client.write_all(piece).unwrap();
            mono::rest(20);
        }
        let mut got = [0; 3];
        other.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abc");
        let took = mono::now() - began;
        assert!(took >= 150 * MS, "{took}");

        client.write_all(b"d").unwrap();
        mono::rest(20);
        link.set_broken(true);
        assert_eq!(other.read(&mut got).unwrap_or(0), 0, "the piece under way is lost");
        let refused = TcpStream::connect(("127.0.0.1", link.port));
        assert!(refused.and_then(|mut refused| refused.read(&mut got)).unwrap_or(0) == 0);
        link.set_broken(false);
        let mut client = TcpStream::connect(("127.0.0.1", link.port)).unwrap();
        client.write_all(b"e").unwrap();
        let (mut other, _) = server.accept().unwrap();
        other.read_exact(&mut got[..1]).unwrap();
        assert_eq!(got[0], b'e');
    }
}
