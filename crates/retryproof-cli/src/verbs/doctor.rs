// SPDX-License-Identifier: MIT OR Apache-2.0
//! `doctor`: finds problems of the store, and says what to do about each (OPS-5).

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::Duration;

use retryproof::clock::Instant;
use retryproof::store::{Severity, StoreFinding};
use retryproof::{IdempotencyConfig, IdempotencyStore as _, Identity, connect_with, diagnose_with};
use serde_json::json;

use super::store::place;
use crate::exit::{self, VerbError};
use crate::output::{Printer, harmless, remark, write_out};

/// A lease must be at least this many round trips long, because the engine cuts off a heartbeat
/// that is not answered within a quarter of its lease (RUN-1).
const MIN_ROUND_TRIPS: u32 = 4;
/// How many reads are timed.
const LOOKS: usize = 10;

/// Prints the findings about the store, the most serious ones first.
pub(crate) async fn doctor(config: &IdempotencyConfig, print: &Printer) -> Result<u8, VerbError> {
    config.validate()?;
    remark(format_args!("examining {}", place(config)));
    let mut findings = diagnose_with(config).await?;
    match opened(&findings, config).await {
        Ok(found) => findings.extend(found),
        // Drop this error, because a finding already describes the cause.
        Err(_) if findings.iter().any(is_error) => {}
        Err(error) => findings.push(StoreFinding::error(
            "connect",
            format!("The store cannot be used ({error})."),
            "Do what the message says, then run `retryproof doctor` again.",
        )),
    }
    if !is_in_memory(&findings) {
        findings.push(backup());
    }
    findings.sort_by_key(|finding| Reverse(finding.severity));
    print_findings(&findings, *print)?;
    let count = |severity| findings.iter().filter(|found| found.severity == severity).count();
    remark(format_args!(
        "errors: {}, warnings: {}, notes: {}",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    ));
    Ok(if findings.iter().any(is_error) { exit::REFUSED } else { exit::OK })
}

fn is_error(finding: &StoreFinding) -> bool {
    finding.severity == Severity::Error
}

/// Connects, measures how long reads of an absent record take, compares the time with the leases,
/// and says in which form the store keeps keys. `found` is what the diagnosis has found.
async fn opened(
    found: &[StoreFinding],
    config: &IdempotencyConfig,
) -> retryproof::Result<Vec<StoreFinding>> {
    // Do not connect: opening the file would change its journal mode.
    if found.iter().any(|finding| finding.id == "journal_mode") {
        return Ok(Vec::new());
    }
    let store = connect_with(config).await?;
    remark(format_args!("timing {LOOKS} reads"));
    let id = Identity::of("retryproof.doctor", "probe")?;
    let mut took = Vec::with_capacity(LOOKS);
    // The first read can include the time to prepare a statement, so it is not counted.
    for look in 0..=LOOKS {
        let start = Instant::now();
        let _ = store.peek(&id).await?;
        if look > 0 {
            took.push(start.elapsed());
        }
    }
    took.sort_unstable();
    let (p50, p99) = (took[LOOKS / 2], took[LOOKS - 1]);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut findings = vec![StoreFinding::note(
        "latency",
        format!("{LOOKS} reads took {:.2} ms (p50) and {:.2} ms (p99).", ms(p50), ms(p99)),
        "A call that runs its work takes at least as long as two such reads, and a replay as long as one.",
    )];
    findings.extend(short_leases(config, p99));
    if !is_in_memory(found) {
        findings.push(kept_keys(store.hashes_identities()));
    }
    Ok(findings)
}

fn is_in_memory(findings: &[StoreFinding]) -> bool {
    findings.iter().any(|finding| finding.id == "memory")
}

/// Returns a note about the form in which the store keeps keys (ID-5).
fn kept_keys(are_hashed: bool) -> StoreFinding {
    if are_hashed {
        StoreFinding::note(
            "identities",
            "The store keeps digests instead of keys.",
            "Keep a copy of `identity-secret` apart from the store and its backups: without the \
             secret, no program can connect to the store.",
        )
    } else {
        StoreFinding::note(
            "identities",
            "The store keeps keys as they are sent.",
            "If keys are personal data or credentials, set up a new store with `identity-secret`: \
             read \"May others read the keys?\" in the guide of the command line.",
        )
    }
}

/// Returns a finding about leases that are too short for heartbeats.
fn short_leases(config: &IdempotencyConfig, p99: Duration) -> Option<StoreFinding> {
    let of_scopes =
        config.scopes.iter().filter_map(|(name, own)| Some((name.as_str(), own.lease?)));
    let mut short: Vec<String> = [("the default", config.default_lease)]
        .into_iter()
        .chain(of_scopes)
        .filter(|(_, lease)| *lease < p99.saturating_mul(MIN_ROUND_TRIPS))
        .map(|(name, lease)| format!("{name} ({})", retryproof_duration::format(lease)))
        .collect();
    short.sort();
    (!short.is_empty()).then(|| {
        StoreFinding::error(
            "lease",
            format!(
                "These leases are shorter than {MIN_ROUND_TRIPS} round trips to the store: {}. \
                 Heartbeats therefore come too late, and other calls take over keys whose work is \
                 still running.",
                short.join(", ")
            ),
            "Raise `default-lease`, or the `lease` of the scope, or find out why the store is \
             slow.",
        )
    })
}

fn backup() -> StoreFinding {
    StoreFinding::note(
        "backup",
        "After a restore from a backup, the store lacks the results of work that was completed \
         after the backup, so a retry runs that work again.",
        "Before you restore, read \"The database is restored from a backup\" in the operations \
         guide; keep the service closed until clients have stopped retrying.",
    )
}

fn print_findings(findings: &[StoreFinding], print: Printer) -> Result<(), VerbError> {
    if !print.is_for_people() {
        let values: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "severity": finding.severity.to_string(),
                    "finding": finding.id,
                    "problem": finding.problem,
                    "advice": finding.advice,
                })
            })
            .collect();
        return print.list([], &[], &values);
    }
    let mut text = String::new();
    for finding in findings {
        let (id, severity) = (finding.id, finding.severity);
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{severity:<9}{id}\n  {}\n  {}\n", finding.problem, finding.advice);
    }
    write_out(harmless(&text).as_bytes())
}

#[cfg(test)]
mod tests {
    use retryproof::config::ScopeConfig;

    use super::*;

    #[test]
    fn ops_5_run_1_leases_shorter_than_four_round_trips_are_named() {
        let mut config = IdempotencyConfig::default();
        let lease = Some(Duration::from_millis(300));
        let payments = ScopeConfig { lease, ..ScopeConfig::default() };
        config.scopes.insert("payments".to_owned(), payments);
        assert_eq!(short_leases(&config, Duration::from_millis(75)), None);
        let finding = short_leases(&config, Duration::from_millis(76)).expect("a finding");
        assert!(finding.problem.contains(": payments (PT0.3S). "), "{}", finding.problem);
        let finding = short_leases(&config, Duration::from_secs(3_600)).expect("a finding");
        assert!(finding.problem.contains("payments") && finding.problem.contains("the default"));
    }
}
