// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `run`.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

/// `run …`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The kind of work, such as `backup`.
    pub(crate) scope: String,
    /// The unit of work, such as a date or an order number. Only the scope and the key identify a
    /// duplicate. The commands are not compared.
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

pub(super) const RUN_HELP: &str = "\
Examples:
  retryproof run backup 2026-11-22 -- pg_dump --file today.dump shop
  retryproof run invoices order-17 --retry-on 75 --lease PT2M -- ./invoice order-17

The first run passes on the command's output and keeps a copy of it. A duplicate waits for a run in
progress to end, prints the copy, and exits with the same code. A command killed by a signal may
have had effects: its key stays taken until the lease ends.

The command's environment contains RETRYPROOF_TOKEN (a number that grows with each run under the
key), RETRYPROOF_ATTEMPT (`first`, or `takeover` if an earlier run lost its lease), RETRYPROOF_SCOPE
and RETRYPROOF_KEY. On Linux, the command is killed if retryproof is killed, but processes that the
command has started are not.

Exit codes: the exit code of the command; 128 plus the signal's number if a signal killed the
command; 75 if another run is still in progress; 125 if retryproof failed; 126 or 127 if the command
could not be started.";

/// Exit codes of a command: a single code or a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeRange {
    first: u8,
    last: u8,
}

impl CodeRange {
    pub(crate) fn contains(self, code: i32) -> bool {
        (i32::from(self.first)..=i32::from(self.last)).contains(&code)
    }
}

impl FromStr for CodeRange {
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

#[cfg(test)]
mod tests {
    use super::*;

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
