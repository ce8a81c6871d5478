// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Failure`]: why a call failed, and how the call can recover. This is the only module that
//! translates a failure into an error.
//!
//! `of_server` keeps the server's text only up to the first quotation mark, because the text of
//! "unknown command" repeats the arguments, including a raw key (ID-4).

use redis::{RedisError, ServerError};
use std::error::Error as _;

use retryproof_core::{Error, ErrorKind};
use retryproof_store_kit::while_running;

use crate::cluster::slots::redirected;
use crate::config::Address;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error.
    Server(ServerError),
    /// The connection failed, or the server did not answer in time.
    Connection(RedisError),
    /// A store error, already translated.
    Translated(Error),
    /// One of the failures above, on this node of a cluster.
    OnNode(Box<Self>, Address),
}

/// Where a node of a cluster sends a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// The slot belongs to this node (MOVED).
    Moved(Address),
    /// The key may already be at this node, which is about to receive the slot (ASK).
    Asked(Address),
}

/// What the caller of a command can do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Repeat the call on a new connection. Owner ids make the repetition safe (ACQ-9, CMP-3).
    RetryOnNewConnection,
    /// The call has used up its time; the next call opens a new connection.
    ReconnectForNextCall,
    /// The server refuses writes because its memory is full, it has too few replicas, or it cannot
    /// save to disk. The server still serves reads.
    ReadOnly,
    /// Nothing can be done: report the error.
    None,
}

impl Failure {
    /// Returns the code of the server's error, or an empty string.
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Server(error) => error.code(),
            Self::OnNode(failure, _) => failure.code(),
            Self::Connection(_) | Self::Translated(_) => "",
        }
    }

    /// Returns where the node at `asked` sends the call; `None` if the node has not sent it
    /// elsewhere.
    pub(crate) fn redirection(&self, asked: &Address) -> Option<Redirection> {
        let Self::Server(error) = self else { return None };
        let to = || redirected(error.details()?, asked);
        match error.code() {
            "MOVED" => to().map(Redirection::Moved),
            "ASK" => to().map(Redirection::Asked),
            _ => None,
        }
    }

    /// Whether the same call on a cluster may succeed in a moment. The cause can be a failover, a
    /// slot that moves, or a node that cannot be reached.
    pub(crate) fn is_passing_in_cluster(&self) -> bool {
        match self {
            Self::Translated(error) => error.kind() == ErrorKind::Unavailable,
            failure => {
                failure.recovery() == Recovery::RetryOnNewConnection
                    || PASSING_IN_CLUSTER.contains(&failure.code())
            }
        }
    }

    /// Adds the node to the failure, and translates the answers of a cluster that is not ready.
    pub(crate) fn on_node(self, at: &Address) -> Self {
        match self {
            // An attempt to connect has already named the server.
            Self::Translated(_) | Self::OnNode(..) => self,
            failure if PASSING_IN_CLUSTER.contains(&failure.code()) => {
                let error = Error::unavailable(NOT_READY).with("code", failure.code());
                Self::Translated(error.with("server", at))
            }
            failure => Self::OnNode(Box::new(failure), at.clone()),
        }
    }

    pub(crate) fn recovery(&self) -> Recovery {
        match self {
            Self::Server(error) => match error.code() {
                // The server is a replica, has just become a replica, or is still loading its data.
                // With `NOAUTH`, the connection is not logged in.
                "READONLY" | "MASTERDOWN" | "LOADING" | "UNBLOCKED" | "NOAUTH" => {
                    Recovery::RetryOnNewConnection
                }
                "OOM" | "NOREPLICAS" | "MISCONF" => Recovery::ReadOnly,
                _ => Recovery::None,
            },
            Self::Connection(error) if error.is_timeout() => Recovery::ReconnectForNextCall,
            Self::Connection(_) => Recovery::RetryOnNewConnection,
            Self::Translated(_) => Recovery::None,
            Self::OnNode(failure, _) => failure.recovery(),
        }
    }

    /// Converts the failure of the second attempt at a call. The first attempt may have reached the
    /// server, so the outcome of the call is unknown (ACQ-9), whatever made the second attempt
    /// fail.
    pub(crate) fn after_lost_answer(self) -> Self {
        let error = while_running(self.into_error());
        if error.kind() == ErrorKind::Unavailable {
            return Self::Translated(error);
        }
        let message = format!("the answer was lost, and a second attempt failed: {error}");
        Self::Translated(Error::unavailable(message).because(error))
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Server(error) => of_server(&error),
            Self::Connection(error) => of_connection(error),
            Self::Translated(error) => error,
            Self::OnNode(failure, at) => failure.into_error().with("server", at),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Translated(error)
    }
}

