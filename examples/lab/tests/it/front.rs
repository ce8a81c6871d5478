// SPDX-License-Identifier: MIT OR Apache-2.0
//! A port in front of a lab: it refuses connections until it is opened, and cuts them after a given
//! number of bytes of answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Returns after how many bytes of answers a connection is cut (`None` for never). The argument is
/// the connection's number, counted from 0.
type Cut = fn(usize) -> Option<usize>;

/// A port that is not open yet. Its socket is bound but does not listen, so no other process can
/// have the port, and the system refuses connections to it.
pub(crate) struct Closed {
    socket: TcpSocket,
    pub(crate) address: SocketAddr,
}

impl Closed {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        Self { socket, address }
    }

    pub(crate) fn open(self, lab: SocketAddr, cut: Cut) -> Front {
        let listener = self.socket.listen(1_024).expect("it listens");
        let (target, targets) = watch::channel(lab);
        let lines = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lines);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let line = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(pass(client, *targets.borrow(), cut(line)));
            }
        });
        Front { address: self.address, lines, target, accepting }
    }
}

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    lines: Arc<AtomicUsize>,
    target: watch::Sender<SocketAddr>,
    accepting: JoinHandle<()>,
}

impl Front {
    pub(crate) fn before(lab: SocketAddr, cut: Cut) -> Self {
        Closed::new().open(lab, cut)
    }

    /// Directs the connections that are opened from now on to `lab`.
    pub(crate) fn turn_to(&self, lab: SocketAddr) {
        self.target.send_replace(lab);
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines.load(Ordering::SeqCst)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes bytes on until either side closes the connection, or until `cut` bytes of answers have
/// passed.
async fn pass(mut client: TcpStream, lab: SocketAddr, cut: Option<usize>) {
    let Ok(mut lab) = TcpStream::connect(lab).await else { return };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_lab, mut to_lab) = lab.split();
    let answers = async {
        let Some(mut left) = cut else {
            let _ = copy(&mut from_lab, &mut to_client).await;
            return;
        };
        let mut buffer = vec![0; 16 << 10];
        // Read the answer even if the cut is at 0, so that the lab has sent it when the connection
        // breaks.
        while let Ok(bytes @ 1..) = from_lab.read(&mut buffer).await {
            let passed = bytes.min(left);
            if to_client.write_all(&buffer[..passed]).await.is_err() || bytes > left {
                return;
            }
            left -= passed;
        }
    };
    tokio::select! {
        () = answers => {}
        _ = copy(&mut from_client, &mut to_lab) => {}
    }
}
