// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

#[cfg(unix)]
use std::ffi::OsString;

/// Inspects and maintains a store of retryproof, and runs any command once per key.
#[derive(Debug, Parser)]
#[command(
    name = "retryproof",
    version,
    after_help = "Exit codes: 0 ok, 1 not found, 2 usage, 3 store unavailable, 4 refused, 5 other \
                  failures.\n`run` has its own: see `retryproof run --help`."
)]
pub(crate) struct CommandLine {
    /// The store, such as `sqlite:records.db`; overrides IDEMPOTENCY_STORE and the settings file.
    /// Put a URL with a password into that variable or file, because other users can see arguments.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The TOML file with the settings of the service, in its table `idempotency`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How results are printed: for people, as indented JSON, or as one JSON value per line.
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Table, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
    /// Prints keys in full. By default, a key is printed as the first 16 hex digits of its SHA-256.
    #[arg(long, global = true)]
    pub(crate) show_keys: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Table,
    /// Indented JSON.
    Json,
    /// One JSON value per line.
    Jsonl,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows one record: its state, its holder, its age and its size.
    #[command(after_help = "Examples:\n  retryproof get nightly 2026-11-22\n  \
                            retryproof get payments order-17 --caller alice --body\n  \
                            retryproof get payments order-17 --shared --output json")]
    Get(GetArguments),
    /// Lists records. The store reads them in pages until enough are found.
    #[command(after_help = "Examples:\n  retryproof ls --scope payments --state in-progress\n  \
                            retryproof ls --older-than PT1H --holder pod-7 --show-keys")]
    Ls(ListArguments),
    /// Lists records in progress whose holder has died, or whose heartbeats fail.
    Stuck {
        /// Only records of this scope.
        #[arg(long)]
        scope: Option<String>,
    },
    /// Counts the records. The store may have to read all of them.
    Stats {
        /// Counts the records of each scope. The store has to read all records.
        #[arg(long)]
        by_scope: bool,
    },
    /// Deletes a record in progress, so that the next call runs at once.
    #[command(
        after_help = "Example:\n  retryproof release payments order-17 --token 1763857500000000 \
                            --reason \"pod-7 was deleted\""
    )]
    Release(ReleaseArguments),
    /// Completes a record in progress with a result that you give: retries get it, and nothing runs.
    #[command(
        after_help = "Examples:\n  retryproof resolve payments order-17 --caller alice --token \
                            1763857500000000 --status 201 --body answer.json --reason \"found at the \
                            bank\"\n  retryproof resolve mails m-4 --token 1763857500000000 --done \
                            --reason \"it was sent\""
    )]
    Resolve(ResolveArguments),
    /// Deletes a complete record, so that the work may run again.
    Forget(CompleteArguments),
    /// Deletes the stored answer of a complete record. The work does not run again.
    Erase(CompleteArguments),
    /// Deletes all expired records.
    Purge,
    /// Creates or upgrades the tables of the store.
    #[command(after_help = "Examples:\n  retryproof migrate --store sqlite:records.db\n  \
                            retryproof migrate --print > schema.sql")]
    Migrate {
        /// Prints the tables as SQL for another migration tool, and changes nothing.
        #[arg(long)]
        print: bool,
    },
    /// Shows the settings.
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Runs a command once per key, and replays its output and exit code to duplicates.
    #[cfg(unix)]
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Inside a command of `run`: prints a key for a call to another service. The key stays the
    /// same if another process takes over.
    #[command(after_help = "Example, in a script that `retryproof run` started:\n  \
                            curl -H \"Idempotency-Key: $(retryproof key charge)\" …")]
    Key {
        /// The name of the call: each call needs a different name.
        step: String,
    },
    /// Prints the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page.
    Man {
        /// The verb whose page is printed; without it, the page of the command.
        verb: Option<String>,
    },
}

/// `config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Prints each setting, its value, and the source of the value. Secrets are hidden.
    Show,
}

/// The names of one record.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// The scope, such as `payments` or `POST /orders`.
    pub(crate) scope: String,
    /// The key. Without `--caller` and `--shared`: the key as stored. Write `--` before a key that
    /// begins with a dash.
    pub(crate) key: String,
    /// The key was sent over HTTP by this caller, to a filter with `.caller(..)`.
    #[arg(long, value_name = "CALLER", conflicts_with = "shared")]
    pub(crate) caller: Option<String>,
    /// The key was sent over HTTP to a filter with `.callers_share_keys()`.
    #[arg(long)]
    pub(crate) shared: bool,
}

/// `get …`.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Also prints the stored result.
    #[arg(long)]
    pub(crate) body: bool,
}

/// `ls …`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Only records of this scope.
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Only records in this state.
    #[arg(long, value_enum)]
    pub(crate) state: Option<ListedState>,
    /// Only records that were granted at least this long ago: an ISO 8601 duration, such as PT10M.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) older_than: Option<Duration>,
    /// Only records whose holder's name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,
    /// The most records to list.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub(crate) limit: usize,
}

