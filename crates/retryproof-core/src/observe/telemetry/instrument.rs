// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Instrument`]: a quantity that is measured, with its name, unit and description (RUN-9).

/// The upper bounds of the buckets of each [`Histogram`](InstrumentKind::Histogram) of durations,
/// in seconds.
pub const SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The upper bounds of the buckets of [`Instrument::ResultSize`], in bytes.
pub const BYTES: [f64; 10] = [
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// What a [`MeasuringObserver`](super::MeasuringObserver) measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Instrument {
    /// Calls that reached an outcome, by scope and outcome. The label `error.type` says which kind
    /// of error refused the call, or why the work was not recorded.
    Calls,
    /// How long calls took, by scope and outcome.
    CallDuration,
    /// How long duplicates waited for a holder, by scope and by how the wait ended.
    WaitDuration,
    /// How long executions held their lease, by scope and attempt. The time includes the store
    /// calls that acquired the lease and completed the record.
    ActionDuration,
    /// Leases that this process holds, by scope.
    Leases,
    /// Leases that were taken over from another owner, by scope.
    Takeovers,
    /// Leases that were lost, by scope and reason. The reasons `expired`, `taken_over` and
    /// `max_hold` are noticed while the action runs, and `refused` is noticed at the completion. A
    /// lease that is lost while its action runs can be counted again, as `refused`, at its
    /// completion.
    LeasesLost,
    /// Heartbeats that failed, by scope and error. The engine retries a failed heartbeat while the
    /// lease can still be saved.
    BeatsFailed,
    /// Executions whose result was not recorded, by scope. A retry may run the work again.
    Unrecorded,
    /// Estimated seconds of work that replays saved, by scope. Each replay counts as the mean time
    /// of this process's recorded executions in that scope.
    Saved,
    /// The size of recorded results with their envelopes, by scope. Tombstones are not counted.
    ResultSize,
    /// How long store calls took, by operation, store and error.
    StoreDuration,
    /// Engines with an open circuit, because their store has failed several times in a row.
    OpenCircuits,
    /// Expired records that were deleted.
    Purged,
    /// 1 while the purge does not keep up with expiring records, otherwise 0.
    PurgeBacklog,
}

/// How an [`Instrument`] combines its measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstrumentKind {
    /// A sum that never decreases.
    Counter,
    /// A sum that can decrease.
    UpDownCounter,
    /// The last value.
    Gauge,
    /// The distribution of durations, in seconds, or of sizes, in bytes.
    Histogram,
}

impl Instrument {
    /// All instruments.
    pub const ALL: [Self; 15] = [
        Self::Calls,
        Self::CallDuration,
        Self::WaitDuration,
        Self::ActionDuration,
        Self::Leases,
        Self::Takeovers,
        Self::LeasesLost,
        Self::BeatsFailed,
        Self::Unrecorded,
        Self::Saved,
        Self::ResultSize,
        Self::StoreDuration,
        Self::OpenCircuits,
        Self::Purged,
        Self::PurgeBacklog,
    ];

