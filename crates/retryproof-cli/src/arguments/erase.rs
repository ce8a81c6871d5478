// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `erase` and of `keys`.

#[cfg(feature = "seal")]
use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};

use super::{ChangeArguments, CompleteArguments, RecordArguments};
use crate::exit::VerbError;

/// `erase …`: one record, or all answers of a subject.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("erased").required(true).multiple(true).args(["scope", "subject"]))]
pub(crate) struct EraseArguments {
    /// The scope, such as `payments` or `POST /orders`.
    #[arg(conflicts_with = "subject", requires = "key")]
    scope: Option<String>,
    /// The key. Without `--caller` and `--shared`, give the key as it is stored. Write `--` before
    /// a key that begins with a dash.
    #[arg(requires = "token")]
    key: Option<String>,
    /// The caller that sent the key over HTTP to a filter with `.caller(..)`.
    #[arg(long, value_name = "CALLER", conflicts_with_all = ["shared", "subject"])]
    caller: Option<String>,
    /// The key was sent over HTTP to a filter with `.callers_share_keys()`.
    #[arg(long, conflicts_with = "subject")]
    shared: bool,
    /// KEY is the digest that logs and `ls` show instead of the key: 16 hex digits. Reads records
    /// until it finds one with this digest.
    #[arg(long, conflicts_with_all = ["caller", "shared", "subject"])]
    digest: bool,
    /// The record's token, as `get` prints it. If the key was granted again since, nothing changes.
    #[arg(long, conflicts_with = "subject")]
    token: Option<u64>,
    /// Destroys the key of this subject, such as a caller: every sealed answer about it becomes
    /// unreadable, in every scope.
    #[arg(long, value_name = "SUBJECT")]
    pub(crate) subject: Option<String>,
    /// Why you erase. The audit lines on stderr and the store's audit table contain the reason. At
    /// most 1,024 bytes.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Who you are, for the audit. Nothing verifies the name. Default: USER@HOST.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) operator: Option<String>,
    /// Erases without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl EraseArguments {
    /// Returns the arguments for changing one record.
    pub(crate) fn of_record(&self) -> Result<CompleteArguments, VerbError> {
        let (Some(scope), Some(key), Some(token)) = (&self.scope, &self.key, self.token) else {
            return Err(VerbError::usage(
                "name the record with SCOPE, KEY and `--token`, or name a subject with `--subject`",
            ));
        };
        let record = RecordArguments {
            scope: scope.clone(),
            key: key.clone(),
            caller: self.caller.clone(),
            shared: self.shared,
            digest: self.digest,
        };
        let (reason, operator) = (self.reason.clone(), self.operator.clone());
        let change = ChangeArguments { record, reason, operator, yes: self.yes };
        Ok(CompleteArguments { change, token })
    }
}

/// `keys …`.
#[cfg(feature = "seal")]
#[derive(Debug, Subcommand)]
pub(crate) enum KeysVerb {
    /// Wraps the key of every subject with the first master key. Programs can keep running if they
    /// have that master key too.
    #[command(after_help = "Example:\n  retryproof keys rotate --reason \"yearly rotation\"")]
    Rotate(RotateArguments),
}

/// `keys rotate …`.
#[cfg(feature = "seal")]
#[derive(Debug, Args)]
pub(crate) struct RotateArguments {
    /// Why you rotate. The audit lines on stderr and the store's audit table contain the reason. At
    /// most 1,024 bytes.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Who you are, for the audit. Nothing verifies the name. Default: USER@HOST.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) operator: Option<String>,
    /// Rotates without asking for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}
