// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the key under which the HTTP filter stores a record: the caller, then the client's key.

use retryproof::http::adapter;
use retryproof::{Identity, Scope};

use crate::arguments::RecordArguments;
use crate::exit::VerbError;

/// Who sent the key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SentBy<'a> {
    /// The given key is the stored key. This applies to functions, messages and commands.
    AsStored,
    /// A filter with `.callers_share_keys()` stored the key.
    AnyCaller,
    /// A filter with `.caller(..)` stored the key for this caller.
    Caller(&'a str),
}

/// Returns the stored key (HTTP-16). The guide for operators documents the format.
pub(crate) fn stored_key(key: &str, by: SentBy<'_>) -> String {
    match by {
        SentBy::AsStored => key.to_owned(),
        SentBy::AnyCaller => adapter::stored_key(None, key),
        SentBy::Caller(caller) => adapter::stored_key(Some(caller), key),
    }
}

/// Returns the identity that the arguments name.
pub(crate) fn identity(arguments: &RecordArguments) -> Result<Identity, VerbError> {
    let sent_by = match (&arguments.caller, arguments.shared) {
        (Some(caller), _) => SentBy::Caller(caller),
        (None, true) => SentBy::AnyCaller,
        (None, false) => SentBy::AsStored,
    };
    let key = stored_key(&arguments.key, sent_by);
    Ok(Identity::of(Scope::new(arguments.scope.as_str())?, key)?)
}

/// Returns the 16 hex digits that `ls` and the logs show in place of a key, or `None` if the text
/// is something else. A `#` can precede the digits.
pub(crate) fn digits(text: &str) -> Option<&str> {
    let digits = text.trim_start_matches('#');
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == 16 && digits.bytes().all(is_digit)).then_some(digits)
}

/// Returns the hint that ends the message about a missing record: how to pass the digits of a key,
/// or how to name a key that was sent over HTTP. The hint is empty if the arguments already do so.
pub(crate) fn hint(arguments: &RecordArguments) -> &'static str {
    if arguments.digest {
        ""
    } else if digits(&arguments.key).is_some() {
        "; if these are the digits of a key, as `ls` and the logs show them, add `--digest`"
    } else if arguments.shared || arguments.caller.is_some() {
        ""
    } else {
        "; if the key was sent over HTTP, add `--caller CALLER` or `--shared`"
    }
}

/// Returns the identity in the form to print. The key is masked unless `show_keys` is set (ID-4).
pub(crate) fn shown(identity: &Identity, show_keys: bool) -> String {
    if show_keys {
        format!("{} {:?}", identity.scope(), identity.key().expose())
    } else {
        identity.to_string()
    }
}
