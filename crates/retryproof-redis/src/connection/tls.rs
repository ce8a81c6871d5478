// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tls`] encrypts the sockets of `rediss://` with rustls.
//!
//! The driver's own TLS uses the process's crypto provider, and installs one if there is none. A
//! library must not choose the provider for the application. The driver accepts any stream, so this
//! module gives the driver an encrypted stream. That stream uses the application's provider, or
//! ring if the application has none.

use std::io;
use std::sync::Arc;

use retryproof_core::{Error, ErrorKind, Result};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The TLS settings of all connections of a store.
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Trusts the certificates in `roots` (PEM), or the host's certificates if `roots` is `None`.
    /// The certificates are read once. If a certificate is added to the host later, only stores
    /// that are opened afterwards trust it.
    pub(super) fn new(roots: Option<&[u8]>) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        let (mut trusted, mut unread) = (RootCertStore::empty(), None);
        match roots {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let added = certificate.ok().map(|certificate| trusted.add(certificate));
                    if !matches!(added, Some(Ok(()))) {
                        return Err(refuse("the root certificates cannot be read; expected PEM"));
                    }
                }
            }
            None => {
                // Skip any of this machine's root certificates that cannot be read.
                let mut host = rustls_native_certs::load_native_certs();
                trusted.add_parsable_certificates(host.certs);
                unread = host.errors.pop();
            }
        }
        if trusted.is_empty() {
            let error = refuse(
                "there are no root certificates to verify the server with; pass some to \
                 `with_root_certificates`",
            );
            return Err(match unread {
                Some(cause) => error.because(cause),
                None => error,
            });
        }
        let provider = CryptoProvider::get_default()
            .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| {
                refuse("the application's crypto provider supports no safe version of TLS")
            })?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(Self(Arc::new(client).into()))
    }

    /// Starts TLS on a connection to `host`; the server's certificate must name `host`.
    pub(super) async fn connect(
        &self,
        host: &str,
        socket: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.0.connect(name, socket).await
    }
}
