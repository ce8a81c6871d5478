// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Proxy`]: makes the faults of connections, between the workers and the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Duration, sleep};

use crate::mono;

/// What the proxy does to every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Nothing.
    Calm,
    /// Closes all open connections, and each new one at once.
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
    harm: Arc<Harm>,
}

/// What the moods have done to connections.
#[derive(Debug, Default)]
struct Harm {
    /// How many connections have lost an answer and are not closed yet.
    spoilt: AtomicUsize,
    /// When the last mood first harmed a connection; 0 if it has harmed none.
    since: AtomicU64,
    away: Mutex<Away>,
}

/// When no connection led to the server, so that nothing could reach it.
#[derive(Debug, Default)]
struct Away {
    links: usize,
    since: u64,
    /// The intervals that have ended.
    over: Vec<(u64, u64)>,
}

/// A connection to the server.
struct Link<'a>(&'a Harm);

impl<'a> Link<'a> {
    fn new(harm: &'a Harm) -> Self {
        let mut away = harm.away.lock();
        if away.links == 0 {
            let since = away.since;
            away.over.push((since, mono::now()));
        }
        away.links += 1;
        Self(harm)
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let mut away = self.0.away.lock();
        away.links -= 1;
        away.since = mono::now();
    }
}

impl Harm {
    fn begin(&self) {
        let _ = self.since.compare_exchange(0, mono::now(), Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// A connection that has lost an answer and is not closed yet.
struct Spoilt(Arc<Harm>);

impl Spoilt {
    fn new(harm: &Arc<Harm>) -> Self {
        harm.spoilt.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(harm))
    }
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        self.0.spoilt.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Proxy {
    /// Starts a proxy in front of `target`.
    pub(crate) fn start(target: SocketAddr) -> io::Result<Self> {
        let (mood, moods) = watch::channel(Mood::Calm);
        let (tell, told) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let harm = Arc::<Harm>::default();
        harm.away.lock().since = mono::now();
        let done = Arc::clone(&harm);
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
                serve(listener, target, moods, &done).await;
            });
        });
        let port = told.recv().map_err(io::Error::other)??;
        Ok(Self { port, mood, harm })
    }

    /// Sets the mood from now on.
    pub(crate) fn set(&self, mood: Mood) {
        if mood != Mood::Calm {
            self.harm.since.store(0, Ordering::SeqCst);
        }
        self.mood.send_replace(mood);
    }

    /// When the last mood first harmed a connection, if it did.
    pub(crate) fn harmed_since(&self) -> Option<u64> {
        Some(self.harm.since.load(Ordering::SeqCst)).filter(|since| *since > 0)
    }

    /// The intervals in which nothing could reach the server, and which have ended since the last
    /// call of this method.
    pub(crate) fn away(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.harm.away.lock().over)
    }

    /// Whether connections that the last mood has spoilt are still open. Such a connection may
    /// accept a request and lose its answer.
    pub(crate) fn is_closing(&self) -> bool {
        self.harm.spoilt.load(Ordering::SeqCst) > 0
    }
}

async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    mut moods: watch::Receiver<Mood>,
    harm: &Arc<Harm>,
) {
    let gone = moods.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    tokio::spawn(connection(client, target, gone.clone(), Arc::clone(harm)));
                }
            }
            // An error means that the supervisor has ended.
            changed = moods.changed() => if changed.is_err() { return },
        }
    }
}

async fn connection(
    client: TcpStream,
    target: SocketAddr,
    moods: watch::Receiver<Mood>,
    harm: Arc<Harm>,
) {
    if *moods.borrow() == Mood::Cut {
        harm.begin();
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    // This value is dropped last, so the link counts until both connections are closed.
    let _link = Link::new(&harm);
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // If one direction ends, end both.
    tokio::select! {
        () = pass(from_client, to_server, moods.clone(), Way::Request, &harm) => {}
        () = pass(from_server, to_client, moods, Way::Reply, &harm) => {}
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
    harm: &Arc<Harm>,
) {
    let mut buffer = vec![0; 16 * 1_024];
    let mut mood = *moods.borrow_and_update();
    let (mut passed, mut swallowed) = (0, None);
    loop {
        let read = tokio::select! {
            // Check for a new mood first, so that it applies to all data that is sent after the
            // change.
            biased;
            changed = moods.changed() => {
                mood = *moods.borrow_and_update();
                passed = 0;
                // If a part of the stream was swallowed, close the connection, because the rest is
                // meaningless.
                if changed.is_err() || mood == Mood::Cut || swallowed.is_some() {
                    harm.begin();
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
            (Mood::Cut, _) => {
                harm.begin();
                return;
            }
            (Mood::CutAfterRequest(most), Way::Request)
            | (Mood::CutAfterReply(most), Way::Reply) => {
                let left = usize::try_from(most.saturating_sub(passed)).unwrap_or(usize::MAX);
                if rest.len() >= left {
                    harm.begin();
                    rest = &rest[..left];
                    let _ = to.write_all(rest).await;
                    return;
                }
            }
            (Mood::DropReplies, Way::Reply) => {
                harm.begin();
                swallowed.get_or_insert_with(|| Spoilt::new(harm));
                continue;
            }
            (Mood::Delay(ms), _) => {
                harm.begin();
                sleep(Duration::from_millis(ms)).await;
            }
            (Mood::Stall, _) => {
                harm.begin();
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
            assert!(
                mood == Mood::Cut || proxy.harmed_since().is_none(),
                "{mood:?} has met nothing"
            );
            assert!(ask(&mut stream).is_err(), "{mood:?}");
            assert!(proxy.harmed_since().is_some(), "{mood:?}");
            proxy.set(Mood::Calm);
            assert_eq!(&ask(&mut connect(&proxy)).unwrap(), b"pingping", "calm after {mood:?}");
        }
    }

    #[test]
    fn nothing_reaches_the_server_while_no_connection_leads_there() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = connect(&proxy);
        assert!(ask(&mut stream).is_ok());
        assert_eq!(proxy.away().len(), 1, "before the first connection");
        proxy.set(Mood::Cut);
        let cut = mono::now();
        assert!(ask(&mut stream).is_err());
        assert!(ask(&mut connect(&proxy)).is_err());
        assert!(proxy.away().is_empty(), "still away");
        let calm = mono::now();
        proxy.set(Mood::Calm);
        assert!(ask(&mut connect(&proxy)).is_ok());
        let [(from, to)] = proxy.away()[..] else { panic!("away once") };
        assert!(cut < from && from < calm && calm < to);
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
