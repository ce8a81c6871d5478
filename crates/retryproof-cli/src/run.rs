// SPDX-License-Identifier: MIT OR Apache-2.0
//! `run`: executes a command once per key, and replays its result to duplicates.

use std::io;

use retryproof::config::TTL_BOUNDS;
use retryproof::observe::Loss;
use retryproof::store::RecordState;
use retryproof::{
    Acquisition, CompletionFailurePolicy, CompletionResult, HeldLease, IdempotencyConfig,
    IdempotencyContext, IdempotencyEngine, IdempotencyStore as _, Identity, InFlight, Opened,
    Scope, StoredResult, connect_with,
};

use self::command::{CommandEnd, Execution};
use crate::arguments::RunArguments;
use crate::exit::{self, VerbError};
use crate::output::remark;
use crate::record_key::shown;
use crate::recording::{self, Recording, Stream};
use crate::time::spoken;

mod capture;
mod command;
mod pump;
pub(crate) mod shim;
mod signals;

/// What may have happened if a heartbeat or a completion finds another owner, or no record.
const TAKEN: &str = "the key was taken over, or an operator released or resolved it (`retryproof \
     audit` lists the changes by operators)";

/// An upper bound on the number of bytes that sealing adds to a result.
const SEALING: usize = 128;

/// Executes the command, or replays its result, and returns the exit code.
pub(crate) async fn run(
    arguments: &RunArguments,
    show_keys: bool,
    mut config: IdempotencyConfig,
) -> Result<u8, VerbError> {
    let scope = Scope::new(arguments.scope.as_str())?;
    let mut context = IdempotencyContext::builder(scope, &arguments.key);
    if let Some(ttl) = arguments.ttl {
        context = context.ttl(ttl);
    }
    if let Some(lease) = arguments.lease {
        context = context.lease(lease);
    }
    if let Some(wait) = arguments.wait {
        context = context.wait_timeout(wait);
    }
    let context = context.build()?;
    // A command can run for days, so its lease must not end after the default `max-hold`. If the
    // command hangs, this process waits until a signal ends both.
    config.max_hold = *TTL_BOUNDS.end();
    let store = connect_with(&config).await?;
    let engine = IdempotencyEngine::builder(store).config(config).build()?;
    match engine.try_acquire(&context).await? {
        Acquisition::Granted(held) => execute(&engine, held, arguments, show_keys).await,
        Acquisition::Complete(stored) => {
            let id = engine.store().identify(context.identity().clone());
            replay(&stored, &shown(&id, show_keys))
        }
        Acquisition::InFlight(busy) => {
            let id = engine.store().identify(context.identity().clone());
            Err(in_flight(&engine, &id, show_keys, busy).await)
        }
        // A run has no fingerprint, so it never mismatches an earlier run.
        Acquisition::Mismatch => Err(VerbError::other(
            "the command was not run, because the key was used before for a different request",
        )),
    }
}

