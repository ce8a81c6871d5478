// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Gather`]: a socket that sends in one piece what several callers ask at about the same time.
//!
//! The driver's task is woken by the first command that comes, and tokio runs next whom a task has
//! just woken: so in a crowd each command was written alone, and the system calls cost more than
//! all the rest. When several calls are under way the task now steps back once behind the tasks
//! that are ready; their commands join its buffer, and one write sends them all. A lone call is
//! never held back, and no timer is involved.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// From as many calls under way on. To step back for a lone one would wake another worker of the
/// runtime for nothing.
const CROWD: usize = 2;
/// So many bytes are worth a write of their own.
const ENOUGH: usize = 32 * 1_024;
/// More than [`ENOUGH`], so that the driver's buffer asks for a write by itself only where none is
/// put off.
pub(crate) const BOUNDARY: usize = 64 * 1_024;

/// How many calls are under way on a connection.
#[derive(Debug, Default)]
pub(crate) struct Crowd(AtomicUsize);

/// One of them, until it is dropped.
pub(crate) struct Present<'a>(&'a AtomicUsize);

impl Crowd {
    pub(crate) fn enter(&self) -> Present<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Present(&self.0)
    }

    fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= CROWD
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The socket, and whether this batch has waited for others.
#[derive(Debug)]
pub(crate) struct Gather<S> {
    socket: S,
    crowd: Arc<Crowd>,
    waited: bool,
}

impl<S> Gather<S> {
    pub(crate) fn new(socket: S, crowd: Arc<Crowd>) -> Self {
        Self { socket, crowd, waited: false }
    }

    /// Whether to write now. If not, the task is ready again behind all that are.
    fn poll_turn(&mut self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        if self.waited || bytes >= ENOUGH || !self.crowd.is_there() {
            return Poll::Ready(());
        }
        self.waited = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_turn(cx, bytes.len()));
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        std::task::ready!(self.poll_turn(cx, bytes));
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Called when the buffer is empty: the batch is out.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.waited = false;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Counts writes.
    #[derive(Default)]
    struct Wire(Vec<usize>);

    impl AsyncWrite for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.push(bytes.len());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_crowd_is_gathered_once_and_a_lone_call_is_not_held_back() {
        let crowd = Arc::new(Crowd::default());
        let mut gather = Gather::new(Wire::default(), Arc::clone(&crowd));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut write = |gather: &mut Gather<Wire>, bytes: usize| {
            Pin::new(gather).poll_write(cx, &vec![0; bytes]).is_ready()
        };
        let alone = crowd.enter();
        assert!(write(&mut gather, 10));
        let more: Vec<_> = (1..CROWD).map(|_| crowd.enter()).collect();
        assert!(!write(&mut gather, 10), "others may join");
        assert!(write(&mut gather, 30), "once");
        assert!(write(&mut gather, 5), "the rest of the same batch");
        assert!(
            Pin::new(&mut gather).poll_flush(&mut Context::from_waker(Waker::noop())).is_ready()
        );
        assert!(write(&mut gather, ENOUGH), "enough for a write");
        assert!(!write(&mut gather, 10), "the next batch");
        drop(more);
        gather.waited = false;
        assert!(write(&mut gather, 10), "the crowd has gone");
        drop(alone);
        assert_eq!(crowd.0.load(Ordering::Relaxed), 0);
        assert_eq!(gather.socket.0, [10, 30, 5, ENOUGH, 10]);
    }
}
