// SPDX-License-Identifier: MIT OR Apache-2.0
//! `get`: one record.

use std::time::Duration;

use retryproof::store::{AuditEntry, HolderNote, Peeked, RecordState, RecordSummary};
use retryproof::{
    ErrorKind, FencingToken, IdempotencyConfig, IdempotencyStore as _, Identity, SharedStore,
    connect_with,
};
use serde_json::{Value, json};

use self::body::DecodedResult;
use super::audit::{change_as_json, in_words, last_change};
use super::locate::located;
use crate::arguments::GetArguments;
use crate::exit::{self, VerbError};
use crate::output::{Printer, write_out};
use crate::record_key::{hint, shown};
use crate::time::{clock_time, millis, now_millis, spoken};

mod body;

/// Prints the record of a scope and a key.
pub(crate) async fn get(
    arguments: &GetArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let identity = located(&store, &arguments.record).await?;
    let Some(record) = store.get(&identity).await? else {
        let name = shown(&identity, show_keys);
        let missing = VerbError::not_found(&name, hint(&arguments.record));
        // An error of the audit table does not hide that there is no record.
        return Err(match last_change(&store, &identity, None).await {
            Ok(Some(change)) => missing.because(&format!("last changed by {}", in_words(&change))),
            _ => missing,
        });
    };
    let change = match last_change(&store, &identity, Some(record.token)).await {
        // Without the table, no operator has changed a record, because each verb that changes
        // records needs the table (OPS-10).
        Err(error) if error.kind() == ErrorKind::Schema => Ok(None),
        change => change,
    };
    let now = now_millis();
    let (mut code, mut result) = (None, None);
    let mut value = as_json(&record, &identity, show_keys, now);
    if arguments.body || record.state == RecordState::Complete {
        match result_of(&store, &identity, &record, arguments.body).await {
            Ok((number, found)) => {
                if let Some((label, number)) = number {
                    value[label.to_lowercase().replace(' ', "_")] = number.into();
                    code = Some((label, number.to_string()));
                }
                result = found;
            }
            // Without `--body`, show the rest of the record even if the result cannot be read.
            Err(error) if !arguments.body && error.code == exit::OTHER => {
                code = Some(("result", format!("(cannot be read: {error})")));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(found) = &result {
        value["body"] = found.json.clone();
    }
    let mut rows = rows(&record, shown(&identity, show_keys), code, now);
    match change {
        Ok(change) => {
            value["last_change"] = change.as_ref().map_or(Value::Null, change_as_json);
            rows.extend(change.map(|change| ("changed by", changed_by(&change, record.token))));
        }
        Err(error) => {
            rows.push(("changed by", format!("unknown: {}", VerbError::from(error))));
        }
    }
    print.one(&rows, &value)?;
    if let (Some(found), true) = (result, print.is_for_people()) {
        write_out(format!("\n{}\n", found.text).as_bytes())?;
    }
    Ok(exit::OK)
}

/// Describes the last change by an operator. The change may be older than the grant with the token
/// `granted`.
fn changed_by(change: &AuditEntry, granted: FencingToken) -> String {
    match &change.record {
        Some((_, token)) if *token < granted => format!("before this grant: {}", in_words(change)),
        _ => in_words(change),
    }
}

/// Returns the exit code or the HTTP status of the stored result with its label, if the result has
/// one. If `with_body` is set, also returns the decoded result, or a text that says why there is no
/// result.
async fn result_of(
    store: &SharedStore,
    id: &Identity,
    record: &RecordSummary,
    with_body: bool,
) -> Result<(Option<(&'static str, i32)>, Option<DecodedResult>), VerbError> {
    let absent = match (store.peek(id).await?, record.state, record.remaining) {
        (Peeked::Complete(stored), ..) => {
            let opened = store.open_sealed(id, stored).await?.open(None)?;
            let result = if with_body { Some(body::decoded(&opened)?) } else { None };
            return Ok((body::code(&opened)?, result));
        }
        (Peeked::Busy(_), ..) => "(no result yet: the work is in progress)",
        (Peeked::Absent, RecordState::InProgress, None) => "(no result: the lease is over)",
        (Peeked::Absent, RecordState::Complete, None) => "(no result: it has expired)",
        (Peeked::Absent, _, Some(_)) => {
            "(no result: the record has just changed; repeat the command)"
        }
    };
    Ok((None, with_body.then(|| DecodedResult::absent(absent))))
}

/// Returns the lines of the table. `code` is the result's exit code or HTTP status with its label,
/// and `now` is in milliseconds since 1970.
fn rows(
    record: &RecordSummary,
    identity: String,
    code: Option<(&'static str, String)>,
    now: u64,
) -> Vec<(&'static str, String)> {
    let lease = record.holder.as_ref().and_then(HolderNote::lease);
    let in_progress = record.state == RecordState::InProgress;
    let ago =
        |duration| format!("{} ago ({})", spoken(duration), clock_time(before(now, duration)));
    let end = |duration| clock_time(after(now, duration));
    let mut rows = vec![("record", identity)];
    rows.push(match (in_progress, record.remaining) {
        (true, Some(_)) => ("state", "in progress".to_owned()),
        (true, None) => ("state", "in progress, but its lease is over".to_owned()),
        (false, Some(_)) => ("state", "complete".to_owned()),
        (false, None) => ("state", "expired".to_owned()),
    });
    rows.extend(code);
    rows.push(("holder", holder(record)));
    rows.extend(record.granted_ago.map(|granted| ("granted", ago(granted))));
    if let Some(last_beat) = record.last_beat_ago() {
        let lease = lease.map(|lease| format!(", lease: {}", spoken(lease))).unwrap_or_default();
        rows.push(("last beat", format!("{}{lease}", ago(last_beat))));
    }
    if let (true, Some(ended)) = (in_progress, record.ended_ago) {
        rows.push(("lease ended", ago(ended)));
    }
    rows.push(match (in_progress, record.remaining) {
        (true, Some(left)) => {
            let (left, end) = (spoken(left), end(left));
            ("free", format!("in {left} ({end}), unless a heartbeat extends the lease"))
        }
        (true, None) => ("free", "now (the next call takes over)".to_owned()),
        (false, Some(left)) => ("kept for", format!("{} (until {})", spoken(left), end(left))),
        (false, None) => ("result", "expired (the next call runs the work again)".to_owned()),
    });
    if let Some(takeovers) = record.takeovers {
        rows.push(("takeovers", takeovers.to_string()));
    }
    rows.push(("token", record.token.to_string()));
    if !in_progress {
        rows.push(("value bytes", record.value_bytes.to_string()));
    }
    rows.push(("fingerprint", if record.has_fingerprint { "yes" } else { "no" }.to_owned()));
    if let Some(trace) = trace_id(record) {
        rows.push(("trace", trace));
    }
    rows
}

pub(super) fn holder(record: &RecordSummary) -> String {
    match &record.holder {
        Some(note) if note.is_newer() => "(written by a newer version)".to_owned(),
        Some(note) => note.label().unwrap_or("(unnamed)").to_owned(),
        None => "unknown".to_owned(),
    }
}

fn trace_id(record: &RecordSummary) -> Option<String> {
    let trace = record.holder.as_ref()?.trace()?;
    Some(trace.trace_id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns a time in milliseconds since 1970: `duration` before `now`.
fn before(now: u64, duration: Duration) -> u64 {
    now.saturating_sub(millis(duration))
}

/// Returns a time in milliseconds since 1970: `duration` after `now`.
fn after(now: u64, duration: Duration) -> u64 {
    now.saturating_add(millis(duration))
}

/// Returns a record as JSON. `now` is in milliseconds since 1970.
pub(super) fn as_json(
    record: &RecordSummary,
    identity: &Identity,
    show_keys: bool,
    now: u64,
) -> Value {
    let lease = record.holder.as_ref().and_then(HolderNote::lease);
    let key =
        if show_keys { identity.key().expose().to_owned() } else { identity.key().to_string() };
    let state = match record.state {
        RecordState::InProgress => "in_progress",
        RecordState::Complete => "complete",
    };
    json!({
        "scope": identity.scope().as_str(),
        "key": key,
        "state": state,
        "is_over": record.remaining.is_none(),
        "expires_in_ms": record.remaining.map(millis),
        "expires_at_ms": record.remaining.map(|left| after(now, left)),
        "ended_ago_ms": record.ended_ago.map(millis),
        "ended_at_ms": record.ended_ago.map(|ago| before(now, ago)),
        "granted_ago_ms": record.granted_ago.map(millis),
        "granted_at_ms": record.granted_ago.map(|ago| before(now, ago)),
        "lease_ms": lease.map(millis),
        "last_beat_ago_ms": record.last_beat_ago().map(millis),
        "last_beat_at_ms": record.last_beat_ago().map(|ago| before(now, ago)),
        "holder": record.holder.as_ref().and_then(HolderNote::label),
        "trace_id": trace_id(record),
        "takeovers": record.takeovers,
        "token": record.token.get(),
        "value_bytes": record.value_bytes,
        "has_fingerprint": record.has_fingerprint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use retryproof::OwnerId;

    fn record(state: RecordState, left: Option<u64>, holder: Option<HolderNote>) -> RecordSummary {
        let left = left.map(Duration::from_secs);
        RecordSummary::new(state, FencingToken::new(7), left, 120, true).with_grant(
            Some(Duration::from_secs(42)),
            Some(1),
            holder,
        )
    }

    fn text(record: &RecordSummary) -> String {
        // The last argument is the time 2025-11-23 00:25:00 UTC.
        let rows = rows(record, "payments#00".to_owned(), None, 1_763_857_500_000);
        rows.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    #[test]
    fn rec_2_a_live_lease_shows_its_holder_and_its_last_beat() {
        let note = HolderNote::new(OwnerId::new(), Duration::from_secs(30), None, "pod-a:17");
        let live = record(RecordState::InProgress, Some(25), Some(note));
        assert_eq!(
            text(&live),
            "record: payments#00\nstate: in progress\nholder: pod-a:17\n\
             granted: 42 s ago (2025-11-23 00:24:18 UTC)\n\
             last beat: 5 s ago (2025-11-23 00:24:55 UTC), lease: 30 s\n\
             free: in 25 s (2025-11-23 00:25:25 UTC), unless a heartbeat extends the lease\n\
             takeovers: 1\ntoken: 7\nfingerprint: yes\n"
        );
        let id = Identity::of("payments", "canary").unwrap();
        let value = as_json(&live, &id, false, 60_000);
        let times = [("granted", 18_000), ("last_beat", 55_000), ("expires", 85_000)];
        for (name, at) in times {
            assert_eq!(value[format!("{name}_at_ms")], at, "{name}");
        }
        assert_eq!(value["last_beat_ago_ms"], 5_000);
        assert_eq!(value["holder"], "pod-a:17");
        assert!(!value.to_string().contains("canary"));
        assert_eq!(as_json(&live, &id, true, 0)["key"], "canary");
    }

    #[test]
    fn rec_2_an_ended_lease_shows_its_last_beat_and_its_end() {
        let note = HolderNote::new(OwnerId::new(), Duration::from_secs(30), None, "pod-a:17");
        let over = record(RecordState::InProgress, None, Some(note))
            .with_end(Some(Duration::from_secs(5)));
        let shown = text(&over);
        let lines = "last beat: 35 s ago (2025-11-23 00:24:25 UTC), lease: 30 s\n\
                     lease ended: 5 s ago (2025-11-23 00:24:55 UTC)\n\
                     free: now (the next call takes over)\n";
        assert!(shown.contains(lines), "{shown}");
        let id = Identity::of("payments", "k").unwrap();
        let value = as_json(&over, &id, false, 60_000);
        assert_eq!(
            (&value["ended_ago_ms"], &value["ended_at_ms"]),
            (&5_000.into(), &55_000.into())
        );
    }

    #[test]
    fn rec_2_a_record_without_a_note_has_an_unknown_holder() {
        let over = text(&record(RecordState::InProgress, None, None));
        assert!(over.contains("holder: unknown\n"), "{over}");
        assert!(over.contains("free: now (the next call takes over)\n"), "{over}");
        assert!(!over.contains("last beat"), "{over}");
        let done = text(&record(RecordState::Complete, Some(60), None));
        let kept = "kept for: 1 min (until 2025-11-23 00:26:00 UTC)\n";
        assert!(done.contains(kept) && done.contains("value bytes: 120\n"), "{done}");
        let expired = text(&record(RecordState::Complete, None, None));
        assert!(expired.contains("state: expired\n"), "{expired}");
    }
}
