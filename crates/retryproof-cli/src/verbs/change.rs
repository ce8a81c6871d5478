// SPDX-License-Identifier: MIT OR Apache-2.0
//! `release`, `resolve`, `forget` and `erase`: verbs that change one record without being its
//! holder (OPS-3, OPS-4). Each verb leaves an audit line on stderr.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use retryproof::http::StoredResponse;
use retryproof::store::{Completion, ForceRequest, Forced, RecordState, RecordSummary};
use retryproof::{
    CodecId, FencingToken, IdempotencyConfig, IdempotencyContext, IdempotencyStore as _, Identity,
    Payload, SharedStore, Tombstone, connect_with,
};
use serde_json::{Value, json};

use super::get::holder;
use crate::arguments::{ChangeArguments, ResolveArguments, Verb};
use crate::exit::{self, VerbError};
use crate::output::{Printer, harmless};
use crate::record_key::{identity, shown};
use crate::recording;
use crate::time::spoken;

/// A change that the user asks for.
struct Change<'a> {
    verb: &'static str,
    effect: &'static str,
    arguments: &'a ChangeArguments,
    token: Option<u64>,
    /// What `resolve` stores.
    result: Option<Completion>,
    even_if_live: bool,
}

impl<'a> Change<'a> {
    fn of(verb: &'a Verb, config: &IdempotencyConfig) -> Result<Self, VerbError> {
        let (verb, effect, arguments, token, even_if_live) = match verb {
            Verb::Release(release) => {
                let effect = "the next call runs at once";
                ("release", effect, &release.change, Some(release.token), release.even_if_live)
            }
            Verb::Resolve(resolve) => {
                let release = &resolve.lease;
                return Ok(Self {
                    verb: "resolve",
                    effect: "retries get this result, and nothing runs",
                    arguments: &release.change,
                    token: Some(release.token),
                    result: Some(completion(resolve, config)?),
                    even_if_live: release.even_if_live,
                });
            }
            Verb::Forget(forget) => {
                ("forget", "the work may run again", &forget.change, forget.token, false)
            }
            Verb::Erase(erase) => {
                let effect = "its answer is gone, and the work does not run again";
                ("erase", effect, &erase.change, erase.token, false)
            }
            _ => return Err(VerbError::other("the verb changes no record")),
        };
        Ok(Self { verb, effect, arguments, token, result: None, even_if_live })
    }

    fn request(&self, token: FencingToken) -> ForceRequest {
        let request = match (self.verb, &self.result) {
            (_, Some(result)) => ForceRequest::resolve(token, result.clone()),
            ("forget", None) => ForceRequest::forget(token),
            ("erase", None) => ForceRequest::erase(token),
            (_, None) => ForceRequest::release(token),
        };
        if self.even_if_live { request.even_if_live() } else { request }
    }
}

/// Changes the record that the arguments name.
pub(crate) async fn change(
    verb: &Verb,
    show_keys: bool,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let change = Change::of(verb, config)?;
    let identity = identity(&change.arguments.record)?;
    let name = shown(&identity, show_keys);
    let store = connect_with(config).await?;
    check_capability(&store)?;
    check_ttl(&store, change.result.as_ref())?;
    let Some(record) = store.get(&identity).await? else {
        return Err(VerbError::not_found(&name));
    };
    let token = change.token.map_or(record.token, FencingToken::new);
    if !change.arguments.yes {
        confirm(&question(&change, &name, token, &record))?;
    }
    let forced = store.force(&identity, &change.request(token)).await;
    let outcome = forced.as_ref().map_or("unknown", word);
    audit(&change, store.profile().name, &identity, token, outcome);
    if let Some(refused) = refusal(&forced?, &name) {
        return Err(refused);
    }
    print.one(
        &[("record", name), (change.verb, "done".to_owned())],
        &as_json(&identity, show_keys, change.verb, token),
    )?;
    Ok(exit::OK)
}

fn as_json(identity: &Identity, show_keys: bool, verb: &str, token: FencingToken) -> Value {
    let key =
        if show_keys { identity.key().expose().to_owned() } else { identity.key().to_string() };
    json!({ "scope": identity.scope().as_str(), "key": key, "verb": verb, "token": token.get() })
}

fn check_capability(store: &SharedStore) -> Result<(), VerbError> {
    if store.can_force() && store.can_inspect() {
        return Ok(());
    }
    let message =
        format!("the {} store does not let operators change records", store.profile().name);
    Err(VerbError::new(exit::REFUSED, message))
}

/// Refuses a retention that the store cannot keep.
fn check_ttl(store: &SharedStore, result: Option<&Completion>) -> Result<(), VerbError> {
    let longest = store.profile().max_duration;
    if result.is_none_or(|result| result.ttl <= longest) {
        return Ok(());
    }
    Err(VerbError::usage(format!("`--ttl` exceeds the store's limit of {}", spoken(longest))))
}

