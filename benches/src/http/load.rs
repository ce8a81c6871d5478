// SPDX-License-Identifier: MIT OR Apache-2.0
//! The load generator: kept-alive HTTP/1.1 connections, one request at a time on each, in one thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::compare::now;

/// Which keys a batch sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys {
    None,
    /// One key, again and again.
    Same,
    /// A new key with every request.
    Fresh,
}

/// What a batch found.
pub(super) struct Found {
    pub(super) p99_micros: f64,
}

pub(super) struct Load {
    runtime: Runtime,
    connections: Vec<Mutex<TcpStream>>,
    fresh: AtomicU64,
}

impl Load {
    pub(super) fn new(server: SocketAddr, connections: usize) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let connect = async {
            let mut streams = Vec::with_capacity(connections);
            for _ in 0..connections {
                let stream = TcpStream::connect(server).await?;
                stream.set_nodelay(true)?;
                streams.push(Mutex::new(stream));
            }
            Ok::<_, std::io::Error>(streams)
        };
        let connections = runtime.block_on(connect).map_err(|error| format!("connecting: {error}"))?;
        Ok(Self { runtime, connections, fresh: AtomicU64::new(0) })
    }

    /// Sends `count` requests over all connections and waits for every answer.
    pub(super) fn batch(&self, path: &str, keys: Keys, count: u64) -> Result<Found, String> {
        let each = count / self.connections.len() as u64;
        let rest = count % self.connections.len() as u64;
        self.runtime.block_on(async {
            let mut latencies = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
            let workers = self.connections.iter().enumerate().map(|(at, stream)| {
                let own = each + u64::from((at as u64) < rest);
                self.work(stream, path, keys, own)
            });
            for worked in join_all(workers).await {
                latencies.extend(worked?);
            }
            latencies.sort_unstable();
            let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
            Ok(Found { p99_micros: p99.as_secs_f64() * 1e6 })
        })
    }

    async fn work(
        &self,
        stream: &Mutex<TcpStream>,
        path: &str,
        keys: Keys,
        count: u64,
    ) -> Result<Vec<Duration>, String> {
        let mut stream = stream.lock().await;
        let mut latencies = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        let mut buffer = Vec::with_capacity(1024);
        let body = [b'b'; 180];
        for _ in 0..count {
            let key = match keys {
                Keys::None => String::new(),
                Keys::Same => "Idempotency-Key: 00000000-0000-4000-8000-000000000000\r\n".to_owned(),
                Keys::Fresh => {
                    let number = self.fresh.fetch_add(1, Ordering::Relaxed);
                    format!("Idempotency-Key: 00000000-0000-4000-8001-{number:012}\r\n")
                }
            };
            let mut request =
                format!("POST {path} HTTP/1.1\r\nHost: bench\r\n{key}Content-Length: 180\r\n\r\n")
                    .into_bytes();
            request.extend_from_slice(&body);
            let sent = now();
            let answered = exchange(&mut stream, &request, &mut buffer).await;
            let status = answered.map_err(|error| format!("{path}: {error}"))?;
            latencies.push(sent.elapsed());
            if status != 201 {
                return Err(format!("{path} answered {status}: {}", String::from_utf8_lossy(&buffer)));
            }
        }
        Ok(latencies)
    }
}

/// One batch at a server that runs already: `ADDRESS PATH none|same|fresh COUNT`, for a profiler beside it.
pub(super) fn one(args: &[String]) -> Result<(), String> {
    let [address, path, keys, count] = args else { return Err("http load: ADDRESS PATH KEYS COUNT".into()) };
    let address = address.parse().map_err(|_| "http load: which address?")?;
    let keys = match keys.as_str() {
        "none" => Keys::None,
        "same" => Keys::Same,
        "fresh" => Keys::Fresh,
        _ => return Err(format!("http load: no keys {keys:?}")),
    };
    let count = count.parse().map_err(|_| "http load: how many?")?;
    let load = Load::new(address, super::CONNECTIONS)?;
    // Fresh to a server that was asked before, too.
    load.fresh.store(u64::from(std::process::id()) * 10_000_000, Ordering::Relaxed);
    load.batch(path, keys, count).map(drop)
}

/// Writes one request and reads one answer, whose status it returns.
async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    buffer.clear();
    let broken = || std::io::Error::other("an answer that is none");
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(broken());
        }
        let Some(head) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head]).map_err(|_| broken())?;
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if buffer.len() >= head + 4 + length.ok_or_else(broken)? {
            return text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(broken);
        }
    }
}

/// Polls all of them to their ends, on this task.
async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut tasks: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    // A `LocalSet` would do as well; this is the whole of what is needed of it.
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for (future, done) in &mut tasks {
            if done.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *done = Some(value),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    tasks.into_iter().filter_map(|(_, done)| done).collect()
}
