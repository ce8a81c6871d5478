// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Dialer`]: makes one connection and sees whom it reaches: no cluster, no sentinel, no replica,
//! no server that is too old.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{
    TcpSettings,
    socket2::{SockRef, TcpKeepalive},
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisResult, Value,
};
use retryproof_core::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{AbortHandle, JoinSet};

use crate::config::{Address, RedisConfig};
use crate::connection::coalesce::{BOUNDARY, Crowd, Gather};
use crate::error::{CLUSTER, Failure};
use crate::statement::Scripts;

pub(crate) mod coalesce;

/// How many calls may wait for the connection's task before their callers do.
const QUEUE: usize = 1_024;
/// When the kernel gives up on bytes that the other side does not acknowledge: a cut wire is
/// noticed in about that time.
const UNACKNOWLEDGED: Duration = Duration::from_secs(3);

/// What a connection is for.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// Calls.
    Calls,
    /// Calls that wait for replicas, so for longer.
    Waiting,
    /// Pushed messages, which go here.
    Messages(UnboundedSender<PushInfo>),
}

/// A connection. The drop of it ends its task, and the clones of its driver with that.
pub(crate) struct Conn {
    pub(crate) driver: MultiplexedConnection,
    /// Who calls over it enters here.
    pub(crate) crowd: Arc<Crowd>,
    /// `None`: the driver's clones share a task of its own.
    _task: Option<Task>,
}

/// A task; the drop ends it.
pub(crate) struct Task(pub(crate) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes connections as the configuration says.
#[derive(Debug)]
pub(crate) struct Dialer {
    config: RedisConfig,
    scripts: Scripts,
}

impl Dialer {
    pub(crate) fn new(config: RedisConfig) -> Self {
        Self { config, scripts: Scripts::new() }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Connects to a server, and refuses what is none that we can use.
    pub(crate) async fn server(&self, at: &Address, purpose: &Purpose) -> Result<Conn> {
        let login = login(self.config.user.as_deref(), self.config.password.as_deref());
        let reached = async {
            let mut conn = self.connect(at, login, purpose).await?;
            self.greet(&mut conn.driver).await?;
            Ok(conn)
        };
        reached.await.map_err(|failure: Failure| failure.into_error().with("server", at))
    }

    /// Connects to a sentinel.
    pub(crate) async fn sentinel(&self, at: &Address, purpose: &Purpose) -> Result<Conn> {
        let login =
            login(self.config.sentinel_user.as_deref(), self.config.sentinel_password.as_deref());
        self.connect(at, login, purpose)
            .await
            .map_err(|failure| failure.into_error().with("sentinel", at))
    }

    async fn connect(
        &self,
        at: &Address,
        login: RedisConnectionInfo,
        purpose: &Purpose,
    ) -> Result<Conn, Failure> {
        let mut options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_write_backpressure_boundary(BOUNDARY)
            .set_pipeline_buffer_size(QUEUE);
        let (login, patience) = match purpose {
            Purpose::Calls => (login, self.config.response_timeout),
            Purpose::Waiting => (login, self.config.response_timeout + self.config.wait_timeout()),
            Purpose::Messages(to) => {
                options = options.set_push_sender(to.clone());
                (login.set_protocol(ProtocolVersion::RESP3), self.config.response_timeout)
            }
        };
        let options = options.set_response_timeout(Some(patience));
        let made = async {
            if self.config.tls {
                self.over_tls(at, login, &options).await
            } else {
                let made = tokio::time::timeout(
                    self.config.connect_timeout,
                    over_tcp(at, &login, options),
                );
                made.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            }
        };
        made.await.map_err(Failure::Connection)
    }

    /// The driver's own connection: it alone knows its TLS.
    async fn over_tls(
        &self,
        at: &Address,
        login: RedisConnectionInfo,
        options: &AsyncConnectionConfig,
    ) -> RedisResult<Conn> {
        let (host, port) = (at.host.clone(), at.port);
        let settings = TcpSettings::default().set_nodelay(true).set_keepalive(probes());
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
        let settings = settings.set_user_timeout(UNACKNOWLEDGED);
        let info = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            .into_connection_info()?
            .set_tcp_settings(settings)
            .set_redis_settings(login);
        let driver =
            self.client(info)?.get_multiplexed_async_connection_with_config(options).await?;
        Ok(Conn { driver, crowd: Arc::default(), _task: None })
    }

    #[cfg(feature = "tls")]
    fn client(&self, info: redis::ConnectionInfo) -> redis::RedisResult<Client> {
        // The driver takes the process's provider, and has none of its own: where the application
        // has chosen none, ours.
        if self.config.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        match &self.config.root_certificates {
            Some(pem) if self.config.tls => Client::build_with_tls(
                info,
                redis::TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) },
            ),
            _ => Client::open(info),
        }
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn client(&self, info: redis::ConnectionInfo) -> redis::RedisResult<Client> {
        Client::open(info)
    }

    /// One flight: the database, who are you, the scripts.
    async fn greet(&self, conn: &mut MultiplexedConnection) -> Result<(), Failure> {
        let mut flight = redis::pipe();
        let db = self.config.db;
        flight.cmd("SELECT").arg(db).cmd("HELLO").cmd("ROLE");
        for script in self.scripts.all() {
            flight.add_command(script.load());
        }
        let mut answers = conn
            .send_packed_commands(&flight, 0, 7)
            .await
            .map_err(Failure::Connection)?
            .into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (select, hello, role) = (next(), next(), next());
        judge_hello(&hello)?;
        if let Value::ServerError(error) = &select {
            return Err(match error.code() {
                "ERR" => Error::new(ErrorKind::Config, "the server has no database of that number")
                    .with("database", db)
                    .into(),
                _ => Failure::Server(error.clone()),
            });
        }
        judge_role(&role)?;
        for loaded in answers {
            if let Value::ServerError(error) = loaded {
                // A server before 7.0 does not know the first line of the scripts. One that hides
                // its version in HELLO is told by it.
                if error.code() == "ERR"
                    && error.details().is_some_and(|said| said.contains("compiling"))
                {
                    return Err(unsupported(TOO_OLD));
                }
                return Err(Failure::Server(error));
            }
        }
        Ok(())
    }
}

fn probes() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(UNACKNOWLEDGED)
}