/// The result that `resolve` stores.
fn completion(
    arguments: &ResolveArguments,
    config: &IdempotencyConfig,
) -> Result<Completion, VerbError> {
    let payload = if let Some(file) = &arguments.json {
        let text = read(file)?;
        if let Err(error) = serde_json::from_slice::<Value>(&text) {
            return Err(VerbError::usage(format!("{} is not JSON: {error}", file.display())));
        }
        Some(Payload::new(CodecId::JSON, 0, &text))
    } else if let Some(code) = arguments.exit_code {
        Some(recording::payload(i32::from(code), &[]))
    } else if let Some(status) = arguments.status {
        let body = arguments.body.as_deref().map(read).transpose()?;
        let kind = arguments.content_type.as_deref().unwrap_or("application/json");
        let fields = [("content-type", kind.as_bytes())];
        let fields = if body.is_some() { &fields[..] } else { &[] };
        Some(StoredResponse::encode(status, fields, &body.unwrap_or_default())?)
    } else {
        None
    };
    let value = payload.map_or_else(|| Tombstone::new().into_envelope(), Payload::into_envelope);
    let scope = config.scopes.get(&arguments.lease.change.record.scope);
    let ttl = arguments.ttl.or_else(|| scope.and_then(|scope| scope.ttl));
    let ttl = ttl.unwrap_or(config.default_ttl);
    // The context refuses a ttl that is out of bounds (CTX-2).
    let record = identity(&arguments.lease.change.record)?;
    let (scope, key) = (record.scope().clone(), record.key().expose());
    IdempotencyContext::builder(scope, key).ttl(ttl).build()?;
    Ok(Completion::new(value, ttl, None))
}

fn read(file: &Path) -> Result<Vec<u8>, VerbError> {
    std::fs::read(file)
        .map_err(|error| VerbError::usage(format!("{} cannot be read: {error}", file.display())))
}

/// What the verb will do.
fn question(
    change: &Change<'_>,
    name: &str,
    token: FencingToken,
    record: &RecordSummary,
) -> String {
    let state = match (record.state, record.remaining) {
        (RecordState::InProgress, Some(left)) => {
            format!("in progress with a live lease ({} left)", spoken(left))
        }
        (RecordState::InProgress, None) => "in progress, but its lease has expired".to_owned(),
        (RecordState::Complete, _) => "complete".to_owned(),
    };
    let (verb, effect, holder) = (change.verb, change.effect, harmless(&holder(record)));
    format!(
        "{name} is {state}; holder: {holder}; token: {}.\n{verb} it with token {token}? Then \
         {effect}. [y/N] ",
        record.token
    )
}

/// Asks on the terminal.
fn confirm(question: &str) -> Result<(), VerbError> {
    if !std::io::stdin().is_terminal() {
        return Err(VerbError::usage(
            "nothing was changed: stdin is not a terminal, so confirm with `--yes`",
        ));
    }
    let mut stderr = anstream::stderr();
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    let mut answer = String::new();
    let read = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(VerbError::new(exit::REFUSED, "nothing was changed"))
}

/// Prints what was changed and why, for the log that keeps stderr. The key is always masked (ID-4).
fn audit(
    change: &Change<'_>,
    store: &str,
    identity: &Identity,
    token: FencingToken,
    outcome: &str,
) {
    let line = json!({
        "audit": change.verb,
        "store": store,
        "record": identity.to_string(),
        "token": token.get(),
        "even_if_live": change.even_if_live,
        "reason": change.arguments.reason,
        "outcome": outcome,
    });
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The outcome of a change, for the audit line.
fn word(forced: &Forced) -> &'static str {
    match forced {
        Forced::Applied => "applied",
        Forced::Live(_) => "live",
        Forced::Unfinished => "unfinished",
        Forced::Finished => "finished",
        Forced::AnotherToken(_) => "another_token",
        Forced::Absent => "absent",
    }
}

/// The error for a record that was not changed.
fn refusal(forced: &Forced, name: &str) -> Option<VerbError> {
    let message = match forced {
        Forced::Applied => return None,
        Forced::Absent => return Some(VerbError::not_found(name)),
        Forced::Live(lease) => {
            let holder = lease.holder.as_ref().and_then(|note| note.label()).unwrap_or("unknown");
            format!(
                "{name} has a live lease (holder: {}, {} left), so nothing was changed; `release` \
                 and `resolve` end a live lease only with `--even-if-live`",
                harmless(holder),
                spoken(lease.remaining)
            )
        }
        Forced::Unfinished => format!(
            "{name} has no result, so nothing was changed; `release` and `resolve` change a record \
             in progress"
        ),
        Forced::Finished => format!(
            "{name} is complete, so nothing was changed; `forget` and `erase` change a complete \
             record"
        ),
        Forced::AnotherToken(token) => format!(
            "{name} was granted again and has the token {token} now, so nothing was changed; look \
             at it again with `get`"
        ),
    };
    Some(VerbError::new(exit::REFUSED, message))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retryproof::MemoryStore;
    use retryproof::store::LiveLease;

    use super::*;

    #[test]
    fn ops_3_each_refusal_has_its_exit_code_and_names_the_next_step() {
        let lease = LiveLease::new(Duration::from_secs(9), FencingToken::new(7));
        for (forced, code, text) in [
            (Forced::Live(lease), 4, "live lease (holder: unknown, 9 s left)"),
            (Forced::Unfinished, 4, "has no result"),
            (Forced::Finished, 4, "is complete"),
            (Forced::AnotherToken(FencingToken::new(8)), 4, "the token 8 now"),
            (Forced::Absent, 1, "there is no record of pay#00"),
        ] {
            let error = refusal(&forced, "pay#00").expect("a refusal");
            assert_eq!(error.code, code, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(refusal(&Forced::Applied, "pay#00").is_none());
    }

    #[test]
    fn ops_3_a_store_without_the_capability_refuses() {
        let plain = SharedStore::builder(MemoryStore::new()).with_inspect().build();
        let error = check_capability(&plain).unwrap_err();
        assert_eq!((error.code, error.to_string().contains("memory store")), (4, true));
        let able = SharedStore::builder(MemoryStore::new()).with_inspect().with_force().build();
        assert!(check_capability(&able).is_ok());
    }
}
