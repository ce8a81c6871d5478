// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `retryproof`: inspects and maintains a store, and runs any command once per key.
//!
//! `arguments` defines the command line, `settings` finds the store, `verbs` has one function for
//! each verb, and `run` is the verb that executes a command.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::arguments::{CommandLine, Verb};
use crate::exit::VerbError;
use crate::output::Printer;
use crate::settings::Sources;

mod arguments;
mod exit;
mod output;
mod record_key;
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
            // Ignore an error: the exit code is the same whether or not the text can be printed.
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
            error.report();
            #[cfg(unix)]
            if let Verb::Run(_) = arguments.verb {
                return ExitCode::from(error.code_of_run());
            }
            ExitCode::from(error.code)
        }
    }
}

/// Whether the verb is `run`, whose usage errors have a separate exit code.
fn runs_a_command() -> bool {
    let matches = CommandLine::command().ignore_errors(true).try_get_matches();
    matches.is_ok_and(|matches| matches.subcommand_name() == Some("run"))
}

/// Prints the warnings of the library; `RUST_LOG` selects other lines.
fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .without_time()
        .with_target(false)
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
        Verb::Stuck { scope } => {
            let (config, scope) = (sources()?.config, scope.as_deref());
            on_runtime(verbs::list::stuck(scope, arguments.show_keys, &config, &printer))
        }
        Verb::Stats { by_scope: true } => {
            let config = sources()?.config;
            on_runtime(verbs::list::stats_by_scope(&config, &printer))
        }
        Verb::Stats { by_scope: false } => {
            let config = sources()?.config;
            on_runtime(verbs::store::stats(&config, &printer))
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
        Verb::Purge => {
            let config = sources()?.config;
            on_runtime(verbs::store::purge(&config, &printer))
        }
        Verb::Migrate { print: true } => verbs::store::print_schema(&sources()?.config),
        Verb::Migrate { print: false } => {
            let config = sources()?.config;
            on_runtime(verbs::store::migrate(&config, &printer))
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

/// Runs a verb on a single-threaded runtime, because the parent-death signal of a command depends
/// on the thread that starts the command.
fn on_runtime(verb: impl Future<Output = Result<u8, VerbError>>) -> Result<u8, VerbError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| VerbError::other(format!("the runtime could not start: {error}")))?;
    let result = runtime.block_on(verb);
    // A write to a terminal that is paused must not keep the process alive.
    runtime.shutdown_background();
    result
}
