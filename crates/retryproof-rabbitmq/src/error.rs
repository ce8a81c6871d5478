// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts lapin's errors to the library's `Error`.

use std::error::Error as _;

use lapin::ErrorKind as Driver;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use retryproof_core::listener::dead_letter::TooLarge;
use retryproof_core::{Error, ErrorKind};

/// Returns the error for an invalid setting.
pub(crate) fn invalid_setting(message: &'static str) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// Converts a driver error to `Unavailable` if reconnecting can help, otherwise to `Config` or
/// `Unsupported`.
pub(crate) fn driver_error(error: lapin::Error) -> Error {
    let classified = match error.kind() {
        Driver::ProtocolError(refused) => match refused.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => invalid_setting(
                "the broker has no such queue; create it, or call `Topology::declare`",
            ),
            _ if is_message_too_large(refused) => {
                invalid_setting("the message is larger than the broker's `max_message_size`")
            }
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => invalid_setting(
                "the broker already has a queue with this name but with different arguments; \
                 delete that queue when it is empty, or choose another name",
            ),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => invalid_setting(
                "the broker refused the login, the virtual host or the operation; check the URL \
                 and the user's permissions",
            ),
            _ => Error::unavailable("the broker closed the connection"),
        },
        #[cfg(feature = "tls")]
        Driver::IOError(error) if is_tls_refused(error) => invalid_setting(
            "TLS handshake failed; check the broker's certificate and the authority that signed it",
        ),
        Driver::InvalidProtocolVersion(_) => invalid_setting(
            "the server did not answer in AMQP 0-9-1; check the host and the port in the URL",
        ),
        Driver::NoDefaultRuntime => {
            Error::new(ErrorKind::Unsupported, "a listener must run inside a tokio runtime")
        }
        Driver::ParsingError(_) => Error::unavailable(
            "the driver cannot decode a message, perhaps because a property or a header name is \
             not UTF-8",
        ),
        _ => Error::unavailable("the connection to the broker failed"),
    };
    classified.because(error)
}

/// Returns which part of a copy is too large; `None` if publishing failed for another reason. A
/// frame error means that the headers are too large, because they must all fit into one frame.
pub(crate) fn too_large(error: &Error) -> Option<TooLarge> {
    let driver = error.source()?.downcast_ref::<lapin::Error>()?;
    let Driver::ProtocolError(refused) = driver.kind() else { return None };
    match refused.kind() {
        AMQPErrorKind::Hard(AMQPHardError::FRAMEERROR) => Some(TooLarge::Headers),
        _ if is_message_too_large(refused) => Some(TooLarge::Letter),
        _ => None,
    }
}

/// Whether the broker refused a message because of its size. Other failed preconditions have the
/// same code, so this function looks for the reason in the broker's text.
fn is_message_too_large(refused: &AMQPError) -> bool {
    matches!(refused.kind(), AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED))
        && refused.get_message().as_str().contains("message size")
}

/// Returns the error for a call to the broker that took too long.
pub(crate) fn timed_out() -> Error {
    Error::unavailable("the broker did not answer in time")
}

pub(crate) fn connection_lost() -> Error {
    Error::unavailable("the connection to the broker was lost")
}

pub(crate) fn consumer_cancelled() -> Error {
    Error::unavailable(
        "the broker cancelled the listener's consumer; check that the queue still exists",
    )
}

/// Whether the TLS handshake failed because the broker's certificate is not trusted, or because the
/// broker supports no TLS or no compatible version. Reconnecting does not help in these cases. It
/// can help after a TLS alert, which a starting broker or a proxy in front of it can send, so an
/// alert does not count.
#[cfg(feature = "tls")]
fn is_tls_refused(error: &std::io::Error) -> bool {
    use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
    let refused = |error: &rustls::Error| {
        matches!(error, InvalidCertificate(_) | InvalidMessage(_) | PeerIncompatible(_))
    };
    error.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: AMQPErrorKind, text: &str) -> Error {
        driver_error(Driver::ProtocolError(AMQPError::new(kind, text.into())).into())
    }

    #[test]
    fn lst_2_a_copy_that_is_too_large_is_told_from_a_queue_with_other_arguments() {
        let failed = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
        let large = refused(
            failed.clone(),
            "PRECONDITION_FAILED - message size 200 is larger than configured max size 100",
        );
        assert_eq!(too_large(&large), Some(TooLarge::Letter));
        assert!(large.to_string().contains("max_message_size"), "{large}");
        let other = refused(failed, "PRECONDITION_FAILED - inequivalent arg 'x-queue-type'");
        assert_eq!(too_large(&other), None);
        assert!(other.to_string().contains("different arguments"), "{other}");
        let frame = refused(AMQPErrorKind::Hard(AMQPHardError::FRAMEERROR), "FRAME_ERROR");
        assert_eq!(too_large(&frame), Some(TooLarge::Headers));
    }
}
