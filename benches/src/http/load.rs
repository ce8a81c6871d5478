// SPDX-License-Identifier: MIT OR Apache-2.0
//! The load generator: persistent HTTP/1.1 connections, each with one request at a time, in one
//! thread.
//!
//! Usually, the thread never sleeps. It reads its sockets in turn instead of waiting for one. A
//! sleeping thread has to be woken by the server's thread, which costs CPU time of the server; the
//! slower the server, the more often the client sleeps. This cost would be counted as the guard's.
//! For comparison, the thread can also sleep until a socket is readable, as most clients do.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::compare::now;

/// The keys that a batch sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keys {
    None,
    /// The same key with every request.
    Same,
    /// A new key with every request.
    Fresh,
}

/// The measurements of a batch.
pub(crate) struct Found {
    pub(crate) p99_micros: f64,
}

/// What the client does while no answer has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The client polls its sockets again.
    Spins,
    /// The client sleeps until a socket is readable.
    Sleeps,
}

pub(crate) struct Load {
    idle: Idle,
    connections: Mutex<Vec<Connection>>,
    fresh: AtomicU64,
}

struct Connection {
    stream: TcpStream,
    /// When the unanswered request was sent; `None` if every request is answered.
    sent: Option<Instant>,
    answer: Vec<u8>,
}

impl Load {
    pub(crate) fn new(server: SocketAddr, connections: usize, idle: Idle) -> Result<Self, String> {
        let connect = |_| {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(Connection {
                stream,
                sent: None,
                answer: Vec::with_capacity(1024),
            })
        };
        let connections: Result<Vec<_>, _> = (0..connections).map(connect).collect();
        let connections =
            Mutex::new(connections.map_err(|error| format!("cannot connect: {error}"))?);
        Ok(Self { idle, connections, fresh: AtomicU64::new(0) })
    }

    /// Sends `count` requests over all connections and waits for every answer.
    pub(crate) fn batch(&self, path: &str, keys: Keys, count: u64) -> Result<Found, String> {
        let mut connections = self.connections.lock().map_err(|_| "an earlier batch panicked")?;
        let count =
            usize::try_from(count).map_err(|_| "the number of requests is too large for memory")?;
        let (mut unsent, mut latencies) = (count, Vec::with_capacity(count));
        let mut request = Vec::with_capacity(512);
        while latencies.len() < count {
            if self.idle == Idle::Sleeps {
                wait_for_answer(&connections).map_err(|error| format!("{path}: {error}"))?;
            }
            for connection in connections.iter_mut() {
                if let Some(latency) =
                    connection.answered().map_err(|error| format!("{path}: {error}"))?
                {
                    latencies.push(latency);
                }
                if unsent > 0 && connection.sent.is_none() {
                    self.write(&mut request, path, keys);
                    connection.send(&request).map_err(|error| format!("{path}: {error}"))?;
                    unsent -= 1;
                }
            }
        }
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
        Ok(Found { p99_micros: p99.as_secs_f64() * 1e6 })
    }

    fn write(&self, request: &mut Vec<u8>, path: &str, keys: Keys) {
        let key = match keys {
            Keys::None => String::new(),
            Keys::Same => "Idempotency-Key: 00000000-0000-4000-8000-000000000000\r\n".to_owned(),
            Keys::Fresh => {
                let number = self.fresh.fetch_add(1, Ordering::Relaxed);
                format!("Idempotency-Key: 00000000-0000-4000-8001-{number:012}\r\n")
            }
        };
        request.clear();
        request.extend_from_slice(
            format!("POST {path} HTTP/1.1\r\nHost: bench\r\n{key}Content-Length: 180\r\n\r\n")
                .as_bytes(),
        );
        request.extend_from_slice(&[b'b'; 180]);
    }
}

impl Connection {
    /// Sends a request in one write, which suffices because the request is far smaller than the
    /// socket's empty buffer.
    fn send(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.answer.clear();
        self.sent = Some(now());
        self.stream.write_all(request)
    }

    /// Returns how long the answer took, if all of it has arrived.
    fn answered(&mut self) -> std::io::Result<Option<Duration>> {
        let Some(sent) = self.sent else { return Ok(None) };
        let mut chunk = [0; 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(broken("the server closed the connection")),
            Ok(read) => self.answer.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let Some(head) = self.answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&self.answer[..head])
            .map_err(|_| broken("the head of the answer is not text"))?;
        if text.get(9..12) != Some("201") {
            return Err(broken(text));
        }
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if self.answer.len()
            < head + 4 + length.ok_or_else(|| broken("the answer has no content-length"))?
        {
            return Ok(None);
        }
        self.sent = None;
        Ok(Some(sent.elapsed()))
    }
}

/// Sleeps until a socket with an unanswered request is readable.
fn wait_for_answer(connections: &[Connection]) -> std::io::Result<()> {
    let unanswered = connections.iter().filter(|connection| connection.sent.is_some());
    let mut sockets: Vec<PollFd<'_>> =
        unanswered.map(|connection| PollFd::new(&connection.stream, PollFlags::IN)).collect();
    if !sockets.is_empty() {
        poll(&mut sockets, None)?;
    }
    Ok(())
}

fn broken(what: &str) -> std::io::Error {
    std::io::Error::other(what.to_owned())
}

/// Sends one batch to a server that runs already: `ADDRESS PATH none|same|fresh COUNT`. A profiler
/// can watch that server.
pub(super) fn one(args: &[String]) -> Result<(), String> {
    let [address, path, keys, count] = args else {
        return Err("usage: http load ADDRESS PATH KEYS COUNT".into());
    };
    let address = address.parse().map_err(|_| "http load: ADDRESS is not a socket address")?;
    let keys = match keys.as_str() {
        "none" => Keys::None,
        "same" => Keys::Same,
        "fresh" => Keys::Fresh,
        _ => return Err(format!("http load: KEYS cannot be {keys:?}")),
    };
    let count = count.parse().map_err(|_| "http load: COUNT is not a number")?;
    let load = Load::new(address, super::CONNECTIONS, Idle::Spins)?;
    // Number the fresh keys from a start that depends on this process, so that they are new even to
    // a server that has served earlier batches.
    load.fresh.store(u64::from(std::process::id()) * 10_000_000, Ordering::Relaxed);
    load.batch(path, keys, count).map(drop)
}
