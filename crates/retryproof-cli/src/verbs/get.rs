// SPDX-License-Identifier: MIT OR Apache-2.0
//! `get`: one record.

use std::time::Duration;

use retryproof::store::{HolderNote, Peeked, RecordState, RecordSummary};
use retryproof::{IdempotencyConfig, IdempotencyStore as _, Identity, SharedStore, connect_with};
use serde_json::{Value, json};

use crate::arguments::GetArguments;
use crate::exit::{self, VerbError};
use crate::output::{Printer, write_out};
use crate::record_key::{identity, shown};
use crate::time::{millis, spoken};

mod body;

/// Prints the record of a scope and a key.
pub(crate) async fn get(
    arguments: &GetArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let identity = identity(&arguments.record)?;
    let store = connect_with(config).await?;
    let Some(record) = store.get(&identity).await? else {
        return Err(VerbError::not_found(&shown(&identity, show_keys)));
    };
    let body = if arguments.body { Some(body_of(&store, &identity).await?) } else { None };
    let mut value = as_json(&record, &identity, show_keys);
    if let (Some((_, body)), Value::Object(fields)) = (&body, &mut value) {
        fields.insert("body".to_owned(), body.clone());
    }
    print.one(&rows(&record, shown(&identity, show_keys)), &value)?;
    if let (Some((text, _)), true) = (body, print.is_for_people()) {
        write_out(format!("\n{text}\n").as_bytes())?;
    }
    Ok(exit::OK)
}

/// The stored result, as text and as JSON.
async fn body_of(store: &SharedStore, id: &Identity) -> Result<(String, Value), VerbError> {
    match store.peek(id).await? {
        Peeked::Complete(stored) => body::decoded(stored.open(None)?),
        Peeked::Busy(_) => Ok(("(no result yet)".to_owned(), Value::Null)),
        Peeked::Absent => {
            Ok(("(no result: the record or its lease has expired)".to_owned(), Value::Null))
        }
    }
}

/// What is known about the lease of a record.
pub(super) struct Timing {
    /// The time since the last heartbeat.
    pub(super) last_beat: Option<Duration>,
    pub(super) lease: Option<Duration>,
}

impl Timing {
    pub(super) fn of(record: &RecordSummary) -> Self {
        let lease = record.holder.as_ref().and_then(HolderNote::lease);
        let last_beat = match (record.state, lease, record.remaining) {
            // Each heartbeat restores the lease's full length, so the part that is gone is the time
            // since the last heartbeat.
            (RecordState::InProgress, Some(lease), Some(left)) => Some(lease.saturating_sub(left)),
            _ => None,
        };
        Self { last_beat, lease }
    }
}

fn rows(record: &RecordSummary, identity: String) -> Vec<(&'static str, String)> {
    let Timing { last_beat, lease } = Timing::of(record);
    let in_progress = record.state == RecordState::InProgress;
    let ago = |duration| format!("{} ago", spoken(duration));
    let mut rows = vec![("record", identity)];
    rows.push(match (in_progress, record.remaining) {
        (true, Some(_)) => ("state", "in progress".to_owned()),
        (true, None) => ("state", "in progress, but its lease has expired".to_owned()),
        (false, Some(_)) => ("state", "complete".to_owned()),
        (false, None) => ("state", "expired".to_owned()),
    });
    rows.push((if in_progress { "holder" } else { "executed by" }, holder(record)));
    if let Some(granted) = record.granted_ago {
        rows.push(match in_progress {
            true => ("held for", spoken(granted)),
            false => ("started", ago(granted)),
        });
    }
    if let Some(last_beat) = last_beat {
        let lease = lease.map(|lease| format!(" (lease: {})", spoken(lease))).unwrap_or_default();
        rows.push(("last beat", format!("{}{lease}", ago(last_beat))));
    }
    rows.push(match (in_progress, record.remaining) {
        (true, Some(left)) => {
            ("free", format!("in {}, unless a heartbeat extends the lease", spoken(left)))
        }
        (true, None) => ("free", "now: the next call takes over".to_owned()),
        (false, Some(left)) => ("kept for", spoken(left)),
        (false, None) => ("kept for", "no longer: the next call runs the work again".to_owned()),
    });
    if let Some(takeovers) = record.takeovers {
        rows.push(("takeovers", takeovers.to_string()));
    }
    rows.push(("token", record.token.to_string()));
    if !in_progress {
        rows.push(("size", format!("{} bytes", record.value_bytes)));
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

pub(super) fn as_json(record: &RecordSummary, identity: &Identity, show_keys: bool) -> Value {
    let Timing { last_beat, lease } = Timing::of(record);
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
        "ends_in_ms": record.remaining.map(millis),
        "granted_ago_ms": record.granted_ago.map(millis),
        "lease_ms": lease.map(millis),
        "last_beat_ago_ms": last_beat.map(millis),
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

    use retryproof::{FencingToken, OwnerId};

    fn record(state: RecordState, left: Option<u64>, holder: Option<HolderNote>) -> RecordSummary {
        let left = left.map(Duration::from_secs);
        RecordSummary::new(state, FencingToken::new(7), left, 120, true).with_grant(
            Some(Duration::from_secs(42)),
            Some(1),
            holder,
        )
    }

    fn text(record: &RecordSummary) -> String {
        let rows = rows(record, "payments#00".to_owned());
        rows.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    #[test]
    fn rec_2_a_live_lease_shows_its_holder_and_its_last_beat() {
        let note = HolderNote::new(OwnerId::new(), Duration::from_secs(30), None, "pod-a:17");
        let live = record(RecordState::InProgress, Some(25), Some(note));
        assert_eq!(
            text(&live),
            "record: payments#00\nstate: in progress\nholder: pod-a:17\nheld for: 42 s\n\
             last beat: 5 s ago (lease: 30 s)\nfree: in 25 s, unless a heartbeat extends the lease\n\
             takeovers: 1\ntoken: 7\nfingerprint: yes\n"
        );
        let id = Identity::of("payments", "canary").unwrap();
        let value = as_json(&live, &id, false);
        assert_eq!(value["last_beat_ago_ms"], 5_000);
        assert_eq!(value["holder"], "pod-a:17");
        assert!(!value.to_string().contains("canary"));
        assert_eq!(as_json(&live, &id, true)["key"], "canary");
    }

    #[test]
    fn rec_2_a_record_without_a_note_has_an_unknown_holder() {
        let over = text(&record(RecordState::InProgress, None, None));
        assert!(over.contains("holder: unknown\n"), "{over}");
        assert!(over.contains("free: now: the next call takes over\n"), "{over}");
        assert!(!over.contains("last beat"), "{over}");
        let done = text(&record(RecordState::Complete, Some(60), None));
        assert!(done.contains("kept for: 1 min\n") && done.contains("size: 120 bytes\n"), "{done}");
        let expired = text(&record(RecordState::Complete, None, None));
        assert!(expired.contains("state: expired\n"), "{expired}");
    }
}
