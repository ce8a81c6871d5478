// SPDX-License-Identifier: MIT OR Apache-2.0
//! `release`, `resolve`, `forget` and `erase`: an operator changes one record (OPS-3, OPS-4). Each
//! change is audited: the request before the change is sent to the store, and the outcome
//! afterwards.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use retryproof::http::StoredResponse;
use retryproof::store::{Completion, ForceRequest, Forced, Peeked, RecordState, RecordSummary};
use retryproof::{
    CodecId, FencingToken, IdempotencyConfig, IdempotencyContext, IdempotencyStore as _, Identity,
    Opened, Payload, SharedStore, Tombstone, connect_with,
};
use serde_json::{Value, json};

use super::audit::Trail;
use super::confirm::confirm;
use super::get::holder;
use super::locate::located;
use crate::arguments::{ChangeArguments, CompleteArguments, ResolveArguments, Verb};
use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;
use crate::output::{Printer, harmless};
use crate::record_key::{hint, identity, shown};
use crate::recording;
use crate::time::{millis, spoken};

/// A change that the user asks for.
struct Change<'a> {
    verb: &'static str,
    effect: &'static str,
    arguments: Cow<'a, ChangeArguments>,
    token: FencingToken,
    /// The result that `resolve` stores. Other verbs store none.
    result: Option<Completion>,
    /// Whom that result is about, if the user has named a subject.
    subject: Option<&'a str>,
    even_if_live: bool,
}

impl<'a> Change<'a> {
    fn of(verb: &'a Verb, config: &IdempotencyConfig) -> Result<Self, VerbError> {
        let mut subject = None;
        let (verb, effect, arguments, token, even_if_live, result) = match verb {
            Verb::Release(release) => {
                let effect = "the next call runs at once, as a first attempt";
                let arguments = Cow::Borrowed(&release.change);
                ("release", effect, arguments, release.token, release.even_if_live, None)
            }
            Verb::Resolve(resolve) => {
                let (effect, release) =
                    ("retries get this result, and their work does not run", &resolve.lease);
                let result = Some(completion(resolve, config)?);
                subject = resolve.subject.as_deref();
                let arguments = Cow::Borrowed(&release.change);
                ("resolve", effect, arguments, release.token, release.even_if_live, result)
            }
            Verb::Forget(forget) => {
                let arguments = Cow::Borrowed(&forget.change);
                ("forget", "the work may run again", arguments, forget.token, false, None)
            }
            Verb::Erase(erase) => {
                let effect = "its answer is gone, and the work does not run again";
                let CompleteArguments { change, token } = erase.of_record()?;
                ("erase", effect, Cow::Owned(change), token, false, None)
            }
            _ => return Err(VerbError::other("this verb changes no record")),
        };
        let token = FencingToken::new(token);
        Ok(Self { verb, effect, arguments, token, result, subject, even_if_live })
    }

    fn request(&self, id: &Identity) -> ForceRequest {
        let request = match (self.verb, &self.result) {
            (_, Some(result)) => {
                let resolve = ForceRequest::resolve(id, self.token, result.clone());
                // Without a subject, the caller is the data subject of the result, as in a result
                // that the HTTP filter records (SEAL-3).
                match self.subject.or(self.arguments.record.caller.as_deref()) {
                    Some(subject) => resolve.about(subject),
                    None => resolve,
                }
            }
            ("forget", None) => ForceRequest::forget(self.token),
            ("erase", None) => ForceRequest::erase(self.token),
            (_, None) => ForceRequest::release(self.token),
        };
        if self.even_if_live { request.even_if_live() } else { request }
    }

