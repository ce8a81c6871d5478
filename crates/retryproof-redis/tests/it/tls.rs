// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rediss://`: a server with the test's own certificate, whose authority is trusted or not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use retryproof_core::ErrorKind;
use retryproof_redis::{RedisConfig, RedisStore};

use crate::support::server::Server;
use crate::support::{CANARY, assert_masked, execute, id, own_prefix, replay, until_connected};

/// A directory that is removed with its test.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn openssl(dir: &Path, line: &str) {
    let status = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("no openssl for this test: install it");
    assert!(status.success(), "openssl {line}");
}

/// Creates an authority, and a certificate for 127.0.0.1 that it signs.
fn certificates() -> Dir {
    let dir = Dir(std::env::temp_dir().join(format!("retryproof-tls-{}", own_prefix())));
    std::fs::create_dir_all(&dir.0).expect("a directory");
    let at = dir.0.as_path();
    std::fs::write(at.join("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .expect("written");
    openssl(
        at,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem \
         -days 2 -subj /CN=test-authority",
    );
    openssl(
        at,
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out csr.pem \
         -subj /CN=test-server",
    );
    openssl(
        at,
        "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile ext",
    );
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_1_tls_is_spoken_with_a_server_that_can_be_known() {
    let dir = certificates();
    let file = |name: &str| dir.0.join(name).display().to_string();
    // Reuse the port of a server that has just ended, because no other process uses it.
    let port = Server::start("").await.port;
    let server = Server::start(&format!(
        "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file \
         {}\ntls-auth-clients no\nrequirepass pw",
        file("cert.pem"),
        file("key.pem"),
        file("ca.pem")
    ))
    .await;
    let url = format!("rediss://:pw@127.0.0.1:{port}/0?prefix={}", own_prefix());
    let config = RedisConfig::from_url(&url).expect("a URL");
    let authority = std::fs::read(dir.0.join("ca.pem")).expect("read");
    let store = RedisStore::connect(config.clone().with_root_certificates(authority))
        .await
        .expect("it connects");
    execute(&store, &id("k"), "x").await;
    assert_eq!(replay(&store, &id("k")).await, "x");

    // The store does not install a crypto provider for the whole process.
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());

    let error = RedisStore::connect(config).await.expect_err("an unknown authority");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    let plain = RedisConfig::new("127.0.0.1", port).with_password(CANARY);
    let error = RedisStore::connect(plain).await.expect_err("it speaks TLS");
    assert_masked(&error);
    let wrong = format!("rediss://:{CANARY}@127.0.0.1:{}", server.port);
    let error = RedisStore::connect(RedisConfig::from_url(&wrong).expect("a URL"))
        .await
        .expect_err("it speaks no TLS");
    assert_masked(&error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_8_tls_is_spoken_with_each_node_of_a_cluster() {
    let dir = certificates();
    let file = |name: &str| dir.0.join(name).display().to_string();
    let port = Server::start("").await.port;
    let node = Server::start(&format!(
        "cluster-enabled yes\ntls-cluster yes\ntls-port {port}\ntls-cert-file {}\ntls-key-file \
         {}\ntls-ca-cert-file {}\ntls-auth-clients no",
        file("cert.pem"),
        file("key.pem"),
        file("ca.pem")
    ))
    .await;
    node.tell("CLUSTER ADDSLOTSRANGE 0 16383").await;
    let url = format!("rediss+cluster://127.0.0.1:{port}?prefix={}", own_prefix());
    let authority = std::fs::read(dir.0.join("ca.pem")).expect("read");
    let config = RedisConfig::from_url(&url).expect("a URL").with_root_certificates(authority);
    let store = until_connected(config).await;
    execute(&store, &id("k"), "x").await;
    assert_eq!(replay(&store, &id("k")).await, "x");
}
