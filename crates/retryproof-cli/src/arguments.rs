// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use retryproof::store::ScanCursor;

use crate::position;

mod erase;
mod help;
mod migrate;
#[cfg(unix)]
mod run;

pub(crate) use erase::EraseArguments;
#[cfg(feature = "seal")]
pub(crate) use erase::{KeysVerb, RotateArguments};
pub(crate) use migrate::MigrateArguments;
#[cfg(unix)]
pub(crate) use run::RunArguments;

/// Inspects and maintains a store of retryproof, and runs any command once per key.
#[derive(Debug, Parser)]
#[command(
    name = "retryproof",
    version,
    after_help = help::EXIT_CODES
)]
pub(crate) struct CommandLine {
    /// The URL of the store, such as `sqlite:records.db`. It overrides IDEMPOTENCY_STORE and the
    /// settings file. Put a URL with a password into the variable or the file, because other users
    /// can see arguments.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The TOML file whose table `idempotency` holds the settings of the service.
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
    /// Text and tables for people.
    Table,
    /// Indented JSON.
    Json,
    /// One JSON value per line.
    Jsonl,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows one record: its state, its holder, its times and its size, and the exit code or HTTP
    /// status of its result.
    #[command(after_help = help::GET)]
    Get(GetArguments),
    /// Lists records. The store reads them in pages until enough are found.
    #[command(after_help = help::LS)]
    Ls(ListArguments),
    /// Lists records in progress without a heartbeat for more than half of their lease: the holder
    /// has died, or its heartbeats fail.
    #[command(after_help = help::STUCK)]
    Stuck(ScanArguments),
    /// Counts the records. The store may have to read all of them.
    #[command(after_help = help::STATS)]
    Stats {
        /// Counts the records of each scope. The store has to read all records.
        #[arg(long)]
        by_scope: bool,
    },
    /// Counts the records of each scope repeatedly, until Ctrl-C. Each time, the store has to
    /// read all records. Without a terminal, prints one line of JSON each time.
    #[command(after_help = help::TOP)]
    Top(TopArguments),
    /// Deletes a record in progress, so that the next call runs at once, as a first attempt.
    #[command(after_help = help::RELEASE)]
    Release(ReleaseArguments),
    /// Completes a record in progress with a result that you give. Retries get this result, and
    /// nothing runs.
    #[command(
        after_help = "Examples:\n  retryproof resolve payments order-17 --caller alice --token \
                            1763857500000000 --status 201 --body answer.json --reason \"found at the \
                            bank\"\n  retryproof resolve mails m-4 --token 1763857500000000 --done \
                            --reason \"it was sent\""
    )]
    Resolve(ResolveArguments),
    /// Deletes a complete record, so that the work can run again.
    #[command(
        after_help = "Example:\n  retryproof forget payments order-17 --token 1763857500000000 \
                            --reason \"the file was lost\""
    )]
    Forget(CompleteArguments),
    /// Deletes the stored answer of a complete record, or makes all sealed answers of a subject
    /// unreadable. The work does not run again.
    #[command(
        after_help = "Examples:\n  retryproof erase payments order-17 --token 1763857500000000 \
                            --reason \"the customer asked for it\"\n  retryproof erase --subject \
                            ada@example.org --reason \"the customer asked for it\""
    )]
    Erase(EraseArguments),
    /// Lists the requests of operators (`release`, `resolve`, `forget`, `erase`, `import` and `keys
    /// rotate`) and their outcomes, newest first. A store without tables keeps no such list.
    #[command(after_help = "Examples:\n  retryproof audit --scope payments\n  \
                            retryproof audit --limit 1000 --output jsonl")]
    Audit(AuditArguments),
    /// Maintains the keys of sealed results.
    #[cfg(feature = "seal")]
    Keys {
        #[command(subcommand)]
        verb: KeysVerb,
    },
    /// Deletes all expired records.
    Purge,
    /// Prints the records as JSON lines, with their keys and their answers.
    #[command(after_help = "Examples:\n  retryproof export > records.jsonl\n  \
                            retryproof export --scope payments | gzip > payments.gz")]
    Export(ScanArguments),
    /// Adds to a store the complete records that `export` has printed. A record that the store
    /// already has stays unchanged.
    #[command(after_help = "Examples:\n  retryproof import records.jsonl --reason \"move to \
                            PostgreSQL\"\n  gunzip < payments.gz | retryproof import --yes \
                            --reason \"move to PostgreSQL\"")]
    Import(ImportArguments),
    /// Creates or upgrades the tables of the store.
    #[command(after_help = "Examples:\n  retryproof migrate --store sqlite:records.db\n  \
                            retryproof migrate --print > schema.sql\n  \
                            retryproof migrate --config app.toml --partitions 16")]
    Migrate(MigrateArguments),
    /// Examines the store: its server, settings, clock, tables and privileges. Changes nothing. The
    /// exit code is 4 if a finding is an error.
    #[command(after_help = "Examples:\n  retryproof doctor --config app.toml\n  \
                            retryproof doctor --store sqlite:records.db --output json")]
    Doctor,
    /// Shows the settings.
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Runs a command once per key, and replays its output and exit code to duplicates.
    #[cfg(unix)]
    #[command(after_help = run::RUN_HELP)]
    Run(RunArguments),
    /// Inside a command of `run`: prints a key for a call to another service. The key stays the
    /// same if another process takes over.
    #[command(after_help = "Example, in a script that `retryproof run` started:\n  \
                            curl -H \"Idempotency-Key: $(retryproof key charge)\" …")]
    Key {
        /// The name of the call. Each call of the command needs a different name.
        step: String,
    },
    /// Prints the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page.
    Man {
        /// The verb whose page is printed. Default: the page of the command itself.
        verb: Option<String>,
    },
}

