// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a command's output, keeps a copy, and passes the output on. A slow terminal delays the
//! command no more than it would without this program.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::capture::Capture;
use super::shim::StartReport;
use super::signals::Signals;
use crate::recording::Stream;

/// The size of one read in bytes, which is also the default size of a pipe on Linux.
const READ: usize = 64 * 1024;
/// How many reads can wait for the terminal while the command runs.
const WAITING_READS: usize = 16;
/// The largest number of bytes that a pipe can hold without privileges
/// (`/proc/sys/fs/pipe-max-size`). The command itself cannot leave more unread output than this.
const LEFT_BEHIND: usize = 1 << 20;
/// After the command has exited, all of its own output can be read immediately. If nothing arrives
/// for this long, only another process still has the pipe open.
const SILENCE: Duration = Duration::from_millis(200);

/// One stream of a command.
pub(super) struct Pump<'a> {
    pub(super) stream: Stream,
    pub(super) capture: &'a RefCell<Capture>,
    /// `Some` for stderr, where the helper process may report that it could not start the command.
    pub(super) report: Option<&'a RefCell<StartReport>>,
    pub(super) output: OutputQueue,
    pub(super) exited: watch::Receiver<bool>,
}

impl Pump<'_> {
    /// Reads until the end of the stream. After the command has exited, reads only the output that
    /// the command left behind, because a background process may keep the stream open forever.
    pub(super) async fn run(mut self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; READ];
        loop {
            let mut exited = self.exited.clone();
            tokio::select! {
                biased;
                read = from.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(length) => self.pass(&buffer[..length]).await,
                },
                _ = exited.wait_for(|exited| *exited) => break,
            }
        }
        let mut left = LEFT_BEHIND;
        while left > 0 {
            match timeout(SILENCE, from.read(&mut buffer)).await {
                Ok(Ok(length)) if length > 0 => {
                    left = left.saturating_sub(length);
                    self.pass(&buffer[..length]).await;
                }
                _ => return,
            }
        }
    }

    async fn pass(&mut self, bytes: &[u8]) {
        let bytes = match self.report {
            Some(report) => report.borrow_mut().filter(bytes),
            None => bytes.to_vec(),
        };
        self.capture.borrow_mut().push(self.stream, &bytes);
        if !bytes.is_empty() {
            let has_room = tokio::select! {
                biased;
                room = Arc::clone(&self.output.room).acquire_owned() => room.ok(),
                // The work is done. A terminal that is paused must not keep it unrecorded.
                _ = self.exited.wait_for(|exited| *exited) => None,
            };
            self.output.queue(bytes, has_room);
        }
    }
}

/// Passes output on to the task that writes it. A read has room in the queue until it is written.
#[derive(Clone)]
pub(super) struct OutputQueue {
    queue: mpsc::UnboundedSender<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
}

impl OutputQueue {
    fn open(to: impl AsyncWrite + Unpin + Send + 'static) -> (Self, JoinHandle<()>) {
        let (queue, queued) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(WAITING_READS));
        (Self { queue, room }, tokio::spawn(write(queued, to)))
    }

    /// Queues output without waiting. After the command has exited, this is at most what it has
    /// left behind.
    pub(super) fn queue(&self, bytes: Vec<u8>, room: Option<OwnedSemaphorePermit>) {
        // Ignore any error: sending fails if the output was closed, but the recorded copy is still
        // complete.
        let _ = self.queue.send((bytes, room));
    }
}

/// The tasks that write to stdout and stderr of this process.
pub(crate) struct OutputTasks {
    tasks: [JoinHandle<()>; 2],
    signals: Option<Signals>,
}

impl OutputTasks {
    /// Starts the tasks. Also returns the senders for output to stdout and to stderr.
    pub(super) fn open() -> (Self, OutputQueue, OutputQueue) {
        let (to_stdout, stdout) = OutputQueue::open(tokio::io::stdout());
        let (to_stderr, stderr) = OutputQueue::open(tokio::io::stderr());
        (Self { tasks: [stdout, stderr], signals: None }, to_stdout, to_stderr)
    }

    /// Lets a signal end the wait for a paused terminal.
    pub(super) fn interruptible(&mut self, signals: Option<Signals>) {
        self.signals = signals;
    }

    /// Waits until all output is written, or until a signal ends the wait.
    pub(crate) async fn finish(&mut self) {
        let [stdout, stderr] = &mut self.tasks;
        let written = async {
            // A task can fail only by panicking, and its panic has already been printed.
            let _ = tokio::join!(stdout, stderr);
        };
        match &mut self.signals {
            Some(signals) => tokio::select! {
                () = written => {}
                _ = signals.next() => {}
            },
            None => written.await,
        }
    }
}

/// Writes all chunks, but stops at the first error, which is usually a closed pipe.
async fn write(
    mut chunks: mpsc::UnboundedReceiver<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
    mut to: impl AsyncWrite + Unpin,
) {
    while let Some((chunk, _room)) = chunks.recv().await {
        if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}
