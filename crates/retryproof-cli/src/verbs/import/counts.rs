// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ImportCounts`]: how many lines of an import had each result.

use serde_json::{Value, json};

use crate::output::remark;

/// How many refused lines are listed on stderr.
const NAMED: u64 = 20;

/// How many lines had each result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::verbs) struct ImportCounts {
    pub(in crate::verbs) created: u64,
    /// How many of `created` are tombstones.
    pub(in crate::verbs) tombstones: u64,
    /// The store already has a complete record, which stays unchanged.
    pub(in crate::verbs) existing: u64,
    /// The store has a record in progress, which stays unchanged.
    pub(in crate::verbs) busy: u64,
    pub(in crate::verbs) expired: u64,
    /// The record was in progress when it was exported.
    pub(in crate::verbs) unfinished: u64,
    pub(in crate::verbs) refused: u64,
}

/// The result of one line.
#[derive(Debug)]
pub(super) enum Imported {
    Created,
    /// Created as a tombstone, because the key that would seal the result was destroyed (SEAL-4).
    Tombstone,
    Existing,
    Busy,
    Expired,
    Unfinished,
    Refused(String),
}

impl Imported {
    /// Says that a created record is a tombstone. The other results stay as they are.
    pub(super) fn without_result(self) -> Self {
        match self {
            Self::Created => Self::Tombstone,
            other => other,
        }
    }
}

impl ImportCounts {
    pub(super) fn add(&mut self, imported: Imported, number: u64) {
        match imported {
            Imported::Created => self.created += 1,
            Imported::Tombstone => {
                self.created += 1;
                self.tombstones += 1;
            }
            Imported::Existing => self.existing += 1,
            Imported::Busy => self.busy += 1,
            Imported::Expired => self.expired += 1,
            Imported::Unfinished => self.unfinished += 1,
            Imported::Refused(why) => {
                self.refused += 1;
                if self.refused <= NAMED {
                    remark(format_args!("line {number} was not imported: {why}"));
                }
            }
        }
    }

    pub(super) fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("created", self.created),
            ("tombstones", self.tombstones),
            ("existing", self.existing),
            ("in progress", self.busy),
            ("expired", self.expired),
            ("unfinished", self.unfinished),
            ("refused", self.refused),
        ]
    }

    pub(super) fn as_json(&self) -> Value {
        self.rows()
            .into_iter()
            .map(|(name, count)| (name.replace(' ', "_"), json!(count)))
            .collect()
    }

    /// Prints remarks about the lines whose results were not imported.
    pub(super) fn remark_rest(&self) {
        if self.refused > NAMED {
            remark(format_args!("further lines that were not imported: {}", self.refused - NAMED));
        }
        if self.tombstones > 0 {
            remark(format_args!(
                "records that were created without their results, because the keys that would seal \
                 the results were destroyed: {}; their work does not run again",
                self.tombstones
            ));
        }
        if self.busy > 0 {
            remark(format_args!(
                "records that were not imported, because their keys are in progress in this \
                 store: {}; import again when the work under these keys has ended",
                self.busy
            ));
        }
        if self.unfinished > 0 {
            remark(format_args!(
                "records that were not imported, because they were in progress when they were \
                 exported: {}; with this store, the next call runs their work",
                self.unfinished
            ));
        }
    }
}
