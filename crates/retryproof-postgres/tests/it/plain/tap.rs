// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tap`]: a proxy that reads the text of every statement that a client sends.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What no statement of the plain dialect contains, in lower case.
const FORBIDDEN: [&str; 12] = [
    "listen",
    "notify",
    "advisory",
    "set_config",
    "_grant_1",
    "_complete_1",
    "function",
    "do $",
    "call ",
    "for update",
    "pg_",
    "regclass",
];

/// A proxy on a free loopback port. If a client has sent a forbidden statement, dropping the tap
/// fails the test.
pub(crate) struct Tap {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl Tap {
    /// Listens in front of the server that `url` names.
    pub(crate) async fn to(url: &str) -> Self {
        let (_, rest) = url.split_once('@').expect("a user");
        let (server, _) = rest.split_once('/').expect("a database");
        let server: SocketAddr = server.parse().expect("an address");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let texts = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(requests(from_client, to_server, Arc::clone(&texts)));
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
            }
        });
        Self { addr, seen, accepting }
    }

    /// Returns the URL with this proxy instead of the server.
    pub(crate) fn through(&self, url: &str) -> String {
        let (head, rest) = url.split_once('@').expect("a user");
        let (_, database) = rest.split_once('/').expect("a database");
        format!("{head}@{}/{database}", self.addr)
    }

    /// Returns the forbidden statements so far, and forgets them.
    pub(crate) fn take_forbidden(&self) -> Vec<String> {
        let is_forbidden = |text: &String| {
            let text = text.to_lowercase();
            FORBIDDEN.iter().any(|word| text.contains(word))
        };
        std::mem::take(&mut *self.seen.lock()).into_iter().filter(is_forbidden).collect()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
        let forbidden = self.take_forbidden();
        if !std::thread::panicking() {
            assert!(forbidden.is_empty(), "the plain dialect has sent {forbidden:?}");
        }
    }
}

/// Forwards what a client sends, and keeps the texts of its statements.
async fn requests(
    mut from_client: OwnedReadHalf,
    mut to_server: OwnedWriteHalf,
    texts: Arc<Mutex<Vec<String>>>,
) {
    let (mut buffer, mut pending, mut is_open) = (vec![0; 16 << 10], Vec::new(), false);
    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
        pending.extend_from_slice(&buffer[..read]);
        while let Some((kind, length)) = next(&pending, is_open) {
            is_open = true;
            let message: Vec<u8> = pending.drain(..length).collect();
            let body = message.get(5..).unwrap_or_default();
            // A statement to prepare has a name before its text.
            let text = match kind {
                b'Q' => body.split(|byte| *byte == 0).next(),
                b'P' => body.split(|byte| *byte == 0).nth(1),
                _ => None,
            };
            texts.lock().extend(text.map(|text| String::from_utf8_lossy(text).into_owned()));
        }
        if to_server.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Returns the kind and the length of the first message, if it is complete. The message that opens
/// a session has no kind.
fn next(pending: &[u8], is_open: bool) -> Option<(u8, usize)> {
    let kind_bytes = usize::from(is_open);
    let length = pending.get(kind_bytes..kind_bytes + 4)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize + kind_bytes;
    let kind = if is_open { pending[0] } else { 0 };
    (pending.len() >= length).then_some((kind, length))
}