    /// Returns the instrument's name, which follows OpenTelemetry's conventions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calls => "idempotency.calls",
            Self::CallDuration => "idempotency.call.duration",
            Self::WaitDuration => "idempotency.wait.duration",
            Self::ActionDuration => "idempotency.action.duration",
            Self::Leases => "idempotency.leases",
            Self::Takeovers => "idempotency.lease.takeovers",
            Self::LeasesLost => "idempotency.lease.lost",
            Self::BeatsFailed => "idempotency.lease.beats.failed",
            Self::Unrecorded => "idempotency.completions.unrecorded",
            Self::Saved => "idempotency.saved",
            Self::ResultSize => "idempotency.result.size",
            Self::StoreDuration => "idempotency.store.operation.duration",
            Self::OpenCircuits => "idempotency.store.circuit.open",
            Self::Purged => "idempotency.purged",
            Self::PurgeBacklog => "idempotency.purge.backlog",
        }
    }

    /// Returns the name in Prometheus, which OpenTelemetry's exporter derives from
    /// [`name`](Self::name), [`unit`](Self::unit) and [`kind`](Self::kind).
    #[must_use]
    pub const fn prometheus_name(self) -> &'static str {
        match self {
            Self::Calls => "idempotency_calls_total",
            Self::CallDuration => "idempotency_call_duration_seconds",
            Self::WaitDuration => "idempotency_wait_duration_seconds",
            Self::ActionDuration => "idempotency_action_duration_seconds",
            Self::Leases => "idempotency_leases",
            Self::Takeovers => "idempotency_lease_takeovers_total",
            Self::LeasesLost => "idempotency_lease_lost_total",
            Self::BeatsFailed => "idempotency_lease_beats_failed_total",
            Self::Unrecorded => "idempotency_completions_unrecorded_total",
            Self::Saved => "idempotency_saved_seconds_total",
            Self::ResultSize => "idempotency_result_size_bytes",
            Self::StoreDuration => "idempotency_store_operation_duration_seconds",
            Self::OpenCircuits => "idempotency_store_circuit_open",
            Self::Purged => "idempotency_purged_total",
            Self::PurgeBacklog => "idempotency_purge_backlog",
        }
    }

    /// Returns how the instrument combines its measurements.
    #[must_use]
    pub const fn kind(self) -> InstrumentKind {
        match self {
            Self::Calls
            | Self::Takeovers
            | Self::LeasesLost
            | Self::BeatsFailed
            | Self::Unrecorded
            | Self::Saved
            | Self::Purged => InstrumentKind::Counter,
            Self::Leases | Self::OpenCircuits => InstrumentKind::UpDownCounter,
            Self::PurgeBacklog => InstrumentKind::Gauge,
            Self::CallDuration
            | Self::WaitDuration
            | Self::ActionDuration
            | Self::ResultSize
            | Self::StoreDuration => InstrumentKind::Histogram,
        }
    }

    /// Returns the upper bounds of the buckets of a [`Histogram`](InstrumentKind::Histogram), in
    /// the instrument's [unit](Self::unit). Empty for any other kind.
    #[must_use]
    pub const fn boundaries(self) -> &'static [f64] {
        match (self, self.kind()) {
            (Self::ResultSize, _) => &BYTES,
            (_, InstrumentKind::Histogram) => &SECONDS,
            _ => &[],
        }
    }

    /// Returns the unit, in the notation of UCUM.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Calls => "{call}",
            Self::CallDuration
            | Self::WaitDuration
            | Self::ActionDuration
            | Self::Saved
            | Self::StoreDuration => "s",
            Self::ResultSize => "By",
            Self::Leases | Self::LeasesLost => "{lease}",
            Self::Takeovers => "{takeover}",
            Self::BeatsFailed => "{beat}",
            Self::Unrecorded => "{completion}",
            Self::OpenCircuits => "{circuit}",
            Self::Purged => "{record}",
            Self::PurgeBacklog => "{backlog}",
        }
    }

    /// Describes the instrument in one sentence, for dashboards.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Calls => "Calls that got an answer, by outcome.",
            Self::CallDuration => "How long calls took, including waits.",
            Self::WaitDuration => "How long duplicates waited for a holder.",
            Self::ActionDuration => "How long executions held their lease.",
            Self::Leases => "Leases held by this process.",
            Self::Takeovers => "Leases taken over from an owner that did not finish.",
            Self::LeasesLost => "Leases lost, by reason.",
            Self::BeatsFailed => "Heartbeats that failed, by error.",
            Self::Unrecorded => {
                "Executions whose result was not recorded, so a retry may run the work again."
            }
            Self::Saved => "Estimated seconds of work that replays saved.",
            Self::ResultSize => "The size of recorded results.",
            Self::StoreDuration => "How long store calls took.",
            Self::OpenCircuits => "Engines whose store has failed several times in a row.",
            Self::Purged => "Expired records that were deleted.",
            Self::PurgeBacklog => {
                "1 if records expire faster than the purge deletes them, otherwise 0."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn run_9_each_instrument_is_described_in_a_sentence_of_its_own() {
        let all: HashSet<_> = Instrument::ALL.iter().map(|one| one.description()).collect();
        assert_eq!(all.len(), Instrument::ALL.len());
        assert!(all.iter().all(|text| text.ends_with('.') && text.contains(' ')), "{all:?}");
    }
}
