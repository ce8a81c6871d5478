// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that can be cut: later writes fail, and the server closes the socket.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Accepts connections from the inner listener, and makes each one cuttable.
pub(crate) struct Wires(pub(crate) TcpListener);

/// A handle that can cut one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<AtomicBool>);

impl Wire {
    /// Cuts the connection. From now on, no byte is sent, and the server closes the connection when
    /// it next tries to write.
    pub(crate) fn cut(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Acquire) {
            return Err(io::Error::new(
                ErrorKind::ConnectionAborted,
                "cut, as the client requested",
            ));
        }
        Ok(())
    }
}

/// A connection that can be cut.
pub(crate) struct Stream {
    tcp: TcpStream,
    wire: Wire,
}

impl Listener for Wires {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        let (tcp, peer) = Listener::accept(&mut self.0).await;
        (Stream { tcp, wire: Wire::default() }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Connected<IncomingStream<'_, Wires>> for Wire {
    fn connect_info(stream: IncomingStream<'_, Wires>) -> Self {
        stream.io().wire.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wire.check()?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.wire.check()?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
