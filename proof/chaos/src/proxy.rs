// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Proxy`]: makes the faults of connections, between the workers and the servers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Duration, sleep};

mod delay;
mod half_open;
mod names;
mod spoilt;
#[cfg(test)]
mod tests;

pub(crate) use delay::Front;
use half_open::swallow;
pub(crate) use half_open::{PATIENCE, Stranded};
use names::Names;
use spoilt::{Harm, Link, Spoilt};

/// What the proxy does to every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Passes everything on unchanged.
    Calm,
    /// Closes all open connections, and each new one at once.
    Cut,
    /// Closes a connection after this many bytes to the server: within a request, or as soon as the
    /// request has arrived.
    CutAfterRequest(u64),
    /// Closes a connection after this many bytes from the server: within an answer, or before it.
    CutAfterReply(u64),
    /// Drops what the server sends, and closes the affected connections when the mood ends.
    DropReplies,
    /// Drops what clients send, and closes the affected connections when the mood ends.
    DropRequests,
    /// Delays each piece by this many milliseconds.
    Delay(u64),
    /// Passes nothing on, without an error to either side; when the mood ends, everything arrives.
    Stall,
}

/// The proxy's present mood, and how often it has made its connections half-open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weather {
    mood: Mood,
    severed: u32,
}

/// A server behind the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// Whether the server tells clients the ports of other servers, as a sentinel does.
    pub(crate) names_ports: bool,
}

/// A proxy with a separate port for each target, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// The proxy's ports, in the order of the targets.
    pub(crate) ports: Vec<u16>,
    weather: watch::Sender<Weather>,
    harm: Arc<Harm>,
}

/// What each connection needs.
#[derive(Clone)]
struct Passage {
    weather: watch::Receiver<Weather>,
    harm: Arc<Harm>,
    names: Arc<Names>,
}

impl Proxy {
    /// Starts a proxy in front of the targets.
    pub(crate) fn start(targets: &[Target]) -> io::Result<Self> {
        let (weather, seen) = watch::channel(Weather { mood: Mood::Calm, severed: 0 });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut listeners = Vec::new();
        for target in targets {
            let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            listeners.push((runtime.block_on(bound)?, *target));
        }
        let ports = listeners.iter().map(|(listener, _)| Ok(listener.local_addr()?.port()));
        let ports: Vec<u16> = ports.collect::<io::Result<_>>()?;
        let names = Arc::new(Names::new(
            targets.iter().map(|target| target.address.port()).zip(ports.iter().copied()),
        )?);
        let harm = Arc::new(Harm::new());
        let passage = Passage { weather: seen, harm: Arc::clone(&harm), names };
        std::thread::spawn(move || {
            runtime.block_on(async {
                for (listener, target) in listeners {
                    tokio::spawn(serve(listener, target, passage.clone()));
                }
                let mut weather = passage.weather;
                // Serve until the `Proxy` is dropped.
                while weather.changed().await.is_ok() {}
            });
        });
        Ok(Self { ports, weather, harm })
    }

    /// Sets the mood from now on.
    pub(crate) fn set(&self, mood: Mood) {
        if mood != Mood::Calm {
            self.harm.forget();
        }
        self.weather.send_modify(|weather| weather.mood = mood);
    }

    /// Returns when the last mood first harmed a connection, if it did.
    pub(crate) fn harmed_since(&self) -> Option<u64> {
        self.harm.since()
    }

    /// Returns the intervals in which nothing could reach the server, and which have ended since
    /// the last call of this method.
    pub(crate) fn away(&self) -> Vec<(u64, u64)> {
        self.harm.away()
    }

    /// Makes all open connections half-open: their servers disappear without FIN or RST, and the
    /// proxy swallows what clients still send. New connections are not disturbed.
    pub(crate) fn sever(&self) {
        self.weather.send_modify(|weather| weather.severed += 1);
    }

    /// Sets whether the client's process is stopped, so that it cannot give up a connection.
    pub(crate) fn client_stands(&self, still: bool) {
        self.harm.client_stands(still);
    }

