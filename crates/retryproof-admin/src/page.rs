// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`AdminView`]: the page as HTML (OPS-9). Every text that does not come from this file is printed
//! with [`HtmlText`].

use std::fmt::Write as _;

use retryproof_core::store::{HolderNote, RecordState, RecordSummary, ScannedRecord};
use retryproof_core::{IdempotencyEngine, IdempotencyStore as _, Result};
use retryproof_duration::spoken;

use crate::find::{MatchedRecord, MatchedRecords, Search, Wanted};
use crate::html::HtmlText;
use crate::survey::{SHOWN, Survey};

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>retryproof</title>
<link rel="stylesheet" href="style.css">
"#;

/// Makes the page `live` reload itself every five seconds.
const RELOAD: &str = "<meta http-equiv=\"refresh\" content=\"5\">\n";

/// The version of this program. All crates of retryproof have the same version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The maximum number of scopes in the list.
const SCOPES: usize = 200;

/// The data that one page shows.
pub(crate) struct AdminView<'a> {
    pub(crate) engine: &'a IdempotencyEngine,
    pub(crate) survey: Option<&'a Survey>,
    pub(crate) found: Option<(&'a Wanted, &'a Result<MatchedRecords>)>,
    /// Whether the page reloads itself. Such a page has no form, because a reload would clear the
    /// form.
    pub(crate) is_live: bool,
}

impl<'a> AdminView<'a> {
    pub(crate) fn of(engine: &'a IdempotencyEngine) -> Self {
        Self { engine, survey: None, found: None, is_live: false }
    }

    pub(crate) fn html(&self) -> String {
        let mut html = String::with_capacity(8_192);
        html.push_str(HEAD);
        if self.is_live {
            html.push_str(RELOAD);
        }
        html.push_str("</head>\n<body>\n");
        self.header(&mut html);
        html.push_str("<main>\n");
        if !self.is_live {
            self.form(&mut html);
        }
        match self.found {
            Some((_, Ok(found))) => results(&mut html, found),
            Some((_, Err(error))) => notice(&mut html, &error.to_string()),
            None => {}
        }
        if let Some(survey) = self.survey {
            stuck(&mut html, survey);
            scopes(&mut html, survey);
        }
        self.process(&mut html);
        html.push_str("</main>\n</body>\n</html>\n");
        html
    }

    fn header(&self, html: &mut String) {
        let store = self.engine.store().profile().name;
        let _ = writeln!(
            html,
            "<header><h1>retryproof</h1><p>Store <b>{}</b> · read only</p></header>",
            HtmlText(store)
        );
    }

    /// Prints the form. The key's field is always empty, because the page never shows a key (ID-4).
    fn form(&self, html: &mut String) {
        let (scope, caller) =
            self.found.map_or(("", ""), |(wanted, _)| (&*wanted.scope, &*wanted.caller));
        let _ = writeln!(
            html,
            r#"<section aria-labelledby="h-find">
<h2 id="h-find">Find a key</h2>
<form method="post" action="records" autocomplete="off">
<p><label for="scope">Scope</label><input id="scope" name="scope" list="scopes" value="{}"></p>
<p><label for="key">Key, or the digest of a log line</label><input id="key" name="key" required></p>
<p><label for="caller">Caller, if an HTTP filter tells callers apart</label>
<input id="caller" name="caller" value="{}"></p>
<p><button>Find</button></p>
</form>"#,
            HtmlText(scope),
            HtmlText(caller)
        );
        html.push_str("<datalist id=\"scopes\">");
        let names = self.survey.into_iter().flat_map(|survey| survey.scopes.scopes());
        for (scope, _) in names.take(SCOPES) {
            let _ = write!(html, "<option value=\"{}\">", HtmlText(scope));
        }
        html.push_str("</datalist>\n</section>\n");
    }

