// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries the sentinels for the address of the primary.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;
use retryproof_core::{Error, ErrorKind, Result};

use crate::config::Address;
use crate::connection::{Connector, Purpose, Request};
use crate::error::Failure;
use crate::statement::primary_address;

/// Queries one sentinel after another until a sentinel returns an address. Begins with `last`, the
/// sentinel that answered last.
///
/// # Errors
/// If no sentinel returns an address, the error of the last sentinel. Its kind is `Config`, for
/// example, if that sentinel does not watch the service.
pub(super) async fn ask_primary(
    connector: &Connector,
    nodes: &[Address],
    service: &str,
    last: &AtomicUsize,
) -> Result<Address> {
    let cmd = primary_address(service);
    let first = last.load(Ordering::Relaxed);
    let mut failure = None;
    for at in (0..nodes.len()).map(|step| (first + step) % nodes.len()) {
        let asked = async {
            let connection = connector.connect_sentinel(&nodes[at], &Purpose::Calls).await?;
            let answer = connection.send(Request::One(&cmd)).await.map_err(Failure::Connection);
            answer.map_err(|failure| failure.into_error().with("sentinel", &nodes[at]))
        };
        failure = Some(match asked.await {
            Ok(Value::Array(pair)) => match address(&pair) {
                Some(found) => {
                    last.store(at, Ordering::Relaxed);
                    return Ok(found);
                }
                None => no_address(),
            },
            Ok(Value::Nil) => Error::new(
                ErrorKind::Config,
                "the sentinels monitor no service with the name in the URL",
            )
            .with("service", format_args!("{service:?}")),
            // Only sentinels support the SENTINEL command, so this server is not a sentinel.
            Ok(Value::ServerError(error)) if error.code() == "ERR" => Error::new(
                ErrorKind::Config,
                "the server is not a sentinel; to use it as the only server, write \
                 `redis://HOST:PORT`",
            ),
            Ok(Value::ServerError(error)) => Failure::Server(error).into_error(),
            Ok(_) => no_address(),
            Err(error) => error,
        });
    }
    Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Config, "no sentinel is configured")))
}

fn no_address() -> Error {
    Error::new(ErrorKind::Unexpected, "the sentinel's answer is not an address")
}

/// Reads the address in a sentinel's answer; `None` if the answer is not an address.
pub(super) fn address(pair: &[Value]) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = pair else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    Some(Address { host, port: std::str::from_utf8(port).ok()?.parse().ok()? })
}