/// Runs the command under the lease, then completes the record, releases the key, or lets the lease
/// run out.
async fn execute(
    engine: &IdempotencyEngine,
    held: HeldLease,
    arguments: &RunArguments,
    show_keys: bool,
) -> Result<u8, VerbError> {
    let name = shown(held.lease().identity(), show_keys);
    let Execution { end, capture, mut output_tasks } =
        command::execute(&arguments.command, held.lease(), arguments.max_output).await;
    let code = match end {
        CommandEnd::NotStarted(error) => {
            // The command did not start, so free the key. If the release fails, the engine logs the
            // error.
            let _ = held.release().await;
            Err(not_started(&error))
        }
        CommandEnd::Exited(code) if arguments.retry_on.iter().any(|range| range.contains(code)) => {
            let _ = held.release().await;
            Ok(code_as_u8(code))
        }
        CommandEnd::Exited(code) => {
            // Leave room for what sealing adds.
            let largest = engine.store().profile().max_value.saturating_sub(SEALING);
            let result = match capture.into_chunks() {
                Ok(chunks) => Ok(recording::payload(code, &chunks)),
                Err(size) => Err((size, "--max-output".to_owned())),
            };
            let result = match result {
                Ok(payload) if payload.envelope().len() > largest => {
                    let size = payload.body().len() as u64;
                    Err((size, format!("the store accepts ({largest} bytes)")))
                }
                result => result,
            };
            let result = match result {
                Ok(payload) => held.complete(payload).await,
                Err((size, limit)) => {
                    remark(format_args!(
                        "the output of {name} ({size} bytes) is larger than {limit}, so the output \
                         is not kept; a duplicate gets only the exit code"
                    ));
                    held.complete_tombstone(recording::tombstone(code, size)).await
                }
            };
            recorded(engine, &name, code, result)
        }
        CommandEnd::Killed(signal) => {
            let left = spoken(held.lease().remaining());
            held.hold();
            remark(format_args!(
                "signal {signal} killed the command of {name}; the command may have had effects, \
                 so the key stays taken for {left}; the next run after that is a takeover"
            ));
            Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
        CommandEnd::LeaseLost(loss) => {
            held.hold();
            Err(VerbError::new(
                exit::RUN_FAILED,
                format!(
                    "the lease of {name} was lost, so the command was stopped: {}; another process \
                     may be running the command",
                    cause(loss)
                ),
            ))
        }
        CommandEnd::Unknown(error) => {
            held.hold();
            Err(VerbError::new(
                exit::RUN_FAILED,
                format!("it is unknown how the command of {name} ended: {error}"),
            ))
        }
    };
    // A release or completion that is not yet confirmed might still be running. Wait until it ends,
    // but at most for the operation timeout.
    engine.shutdown(engine.config().operation_timeout).await;
    output_tasks.finish().await;
    code
}

/// Reports whether the result was recorded, and returns the command's exit code. Returns an error
/// if the result was not recorded and the policy is `propagate` (CMP-4).
fn recorded(
    engine: &IdempotencyEngine,
    name: &str,
    code: i32,
    result: CompletionResult,
) -> Result<u8, VerbError> {
    let problem = match result {
        CompletionResult::Recorded => return Ok(code_as_u8(code)),
        CompletionResult::Tombstoned(error) => {
            remark(format_args!(
                "the store did not accept the output of {name}, so a duplicate gets neither the \
                 output nor the exit code, and ends with {}: {error}",
                exit::RUN_FAILED
            ));
            return Ok(code_as_u8(code));
        }
        CompletionResult::Unconfirmed(error) => error.to_string(),
        _ => TAKEN.to_owned(),
    };
    let message = format!(
        "the command of {name} ended with exit code {code}, but its result was not recorded, so \
         the command may run again: {problem}"
    );
    match engine.config().completion_failure_policy {
        CompletionFailurePolicy::LogAndReturn => {
            remark(message);
            Ok(code_as_u8(code))
        }
        CompletionFailurePolicy::Propagate => Err(VerbError::new(exit::RUN_FAILED, message)),
    }
}

/// Describes why a lease was lost.
fn cause(loss: Loss) -> String {
    match loss {
        Loss::TakenOver => TAKEN.to_owned(),
        Loss::Expired => "no heartbeat reached the store before the lease ended".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Writes the output of an earlier run of `name`, and returns its exit code.
fn replay(stored: &StoredResult, name: &str) -> Result<u8, VerbError> {
    match stored.open(None)? {
        Opened::Value(payload) if payload.codec() == recording::CODEC => {
            let recording = Recording::decode(&payload)?;
            let (mut stdout, mut stderr) = (Some(io::stdout()), Some(io::stderr()));
            for (stream, bytes) in recording.chunks() {
                match stream {
                    Stream::Stdout => write_while_open(&mut stdout, bytes),
                    Stream::Stderr => write_while_open(&mut stderr, bytes),
                }
            }
            Ok(code_as_u8(recording.code()))
        }
        Opened::Tombstone(tombstone) if tombstone.detail().codec() == recording::CODEC => {
            remark(
                "the command was run before; its output was too large to be kept, so only its exit \
                 code is repeated",
            );
            Ok(code_as_u8(recording::code_of_tombstone(tombstone.detail())?))
        }
        Opened::Tombstone(_) => Err(VerbError::new(
            exit::RUN_FAILED,
            format!(
                "the command of {name} was not run, because an earlier run did the work; its result \
                 was not kept, or an operator erased it (`retryproof get` shows the last change)"
            ),
        )),
        _ => Err(VerbError::new(
            exit::RUN_FAILED,
            format!(
                "the command of {name} was not run, because the work is done already; `retryproof \
                 run` did not do it, so run `retryproof get --body` to see the result"
            ),
        )),
    }
}

/// Writes to a stream. After an error, which is usually a closed pipe, the stream is not used
/// again. The error has no other effect.
fn write_while_open(stream: &mut Option<impl io::Write>, bytes: &[u8]) {
    if let Some(open) = stream
        && open.write_all(bytes).and_then(|()| open.flush()).is_err()
    {
        *stream = None;
    }
}

async fn in_flight(
    engine: &IdempotencyEngine,
    id: &Identity,
    show_keys: bool,
    busy: InFlight,
) -> VerbError {
    // Look up the holder with a single call. If the call fails or finds no label, the message does
    // not name the holder.
    let record = engine.store().get(id).await.ok().flatten();
    let live = record.as_ref().filter(|record| record.state == RecordState::InProgress);
    let end = live.and_then(|record| record.remaining).map(spoken);
    let advice = match end {
        // Do not say when to try again: a live holder extends its lease until its work ends.
        Some(left) => format!(
            "its lease has {left} left, and a live holder extends it; wait longer with `--wait`, \
             or try again later"
        ),
        None => format!("try again in {} s", busy.retry_after().as_secs()),
    };
    let holder = record.and_then(|record| record.holder);
    let by = holder
        .as_ref()
        .and_then(|note| note.label())
        .map(|label| format!(" (holder: {label:?})"))
        .unwrap_or_default();
    VerbError::new(
        exit::IN_FLIGHT,
        format!("{} is in progress{by}; {advice}", shown(id, show_keys)),
    )
}

fn not_started(error: &io::Error) -> VerbError {
    let (code, hint) = match error.kind() {
        io::ErrorKind::NotFound => (127, "; check its name and PATH"),
        _ => (126, ""),
    };
    VerbError::new(code, format!("the command could not be started: {error}{hint}"))
}

/// Returns the low 8 bits, because exit codes of a Unix process have 8 bits.
fn code_as_u8(code: i32) -> u8 {
    u8::try_from(code & 0xff).unwrap_or(exit::RUN_FAILED)
}
