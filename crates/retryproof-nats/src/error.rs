// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts async-nats' errors to the library's `Error`.

use std::error::Error as StdError;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use retryproof_core::listener::dead_letter::TooLarge;
use retryproof_core::{Error, ErrorKind};

/// The server's code for a message that is longer than the `max_msg_size` of its stream.
const TOO_LARGE_FOR_STREAM: &str = "error code 10054";
/// The server's code for headers of more than 64 KiB.
const TOO_LARGE_HEADERS: &str = "error code 10097";

type SourceError = Box<dyn StdError + Send + Sync>;

/// Returns the error for an invalid setting of the listener or its consumer.
pub(crate) fn invalid_setting(message: &'static str) -> Error {
    Error::new(ErrorKind::Config, message)
}

pub(crate) fn reply_not_confirmed(error: impl Into<SourceError>) -> Error {
    Error::unavailable("the server did not confirm that it received the answer to a message")
        .because(error)
}

pub(crate) fn no_reply_subject() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the message has no reply subject, so it cannot be acknowledged",
    )
}

pub(crate) fn dead_letter_not_confirmed(error: impl Into<SourceError>) -> Error {
    Error::unavailable("the server did not confirm that it stored the dead letter").because(error)
}

pub(crate) fn consumer_deleted(error: impl Into<SourceError>) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the consumer was deleted, or its stream, so the listener cannot continue",
    )
    .because(error)
}

/// Returns which part of a dead letter is too large; `None` if publishing failed for another
/// reason.
pub(crate) fn too_large(error: &PublishError) -> Option<TooLarge> {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Some(TooLarge::Letter),
        PublishErrorKind::Other => {
            // Look for the code in the error's text, because async-nats keeps the type of the
            // stream's error private.
            let text = error.source()?.to_string();
            let letter = text.contains(TOO_LARGE_FOR_STREAM).then_some(TooLarge::Letter);
            letter.or_else(|| text.contains(TOO_LARGE_HEADERS).then_some(TooLarge::Headers))
        }
        _ => None,
    }
}