/// Returns the kind of error for the server's code, and a message that says what to do.
fn classify(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Corrupt, Full, Unavailable, Unexpected, Unsupported};
    match code {
        "OOM" => (
            Full,
            "the server's memory is full; raise `maxmemory`, or shorten the ttl; stored results \
             are still replayed",
        ),
        "NOREPLICAS" => (
            Unavailable,
            "the server refuses writes because it has too few replicas (`min-replicas-to-write`); \
             stored results are still replayed",
        ),
        "MISCONF" => (
            Unavailable,
            "the server refuses writes because it cannot save to its disk; see its log; stored \
             results are still replayed",
        ),
        "READONLY" => (Unavailable, REPLICA),
        "LOADING" => {
            (Unavailable, "the server is still loading its data; try again when it has finished")
        }
        "MASTERDOWN" => (
            Unavailable,
            "the server is a replica that has lost its primary; a failover may be in progress",
        ),
        "BUSY" => (
            Unavailable,
            "the server is busy with a long-running script; `SCRIPT KILL` ends it if it has \
             written nothing",
        ),
        "NOAUTH" | "WRONGPASS" => {
            (Config, "the user or the password is missing or wrong; correct them")
        }
        "NOPERM" => (
            Unexpected,
            "the server's access list denies a command, key or channel; the crate's documentation \
             lists what the user needs",
        ),
        "DENIED" => (
            Unexpected,
            "the server is in protected mode and accepts only local connections; set a password for \
             its default user, or turn `protected-mode` off",
        ),
        "WRONGTYPE" => (
            Corrupt,
            "the record's key holds a value of a different type, perhaps because another program \
             uses this prefix; inspect the key, or delete it by hand",
        ),
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" | "TRYAGAIN" => (Unsupported, CLUSTER),
        "NOSCRIPT" => (
            Unavailable,
            "the server did not find a script that the store had just loaded; try again",
        ),
        _ => (Unexpected, UNKNOWN),
    }
}

/// The codes with which a node of a cluster refuses a call that may succeed in a moment, there or
/// on another node.
const PASSING_IN_CLUSTER: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];

/// The message for a call that no node of the cluster has served in time.
const NOT_READY: &str = "no node of the cluster served the key in time; a failover may be in \
     progress, or slots have no primary (`CLUSTER INFO`)";

/// The message for a server that is a cluster node when the store connects, or that becomes a
/// cluster node later.
pub(crate) const CLUSTER: &str = "the server is a node of a Redis Cluster; use the URL \
     `redis+cluster://HOST:PORT,HOST:PORT`";

/// The message for a standalone server in the URL of a cluster.
pub(crate) const NO_CLUSTER: &str = "the server is not a node of a Redis Cluster; use the URL \
     `redis://HOST:PORT`, or `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE` for the primary of a \
     Sentinel group";

/// The message for a server that is a replica when the store connects, or that becomes a replica
/// later.
pub(crate) const REPLICA: &str = "the server is a replica and accepts no writes; after a \
     failover, use the URL of the sentinels, or of the primary";

const UNKNOWN: &str = "the server returned an error that the store does not recognise; see `code` \
     and `server_message`";

/// How the error text of Redis 7.0 begins if a script uses a command or key for which the user has
/// no permission. The code of such an error is too general to recognise the cause.
const DENIED: [&str; 2] = ["The user executing the script", "ACL failure in script"];

fn of_server(error: &ServerError) -> Error {
    let denied = |details: &str| DENIED.iter().any(|begin| details.starts_with(begin));
    let code = if error.details().is_some_and(denied) { "NOPERM" } else { error.code() };
    let (kind, message) = classify(code);
    let translated = Error::new(kind, message).with("code", code);
    if message != UNKNOWN {
        return translated;
    }
    // Keep only the text before the first quotation mark, because a quotation can repeat an
    // argument.
    let details = error.details().unwrap_or_default();
    let unquoted = details.split(['\'', '"', '`']).next().unwrap_or_default();
    let server_message = unquoted.chars().take(120).collect::<String>();
    translated.with("server_message", format_args!("{server_message:?}"))
}

/// Returns the operating system's error, which the driver's error holds in an `Arc`.
fn of_system(error: &RedisError) -> Option<&std::io::Error> {
    let source = error.source()?;
    let shared = source.downcast_ref::<std::sync::Arc<dyn std::error::Error + Send + Sync>>();
    shared.map_or_else(|| source.downcast_ref(), |inner| inner.downcast_ref())
}

/// Whether the connection was closed in the middle of an answer. The driver reports this as an
/// answer that it cannot parse, and only the text of the error shows the cause.
fn is_truncated(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Parse && error.to_string().contains("end of input")
}

pub(crate) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the server's answer does not match the command; check for a proxy between the store \
         and the server",
    )
}

fn of_connection(error: RedisError) -> Error {
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        let (kind, message) = classify("WRONGPASS");
        return Error::new(kind, message);
    }
    // The cause can be a rejected certificate, a server without TLS, or a host that is not a valid
    // name for a certificate.
    if of_system(&error).is_some_and(|inner| inner.kind() == std::io::ErrorKind::InvalidData) {
        return Error::new(
            ErrorKind::Config,
            "TLS handshake failed; check that the server offers TLS and that its certificate is \
             signed by a CA that this host trusts or that `with_root_certificates` contains",
        )
        .because(error);
    }
    if error.is_timeout() {
        return Error::unavailable(
            "the server did not answer in time; check that it is running and reachable",
        )
        .because(error);
    }
    if error.is_connection_refusal() {
        return Error::unavailable(
            "no server accepts connections at that address; check that the server is running",
        )
        .because(error);
    }
    if error.is_io_error() || error.is_connection_dropped() || is_truncated(&error) {
        return Error::unavailable(
            "the connection to the server failed; check that the server is running and reachable",
        )
        .because(error);
    }
    // An error with a code means that the server refused the handshake. The driver's text for such
    // an error does not repeat any argument.
    match error.code() {
        Some(code) if code != "ERR" => {
            let (kind, message) = classify(code);
            Error::new(kind, message).with("code", code)
        }
        _ => Error::new(
            ErrorKind::Unexpected,
            "the server does not answer in the Redis protocol; check the host and port",
        )
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
            ("NOAUTH", ErrorKind::Config),
            ("WRONGPASS", ErrorKind::Config),
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
