// SPDX-License-Identifier: MIT OR Apache-2.0
//! `top`: counts the records of each scope again and again (OPS-8).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use retryproof::store::{RecordState, ScanPage};
use retryproof::{IdempotencyConfig, IdempotencyStore as _, connect_with};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::scan::{PAGE, Scan};
use crate::arguments::TopArguments;
use crate::exit::{self, VerbError};
use crate::output::{Printer, table, write_on};
use crate::time::{millis, now_millis, spoken};

/// How many scopes are shown on a terminal.
const SHOWN: usize = 20;

/// The counts of one scope, or of all scopes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TopCounts {
    in_progress: u64,
    /// How many of the records in progress lack heartbeats.
    stuck: u64,
    /// The time since the oldest grant of a record in progress.
    longest_held: Option<Duration>,
    /// The number of complete records, including expired ones, as in `stats`.
    complete: u64,
}

/// The counts of all scopes at one time.
#[derive(Debug, Default)]
struct Snapshot {
    scopes: BTreeMap<String, TopCounts>,
    unreadable: u64,
    took: Duration,
}

/// How a snapshot is shown.
#[derive(Debug, Clone, Copy)]
enum Screen {
    /// A table that replaces the previous table.
    Redrawn,
    /// A table below the previous table, for a terminal that cannot move its cursor.
    Appended,
    /// A line of JSON.
    Json,
}

/// Shows snapshots until Ctrl-C, until the reader closes the pipe, or until the requested number of
/// snapshots has been shown.
pub(crate) async fn top(
    arguments: &TopArguments,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let screen = match print.is_for_people() && io::stdout().is_terminal() {
        false => Screen::Json,
        true if std::env::var_os("TERM").is_some_and(|term| term == "dumb") => Screen::Appended,
        true => Screen::Redrawn,
    };
    let mut scan = Scan::new(&store, None);
    let mut left = arguments.count;
    loop {
        let snapshot = match snapshot(&mut scan).await {
            Ok(snapshot) => snapshot,
            // Ctrl-C is the normal way to end this verb.
            Err(error) if error.code == exit::INTERRUPTED => return Ok(exit::OK),
            Err(error) => return Err(error),
        };
        let text = snapshot.shown(screen, store.profile().name, now_millis());
        left = left.map(|left| left - 1);
        if !write_on(text.as_bytes())? || left == Some(0) {
            return Ok(exit::OK);
        }
        if scan.interrupt().or(tokio::time::sleep(arguments.interval)).await.is_err() {
            return Ok(exit::OK);
        }
    }
}

async fn snapshot(scan: &mut Scan<'_>) -> Result<Snapshot, VerbError> {
    let (mut snapshot, started) = (Snapshot::default(), Instant::now());
    scan.restart();
    loop {
        let page = scan.page(PAGE).await?;
        snapshot.add(&page);
        if !scan.advance(&page) {
            break;
        }
    }
    (snapshot.unreadable, snapshot.took) = (scan.unreadable(), started.elapsed());
    Ok(snapshot)
}

impl Snapshot {
    fn add(&mut self, page: &ScanPage) {
        for record in &page.records {
            let scope = record.id.scope().as_str();
            let counts = match self.scopes.get_mut(scope) {
                Some(counts) => counts,
                None => self.scopes.entry(scope.to_owned()).or_default(),
            };
            let summary = &record.summary;
            match summary.state {
                RecordState::InProgress => {
                    counts.in_progress += 1;
                    counts.stuck += u64::from(summary.is_stuck());
                    counts.longest_held = counts.longest_held.max(summary.granted_ago);
                }
                RecordState::Complete => counts.complete += 1,
            }
        }
    }

    /// Returns the scopes. Those with the most stuck keys come first, then those with the most keys
    /// in progress.
    fn ordered(&self) -> Vec<(&str, TopCounts)> {
        let mut scopes: Vec<_> = self.scopes.iter().map(|(name, c)| (name.as_str(), *c)).collect();
        scopes.sort_by_key(|(_, c)| std::cmp::Reverse((c.stuck, c.in_progress, c.complete)));
        scopes
    }

    fn total(&self) -> TopCounts {
        self.scopes.values().fold(TopCounts::default(), |sum, counts| TopCounts {
            in_progress: sum.in_progress + counts.in_progress,
            stuck: sum.stuck + counts.stuck,
            longest_held: sum.longest_held.max(counts.longest_held),
            complete: sum.complete + counts.complete,
        })
    }

    fn shown(&self, screen: Screen, store: &str, now: u64) -> String {
        match screen {
            Screen::Json => format!("{}\n", self.as_json(now)),
            Screen::Appended => format!("{}\n", self.as_table(store)),
            Screen::Redrawn => {
                // Move the cursor to the top left, clear the rest of each line, and then clear the
                // lines below.
                let mut text = "\u{1b}[H".to_owned();
                for line in self.as_table(store).lines() {
                    let _ = writeln!(text, "{line}\u{1b}[K");
                }
                text + "\u{1b}[J"
            }
        }
    }

