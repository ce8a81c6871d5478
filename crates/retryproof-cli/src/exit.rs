// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exit codes, and the error of a verb.

use std::fmt;

use retryproof::{Error, ErrorKind};

/// The verb succeeded.
pub(crate) const OK: u8 = 0;
/// There is no such record.
pub(crate) const NOT_FOUND: u8 = 1;
/// An argument or a setting is wrong, or a confirmation is needed and there is no terminal. clap
/// uses the same code.
pub(crate) const USAGE: u8 = 2;
/// The store does not answer.
pub(crate) const STORE_AWAY: u8 = 3;
/// The store refuses the operation, or the user does not confirm it.
pub(crate) const REFUSED: u8 = 4;
/// Any other failure.
pub(crate) const OTHER: u8 = 5;

/// Ctrl-C ended a scan: 128 plus the number of the signal, as shells count.
pub(crate) const INTERRUPTED: u8 = 130;

/// `run` itself failed, not the command that it ran. `timeout` and `docker run` use the same code.
pub(crate) const RUN_FAILED: u8 = 125;
/// `run`: another run still holds the key (`EX_TEMPFAIL`).
pub(crate) const IN_FLIGHT: u8 = 75;

/// Why there may be no record, and what to check.
const WHY_ABSENT: &str = "it never existed, it expired, an operator released or forgot \
     it, or its work ended without a result (for `run`: an exit code in `--retry-on`, or a command \
     that could not be started); check the scope (`stats --by-scope` lists the scopes), and the \
     table or prefix (`config show`)";

/// Why a verb failed: an exit code, and a sentence for stderr.
#[derive(Debug)]
pub(crate) struct VerbError {
    pub(crate) code: u8,
    message: String,
}

impl VerbError {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// Creates the error for a record that does not exist. `hint` is appended to the sentence, and
    /// can be empty.
    pub(crate) fn not_found(identity: &str, hint: &str) -> Self {
        Self::new(NOT_FOUND, format!("there is no record of {identity}: {WHY_ABSENT}{hint}"))
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::new(OTHER, message)
    }

    /// Puts what the error is about, such as a line of a file, before the message.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Appends more about the cause to the message.
    pub(crate) fn because(self, cause: &str) -> Self {
        Self { message: format!("{}; {cause}", self.message), ..self }
    }

    /// Returns the exit code if the verb is `run`. No failure of `run` itself has a code below 64,
    /// because commands use the codes below 64.
    pub(crate) fn code_of_run(&self) -> u8 {
        if self.code <= OTHER { RUN_FAILED } else { self.code }
    }
}

impl fmt::Display for VerbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for VerbError {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Config => USAGE,
            ErrorKind::Unavailable => STORE_AWAY,
            ErrorKind::Unsupported | ErrorKind::Schema => REFUSED,
            _ => OTHER,
        };
        let hint = match error.kind() {
            // The tables are newer than this program. The message already says to upgrade the
            // program.
            ErrorKind::Schema if error.to_string().contains("newer version of retryproof") => "",
            ErrorKind::Schema => {
                "; if a service uses this store, first check the URL and the table name with \
                 `retryproof config show`; `retryproof migrate` creates or upgrades the tables"
            }
            _ => "",
        };
        let cause = std::error::Error::source(&error)
            .map(|source| format!(": {source}"))
            .unwrap_or_default();
        Self::new(code, format!("{error}{cause}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_code() {
        let code = |kind| VerbError::from(Error::new(kind, "x")).code;
        assert_eq!(code(ErrorKind::Invalid), 2);
        assert_eq!(code(ErrorKind::Config), 2);
        assert_eq!(code(ErrorKind::Unavailable), 3);
        assert_eq!(code(ErrorKind::Schema), 4);
        assert_eq!(code(ErrorKind::Corrupt), 5);
    }

    #[test]
    fn the_codes_of_a_command_are_not_those_of_run() {
        for code in [NOT_FOUND, USAGE, STORE_AWAY, REFUSED, OTHER] {
            assert_eq!(VerbError::new(code, "x").code_of_run(), RUN_FAILED);
        }
        for code in [IN_FLIGHT, RUN_FAILED, 126, 127] {
            assert_eq!(VerbError::new(code, "x").code_of_run(), code);
        }
    }
}