    fn process(&self, html: &mut String) {
        let activity = self.engine.activity();
        html.push_str(
            "<section aria-labelledby=\"h-process\">\n<h2 id=\"h-process\">This process</h2>\n<dl>",
        );
        row(html, "Actions that run", activity.running);
        row(html, "Duplicates that wait", activity.waiting);
        row(html, "Leases with heartbeats", activity.beating);
        let purged = activity
            .purged_ago
            .map_or_else(|| "none yet".to_owned(), |ago| format!("{} ago", spoken(ago)));
        row(html, "Last purge", purged);
        row(html, "Version of this program", VERSION);
        html.push_str("</dl>\n");
        html.push_str(match self.is_live {
            true => {
                "<p class=\"fine\"><a href=\"records\">Stop reloading, and find a key</a></p>\n"
            }
            false => "<p class=\"fine\"><a href=\"live\">Reload every 5 seconds</a></p>\n",
        });
        html.push_str("</section>\n");
    }
}

fn notice(html: &mut String, text: &str) {
    let _ = writeln!(html, "<p class=\"notice\" role=\"alert\">{}</p>", HtmlText(text));
}

fn results(html: &mut String, found: &MatchedRecords) {
    for record in &found.records {
        card(html, record);
    }
    if found.records.is_empty() {
        let text = match found.search {
            None => {
                "There is no record of this key. Scopes, keys and callers are compared byte for \
                     byte."
                    .to_owned()
            }
            Some(Search { read, is_whole: true }) => {
                format!("None of the {read} records has this key or this digest.")
            }
            Some(Search { read, is_whole: false }) => format!(
                "None of the first {read} records has this key or this digest, and the search took \
                 too long. Give the key itself, or use the command `retryproof ls`."
            ),
        };
        notice(html, &text);
    }
}

fn card(html: &mut String, MatchedRecord { id, summary, stored_as }: &MatchedRecord) {
    let in_progress = summary.state == RecordState::InProgress;
    let ago = |duration| format!("{} ago", spoken(duration));
    let _ = writeln!(
        html,
        "<section class=\"record\"><h2><code>{}</code></h2>\n<dl>",
        HtmlText(&id.to_string())
    );
    row(html, "Stored for", stored_as);
    row(
        html,
        "State",
        match (in_progress, summary.remaining) {
            (true, Some(_)) => "in progress",
            (true, None) => "in progress, but its lease is over",
            (false, Some(_)) => "complete",
            (false, None) => "expired",
        },
    );
    row(html, if in_progress { "Holder" } else { "Executed by" }, holder(summary));
    if let Some(granted) = summary.granted_ago {
        match in_progress {
            true => row(html, "Held for", spoken(granted)),
            false => row(html, "Started", ago(granted)),
        }
    }
    if let Some(beat) = summary.last_beat_ago() {
        row(html, "Last heartbeat", ago(beat));
    }
    row(html, "Then", then(summary));
    if let Some(takeovers) = summary.takeovers {
        row(html, "Takeovers", takeovers);
    }
    row(html, "Token", summary.token);
    if !in_progress {
        row(html, "Size", format_args!("{} bytes", summary.value_bytes));
    }
    if let Some(trace) = summary.holder.as_ref().and_then(HolderNote::trace) {
        let id: String = trace.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
        row(html, "Trace", id);
    }
    html.push_str("</dl></section>\n");
}

fn row(html: &mut String, name: &str, value: impl ToString) {
    let value = value.to_string();
    let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", HtmlText(&value));
}

fn holder(summary: &RecordSummary) -> &str {
    match &summary.holder {
        Some(note) if note.is_newer() => "(written by a newer version)",
        Some(note) => note.label().unwrap_or("(unnamed)"),
        None => "unknown",
    }
}

/// Says what happens to the record next.
fn then(summary: &RecordSummary) -> String {
    match (summary.state, summary.remaining) {
        (RecordState::InProgress, Some(left)) => format!("free in {}", spoken(left)),
        (RecordState::InProgress, None) => "free: the next call takes over".to_owned(),
        (RecordState::Complete, Some(left)) => format!("kept for {}", spoken(left)),
        (RecordState::Complete, None) => "the next call runs the work again".to_owned(),
    }
}

