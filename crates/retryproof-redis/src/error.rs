// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Failure`]: what went wrong between us and a server, and the one place where it becomes an
//! error of ours.
//!
//! A server's words go nowhere but through [`classify`]: "unknown command" repeats the arguments,
//! so a raw key (ID-4).

use redis::{RedisError, ServerError};
use std::error::Error as _;

use retryproof_core::{Error, ErrorKind};

/// Why a call brought no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error.
    Server(ServerError),
    /// The connection failed, or did not answer in time.
    Connection(RedisError),
    /// No connection could be made; said already.
    Ours(Error),
}

/// What helps against a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing that a connection could do.
    None,
    /// Another connection, and the call once more: owner ids make that safe (ACQ-9, CMP-3).
    Resend,
    /// Another connection, for the next call: the time of this one is used up.
    Reconnect,
}

impl Failure {
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Server(error) => error.code(),
            _ => "",
        }
    }

    pub(crate) fn remedy(&self) -> Remedy {
        match self {
            Self::Server(error) => match error.code() {
                // The server is no primary any more, or not yet.
                "READONLY" | "MASTERDOWN" | "LOADING" | "UNBLOCKED" => Remedy::Resend,
                // The connection has lost its login.
                "NOAUTH" => Remedy::Resend,
                _ => Remedy::None,
            },
            Self::Connection(error) if error.is_timeout() => Remedy::Reconnect,
            Self::Connection(_) => Remedy::Resend,
            Self::Ours(_) => Remedy::None,
        }
    }

    /// Whether the server refuses writes for want of memory, replicas or disk, but would answer a
    /// read.
    pub(crate) fn refuses_writes(&self) -> bool {
        matches!(self.code(), "OOM" | "NOREPLICAS" | "MISCONF")
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Server(error) => of_server(&error),
            Self::Connection(error) => of_connection(error),
            Self::Ours(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// The class of a server's error, and the way out.
fn classify(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Full, Unavailable, Unexpected, Unsupported};
    match code {
        "OOM" => (
            Full,
            "the server's memory is used up (`maxmemory`): raise it, or shorten the ttl; known \
             keys are still replayed",
        ),
        "NOREPLICAS" => (
            Unavailable,
            "the server refuses writes because too few replicas follow it \
             (`min-replicas-to-write`); known keys are still replayed",
        ),
        "MISCONF" => (
            Unavailable,
            "the server refuses writes because it cannot save to its disk; see its log; known \
             keys are still replayed",
        ),
        "READONLY" => (
            Unavailable,
            "the server is a replica and takes no writes; after a fail-over, give the URL of the \
             sentinels, or of the primary",
        ),
        "LOADING" => (Unavailable, "the server is loading its data; it answers when it is done"),
        "MASTERDOWN" => (
            Unavailable,
            "the server is a replica that has lost its primary; a fail-over may be under way",
        ),
        "BUSY" => (Unavailable, "the server is busy with somebody's script; `SCRIPT KILL` ends it"),
        "NOAUTH" | "WRONGPASS" => {
            (Unexpected, "the server refuses the user or the password; correct them")
        }
        "NOPERM" => (
            Unexpected,
            "the server's access list denies a command, key or channel; the crate's page lists \
             what the user needs",
        ),
        "DENIED" => (
            Unexpected,
            "the server is in protected mode and takes no connection from here; see its log",
        ),
        "WRONGTYPE" => (
            Corrupt,
            "the key of the record holds another type; somebody else writes under this prefix: \
             look at it, or delete it by hand",
        ),
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" | "TRYAGAIN" => (Unsupported, CLUSTER),
        "NOSCRIPT" => (Unavailable, "the server forgets the scripts as fast as they are loaded"),
        _ => (Unexpected, "the server refused for a reason of its own"),
    }
}

/// Said at connect, and should a server become one later.
pub(crate) const CLUSTER: &str = "the server is a node of a Redis Cluster, which is not \
     supported; give a standalone server, or a Sentinel group";

/// What 7.0 says, with a code for everything, when a script is denied a command or a key.
const DENIED: [&str; 2] = ["The user executing the script", "ACL failure in script"];

fn of_server(error: &ServerError) -> Error {
    let denied = |said: &str| DENIED.iter().any(|begin| said.starts_with(begin));
    let code = if error.details().is_some_and(denied) { "NOPERM" } else { error.code() };
    let (kind, message) = classify(code);
    let built = Error::new(kind, message).with("code", code);
    if message.ends_with("of its own") {
        // Up to the first quotation, which may repeat what we sent.
        let said = error.details().unwrap_or_default();
        let said = said.split(['\'', '"', '`']).next().unwrap_or_default();
        return built
            .with("said", format_args!("{:?}", said.chars().take(120).collect::<String>()));
    }
    built
}

/// The system's error inside the driver's, which keeps it shared.
fn of_system(error: &RedisError) -> Option<&std::io::Error> {
    let source = error.source()?;
    let shared = source.downcast_ref::<std::sync::Arc<dyn std::error::Error + Send + Sync>>();
    shared.map_or_else(|| source.downcast_ref(), |inner| inner.downcast_ref())
}

fn of_connection(error: RedisError) -> Error {
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        let (kind, message) = classify("WRONGPASS");
        return Error::new(kind, message);
    }
    // What its TLS says when it refuses a certificate, or hears none.
    if of_system(&error).is_some_and(|inner| inner.kind() == std::io::ErrorKind::InvalidData) {
        return Error::new(
            ErrorKind::Unexpected,
            "the server speaks no TLS, or its certificate is not one that we accept; see the source",
        )
        .because(error);
    }
    if error.is_timeout() {
        return Error::unavailable("the server did not answer in time; is it up, reachable, fast?")
            .because(error);
    }
    if error.is_connection_refusal() {
        return Error::unavailable("no server takes connections at that address; is it up?")
            .because(error);
    }
    if error.is_io_error() || error.is_connection_dropped() {
        return Error::unavailable("the connection to the server failed").because(error);
    }
    // A refused handshake: the driver's words about it repeat nothing of ours.
    match error.code() {
        Some(code) if code != "ERR" => {
            let (kind, message) = classify(code);
            Error::new(kind, message).with("code", code)
        }
        _ => Error::new(ErrorKind::Unexpected, "the server does not speak as a Redis server does")
            .because(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_5_each_answer_has_its_class_and_its_way_out() {
        for (code, kind) in [
            ("OOM", ErrorKind::Full),
            ("NOREPLICAS", ErrorKind::Unavailable),
            ("MISCONF", ErrorKind::Unavailable),
            ("READONLY", ErrorKind::Unavailable),
            ("LOADING", ErrorKind::Unavailable),
            ("MASTERDOWN", ErrorKind::Unavailable),
            ("BUSY", ErrorKind::Unavailable),
            ("NOAUTH", ErrorKind::Unexpected),
            ("WRONGPASS", ErrorKind::Unexpected),
            ("NOPERM", ErrorKind::Unexpected),
            ("WRONGTYPE", ErrorKind::Corrupt),
            ("MOVED", ErrorKind::Unsupported),
            ("CLUSTERDOWN", ErrorKind::Unsupported),
            ("ERR", ErrorKind::Unexpected),
        ] {
            assert_eq!(classify(code).0, kind, "{code}");
        }
    }
}
