// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `retryproof`: inspects and maintains a store, and runs any command once per key.
//!
//! `arguments` defines the command line, `settings` finds the store, `verbs` has one function for
//! each verb, and `run` is the verb that executes a command.

use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};

use crate::arguments::{CommandLine, Verb};
use crate::exit::VerbError;
use crate::output::Printer;
use crate::settings::Sources;

mod arguments;
mod exit;
mod interrupt;
mod output;
mod position;
mod record_key;
mod record_line;
mod recording;
#[cfg(unix)]
mod run;
mod settings;
mod time;
mod verbs;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = run::shim::start(std::env::args_os()) {
        return ExitCode::from(code);
    }
    let arguments = match CommandLine::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let error = with_hint(error);
            // Ignore any error: the exit code is the same even if the text cannot be printed.
            let _ = error.print();
            return ExitCode::from(match error.use_stderr() {
                true if runs_a_command() => exit::RUN_FAILED,
                true => exit::USAGE,
                false => exit::OK,
            });
        }
    };
    log_to_stderr();
    match perform(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let error = with_store(error, &arguments);
            output::report(&error);
            #[cfg(unix)]
            if let Verb::Run(_) = arguments.verb {
                return ExitCode::from(error.code_of_run());
            }
            ExitCode::from(error.code)
        }
    }
}

/// If the command line lacks a token, adds a hint that says where to find the token.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let lacks_token = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => {
            missing.iter().any(|argument| argument.starts_with("--token"))
        }
        _ => false,
    };
    if lacks_token {
        let hint = "`retryproof get` prints the token of a record".into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    }
    error
}

/// If the store does not answer, adds its URL to the error, without the password (ID-4).
fn with_store(error: VerbError, arguments: &CommandLine) -> VerbError {
    if error.code != exit::STORE_AWAY {
        return error;
    }
    let sources = Sources::load(arguments.store.as_deref(), arguments.config.as_deref());
    match sources.ok().and_then(|sources| sources.config.store) {
        Some(url) => {
            error.because(&format!("the configured store is {}", settings::redacted(&url)))
        }
        None => error,
    }
}

/// Whether the verb is `run`, whose usage errors have a separate exit code.
fn runs_a_command() -> bool {
    let matches = CommandLine::command().ignore_errors(true).try_get_matches();
    matches.is_ok_and(|matches| matches.subcommand_name() == Some("run"))
}

/// Prints the library's warnings on stderr. `RUST_LOG` selects other levels and targets.
fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colour = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .without_time()
        .with_target(false)
        // Otherwise, if a warning cannot be written because the pipe is closed, the subscriber
        // would report this on the same pipe, and panic.
        .log_internal_errors(false)
        .init();
}

fn perform(arguments: &CommandLine) -> Result<u8, VerbError> {
    let printer = Printer::new(arguments.output);
    let sources = || Sources::load(arguments.store.as_deref(), arguments.config.as_deref());
    match &arguments.verb {
        Verb::Get(get) => {
            let config = sources()?.config;
            on_runtime(verbs::get::get(get, arguments.show_keys, &config, &printer))
        }
        Verb::Ls(list) => {
            let config = sources()?.config;
            on_runtime(verbs::list::list(list, arguments.show_keys, &config, &printer))
        }
        Verb::Stuck(scan) => {
            let config = sources()?.config;
            on_runtime(verbs::list::stuck(scan, arguments.show_keys, &config, &printer))
        }
        Verb::Stats { by_scope: true } => {
            let config = sources()?.config;
            on_runtime(verbs::list::stats_by_scope(&config, &printer))
        }
        Verb::Stats { by_scope: false } => {
            let config = sources()?.config;
            on_runtime(verbs::store::stats(&config, &printer))
        }
        Verb::Top(top) => {
            let config = sources()?.config;
            on_runtime(verbs::top::top(top, &config, &printer))
        }
        #[cfg(feature = "seal")]
        Verb::Erase(erase) if erase.subject.is_some() => {
            let config = sources()?.config;
            on_runtime(verbs::keys::erase(erase, &config, &printer))
        }
        #[cfg(feature = "seal")]
        Verb::Keys { verb: arguments::KeysVerb::Rotate(rotate) } => {
            let config = sources()?.config;
            on_runtime(verbs::keys::rotate(rotate, &config, &printer))
        }
        Verb::Release(_) | Verb::Resolve(_) | Verb::Forget(_) | Verb::Erase(_) => {
            let config = sources()?.config;
            on_runtime(verbs::change::change(
                &arguments.verb,
                arguments.show_keys,
                &config,
                &printer,
            ))
        }
        Verb::Audit(audit) => {
            let config = sources()?.config;
            on_runtime(verbs::audit::audit(audit, arguments.show_keys, &config, &printer))
        }
        Verb::Purge => {
            let config = sources()?.config;
            on_runtime(verbs::store::purge(&config, &printer))
        }
        Verb::Export(scan) => {
            let config = sources()?.config;
            on_runtime(verbs::export::export(scan, arguments.show_keys, &config))
        }
        Verb::Import(import) => {
            let config = sources()?.config;
            on_runtime(verbs::import::import(import, &config, &printer))
        }
        Verb::Migrate(arguments) => {
            let mut config = sources()?.config;
            verbs::store::divide(&mut config, arguments.partitions)?;
            match arguments.print {
                true => verbs::store::print_schema(&config),
                false => on_runtime(verbs::store::migrate(&config, &printer)),
            }
        }
        Verb::Doctor => {
            let config = sources()?.config;
            on_runtime(verbs::doctor::doctor(&config, &printer))
        }
        Verb::Config { verb: arguments::ConfigVerb::Show } => {
            verbs::config::show(&sources()?, &printer)
        }
        #[cfg(unix)]
        Verb::Run(run) => {
            let config = sources()?.config;
            on_runtime(run::run(run, arguments.show_keys, config))
        }
        Verb::Key { step } => on_runtime(verbs::key::derive(step)),
        Verb::Completions { shell } => verbs::manual::completions(*shell),
        Verb::Man { verb } => verbs::manual::page(verb.as_deref()),
    }
}

/// Runs a verb on a single-threaded runtime. The runtime has one thread because the parent-death
/// signal of a command depends on the thread that starts the command.
fn on_runtime(verb: impl Future<Output = Result<u8, VerbError>>) -> Result<u8, VerbError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| VerbError::other(format!("the runtime could not start: {error}")))?;
    let result = runtime.block_on(verb);
    // A write to a paused terminal would keep the process alive, but `shutdown_background` does not
    // wait for such a write.
    runtime.shutdown_background();
    result
}
