// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Connector`] opens one connection and checks the server. [`Connection`] sends one request.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo,
    RedisResult, Value,
};
use retryproof_core::Result;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{AbortHandle, JoinSet};

use crate::config::{Address, RedisConfig};
use crate::error::Failure;
use crate::statement::Scripts;

mod coalesce;
pub(crate) mod handshake;
#[cfg(feature = "tls")]
mod tls;

use coalesce::{CallsInFlight, CoalescingSocket, WRITE_BOUNDARY};

/// How many calls can queue for the connection's task. Further callers wait.
const MAX_QUEUED: usize = 1_024;
/// How long sent data can stay unacknowledged. On Linux, Android and Fuchsia, the kernel then
/// closes the connection. Elsewhere, this is only the interval between keepalive probes.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(3);

/// The purpose of a connection.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// Serves calls.
    Calls,
    /// Serves calls that wait for replicas. These calls take longer.
    CallsWithWait,
    /// Receives the messages that the server pushes, and passes them to this sender.
    Messages(UnboundedSender<PushInfo>),
}

impl Purpose {
    /// Returns the time limit for a call over a connection with this purpose.
    pub(crate) fn timeout(&self, config: &RedisConfig) -> Duration {
        match self {
            Self::CallsWithWait => config.call_timeout + config.wait_timeout(),
            Self::Calls | Self::Messages(_) => config.call_timeout,
        }
    }
}

/// The command or commands of one exchange with the server.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    One(&'a Cmd),
    /// Several commands; their answers are returned as one array.
    Batch(&'a Pipeline),
}

/// A connection. Dropping the connection ends its task, which invalidates every clone of the
/// driver's handle.
pub(crate) struct Connection {
    pub(crate) driver: MultiplexedConnection,
    calls: Arc<CallsInFlight>,
    _task: Task,
}

/// A task that ends when this handle is dropped.
pub(crate) struct Task(pub(crate) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    /// Sends a request and waits for the answer.
    pub(crate) async fn send(&self, request: Request<'_>) -> RedisResult<Value> {
        let _in_flight = self.calls.enter();
        let mut driver = self.driver.clone();
        match request {
            Request::One(cmd) => driver.send_packed_command(cmd).await,
            Request::Batch(batch) => {
                driver.send_packed_commands(batch, 0, batch.len()).await.map(Value::Array)
            }
        }
    }
}

/// Opens connections according to the configuration.
pub(crate) struct Connector {
    config: RedisConfig,
    scripts: Scripts,
    /// `None` without TLS.
    #[cfg(feature = "tls")]
    tls: Option<tls::Tls>,
}

impl Connector {
    /// Checks the configuration.
    pub(crate) fn new(config: RedisConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            scripts: Scripts::new(),
            #[cfg(feature = "tls")]
            tls: config
                .tls
                .then(|| tls::Tls::new(config.root_certificates.as_deref()))
                .transpose()?,
            config,
        })
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Connects to a server, and fails if the store cannot use that server.
    pub(crate) async fn connect_server(
        &self,
        at: &Address,
        purpose: &Purpose,
    ) -> Result<Connection> {
        let login = login(self.config.user.as_deref(), self.config.password.as_deref());
        let connected = async {
            let mut connection = self.connect(at, login, purpose).await?;
            let (db, in_cluster) = (self.config.db, self.config.is_cluster());
            handshake::greet(&mut connection.driver, db, &self.scripts, in_cluster).await?;
            Ok(connection)
        };
        connected.await.map_err(|failure: Failure| failure.into_error().with("server", at))
    }

    /// Connects to a server without checking it.
    pub(crate) async fn connect_unchecked(&self, at: &Address) -> Result<Connection> {
        let login = login(self.config.user.as_deref(), self.config.password.as_deref());
        let connected = self.connect(at, login, &Purpose::Calls).await;
        connected.map_err(|failure| failure.into_error().with("server", at))
    }

    /// Connects to a sentinel.
    pub(crate) async fn connect_sentinel(
        &self,
        at: &Address,
        purpose: &Purpose,
    ) -> Result<Connection> {
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
    ) -> Result<Connection, Failure> {
        let mut options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_write_backpressure_boundary(WRITE_BOUNDARY)
            .set_pipeline_buffer_size(MAX_QUEUED);
        let login = match purpose {
            Purpose::Calls | Purpose::CallsWithWait => login,
            Purpose::Messages(to) => {
                options = options.set_push_sender(to.clone());
                login.set_protocol(ProtocolVersion::RESP3)
            }
        };
        let options = options.set_response_timeout(Some(purpose.timeout(&self.config)));
        let connecting = async {
            let socket = open_socket(at).await?;
            #[cfg(feature = "tls")]
            if let Some(tls) = &self.tls {
                return start(tls.connect(&at.host, socket).await?, &login, options).await;
            }
            start(socket, &login, options).await
        };
        let connected = tokio::time::timeout(self.config.connect_timeout, connecting).await;
        connected
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(Failure::Connection)
    }
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(UNACKNOWLEDGED_TIMEOUT)
}

async fn open_socket(at: &Address) -> io::Result<TcpStream> {
    let socket = connect_any(at).await?;
    socket.set_nodelay(true)?;
    let settings = SockRef::from(&socket);
    settings.set_tcp_keepalive(&keepalive())?;
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    settings.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
    Ok(socket)
}

/// Logs in over `socket`, and starts the task that serves the connection.
async fn start(
    socket: impl AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    login: &RedisConnectionInfo,
    options: AsyncConnectionConfig,
) -> RedisResult<Connection> {
    let calls = Arc::<CallsInFlight>::default();
    let socket = CoalescingSocket::new(socket, Arc::clone(&calls));
    let (driver, task) = MultiplexedConnection::new_with_config(login, socket, options).await?;
    let task = tokio::spawn(task).abort_handle();
    Ok(Connection { driver, calls, _task: Task(task) })
}

/// Connects to all addresses of the host concurrently, as the driver does, and uses the first
/// connection that succeeds. An address that drops packets therefore does not delay the others.
async fn connect_any(at: &Address) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for addr in tokio::net::lookup_host((at.host.as_str(), at.port)).await? {
        attempts.spawn(TcpStream::connect(addr));
    }
    let mut failure = None;
    while let Some(attempt) = attempts.join_next().await {
        match attempt.map_err(io::Error::from).and_then(|connected| connected) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure
        .unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host name has no address")))
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

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("config", &self.config).finish_non_exhaustive()
    }
}
