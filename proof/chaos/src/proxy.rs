// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Proxy`]: makes the faults of connections, between the workers and the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Duration, sleep};

/// What the proxy does to every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Nothing.
    Calm,
    /// Closes all connections, and new ones at once.
    Cut,
    /// Closes a connection after this many bytes to the server: within a request, or as soon as the
    /// request has arrived.
    CutAfterRequest(u64),
    /// Closes a connection after this many bytes from the server: within an answer, or before it.
    CutAfterReply(u64),
    /// Drops what the server sends; closes those connections when the mood ends.
    DropReplies,
    /// Delays each piece by this many milliseconds.
    Delay(u64),
    /// Passes nothing on, without an error to either side; when the mood ends, everything arrives.
    Stall,
}

/// A proxy on a separate port, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mood: watch::Sender<Mood>,
    spoilt: Arc<AtomicUsize>,
}

/// A connection that has lost an answer and is not closed yet.
struct Spoilt(Arc<AtomicUsize>);

impl Spoilt {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Proxy {
    /// Starts a proxy in front of `target`.
    pub(crate) fn start(target: SocketAddr) -> io::Result<Self> {
        let (mood, moods) = watch::channel(Mood::Calm);
        let (tell, told) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let spoilt = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&spoilt);
        std::thread::spawn(move || {
            runtime.block_on(async {
                let bound = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await;
                let listener = match bound
                    .and_then(|listener| Ok((listener.local_addr()?.port(), listener)))
                {
                    Ok((port, listener)) => {
                        let _ = tell.send(Ok(port));
                        listener
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                };
                serve(listener, target, moods, &count).await;
            });
        });
        let port = told.recv().map_err(io::Error::other)??;
        Ok(Self { port, mood, spoilt })
    }

    /// Sets the mood from now on.
    pub(crate) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// Whether connections that the last mood has spoilt are still open: they may take a request
    /// and lose its answer.
    pub(crate) fn is_closing(&self) -> bool {
        self.spoilt.load(Ordering::SeqCst) > 0
    }
}

async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    mut moods: watch::Receiver<Mood>,
    spoilt: &Arc<AtomicUsize>,
) {
    let gone = moods.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    tokio::spawn(connection(client, target, gone.clone(), Arc::clone(spoilt)));
                }
            }
            // The supervisor has ended.
            changed = moods.changed() => if changed.is_err() { return },
        }
    }
}

async fn connection(
    client: TcpStream,
    target: SocketAddr,
    moods: watch::Receiver<Mood>,
    spoilt: Arc<AtomicUsize>,
) {
    if *moods.borrow() == Mood::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // If one direction ends, end both.
    tokio::select! {
        () = pass(from_client, to_server, moods.clone(), Way::Request, &spoilt) => {}
        () = pass(from_server, to_client, moods, Way::Reply, &spoilt) => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut moods: watch::Receiver<Mood>,
    way: Way,
    spoilt: &Arc<AtomicUsize>,
) {
    let mut buffer = vec![0; 16 * 1_024];
    let mut mood = *moods.borrow_and_update();
    let (mut passed, mut swallowed) = (0, None);
    loop {
        let read = tokio::select! {
            // The new mood applies to all data that is sent after the change.
            biased;
            changed = moods.changed() => {
                mood = *moods.borrow_and_update();
                passed = 0;
                // If a part of the stream is missing, the rest is meaningless.
                if changed.is_err() || mood == Mood::Cut || swallowed.is_some() {
                    return;
                }
                continue;
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => read,
            },
        };
        let mut rest = &buffer[..read];
        match (mood, way) {
            (Mood::Cut, _) => return,
            (Mood::CutAfterRequest(most), Way::Request)
            | (Mood::CutAfterReply(most), Way::Reply) => {
                let left = usize::try_from(most.saturating_sub(passed)).unwrap_or(usize::MAX);
                if rest.len() >= left {
                    rest = &rest[..left];
                    let _ = to.write_all(rest).await;
                    return;
                }
            }
            (Mood::DropReplies, Way::Reply) => {
                swallowed.get_or_insert_with(|| Spoilt::new(spoilt));
                continue;
            }
            (Mood::Delay(ms), _) => sleep(Duration::from_millis(ms)).await,
            (Mood::Stall, _) => {
                let _ = moods.wait_for(|mood| *mood != Mood::Stall).await;
            }
            _ => {}
        }
        passed += rest.len() as u64;
        if to.write_all(rest).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener as Listener;

    /// A server that sends everything twice.
    fn echo() -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut word = [0; 4];
                    while stream.read_exact(&mut word).is_ok() {
                        if stream.write_all(&[word, word].concat()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn ask(stream: &mut std::net::TcpStream) -> io::Result<[u8; 8]> {
        stream.write_all(b"ping")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).map(|()| answer)
    }

    fn connect(proxy: &Proxy) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        stream
    }

    #[test]
    fn connections_are_cut_in_requests_and_in_answers_and_come_back() {
        let proxy = Proxy::start(echo()).unwrap();
        for mood in
            [Mood::Cut, Mood::CutAfterRequest(2), Mood::CutAfterRequest(4), Mood::CutAfterReply(3)]
        {
            let mut stream = connect(&proxy);
            assert_eq!(&ask(&mut stream).unwrap(), b"pingping", "calm before {mood:?}");
            proxy.set(mood);
            assert!(ask(&mut stream).is_err(), "{mood:?}");
            proxy.set(Mood::Calm);
            assert_eq!(&ask(&mut connect(&proxy)).unwrap(), b"pingping", "calm after {mood:?}");
        }
    }

    #[test]
    fn a_stalled_answer_arrives_later_and_a_swallowed_one_never() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = connect(&proxy);
        assert!(ask(&mut stream).is_ok());
        proxy.set(Mood::Stall);
        stream.write_all(b"ping").unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
        let mut answer = [0; 8];
        assert!(stream.read(&mut answer).is_err(), "no data should pass");
        proxy.set(Mood::Calm);
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        stream.read_exact(&mut answer).unwrap();
        proxy.set(Mood::DropReplies);
        stream.write_all(b"ping").unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
        assert!(stream.read(&mut answer).is_err(), "swallowed");
        assert!(proxy.is_closing());
        proxy.set(Mood::Calm);
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert!(
            matches!(stream.read(&mut answer), Ok(0) | Err(_)),
            "the connection should be closed afterwards"
        );
        while proxy.is_closing() {
            std::thread::yield_now();
        }
    }
}