/// `config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Prints each setting, its value, and the source of the value. Secrets are hidden.
    Show,
}

/// The arguments that identify one record.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecordArguments {
    /// The scope, such as `payments` or `POST /orders`.
    pub(crate) scope: String,
    /// The key. Without `--caller` and `--shared`, give the key as it is stored. Write `--` before
    /// a key that begins with a dash.
    pub(crate) key: String,
    /// The caller that sent the key over HTTP to a filter with `.caller(..)`.
    #[arg(long, value_name = "CALLER", conflicts_with = "shared")]
    pub(crate) caller: Option<String>,
    /// The key was sent over HTTP to a filter with `.callers_share_keys()`.
    #[arg(long)]
    pub(crate) shared: bool,
    /// KEY is the digest that logs and `ls` show instead of the key: 16 hex digits. Reads records
    /// until it finds one with this digest.
    #[arg(long, conflicts_with_all = ["caller", "shared"])]
    pub(crate) digest: bool,
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

/// The arguments of a verb that reads the records page by page.
#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// Only records of this scope.
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Where to continue: the position that a verb with `--show-keys` prints if it ends before the
    /// last record.
    #[arg(long, value_name = "POSITION", value_parser = position::parse, allow_hyphen_values = true)]
    pub(crate) after: Option<ScanCursor>,
}

/// `ls …`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) scan: ScanArguments,
    /// Only records in this state.
    #[arg(long, value_enum)]
    pub(crate) state: Option<ListedState>,
    /// Only records whose key was granted at least this long ago: an ISO 8601 duration, such as
    /// PT10M.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) older_than: Option<Duration>,
    /// Only records whose holder's name contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,
    /// The largest number of records to list. On Redis there may be a few more, because the server
    /// decides how many records a step of a scan returns.
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count())]
    pub(crate) limit: usize,
}

fn count() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u32).range(1..).map(|count| count.try_into().unwrap_or(usize::MAX))
}

/// The state of a record, as an option of `ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListedState {
    /// The work is running, or its holder has died.
    InProgress,
    /// The record has a result, expired or not.
    Complete,
}

/// `audit …`.
#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Only entries about records of this scope.
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// The largest number of entries to list.
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count())]
    pub(crate) limit: usize,
}

/// `top …`.
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// How long to wait after each count: an ISO 8601 duration of at least PT0.1S.
    #[arg(long, value_name = "DURATION", default_value = "PT1S", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Ends after this many counts. Default: never.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    match retryproof_duration::parse(text) {
        Ok(interval) if interval < Duration::from_millis(100) => {
            Err("expected at least PT0.1S, because each count reads all records".to_owned())
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// The arguments of every verb that changes a record.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeArguments {
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Why you change the record. The audit lines on stderr and the store's audit table contain the
    /// reason. At most 1,024 bytes.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Who you are, for the audit. Nothing verifies the name. Default: USER@HOST.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) operator: Option<String>,
    /// Changes the record without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `release …`, and the arguments that `resolve` shares with it.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArguments {
    #[command(flatten)]
    pub(crate) change: ChangeArguments,
    /// The record's token, as `get` prints it. If the key was granted again since, nothing changes.
    #[arg(long)]
    pub(crate) token: u64,
    /// Also ends a live lease. Its holder may still be working, so the work may run twice.
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
    /// The result is the JSON in this file. Use this option for a function or a message.
    #[arg(long, value_name = "FILE", group = "result")]
    pub(crate) json: Option<PathBuf>,
    /// The result is this exit code, without output. Use this option for a command of `run`.
    #[arg(long, value_name = "CODE", group = "result")]
    pub(crate) exit_code: Option<u8>,
    /// The result is an HTTP response with this status.
    #[arg(long, group = "result", value_parser = clap::value_parser!(u16).range(200..=599))]
    pub(crate) status: Option<u16>,
    /// The body of the HTTP response.
    #[arg(long, value_name = "FILE", requires = "status")]
    pub(crate) body: Option<PathBuf>,
    /// The media type of the body. Default: application/json.
    #[arg(long, value_name = "TYPE", requires = "body")]
    pub(crate) content_type: Option<String>,
    /// Whom the result is about, if the store has sealed results. Default: the caller from
    /// `--caller`, or else the subject that the calls of the scope share.
    #[arg(long, value_name = "SUBJECT")]
    pub(crate) subject: Option<String>,
    /// How long the result is kept. Required unless the configuration sets a `ttl` for the scope.
    #[arg(long, value_name = "DURATION", value_parser = retryproof_duration::parse)]
    pub(crate) ttl: Option<Duration>,
}

/// `import …`.
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// The file that `export` has written. Default: stdin.
    pub(crate) file: Option<PathBuf>,
    /// Why you import the records. The audit lines on stderr and the store's audit table contain the
    /// reason. At most 1,024 bytes.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Who you are, for the audit. Nothing verifies the name. Default: USER@HOST.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) operator: Option<String>,
    /// Imports the records without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `forget …`.
#[derive(Debug, Args)]
pub(crate) struct CompleteArguments {
    #[command(flatten)]
    pub(crate) change: ChangeArguments,
    /// The record's token, as `get` prints it. If the key was granted again since, nothing changes.
    #[arg(long)]
    pub(crate) token: u64,
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_consistent() {
        CommandLine::command().debug_assert();
    }
}