    /// Whether the record is already resolved or erased. If the store then applies the verb, the
    /// verb only repeats the earlier change.
    async fn finds_itself_done(
        &self,
        store: &SharedStore,
        id: &Identity,
        record: &RecordSummary,
    ) -> bool {
        if record.token != self.token || record.state != RecordState::Complete {
            return false;
        }
        match self.verb {
            // Return `true` without reading the result: the store applies a resolve to a complete
            // record only if the same resolve completed the record.
            "resolve" => true,
            "erase" => match store.peek(id).await {
                Ok(Peeked::Complete(stored)) => match stored.open(None) {
                    Ok(Opened::Tombstone(tombstone)) => tombstone.detail().body().is_empty(),
                    _ => false,
                },
                // Ignore an error of `peek`: if the store does not work, the erase that follows
                // reports the problem.
                _ => false,
            },
            _ => false,
        }
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
    let store = connect_with(config).await?;
    check_capability(&store)?;
    check_ttl(&store, change.result.as_ref())?;
    let ChangeArguments { operator, reason, .. } = &*change.arguments;
    let trail = Trail::new(&store, change.verb, operator.as_deref(), reason)?;
    let identity = located(&store, &change.arguments.record).await?;
    let name = shown(&identity, show_keys);
    let Some(record) = store.get(&identity).await? else {
        return Err(absent(&name, hint(&change.arguments.record)));
    };
    let is_repeated = change.finds_itself_done(&store, &identity, &record).await;
    let interrupt = Interrupt::new();
    if !change.arguments.yes {
        confirm(&interrupt, &question(&change, &name, &record)).await?;
    }
    let trail = trail.with_record(&identity, change.token, change.even_if_live);
    trail.request("nothing was changed").await?;
    let request = change.request(&identity);
    let forced = interrupt.or(store.force(&identity, &request)).await;
    let forced = forced
        .map_err(|end| end.about("it is unknown whether the record was changed"))
        .and_then(|forced| Ok(forced?));
    let outcome = match &forced {
        Ok(Forced::Applied) if is_repeated => "already_applied",
        Ok(forced) => word(forced),
        Err(_) => "unknown",
    };
    trail.outcome(outcome, Value::Null).await;
    if let Some(refused) = refusal(&forced?, change.verb, &name) {
        return Err(refused);
    }
    print_done(&change, &identity, show_keys, is_repeated, *print)?;
    Ok(exit::OK)
}

fn print_done(
    change: &Change<'_>,
    identity: &Identity,
    show_keys: bool,
    is_repeated: bool,
    print: Printer,
) -> Result<(), VerbError> {
    let done = match is_repeated {
        true => "this was done before, so nothing was changed",
        false => "done",
    };
    let mut rows = vec![("record", shown(identity, show_keys)), (change.verb, done.to_owned())];
    let ttl = change.result.as_ref().filter(|_| !is_repeated).map(|result| result.ttl);
    rows.extend(ttl.map(|ttl| ("kept for", spoken(ttl))));
    if change.verb == "release" {
        rows.push(("next call", "a first attempt, not a takeover".to_owned()));
    }
    let key =
        if show_keys { identity.key().expose().to_owned() } else { identity.key().to_string() };
    print.one(
        &rows,
        &json!({
            "scope": identity.scope().as_str(),
            "key": key,
            "verb": change.verb,
            "token": change.token.get(),
            "changed": !is_repeated,
            "ttl_ms": ttl.map(millis),
        }),
    )
}

fn check_capability(store: &SharedStore) -> Result<(), VerbError> {
    if store.can_force() && store.can_inspect() {
        return Ok(());
    }
    let message =
        format!("the {} store does not let operators change records", store.profile().name);
    Err(VerbError::new(exit::REFUSED, message))
}

/// Refuses a ttl that exceeds the store's limit.
fn check_ttl(store: &SharedStore, result: Option<&Completion>) -> Result<(), VerbError> {
    let longest = store.profile().max_duration;
    if result.is_none_or(|result| result.ttl <= longest) {
        return Ok(());
    }
    Err(VerbError::usage(format!("`--ttl` exceeds the store's limit of {}", spoken(longest))))
}

/// Returns the result that `resolve` stores.
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
    let ttl = ttl(arguments, config)?;
    // Build a context only to check the bounds of the ttl (CTX-2).
    let record = identity(&arguments.lease.change.record)?;
    let (scope, key) = (record.scope().clone(), record.key().expose());
    IdempotencyContext::builder(scope, key).ttl(ttl).build()?;
    Ok(Completion::new(value, ttl, None))
}

/// Returns how long `resolve` keeps its result. The `default-ttl` is not used, because it may be
/// shorter than the ttl that the program sets in its code (CTX-3).
fn ttl(arguments: &ResolveArguments, config: &IdempotencyConfig) -> Result<Duration, VerbError> {
    let scope = &arguments.lease.change.record.scope;
    let configured = config.scopes.get(scope).and_then(|scope| scope.ttl);
    arguments.ttl.or(configured).ok_or_else(|| {
        VerbError::usage(format!(
            "nothing was changed: `--ttl` is required, because the configuration sets no `ttl` for \
             the scope {scope:?}; give the ttl that your program uses: after a shorter ttl, a \
             retry runs the work again"
        ))
    })
}

