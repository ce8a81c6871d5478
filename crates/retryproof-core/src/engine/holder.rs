// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HolderNotes`] creates the note that each grant writes beside its record (REC-2).

use std::sync::OnceLock;
use std::time::Duration;

use crate::config::IdempotencyConfig;
use crate::owner::OwnerId;
use crate::panics::catch_panic;
use crate::store::{HolderNote, TraceContext};

/// A function that returns the position of the current call in its distributed trace.
pub(super) type CurrentTrace = fn() -> Option<TraceContext>;

/// The data from which an engine creates the notes of its grants.
pub(super) struct HolderNotes {
    /// The setting `instance`.
    instance: Option<String>,
    current_trace: Option<CurrentTrace>,
    /// Whether only this process sees the records. A note then need not name the process.
    private: bool,
}

impl HolderNotes {
    pub(super) fn new(
        config: &IdempotencyConfig,
        current_trace: Option<CurrentTrace>,
        private: bool,
    ) -> Self {
        Self { instance: config.instance.clone(), current_trace, private }
    }

    /// Returns the note of an acquire, or `None` if no note is needed: the store is in the memory
    /// of this process, and the call has no trace.
    #[inline]
    pub(super) fn note(&self, owner: OwnerId, lease: Duration) -> Option<HolderNote> {
        let trace = self.current_trace.and_then(trace_of);
        match (self.private, trace) {
            (true, None) => None,
            (true, trace) => Some(HolderNote::new(owner, lease, trace, "")),
            (false, trace) => Some(self.labelled(owner, lease, trace)),
        }
    }

    fn labelled(&self, owner: OwnerId, lease: Duration, trace: Option<TraceContext>) -> HolderNote {
        if let Some(instance) = &self.instance {
            return HolderNote::new(owner, lease, trace, instance);
        }
        // The process id is read for each note, because a fork changes the process id.
        let label = format!("{}:{}", host_name(), std::process::id());
        HolderNote::new(owner, lease, trace, &label)
    }
}

/// Calls the program's function, and returns its trace. If the function panics, the call continues
/// without a trace.
fn trace_of(current: CurrentTrace) -> Option<TraceContext> {
    catch_panic(current).unwrap_or_else(|_| {
        tracing::error!(
            "the function given to `EngineBuilder::current_trace` panicked, so the record of this \
             call names no trace; the function will be called again for the next call"
        );
        None
    })
}

/// Returns the name of this host, or `?` if it is unknown.
fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let variables =
            ["HOSTNAME", "COMPUTERNAME"].into_iter().map(|name| std::env::var(name).ok());
        let files = ["/proc/sys/kernel/hostname", "/etc/hostname"]
            .into_iter()
            .map(|path| std::fs::read_to_string(path).ok());
        files
            .chain(variables)
            .flatten()
            .map(|name| name.trim().to_owned())
            .find(|name| !name.is_empty())
            .unwrap_or_else(|| "?".to_owned())
    })
}
