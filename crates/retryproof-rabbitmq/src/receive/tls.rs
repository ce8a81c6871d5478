// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tls`]: connections for `amqps://`.
//!
//! The driver's own TLS brings some fifty crates more, to read client certificates of every kind.
//! It takes any stream that a runtime of its own gives it, and here the runtime is tokio's with
//! connections that rustls has encrypted.

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

use retryproof_core::{Error, ErrorKind, Result};

/// How one broker is known.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// The one part of tokio's runtime that is not tokio's.
#[derive(Clone)]
struct Encrypted {
    tokio: Tokio,
    tls: Tls,
}

type Kit = RuntimeParts<Tokio, Encrypted>;

impl Tls {
    /// To the broker of this name, with a certificate by one of `roots`, in PEM; by one that the
    /// host trusts where there are none.
    pub(crate) fn to(host: &str, roots: Option<&[u8]>) -> Result<Self> {
        let config = |message: &'static str| Error::new(ErrorKind::Config, message);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| config("the broker's host is no name that a certificate could have"))?;
        let mut trusted = RootCertStore::empty();
        match roots {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let added = certificate.ok().map(|certificate| trusted.add(certificate));
                    if !matches!(added, Some(Ok(()))) {
                        return Err(config(
                            "the root certificates cannot be read: they are expected in PEM",
                        ));
                    }
                }
            }
            None => {
                // A single one of the host that cannot be read is no reason to trust none.
                trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if trusted.is_empty() {
            return Err(config(
                "there is no root certificate to know the broker by; name them by `root_certificates`",
            ));
        }
        // The program's choice, where it has made one.
        let provider = CryptoProvider::get_default()
            .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| {
                config("the program's cryptography provider speaks no version of TLS that is safe")
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
        let encrypted = Encrypted { tokio: tokio.clone(), tls: self.clone() };
        let runtime = Runtime::new(Kit::new(tokio, encrypted));
        let connect = async |uri: AMQPUri, runtime: Runtime<Kit>| {
            let at = runtime.to_socket_addrs((uri.authority.host, uri.authority.port));
            Ok(AsyncTcpStream::connect(&runtime, at).await?)
        };
        Connection::connector(uri, runtime, connect, properties).await
    }
}

impl Reactor for Encrypted {
    type TcpStream = Compat<TlsStream<TcpStream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn tcp_connect_addr(
        &self,
        at: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (plain, Tls { connector, name }) = (self.tokio.tcp_connect_addr(at), self.tls.clone());
        async move {
            let line = plain.await?.into_inner();
            Ok(Compat::new(connector.connect(name, line).await?))
        }
    }

    /// Nothing that the driver asks for.
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

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

/// Whether the broker was reached, and is not one that we trust or that speaks TLS: connecting
/// again does not cure that. An alert does not count: a broker that starts, or what stands before
/// it, may send one.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
    let refused = |error: &rustls::Error| {
        matches!(error, InvalidCertificate(_) | InvalidMessage(_) | PeerIncompatible(_))
    };
    error.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(refused)
}
