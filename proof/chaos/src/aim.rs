// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`wait_for_call`]: finds a moment at which a kill hits a store call. [`Notes`]: finds out that a
//! worker has noticed a fault.
//!
//! A call of an embedded store takes some hundred microseconds. A kill at a random moment rarely
//! hits one, so a short run may end without a single call with an unknown outcome.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use history::{Event, Fun, Phase};

use crate::mono;

/// How long to look for a call before the kill happens anyway.
const AT_MOST_MS: u64 = 20;

/// More bytes than a line of the journal has.
const TAIL: u64 = 2048;

/// Waits until the last line of a journal is a store call without its answer, for at most
/// `AT_MOST_MS`.
pub(crate) fn wait_for_call(journal: &Path) {
    let until = mono::now() + AT_MOST_MS * mono::MS;
    // Ignore a failed read, because a worker that has just started has no journal yet.
    while mono::now() < until && !tail(journal).is_ok_and(|tail| ends_in_call(&tail)) {
        std::hint::spin_loop();
    }
}

fn tail(journal: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(journal)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    Ok(tail)
}

fn ends_in_call(tail: &[u8]) -> bool {
    let last = tail.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    let event = last.and_then(|line| serde_json::from_slice::<Event>(line).ok());
    event.is_some_and(|event| {
        let sent = matches!(
            event.fun,
            Fun::Acquire | Fun::Look | Fun::Extend | Fun::Complete | Fun::Release
        );
        sent && event.phase == Phase::Invoke
    })
}

/// The part of a journal that is written from now on.
pub(crate) struct Notes {
    file: File,
    from: u64,
}

impl Notes {
    pub(crate) fn after_now(journal: &Path) -> io::Result<Self> {
        let mut file = File::open(journal)?;
        let from = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, from })
    }

    /// Waits until the worker has written this note, for at most `ms`. Returns whether it has.
    pub(crate) fn wait_for(mut self, note: &str, ms: u64) -> bool {
        let until = mono::now() + ms * mono::MS;
        loop {
            let mut text = Vec::new();
            let read =
                self.file.seek(SeekFrom::Start(self.from)).and(self.file.read_to_end(&mut text));
            let mut windows = text.windows(note.len());
            if read.is_ok() && windows.any(|window| window == note.as_bytes()) {
                return true;
            }
            if mono::now() >= until {
                return false;
            }
            mono::rest(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::{Event, File, Fun, Notes, Phase, ends_in_call};

    fn line(fun: Fun, phase: Phase) -> Vec<u8> {
        let mut line = serde_json::to_vec(&Event::new((1, 1), 1, fun, phase, 1)).unwrap();
        line.push(b'\n');
        line
    }

    #[test]
    fn a_call_without_its_answer_is_met() {
        let (sent, answered) = (line(Fun::Acquire, Phase::Invoke), line(Fun::Acquire, Phase::Ok));
        assert!(ends_in_call(&sent));
        assert!(ends_in_call(&[answered.clone(), sent.clone()].concat()));
        assert!(
            ends_in_call(&[&answered[5..], &sent].concat()),
            "the part starts within the first line"
        );
        assert!(!ends_in_call(&[sent, answered].concat()));
        assert!(
            !ends_in_call(&line(Fun::Wait, Phase::Invoke)),
            "a wait does not count as a store call"
        );
        assert!(!ends_in_call(b""));
    }

    #[test]
    fn only_a_later_note_is_found() {
        let path = std::env::temp_dir().join(format!("retryproof-notes-{}", std::process::id()));
        let mut journal = File::create(&path).unwrap();
        journal.write_all(b"moved\n").unwrap();
        assert!(!Notes::after_now(&path).unwrap().wait_for("moved", 20));
        let notes = Notes::after_now(&path).unwrap();
        journal.write_all(b"moved\n").unwrap();
        assert!(notes.wait_for("moved", 20));
        std::fs::remove_file(&path).unwrap();
    }
}