/// The state of a record, as an option of `ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListedState {
    /// A holder has the record, or has died.
    InProgress,
    /// The record has a result, expired or not.
    Complete,
}

/// What all verbs that change a record need.
#[derive(Debug, Args)]
pub(crate) struct ChangeArguments {
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Why you change the record. The audit line on stderr contains it.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Changes the record without asking.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `release …`, and what `resolve` shares with it.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArguments {
    #[command(flatten)]
    pub(crate) change: ChangeArguments,
    /// The record's token, as `get` prints it. If the key was granted again since, nothing changes.
    #[arg(long)]
    pub(crate) token: u64,
    /// Also ends a live lease. Its holder may still be at work, so the work may run twice.
    #[arg(long)]
    pub(crate) even_if_live: bool,
}

/// `resolve …`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("result").required(true))]
pub(crate) struct ResolveArguments {
    #[command(flatten)]
    pub(crate) lease: ReleaseArguments,
    /// The work is done, and there is no result to replay.
    #[arg(long, group = "result")]
    pub(crate) done: bool,
    /// The result is the JSON in this file: the value of a function or a message.
    #[arg(long, value_name = "FILE", group = "result")]
    pub(crate) json: Option<PathBuf>,
    /// The result is this exit code of a command of `run`, without output.
    #[arg(long, value_name = "CODE", group = "result")]
    pub(crate) exit_code: Option<u8>,
    /// The result is an HTTP response with this status.
    #[arg(long, group = "result", value_parser = clap::value_parser!(u16).range(200..=599))]
    pub(crate) status: Option<u16>,
    /// The body of the HTTP response.
    #[arg(long, value_name = "FILE", requires = "status")]
    pub(crate) body: Option<PathBuf>,
    /// The type of the body. Default: application/json.
    #[arg(long, value_name = "TYPE", requires = "body")]
    pub(crate) content_type: Option<String>,
    /// How long the result is kept. Default: the setting `ttl` of the scope, or `default-ttl`.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) ttl: Option<Duration>,
}

/// `forget …` and `erase …`.
#[derive(Debug, Args)]
pub(crate) struct CompleteArguments {
    #[command(flatten)]
    pub(crate) change: ChangeArguments,
    /// The record's token, as `get` prints it. Default: the token that the record has now.
    #[arg(long)]
    pub(crate) token: Option<u64>,
}

/// `run …`.
#[cfg(unix)]
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The kind of work, such as `backup`.
    pub(crate) scope: String,
    /// The unit of work, such as a date or an order number. Scope and key alone decide what a
    /// duplicate is: commands are not compared.
    pub(crate) key: String,
    /// How long the result is kept: an ISO 8601 duration, such as P7D. Default: 24 hours.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) ttl: Option<Duration>,
    /// How long the key stays taken after this process has died. Default: 30 s.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// How long a duplicate waits for the run in progress. Default: 10 s.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit codes after which the command can run again, such as `75,100-120`. Any other code is a
    /// result, which is kept and replayed.
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub(crate) retry_on: Vec<CodeRange>,
    /// The largest output that is kept for replays, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub(crate) max_output: usize,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[cfg(unix)]
const RUN_HELP: &str = "\
Examples:
  retryproof run backup 2026-11-22 -- pg_dump --file today.dump shop
  retryproof run invoices order-17 --retry-on 75 --lease PT2M -- ./invoice order-17

The first run passes on the command's output and keeps a copy of it. A duplicate waits for a run in
progress to end, prints the copy, and exits with the same code. A command that a signal killed may
have had effects: its key stays taken until the lease ends.

The command's environment contains RETRYPROOF_TOKEN (a number that grows with each run under the
key), RETRYPROOF_ATTEMPT (`first`, or `takeover` if an earlier run lost its lease), RETRYPROOF_SCOPE
and RETRYPROOF_KEY. On Linux, the command is killed if retryproof is killed, but processes that the
command has started are not.

Exit codes: that of the command; 128 plus the signal's number if a signal killed it; 75 if another
run is still in progress; 125 if retryproof failed; 126 or 127 if the command could not be started.";

/// Exit codes of a command: a single code or a range.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeRange {
    first: u8,
    last: u8,
}

#[cfg(unix)]
impl CodeRange {
    pub(crate) fn contains(self, code: i32) -> bool {
        (i32::from(self.first)..=i32::from(self.last)).contains(&code)
    }
}

#[cfg(unix)]
impl std::str::FromStr for CodeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let code = |text: &str| text.parse::<u8>().ok().filter(|code| *code > 0);
        match (code(first), code(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err("expected exit codes from 1 to 255, such as `75` or `100-120`".to_owned()),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn exit_codes_are_single_or_ranges_from_1_to_255() {
        let parse = |text: &str| text.parse::<CodeRange>();
        assert!(parse("75").is_ok_and(|range| range.contains(75) && !range.contains(76)));
        assert!(parse("1-255").is_ok_and(|range| range.contains(255) && !range.contains(0)));
        for bad in ["", "0", "256", "9-3", "-1", "a", "1-", "75,76"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
