// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CoalescingSocket`] combines commands that several callers submit at about the same time into
//! one write.
//!
//! The first command wakes the driver's task, and tokio runs a newly woken task next. With many
//! callers, each command would then be written alone, and the system calls would cost more than
//! everything else. To prevent this, the driver's task yields once while several calls are in
//! flight. The other ready tasks then add their commands to the driver's buffer, and one write
//! sends them all. A lone call is never delayed. No timer is involved.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The task yields if at least this many calls are in flight. Yielding for a lone call would only
/// wake another runtime worker.
const MIN_CALLS: usize = 2;
/// A buffer with at least this many bytes is written immediately.
const FULL_WRITE: usize = 32 * 1_024;
/// The size at which the driver's buffer requests a write. A write of this size is never delayed,
/// because it exceeds [`FULL_WRITE`].
pub(super) const WRITE_BOUNDARY: usize = 64 * 1_024;

/// How many calls are in flight on a connection.
#[derive(Debug, Default)]
pub(super) struct CallsInFlight(AtomicUsize);

/// Counts as one call in flight until it is dropped.
pub(super) struct CallInFlight<'a>(&'a AtomicUsize);

impl CallsInFlight {
    pub(super) fn enter(&self) -> CallInFlight<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        CallInFlight(&self.0)
    }

    fn are_several(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MIN_CALLS
    }
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that can yield once before it writes a batch.
#[derive(Debug)]
pub(super) struct CoalescingSocket<S> {
    socket: S,
    calls: Arc<CallsInFlight>,
    /// Whether the task has already yielded for the current batch.
    yielded: bool,
}

impl<S> CoalescingSocket<S> {
    pub(super) fn new(socket: S, calls: Arc<CallsInFlight>) -> Self {
        Self { socket, calls, yielded: false }
    }

    /// Returns `Ready` if a buffer of `bytes` bytes should be written now. Otherwise, and at most
    /// once per batch, returns `Pending` and wakes the task. The task then runs after the other
    /// ready tasks.
    fn poll_yield(&mut self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        if self.yielded || bytes >= FULL_WRITE || !self.calls.are_several() {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescingSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_yield(cx, bytes.len()));
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        std::task::ready!(self.poll_yield(cx, bytes));
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// The driver calls this method when its buffer is empty, so the batch has been sent.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.yielded = false;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescingSocket<S> {
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

    /// A socket that records the length of each write.
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
    fn several_calls_share_a_write_and_a_lone_call_is_not_delayed() {
        let calls = Arc::new(CallsInFlight::default());
        let mut socket = CoalescingSocket::new(Wire::default(), Arc::clone(&calls));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut write = |socket: &mut CoalescingSocket<Wire>, bytes: usize| {
            Pin::new(socket).poll_write(cx, &vec![0; bytes]).is_ready()
        };
        let alone = calls.enter();
        assert!(write(&mut socket, 10));
        let more: Vec<_> = (1..MIN_CALLS).map(|_| calls.enter()).collect();
        assert!(!write(&mut socket, 10), "others may join");
        assert!(write(&mut socket, 30), "once");
        assert!(write(&mut socket, 5), "the rest of the same batch");
        assert!(
            Pin::new(&mut socket).poll_flush(&mut Context::from_waker(Waker::noop())).is_ready()
        );
        assert!(write(&mut socket, FULL_WRITE), "a full write");
        assert!(!write(&mut socket, 10), "the next batch");
        drop(more);
        socket.yielded = false;
        assert!(write(&mut socket, 10), "a lone call");
        drop(alone);
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        assert_eq!(socket.socket.0, [10, 30, 5, FULL_WRITE, 10]);
    }
}