    /// Returns whether connections that the last mood has spoilt are still open. Such a connection
    /// may accept a request and lose its answer.
    pub(crate) fn is_closing(&self) -> bool {
        self.harm.spoilt() > 0
    }

    /// Returns how half-open connections ended.
    pub(crate) fn stranded(&self) -> Stranded {
        self.harm.stranded()
    }
}

async fn serve(listener: TcpListener, target: Target, passage: Passage) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, target, passage.clone()));
        }
    }
}

/// Why a connection no longer passes data on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// One side or the proxy has closed the connection.
    Closed,
    /// The server has disappeared without closing the connection.
    Severed,
}

async fn connection(client: TcpStream, target: Target, passage: Passage) {
    if passage.weather.borrow().mood == Mood::Cut {
        passage.harm.begin();
        return;
    }
    let Ok(server) = TcpStream::connect(target.address).await else { return };
    // Do not count connections to a sentinel, because it stores no records.
    let link = (!target.names_ports).then(|| Link::new(&passage.harm));
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let names_ports = target.names_ports;
    let requests = pass(&mut from_client, &mut to_server, passage.clone(), Way::Request);
    let way = Way::Reply { names_ports };
    let replies = pass(&mut from_server, &mut to_client, passage.clone(), way);
    // If one direction ends, end both.
    let over = tokio::select! {
        over = requests => over,
        over = replies => over,
    };
    // The link ends after both halves are closed.
    drop((from_server, to_server));
    drop(link);
    if over == Over::Severed {
        swallow(&mut from_client, &passage.harm).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply { names_ports: bool },
}

async fn pass(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    passage: Passage,
    way: Way,
) -> Over {
    let Passage { mut weather, harm, names } = passage;
    let mut buffer = vec![0; 16 * 1_024];
    let Weather { mut mood, severed } = *weather.borrow_and_update();
    let (mut passed, mut swallowed) = (0, None);
    loop {
        let read = tokio::select! {
            // Check for a new mood first, so that it applies to all data that is sent after the
            // change.
            biased;
            changed = weather.changed() => {
                let now = *weather.borrow_and_update();
                if now.severed != severed {
                    return Over::Severed;
                }
                mood = now.mood;
                passed = 0;
                // If a part of the stream was swallowed, close the connection, because the rest is
                // meaningless.
                if changed.is_err() || mood == Mood::Cut || swallowed.is_some() {
                    harm.begin();
                    return Over::Closed;
                }
                continue;
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return Over::Closed,
                Ok(read) => read,
            },
        };
        if way == (Way::Reply { names_ports: true }) {
            names.translate(&mut buffer[..read]);
        }
        let mut rest = &buffer[..read];
        match (mood, way) {
            (Mood::Cut, _) => {
                harm.begin();
                return Over::Closed;
            }
            (Mood::CutAfterRequest(most), Way::Request)
            | (Mood::CutAfterReply(most), Way::Reply { .. }) => {
                let left = usize::try_from(most.saturating_sub(passed)).unwrap_or(usize::MAX);
                if rest.len() >= left {
                    harm.begin();
                    rest = &rest[..left];
                    let _ = to.write_all(rest).await;
                    return Over::Closed;
                }
            }
            (Mood::DropReplies, Way::Reply { .. }) | (Mood::DropRequests, Way::Request) => {
                harm.begin();
                swallowed.get_or_insert_with(|| Spoilt::new(&harm));
                continue;
            }
            (Mood::Delay(ms), _) => {
                harm.begin();
                sleep(Duration::from_millis(ms)).await;
            }
            (Mood::Stall, _) => {
                harm.begin();
                let over = |now: &Weather| now.mood != Mood::Stall || now.severed != severed;
                let now = match weather.wait_for(over).await {
                    Ok(now) => *now,
                    Err(_) => return Over::Closed,
                };
                if now.severed != severed {
                    return Over::Severed;
                }
                mood = now.mood;
            }
            _ => {}
        }
        passed += rest.len() as u64;
        if to.write_all(rest).await.is_err() {
            return Over::Closed;
        }
    }
}
