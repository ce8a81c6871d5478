// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encrypted connections, with the feature `tls`: a server whose certificate is signed by the test's
//! own authority.

use std::time::Duration;

use retryproof_core::ErrorKind;
use retryproof_postgres::{PostgresConfig, PostgresStore};
use tokio::time::Instant;

use crate::support::server::Server;
use crate::support::{execute, id, replay};

#[tokio::test]
async fn sto_5_a_refused_tls_handshake_is_a_configuration_error() {
    let server = Server::start().await;
    let config = |query: &str| {
        PostgresConfig::from_url(&format!("{}?{query}", server.url())).expect("a valid URL")
    };
    config("").migrate().await.expect("migrated");

    let authority = server.encrypt().await;
    let known = config(&format!("sslmode=verify-full&sslrootcert={authority}"));
    // The server applies the settings some milliseconds after the call that reloads them.
    let end = Instant::now() + Duration::from_secs(10);
    let store = loop {
        match PostgresStore::connect(known.clone()).await {
            Ok(store) => break store,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    execute(&store, &id("k"), "result").await;
    assert_eq!(replay(&store, &id("k")).await, "result");

    // The host does not trust the authority of the server's certificate.
    for mode in ["verify-ca", "verify-full"] {
        let error = PostgresStore::connect(config(&format!("sslmode={mode}")))
            .await
            .expect_err("an unknown authority");
        assert_eq!(error.kind(), ErrorKind::Config, "{mode}: {error:?}");
        assert!(error.to_string().contains("certificate"), "{mode}: {error}");
    }
}
