// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encrypted connections, with the feature `tls`: a server whose certificate is signed by the
//! test's own authority.

use std::path::PathBuf;
use std::process::Command;

use retryproof_core::ErrorKind;
use retryproof_mysql::{MysqlConfig, MysqlStore};

use crate::support::server::Server;
use crate::support::{execute, id, replay, sql, unique};

/// Removed with its test.
struct Certificate(PathBuf);

impl Certificate {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(unique("retryproof-certificate"));
        std::fs::create_dir_all(&dir).expect("a folder");
        for line in [
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
            "req -newkey rsa:2048 -nodes -subj /CN=server -addext subjectAltName=IP:127.0.0.1 \
             -keyout key.pem -out req.pem",
            "x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -copy_extensions copy -out cert.pem",
        ] {
            let made = Command::new("openssl")
                .args(line.split(' '))
                .current_dir(&dir)
                .output()
                .expect("no openssl for this test: install the package `openssl`");
            assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
        }
        Self(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn sto_5_encryption_is_asked_for_by_the_url() {
    let own = Certificate::new();
    let (ca, cert, key) = (own.file("ca.pem"), own.file("cert.pem"), own.file("key.pem"));
    let server = Server::start(&[&format!("--ssl-cert={cert}"), &format!("--ssl-key={key}")]).await;
    sql(&mut server.root().await, "ALTER USER 'app'@'%' REQUIRE SSL").await;
    let url = server.url("app", "secret");
    let config =
        |query: &str| MysqlConfig::from_url(&format!("{url}?{query}")).expect("a valid URL");

    config("").migrate().await.expect("what both sides can is preferred");
    for query in ["", "ssl-mode=required", &format!("ssl-mode=verify_identity&ssl-ca={ca}")] {
        let store = MysqlStore::connect(config(query))
            .await
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
        let key = id(query.get(..12).unwrap_or("none"));
        execute(&store, &key, "result").await;
        assert_eq!(replay(&store, &key).await, "result");
    }
    // The server requires encryption and the URL disables it; then an authority that the host does
    // not trust.
    for query in ["ssl-mode=disabled", "ssl-mode=verify_ca"] {
        let error = MysqlStore::connect(config(query)).await.expect_err(query);
        assert_eq!(error.kind(), ErrorKind::Config, "{query}: {error:?}");
        assert!(!error.to_string().contains("host and port"), "{query}: {error}");
    }

    let plain = Server::start(&["--skip-ssl"]).await;
    let url = plain.url("app", "secret");
    let config = MysqlConfig::from_url(&format!("{url}?ssl-mode=required")).expect("a valid URL");
    let error = MysqlStore::connect(config).await.expect_err("it has none to offer");
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
}
