// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Trail`]: the audit of a request, as lines on stderr and as entries in the store's audit table,
//! if it has one (OPS-3, OPS-10). `audit` lists the entries.

use std::io::{self, Write as _};

#[cfg(feature = "seal")]
use retryproof::seal::DataSubject;
use retryproof::store::AuditEntry;
use retryproof::{
    Error, FencingToken, IdempotencyConfig, IdempotencyStore as _, Identity, Scope, SharedStore,
    connect_with,
};
use serde_json::{Value, json};

use super::scan::PAGE;
use crate::arguments::AuditArguments;
use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;
use crate::output::{Printer, remark};
use crate::time::clock_time;

/// The audit of one request.
pub(super) struct Trail<'a> {
    store: &'a SharedStore,
    entry: AuditEntry,
    /// The fields of the lines on stderr, without the outcome.
    line: Value,
}

impl<'a> Trail<'a> {
    /// Prepares the audit of a request. Writes nothing. Refuses a reason or a name that is too long
    /// for the audit table of any store.
    pub(super) fn new(
        store: &'a SharedStore,
        verb: &str,
        operator: Option<&str>,
        reason: &str,
    ) -> Result<Self, VerbError> {
        let operator = operator.map_or_else(own_name, str::to_owned);
        let line = json!({
            "audit": verb,
            "store": store.profile().name,
            "operator": operator,
            "reason": reason,
        });
        let entry = AuditEntry::new(verb, operator, reason);
        entry.check()?;
        Ok(Self { store, entry, line })
    }

    /// Names the record that the request is about. The lines always mask its key (ID-4).
    pub(super) fn with_record(
        mut self,
        id: &Identity,
        token: FencingToken,
        even_if_live: bool,
    ) -> Self {
        self.line["record"] = json!(id.to_string());
        self.line["token"] = json!(token.get());
        self.line["even_if_live"] = json!(even_if_live);
        if even_if_live {
            self.entry.verb += " --even-if-live";
        }
        self.entry = self.entry.with_record(id.clone(), token);
        self
    }

    /// Names the subject that the request is about, by its digest, because its name may be personal
    /// data (ID-4).
    #[cfg(feature = "seal")]
    pub(super) fn with_subject(mut self, subject: &DataSubject) -> Self {
        self.line["subject"] = json!(subject.to_string());
        self.entry.verb += &format!(" --subject {subject}");
        self
    }

    /// Records the request. If that fails, the verb must change nothing, and the error begins with
    /// `unchanged`.
    pub(super) async fn request(&self, unchanged: &str) -> Result<(), VerbError> {
        self.print("requested", &Value::Null).map_err(|error| unwritten(unchanged, &error))?;
        let Err(error) = self.store.append_audit(&self.entry).await else { return Ok(()) };
        // The `requested` line was already printed to stderr. Print a second line to show that the
        // change was not attempted.
        let _ = self.print("not_attempted", &Value::Null);
        let what = format!("{unchanged}, because the audit table could not be written");
        Err(VerbError::from(error).about(&what))
    }

    /// Records the outcome, with further details. The outcome can no longer change, so an error is
    /// only printed as a remark. The table then says only that the change was requested.
    pub(super) async fn outcome(&self, outcome: &str, more: Value) {
        let _ = self.print(outcome, &more);
        let entry = self.entry.clone().with_outcome(outcome);
        if let Err(error) = self.store.append_audit(&entry).await {
            let error = VerbError::from(error);
            remark(format_args!(
                "the outcome could not be written to the audit table, so the table says only that \
                 the change was requested: {error}"
            ));
        }
    }

    fn print(&self, outcome: &str, more: &Value) -> io::Result<()> {
        let mut line = self.line.clone();
        line["outcome"] = json!(outcome);
        for (name, value) in more.as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        write_line(&line)
    }
}

/// Writes one audit line to stderr.
fn write_line(line: &Value) -> io::Result<()> {
    io::stderr().write_all(format!("{line}\n").as_bytes())
}

/// Returns the error of a verb whose audit line could not be written. The error begins with
/// `unchanged`, which says what did not change.
fn unwritten(unchanged: &str, error: &io::Error) -> VerbError {
    VerbError::other(format!(
        "{unchanged}, because the audit line could not be written to stderr: {error}"
    ))
}

/// Returns the user and the host of this process, as `USER@HOST`.
fn own_name() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let user = ["LOGNAME", "USER", "USERNAME"].into_iter().find_map(variable);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.or_else(|| ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(variable));
    let unknown = || "?".to_owned();
    format!("{}@{}", user.unwrap_or_else(unknown), host.unwrap_or_else(unknown))
}

