// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crates whose code is changed.

/// A crate whose mutants are tested.
pub(crate) struct Subject {
    /// The name without the prefix `retryproof-`.
    pub(crate) name: &'static str,
    /// The files to change, below the crate's `src`. If the list is empty, all files are changed.
    pub(crate) files: &'static [&'static str],
}

pub(crate) const SUBJECTS: [Subject; 7] = [
    // The transitions of each store, with the code that reads and writes its records.
    Subject {
        name: "memory",
        files: &["shard.rs", "busy.rs", "record.rs", "sweep.rs", "store.rs", "operate.rs"],
    },
    // The stages that a request passes, and the protocol. The front ends are left out.
    Subject {
        name: "http",
        files: &[
            "protocol/**",
            "call.rs",
            "call/**",
            "head.rs",
            "guard.rs",
            "prepare.rs",
            "duplicate.rs",
            "run.rs",
            "end.rs",
            "record.rs",
            "response.rs",
            "body.rs",
            "body/**",
            "fate.rs",
            "window.rs",
            "switches.rs",
            "transaction.rs",
        ],
    },
    Subject { name: "core", files: &[] },
    Subject { name: "sqlite", files: TRANSITIONS },
    Subject { name: "redis", files: TRANSITIONS },
    Subject { name: "postgres", files: TRANSITIONS },
    Subject { name: "mysql", files: TRANSITIONS },
];

const TRANSITIONS: &[&str] = &[
    "execute.rs",
    "execute/**",
    "statement.rs",
    "statement/**",
    "record.rs",
    "record/**",
    "join.rs",
    "join/**",
    "store.rs",
    "store/**",
];

impl Subject {
    pub(crate) fn of(name: &str) -> Result<&'static Self, String> {
        let short = name.strip_prefix("retryproof-").unwrap_or(name);
        SUBJECTS.iter().find(|subject| subject.name == short).ok_or_else(|| {
            let names: Vec<_> = SUBJECTS.iter().map(|subject| subject.name).collect();
            format!("unknown crate `{name}`: there are {}", names.join(", "))
        })
    }

    pub(crate) fn package(&self) -> String {
        format!("retryproof-{}", self.name)
    }

    /// Returns the crate's folder, from the root of the workspace.
    pub(crate) fn folder(&self) -> String {
        format!("crates/{}", self.package())
    }
}
