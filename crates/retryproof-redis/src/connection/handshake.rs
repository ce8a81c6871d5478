// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends the first batch of commands on a connection. The batch selects the database, checks the
//! server and loads the scripts. Sentinels, servers older than Redis 7.0, and servers of another
//! mode than the URL's are refused. Replicas are refused too, except in a cluster, where a replica
//! names the primary of each key.

use redis::Value;
use redis::aio::MultiplexedConnection;
use retryproof_core::{Error, ErrorKind};

use crate::error::{CLUSTER, Failure, NO_CLUSTER, REPLICA};
use crate::statement::Scripts;

const TOO_OLD: &str = "the server is older than Redis 7.0, which the store's scripts need";

/// Sends the first batch in one round trip. Fails if the store cannot use the server.
pub(super) async fn greet(
    driver: &mut MultiplexedConnection,
    db: u32,
    scripts: &Scripts,
    in_cluster: bool,
) -> Result<(), Failure> {
    let mut batch = redis::pipe();
    batch.cmd("SELECT").arg(db).cmd("HELLO").cmd("ROLE");
    for script in scripts.all() {
        batch.add_command(script.load());
    }
    let answers = driver.send_packed_commands(&batch, 0, batch.len()).await;
    let mut answers = answers.map_err(Failure::Connection)?.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil);
    let (select, hello, role) = (next(), next(), next());
    check_hello(&hello, in_cluster)?;
    if let Value::ServerError(error) = &select {
        return Err(match error.code() {
            "ERR" => Error::new(
                ErrorKind::Config,
                "the server has no database with the number in the URL",
            )
            .with("database", db)
            .into(),
            _ => Failure::Server(error.clone()),
        });
    }
    if !in_cluster {
        check_role(&role)?;
    }
    for loaded in answers {
        if let Value::ServerError(error) = loaded {
            // A server older than 7.0 cannot compile the first line of the scripts. This error
            // therefore reveals an old server that hides its version in HELLO.
            if error.code() == "ERR"
                && error.details().is_some_and(|details| details.contains("compiling"))
            {
                return Err(unsupported(TOO_OLD));
            }
            return Err(Failure::Server(error));
        }
    }
    Ok(())
}

fn unsupported(message: &'static str) -> Failure {
    Error::new(ErrorKind::Unsupported, message).into()
}

/// Returns a field of the answer to HELLO. The answer is a list or, in RESP3, a map.
fn hello_field<'a>(hello: &'a Value, name: &str) -> Option<&'a [u8]> {
    let bytes = |value: &'a Value| match value {
        Value::BulkString(bytes) => Some(bytes.as_slice()),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    };
    match hello {
        Value::Array(list) => list
            .chunks_exact(2)
            .find(|pair| bytes(&pair[0]) == Some(name.as_bytes()))
            .and_then(|pair| bytes(&pair[1])),
        Value::Map(map) => map
            .iter()
            .find(|(key, _)| bytes(key) == Some(name.as_bytes()))
            .and_then(|(_, value)| bytes(value)),
        _ => None,
    }
}

/// Fails if the answer to HELLO shows a server that the store cannot use. Redis accepts HELLO from
/// every user, but the command can be renamed, and a proxy can reject it. A server that rejects
/// HELLO is not refused, because the scripts and the first call show whether it is suitable.
pub(crate) fn check_hello(hello: &Value, in_cluster: bool) -> Result<(), Failure> {
    match hello {
        Value::ServerError(error) if !matches!(error.code(), "NOPERM" | "ERR") => {
            return Err(Failure::Server(error.clone()));
        }
        hello if !in_cluster && hello_field(hello, "mode") == Some(b"cluster") => {
            return Err(unsupported(CLUSTER));
        }
        hello if in_cluster && hello_field(hello, "mode") == Some(b"standalone") => {
            return Err(Error::new(ErrorKind::Config, NO_CLUSTER).into());
        }
        hello if hello_field(hello, "mode") == Some(b"sentinel") => {
            return Err(unsupported(
                "the server is a sentinel, which stores no records; use the URL \
                 `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`",
            ));
        }
        _ => {}
    }
    let version =
        hello_field(hello, "version").and_then(|version| std::str::from_utf8(version).ok());
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (major, version) {
        (Some(major), Some(version)) if major < 7 => {
            Err(Error::new(ErrorKind::Unsupported, TOO_OLD).with("version", version).into())
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_role(role: &Value) -> Result<(), Failure> {
    let Value::Array(role) = role else { return Ok(()) };
    match role.first() {
        Some(Value::BulkString(role)) if role == b"slave" || role == b"replica" => {
            Err(Error::unavailable(REPLICA).into())
        }
        _ => Ok(()),
    }
}
