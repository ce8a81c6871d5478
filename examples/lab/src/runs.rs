// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the runs of this process by tag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// The counts of one tag's runs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Counts {
    started: u64,
    finished: u64,
    /// Runs whose future was dropped before its end.
    dropped: u64,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);
static TAGS: Mutex<Option<HashMap<String, Counts>>> = Mutex::new(None);

/// A run, which counts as dropped unless it finishes.
#[derive(Debug)]
pub(crate) struct Run {
    tag: Option<String>,
    pub(crate) number: u64,
    finished: bool,
}

fn count(tag: &str, change: impl FnOnce(&mut Counts)) {
    let mut tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    change(tags.get_or_insert_default().entry(tag.to_owned()).or_default());
}

pub(crate) fn read(tag: &str) -> Counts {
    let tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    tags.as_ref().and_then(|tags| tags.get(tag)).copied().unwrap_or_default()
}

impl Run {
    pub(crate) fn start(tag: Option<String>) -> Self {
        if let Some(tag) = &tag {
            count(tag, |counts| counts.started += 1);
        }
        Self { tag, number: NUMBER.fetch_add(1, Ordering::Relaxed) + 1, finished: false }
    }

    pub(crate) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(tag) = &self.tag {
            // A run that panics counts as finished, because its future was not dropped.
            let finished = self.finished || std::thread::panicking();
            count(tag, |counts| if finished { counts.finished += 1 } else { counts.dropped += 1 });
        }
    }
}
