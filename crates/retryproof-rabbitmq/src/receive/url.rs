// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BrokerUrl`]: the checked address of the broker.

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};

use retryproof_core::{Error, ErrorKind, Result};

#[derive(Clone)]
pub(crate) struct BrokerUrl {
    uri: AMQPUri,
    #[cfg(feature = "tls")]
    tls: Option<crate::receive::tls::BrokerTls>,
}

/// Root certificates in PEM, or `None` for the certificates that this machine trusts.
pub(crate) type RootCertificates = Option<Vec<u8>>;

impl BrokerUrl {
    /// Parses a URL. No error shows the URL, because it can contain a password (ID-4).
    pub(crate) fn parse(url: &str, roots: &RootCertificates) -> Result<Self> {
        if has_bare_ipv6(url) {
            return Err(Error::new(
                ErrorKind::Config,
                "the broker URL has an IPv6 address, which the driver cannot connect to; use the \
                 broker's host name or its IPv4 address",
            ));
        }
        let mut uri: AMQPUri = url.parse().map_err(|_| {
            Error::new(
                ErrorKind::Config,
                "the broker URL is invalid; expected `amqp://USER:PASSWORD@HOST:PORT/VHOST`",
            )
        })?;
        // Unless the URL sets a heartbeat, request 30 s instead of the broker's 60 s. The listener
        // then notices a lost connection sooner.
        uri.query.heartbeat.get_or_insert(30);
        Self::of(uri, roots)
    }

    #[cfg(feature = "tls")]
    fn of(uri: AMQPUri, roots: &RootCertificates) -> Result<Self> {
        let tls = match uri.scheme {
            AMQPScheme::AMQPS => {
                Some(crate::receive::tls::BrokerTls::new(&uri.authority.host, roots.as_deref())?)
            }
            AMQPScheme::AMQP => None,
        };
        Ok(Self { uri, tls })
    }

    /// Refuses `amqps://`, because without its TLS feature the driver would send the password
    /// unencrypted.
    #[cfg(not(feature = "tls"))]
    fn of(uri: AMQPUri, _: &RootCertificates) -> Result<Self> {
        match uri.scheme {
            AMQPScheme::AMQP => Ok(Self { uri }),
            AMQPScheme::AMQPS => Err(Error::new(
                ErrorKind::Unsupported,
                "`amqps` needs TLS, which this build does not include; enable the feature \
                 `rabbitmq-tls` of retryproof",
            )),
        }
    }

    pub(crate) async fn connect(
        &self,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let uri = self.uri.clone();
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.connect(uri, properties).await;
        }
        Connection::connect_uri(uri, properties).await
    }
}

/// Whether the host is an IPv6 address in brackets. The driver supports only names and IPv4
/// addresses. For an IPv6 address, the driver would send the password to `localhost`.
fn has_bare_ipv6(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfg_1_an_ipv6_address_is_refused_before_the_password_goes_anywhere() {
        for url in [
            "amqp://guest:canary@[2001:db8::5]:5672/%2f",
            "amqp://[::1]",
            "amqps://u:p@[::1]/v?x=[1]",
        ] {
            let error = BrokerUrl::parse(url, &None).map(drop).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(
                error.to_string().contains("IPv6") && !error.to_string().contains("canary"),
                "{error}"
            );
        }
        for url in ["amqp://guest:p%5Bd@127.0.0.1:5672/%2f", "amqp://localhost/[v]"] {
            assert!(BrokerUrl::parse(url, &None).is_ok(), "{url}");
        }
    }
}