fn read(file: &Path) -> Result<Vec<u8>, VerbError> {
    std::fs::read(file)
        .map_err(|error| VerbError::usage(format!("{} cannot be read: {error}", file.display())))
}

/// Returns the question that asks the user to confirm the change.
fn question(change: &Change<'_>, name: &str, record: &RecordSummary) -> String {
    let state = match (record.state, record.remaining) {
        (RecordState::InProgress, Some(left)) => {
            format!("in progress with a live lease ({} left)", spoken(left))
        }
        (RecordState::InProgress, None) => "in progress, but its lease is over".to_owned(),
        (RecordState::Complete, _) => "complete".to_owned(),
    };
    let Change { verb, effect, token, .. } = change;
    let advice = match (*verb, record.state, record.remaining) {
        ("release", RecordState::InProgress, None) => {
            "A release is not needed: the next call takes over, and is marked as a takeover, \
             because an earlier run may have begun the work. After a release, the next call is a \
             first attempt.\n"
        }
        _ => "",
    };
    format!(
        "{name} is {state}; holder: {}; token: {}.\n{advice}{verb} it with token {token}? \
         If you confirm, {effect}. [y/N] ",
        harmless(&holder(record)),
        record.token
    )
}

/// Returns the word for the outcome in the audit.
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

/// Returns the error for a record that does not exist. `hint` is appended to the sentence, and can
/// be empty.
fn absent(name: &str, hint: &str) -> VerbError {
    VerbError::not_found(name, hint).because("nothing was changed")
}

/// Returns the error for a record that was not changed, or `None` if the change was applied.
fn refusal(forced: &Forced, verb: &str, name: &str) -> Option<VerbError> {
    let message = match forced {
        Forced::Applied => return None,
        Forced::Absent => return Some(absent(name, "")),
        Forced::Live(lease) => {
            let holder = lease.holder.as_ref().and_then(|note| note.label()).unwrap_or("unknown");
            let advice = match verb {
                "forget" | "erase" => "there is no result yet: wait until the work ends",
                _ => {
                    "stop the holder, and wait until its lease has ended; `release` and `resolve` \
                     end a live lease only with `--even-if-live`"
                }
            };
            format!(
                "{name} has a live lease (holder: {}, {} left), so nothing was changed; {advice}",
                harmless(holder),
                spoken(lease.remaining)
            )
        }
        Forced::Unfinished => format!(
            "{name} has no result, so nothing was changed, and its lease is over: usually, leave \
             it, because the next call takes over; `release` and `resolve` change a record in \
             progress"
        ),
        Forced::Finished if verb == "resolve" => format!(
            "{name} is complete with another result, so nothing was changed: its former holder \
             completed it late, or another `resolve` came first; compare the results with `get \
             --body`"
        ),
        Forced::Finished => format!(
            "{name} is complete, so nothing was changed; `forget` and `erase` change a complete \
             record"
        ),
        Forced::AnotherToken(token) => format!(
            "nothing was changed: {name} was granted again, or the given token is wrong; look at \
             the record with `get` before you use its token, {token}"
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
        let live = || Forced::Live(LiveLease::new(Duration::from_secs(9), FencingToken::new(7)));
        for (forced, verb, code, text) in [
            (live(), "release", 4, "live lease (holder: unknown, 9 s left)"),
            (live(), "release", 4, "stop the holder, and wait until its lease has ended"),
            (live(), "resolve", 4, "only with `--even-if-live`"),
            (live(), "forget", 4, "nothing was changed; there is no result yet: wait until"),
            (Forced::Unfinished, "forget", 4, "usually, leave it, because the next"),
            (Forced::Finished, "release", 4, "`forget` and `erase` change"),
            (Forced::Finished, "resolve", 4, "complete with another result"),
            (Forced::AnotherToken(FencingToken::new(8)), "erase", 4, "use its token, 8"),
            (Forced::Absent, "forget", 1, "there is no record of pay#00: it"),
        ] {
            let error = refusal(&forced, verb, "pay#00").expect("a refusal");
            assert_eq!(error.code, code, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(refusal(&Forced::Applied, "erase", "pay#00").is_none());
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
