// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where a driver's error becomes ours.

use lapin::ErrorKind as Driver;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use retryproof_core::{Error, ErrorKind};

/// Away, or refused for a reason that connecting again does not cure: then it is a matter of
/// configuration.
pub(crate) fn classify(error: lapin::Error) -> Error {
    let config = |message: &'static str| Error::new(ErrorKind::Config, message);
    let ours = match error.kind() {
        Driver::ProtocolError(refused) => match refused.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => {
                config("the broker has no such queue; make it, or call `Topology::declare`")
            }
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => config(
                "the broker has a queue of that name with other arguments; delete it when it is \
                 empty, or choose another name",
            ),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => config(
                "the broker refuses the user, the virtual host, or this operation to the user",
            ),
            _ => Error::unavailable("the broker ended the connection"),
        },
        #[cfg(feature = "tls")]
        Driver::IOError(error) if crate::receive::tls::is_refused(error) => config(
            "no secure connection to the broker came about; see its certificate, and who signed it",
        ),
        Driver::InvalidProtocolVersion(_) => {
            config("the server speaks another protocol than AMQP 0-9-1")
        }
        Driver::NoDefaultRuntime => {
            Error::new(ErrorKind::Unsupported, "a consumer runs inside a tokio runtime")
        }
        Driver::ParsingError(_) => Error::unavailable(
            "the driver cannot read a message, such as one with a property or a header's name \
             that is not UTF-8",
        ),
        _ => Error::unavailable("the broker is away"),
    };
    ours.because(error)
}

/// A call to the broker that took too long.
pub(crate) fn late() -> Error {
    Error::unavailable("the broker did not answer in time")
}