    fn as_json(&self, now: u64) -> Value {
        let scopes: Vec<_> = self
            .ordered()
            .into_iter()
            .map(|(scope, counts)| {
                json!({
                    "scope": scope,
                    "in_progress": counts.in_progress,
                    "stuck": counts.stuck,
                    "longest_held_ms": counts.longest_held.map(millis),
                    "complete": counts.complete,
                })
            })
            .collect();
        json!({
            "at_ms": now,
            "took_ms": millis(self.took),
            "scopes": scopes,
            "unreadable": self.unreadable,
        })
    }

    fn as_table(&self, store: &str) -> String {
        let scopes = self.ordered();
        let row = |name: &str, counts: TopCounts| {
            [
                name.to_owned(),
                counts.in_progress.to_string(),
                counts.stuck.to_string(),
                counts.longest_held.map_or_else(|| "-".to_owned(), spoken),
                counts.complete.to_string(),
            ]
        };
        let mut rows: Vec<_> =
            scopes.iter().take(SHOWN).map(|(name, counts)| row(name, *counts)).collect();
        rows.push(row("(all)", self.total()));
        let header = ["scope", "in progress", "stuck", "longest held", "complete"];
        let mut text = format!(
            "store: {store}, scopes: {}, read in {}; Ctrl-C ends\n\n{}\n",
            scopes.len(),
            spoken(self.took),
            table(header, rows)
        );
        if scopes.len() > SHOWN {
            let _ = writeln!(text, "(more scopes: {})", scopes.len() - SHOWN);
        }
        if self.unreadable > 0 {
            let _ = writeln!(text, "(records that cannot be read: {})", self.unreadable);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use retryproof::store::{RecordSummary, ScannedRecord};
    use retryproof::{FencingToken, Identity, Scope};

    use super::*;

    fn record(scope: &str, state: RecordState, left: Option<u64>, ago: u64) -> ScannedRecord {
        let id = Identity::of(Scope::new(scope.to_owned()).unwrap(), "k").unwrap();
        let left = left.map(Duration::from_secs);
        let summary = RecordSummary::new(state, FencingToken::new(1), left, 0, false);
        let ago = Some(Duration::from_secs(ago));
        ScannedRecord::new(id, summary.with_grant(ago, None, None))
    }

    fn example() -> Snapshot {
        let (running, complete) = (RecordState::InProgress, RecordState::Complete);
        let mut snapshot = Snapshot { unreadable: 2, ..Snapshot::default() };
        snapshot.add(&ScanPage::new(
            vec![
                record("a", running, Some(9), 70),
                record("a", running, Some(9), 5),
                // A complete record has no holder, so its 900 s do not count as the longest hold.
                record("a", complete, Some(9), 900),
                record("b", running, None, 80),
                record("c", complete, None, 1),
            ],
            0,
            None,
        ));
        snapshot
    }

    #[test]
    fn ops_8_scopes_with_stuck_keys_come_first() {
        let value = example().as_json(7);
        let scopes = value["scopes"].as_array().unwrap();
        let names: Vec<_> = scopes.iter().map(|scope| &scope["scope"]).collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!((&value["at_ms"], &value["unreadable"]), (&7.into(), &2.into()));
        let a = json!({
            "scope": "a", "in_progress": 2, "stuck": 0, "longest_held_ms": 70_000, "complete": 1
        });
        assert_eq!(scopes[1], a);
        assert_eq!((&scopes[0]["stuck"], &scopes[2]["complete"]), (&1.into(), &1.into()));
        let total = TopCounts {
            in_progress: 3,
            stuck: 1,
            longest_held: Some(Duration::from_secs(80)),
            // An expired result counts too, as in `stats`.
            complete: 2,
        };
        assert_eq!(example().total(), total);
    }

    #[test]
    fn ops_8_only_a_terminal_with_a_cursor_is_redrawn() {
        let shown = |screen| example().shown(screen, "sqlite", 7);
        let redrawn = shown(Screen::Redrawn);
        assert!(
            redrawn.starts_with("\u{1b}[Hstore: sqlite, scopes: 3")
                && redrawn.ends_with("\u{1b}[J")
        );
        let appended = shown(Screen::Appended);
        assert!(!appended.contains('\u{1b}') && appended.contains("(all)"), "{appended}");
        assert!(appended.contains("(records that cannot be read: 2)"), "{appended}");
        assert_eq!(shown(Screen::Json).lines().count(), 1);
    }

    #[test]
    fn ops_8_a_terminal_shows_some_of_many_scopes() {
        let mut snapshot = Snapshot::default();
        let records = (0..25).map(|n| record(&format!("s{n}"), RecordState::InProgress, None, 1));
        snapshot.add(&ScanPage::new(records.collect(), 0, None));
        let text = snapshot.as_table("sqlite");
        assert!(text.contains("(more scopes: 5)"), "{text}");
        assert_eq!(snapshot.as_json(0)["scopes"].as_array().unwrap().len(), 25);
    }
}