/// Lists the entries of the audit table, the newest first.
pub(crate) async fn audit(
    arguments: &AuditArguments,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let scope = arguments.scope.clone().map(Scope::new).transpose()?;
    let store = connect_with(config).await?;
    if !store.can_audit() {
        let name = store.profile().name;
        let message = format!(
            "the {name} store keeps no audit table; the verbs write their audit lines to stderr only"
        );
        return Err(VerbError::new(exit::REFUSED, message));
    }
    let selects = |entry: &AuditEntry| {
        let of = entry.record.as_ref().map(|(id, _)| id.scope());
        scope.is_none() || scope.as_ref() == of
    };
    let (mut found, mut unreadable) = (Vec::new(), 0);
    let end = collect(&store, arguments.limit, selects, &mut found, &mut unreadable).await;
    let rows = found.iter().map(|entry| row(entry, show_keys));
    let values = found.iter().map(|entry| as_json(entry, show_keys));
    let header = ["time", "scope", "key", "token", "verb", "outcome", "operator", "reason"];
    print.long_list(header, rows, values)?;
    if unreadable > 0 {
        remark(format_args!("entries that this version of the command cannot read: {unreadable}"));
    }
    match end {
        Ok(true) => remark(format_args!(
            "there may be more entries, because the list ends at `--limit` {}",
            arguments.limit
        )),
        Ok(false) => {}
        Err(_) => remark("the list is incomplete"),
    }
    end.map(|_| exit::OK)
}

/// Adds the selected entries to `found`, at most `limit` of them. Returns whether older entries were
/// left out.
async fn collect(
    store: &SharedStore,
    limit: usize,
    selects: impl Fn(&AuditEntry) -> bool,
    found: &mut Vec<AuditEntry>,
    unreadable: &mut u64,
) -> Result<bool, VerbError> {
    let (interrupt, mut after) = (Interrupt::new(), None);
    loop {
        let page = interrupt.or(store.audit_entries(after.as_ref(), PAGE)).await??;
        let Some(page) = page else { return Ok(false) };
        *unreadable += page.unreadable;
        found.extend(page.entries.into_iter().filter(&selects));
        let is_cut = found.len() > limit;
        found.truncate(limit);
        match page.next {
            Some(next) if found.len() < limit => after = Some(next),
            next => return Ok(is_cut || next.is_some()),
        }
    }
}

/// Finds the newest entry that says how an operator changed a record, or that it is unknown whether
/// a request has changed it. Refused requests have changed nothing, so they are skipped. Reads the
/// page of the newest entries, and further pages until they are older than the record's grant: in
/// each store with an audit table, a token is the time of the grant. Returns `None` if there is no
/// such entry, or if the store keeps no audit table.
pub(super) async fn last_change(
    store: &SharedStore,
    id: &Identity,
    granted: Option<FencingToken>,
) -> Result<Option<AuditEntry>, Error> {
    let name = id.to_string();
    let is_about = |entry: &AuditEntry| {
        entry.record.as_ref().is_some_and(|(about, _)| about.to_string() == name)
    };
    let (mut after, mut refused) = (None, 0_u32);
    loop {
        let Some(page) = store.audit_entries(after.as_ref(), PAGE).await? else { return Ok(None) };
        let oldest = page.entries.last().and_then(|entry| entry.at_micros);
        for entry in page.entries.into_iter().filter(is_about) {
            match entry.outcome.as_str() {
                "applied" | "already_applied" | "unknown" => return Ok(Some(entry)),
                // The newest entries come first, so an outcome comes before its request. This
                // request has no outcome.
                "requested" if refused == 0 => return Ok(Some(entry)),
                "requested" => refused -= 1,
                _ => refused += 1,
            }
        }
        let is_newer = granted.is_some_and(|granted| oldest >= Some(granted.get()));
        match page.next {
            Some(next) if is_newer => after = Some(next),
            _ => return Ok(None),
        }
    }
}

/// Describes a change in one line, for people.
pub(super) fn in_words(entry: &AuditEntry) -> String {
    let AuditEntry { verb, operator, reason, .. } = entry;
    let time = entry.at_micros.map(|at| clock_time(at / 1_000)).unwrap_or_default();
    let end = match entry.outcome.as_str() {
        "applied" => "",
        "already_applied" => ", which had been done before",
        _ => ", with an unknown outcome",
    };
    format!("{operator} ({verb}{end}), {time}: {reason}")
}

/// Describes a change as JSON, without its record.
pub(super) fn change_as_json(entry: &AuditEntry) -> Value {
    json!({
        "at_ms": entry.at_micros.map(|at| at / 1_000),
        "token": entry.record.as_ref().map(|(_, token)| token.get()),
        "verb": entry.verb,
        "outcome": entry.outcome,
        "operator": entry.operator,
        "reason": entry.reason,
    })
}

fn row(entry: &AuditEntry, show_keys: bool) -> [String; 8] {
    let AuditEntry { record, verb, outcome, operator, reason, .. } = entry;
    let [scope, key, token] = match record {
        Some((id, token)) => {
            [id.scope().as_str().to_owned(), key_of(id, show_keys), token.to_string()]
        }
        None => ["–"; 3].map(str::to_owned),
    };
    let time = entry.at_micros.map(|at| clock_time(at / 1_000)).unwrap_or_default();
    let [verb, outcome, operator, reason] = [verb, outcome, operator, reason].map(Clone::clone);
    [time, scope, key, token, verb, outcome, operator, reason]
}

fn as_json(entry: &AuditEntry, show_keys: bool) -> Value {
    let record = entry.record.as_ref();
    let mut value = change_as_json(entry);
    value["scope"] = json!(record.map(|(id, _)| id.scope().as_str()));
    value["key"] = json!(record.map(|(id, _)| key_of(id, show_keys)));
    value
}

/// Returns the key, masked unless `show_keys` is set (ID-4).
fn key_of(id: &Identity, show_keys: bool) -> String {
    if show_keys { id.key().expose().to_owned() } else { id.key().to_string() }
}