/// Over a socket of our own, which [gathers](Gather) what is sent.
async fn over_tcp(
    at: &Address,
    login: &RedisConnectionInfo,
    options: AsyncConnectionConfig,
) -> RedisResult<Conn> {
    let socket = dial(at).await?;
    socket.set_nodelay(true)?;
    let set = SockRef::from(&socket);
    set.set_tcp_keepalive(&probes())?;
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    set.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    let crowd = Arc::<Crowd>::default();
    let gather = Gather::new(socket, Arc::clone(&crowd));
    let (driver, task) = MultiplexedConnection::new_with_config(login, gather, options).await?;
    let task = tokio::spawn(task).abort_handle();
    Ok(Conn { driver, crowd, _task: Some(Task(task)) })
}

/// All addresses of the host at once, as the driver does: one that drops what comes does not hold
/// the others up.
async fn dial(at: &Address) -> io::Result<TcpStream> {
    let mut dialing = JoinSet::new();
    for addr in tokio::net::lookup_host((at.host.as_str(), at.port)).await? {
        dialing.spawn(TcpStream::connect(addr));
    }
    let mut failure = None;
    while let Some(dialed) = dialing.join_next().await {
        match dialed.map_err(io::Error::from).flatten() {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure
        .unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

const TOO_OLD: &str = "the server is older than Redis 7.0, whose scripts the store needs";

fn unsupported(message: &'static str) -> Failure {
    Error::new(ErrorKind::Unsupported, message).into()
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// The value of a name in the answer to HELLO, which is a list or, in RESP3, a map.
fn told<'a>(hello: &'a Value, name: &str) -> Option<&'a [u8]> {
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

/// A user without the right to ask gets no verdict: the calls will tell.
fn judge_hello(hello: &Value) -> Result<(), Failure> {
    match hello {
        Value::ServerError(error) if !matches!(error.code(), "NOPERM" | "ERR") => {
            return Err(Failure::Server(error.clone()));
        }
        hello if told(hello, "mode") == Some(b"cluster") => return Err(unsupported(CLUSTER)),
        hello if told(hello, "mode") == Some(b"sentinel") => {
            return Err(unsupported(
                "the server is a sentinel; write `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`",
            ));
        }
        _ => {}
    }
    let version = told(hello, "version").and_then(|version| std::str::from_utf8(version).ok());
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (major, version) {
        (Some(major), Some(version)) if major < 7 => {
            Err(Error::new(ErrorKind::Unsupported, TOO_OLD).with("version", version).into())
        }
        _ => Ok(()),
    }
}

fn judge_role(role: &Value) -> Result<(), Failure> {
    let Value::Array(role) = role else { return Ok(()) };
    match role.first() {
        Some(Value::BulkString(role)) if role == b"slave" || role == b"replica" => {
            Err(Failure::Ours(replica()))
        }
        _ => Ok(()),
    }
}

fn replica() -> Error {
    Error::unavailable(
        "the server is a replica and takes no writes; after a fail-over, give the URL of the \
         sentinels, or of the primary",
    )
}

/// A setting of the server, where the user may read it.
pub(crate) fn ask_setting(name: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CONFIG").arg("GET").arg(name);
    cmd
}

/// The answer to [`ask_setting`].
pub(crate) fn setting(answer: &Value) -> Option<&str> {
    let value = match answer {
        Value::Array(pair) => pair.get(1)?,
        Value::Map(map) => &map.first()?.1,
        _ => return None,
    };
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
