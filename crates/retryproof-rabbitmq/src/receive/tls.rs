// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BrokerTls`]: connections for `amqps://`.
//!
//! The driver's own TLS support would add about fifty crates, which read every kind of client
//! certificate. The driver also accepts streams from any runtime, so this module gives it tokio's
//! runtime with streams that rustls encrypts.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::{AsFd as Handle, AsRawFd as RawHandle};
#[cfg(windows)]
use std::os::windows::io::{AsRawSocket as RawHandle, AsSocket as Handle};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_compat::Compat;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_core::Stream;
use futures_io::{AsyncRead, AsyncWrite};
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use retryproof_core::Result;

use crate::error::invalid_setting;

/// The TLS settings for one broker.
#[derive(Clone)]
pub(crate) struct BrokerTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// tokio's reactor, with encrypted streams.
#[derive(Clone)]
struct EncryptedReactor {
    tokio: Tokio,
    tls: BrokerTls,
}

type EncryptedRuntime = RuntimeParts<Tokio, EncryptedReactor>;

impl BrokerTls {
    /// Creates the settings for the broker `host`. The broker's certificate must be signed by one
    /// of `roots` (in PEM), or, if `roots` is `None`, by an authority that this machine trusts.
    pub(crate) fn new(host: &str, roots: Option<&[u8]>) -> Result<Self> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            invalid_setting("the broker's host is not a valid name for a certificate")
        })?;
        let mut trusted = RootCertStore::empty();
        match roots {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let added = certificate.ok().map(|certificate| trusted.add(certificate));
                    if !matches!(added, Some(Ok(()))) {
                        return Err(invalid_setting(
                            "the root certificates cannot be read; expected PEM",
                        ));
                    }
                }
            }
            None => {
                // Skip any of this machine's root certificates that cannot be parsed.
                trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if trusted.is_empty() {
            return Err(invalid_setting(
                "there are no root certificates to verify the broker with; pass some to \
                 `root_certificates`",
            ));
        }
        // If the program has installed a crypto provider, use that provider.
        let provider = CryptoProvider::get_default()
            .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| {
                invalid_setting("the program's crypto provider supports no safe version of TLS")
            })?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(Self { connector: Arc::new(client).into(), name })
    }

    pub(crate) async fn connect(
        &self,
        uri: AMQPUri,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let tokio = Tokio::current();
        let encrypted = EncryptedReactor { tokio: tokio.clone(), tls: self.clone() };
        let runtime = Runtime::new(EncryptedRuntime::new(tokio, encrypted));
        let connect = async |uri: AMQPUri, runtime: Runtime<EncryptedRuntime>| {
            let at = runtime.to_socket_addrs((uri.authority.host, uri.authority.port));
            Ok(AsyncTcpStream::connect(&runtime, at).await?)
        };
        Connection::connector(uri, runtime, connect, properties).await
    }
}

impl Reactor for EncryptedReactor {
    type TcpStream = Compat<TlsStream<TcpStream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn tcp_connect_addr(
        &self,
        at: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (plain, BrokerTls { connector, name }) =
            (self.tokio.tcp_connect_addr(at), self.tls.clone());
        async move {
            let stream = plain.await?.into_inner();
            Ok(Compat::new(connector.connect(name, stream).await?))
        }
    }

    /// The driver never calls this method.
    fn register<H: Read + Write + Handle + RawHandle + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }
}

impl fmt::Debug for EncryptedReactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedReactor").finish_non_exhaustive()
    }
}