fn stuck(html: &mut String, survey: &Survey) {
    html.push_str("<section aria-labelledby=\"h-stuck\">\n<h2 id=\"h-stuck\">Stuck keys</h2>\n");
    if let Some(error) = &survey.error {
        notice(html, error);
    }
    let _ = write!(html, "<p class=\"fine\">{}", records(survey.records));
    let _ = match (survey.is_whole, &survey.error) {
        (true, _) => match survey.age() {
            age if age.as_secs() == 0 => write!(html, ", read just now."),
            age => write!(html, ", read {} ago.", spoken(age)),
        },
        (false, None) => {
            write!(html, " read so far. Reload the page for more.")
        }
        (false, Some(_)) => write!(html, " read before the error."),
    };
    html.push_str(
        " A key is stuck if its lease is over, or if more than half of its lease has passed since \
         its last heartbeat.</p>\n",
    );
    let oldest = survey.oldest();
    if oldest.is_empty() {
        if survey.is_whole {
            html.push_str("<p class=\"good\">No key is stuck.</p>\n");
        }
    } else {
        if survey.stuck > SHOWN as u64 {
            let _ = writeln!(html, "<p>The oldest {SHOWN} of {}:</p>", survey.stuck);
        }
        table(html, "h-stuck", &["Key", "Holder", "Held for", "Last heartbeat", "Then", "Token"]);
        for record in &oldest {
            stuck_row(html, record);
        }
        html.push_str("</tbody></table></div>\n");
    }
    html.push_str("</section>\n");
}

fn stuck_row(html: &mut String, ScannedRecord { id, summary, .. }: &ScannedRecord) {
    let known = |duration: Option<_>| duration.map_or_else(|| "unknown".to_owned(), spoken);
    let beat = summary.last_beat_ago().map(|ago| format!("{} ago", spoken(ago)));
    let _ = writeln!(
        html,
        "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td class=\"num\">{}</td></tr>",
        HtmlText(&id.to_string()),
        HtmlText(holder(summary)),
        known(summary.granted_ago),
        beat.as_deref().unwrap_or("before the lease ended"),
        then(summary),
        summary.token
    );
}

fn scopes(html: &mut String, survey: &Survey) {
    html.push_str("<section aria-labelledby=\"h-scopes\">\n<h2 id=\"h-scopes\">Scopes</h2>\n");
    let names = ["Scope", "In progress", "Lease over", "Complete", "Expired", "Bytes", "Oldest"];
    table(html, "h-scopes", &names);
    for (scope, counts) in survey.scopes.scopes().take(SCOPES) {
        let oldest = counts.oldest.map_or_else(|| "unknown".to_owned(), spoken);
        let _ = write!(html, "<tr><td>{}</td>", HtmlText(scope));
        for count in [
            counts.in_progress,
            counts.abandoned,
            counts.complete,
            counts.expired,
            counts.value_bytes,
        ] {
            let _ = write!(html, "<td class=\"num\">{count}</td>");
        }
        let _ = writeln!(html, "<td>{oldest}</td></tr>");
    }
    html.push_str("</tbody></table></div>\n");
    let more = survey.scopes.scopes().count().saturating_sub(SCOPES);
    if more > 0 {
        let _ = writeln!(html, "<p class=\"fine\">{more} more scopes are not shown.</p>");
    }
    other_versions(html, survey);
    html.push_str("</section>\n");
}

/// Says how many records another version wrote, and which program to upgrade.
fn other_versions(html: &mut String, survey: &Survey) {
    if survey.newer > 0 {
        let _ = writeln!(
            html,
            "<p class=\"fine\">A newer version of retryproof wrote the holder of {}.</p>",
            records(survey.newer)
        );
    }
    let unreadable = survey.scopes.unreadable();
    if unreadable > 0 {
        let (its, key) = if unreadable == 1 { ("its", "key") } else { ("their", "keys") };
        let text = format!(
            "{} cannot be read by this program (version {VERSION}). Calls with {its} {key} fail \
             and run nothing. Upgrade this program to the newest version that uses this store. If \
             that version cannot read a record either, the record is damaged: read about the kind \
             `Corrupt` in the operations guide.",
            records(unreadable)
        );
        notice(html, &text);
    }
}

fn records(count: u64) -> String {
    if count == 1 { "1 record".to_owned() } else { format!("{count} records") }
}

/// Begins a table that scrolls in a narrow window, with its header.
fn table(html: &mut String, label: &str, columns: &[&str]) {
    let _ = write!(
        html,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{label}\">\
         <table><thead><tr>"
    );
    for column in columns {
        let _ = write!(html, "<th scope=\"col\">{column}</th>");
    }
    html.push_str("</tr></thead><tbody>\n");
}
