// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encrypted connections, with the feature `tls`: a server whose certificate is signed by the
//! test's own authority.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::observe::Counters;
use retryproof_core::{ErrorKind, IdempotencyContext, IdempotencyEngine, IdempotencyStore as _};
use retryproof_mysql::{MysqlConfig, MysqlStore};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::support::server::Server;
use crate::support::{execute, id, replay, sql, unique};
use crate::trouble::kill_all;

/// A folder with certificates, which is removed with its test.
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

    config("").migrate().await.expect("TLS is preferred if both sides support it");
    for query in ["", "ssl-mode=required", &format!("ssl-mode=verify_identity&ssl-ca={ca}")] {
        let store = MysqlStore::connect(config(query))
            .await
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
        let key = id(query.get(..12).unwrap_or("none"));
        execute(&store, &key, "result").await;
        assert_eq!(replay(&store, &key).await, "result");
    }
    // The first URL disables encryption, which the server requires. The second requires a trusted
    // certificate, but the host does not trust the authority of the server's certificate.
    for query in ["ssl-mode=disabled", "ssl-mode=verify_ca"] {
        let error = MysqlStore::connect(config(query)).await.expect_err(query);
        assert_eq!(error.kind(), ErrorKind::Config, "{query}: {error:?}");
        assert!(!error.to_string().contains("host and port"), "{query}: {error}");
    }

    let plain = Server::start(&["--skip-ssl"]).await;
    let url = plain.url("app", "secret");
    let config = MysqlConfig::from_url(&format!("{url}?ssl-mode=required")).expect("a valid URL");
    let error = MysqlStore::connect(config).await.expect_err("the server supports none");
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
}

/// Starts a proxy in front of the server. While `garbles` is set, the proxy answers each TLS
/// handshake with bytes that are not TLS.
async fn garbling_proxy(server: String, garbles: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let addr = listener.local_addr().expect("bound");
    let pass = async move |mut client: TcpStream, garbles: bool| {
        let mut server = TcpStream::connect(&server).await?;
        if !garbles {
            copy_bidirectional(&mut client, &mut server).await?;
            return std::io::Result::Ok(());
        }
        let mut bytes = [0; 1024];
        let greeting = server.read(&mut bytes).await?;
        client.write_all(&bytes[..greeting]).await?;
        let _request = client.read(&mut bytes).await?;
        client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await
    };
    let pass = Arc::new(pass);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (pass, garbles) = (Arc::clone(&pass), garbles.load(Ordering::SeqCst));
            tokio::spawn(async move { drop(pass(client, garbles).await) });
        }
    });
    addr
}

/// The connection of a running store breaks while the action runs, and for a moment the proxy in
/// front of the server answers handshakes with garbage: the result is recorded nevertheless.
#[tokio::test]
async fn sto_5_a_handshake_that_fails_while_the_store_runs_costs_no_result() {
    let own = Certificate::new();
    let (cert, key) = (own.file("cert.pem"), own.file("key.pem"));
    let server = Server::start(&[&format!("--ssl-cert={cert}"), &format!("--ssl-key={key}")]).await;
    let url = server.url("app", "secret");
    let place = url.split(['@', '/']).nth(3).expect("a host").to_owned();
    let garbles = Arc::new(AtomicBool::new(false));
    let proxy = garbling_proxy(place.clone(), Arc::clone(&garbles)).await;
    let config = MysqlConfig::from_url(&format!(
        "{}?ssl-mode=required",
        url.replace(&place, &proxy.to_string())
    ))
    .expect("a valid URL");
    config.migrate().await.expect("migrated");
    let store = MysqlStore::connect(config.clone()).await.expect("connected").into_shared();
    let counters = Counters::new();
    let engine =
        IdempotencyEngine::builder(store.clone()).observer(Arc::clone(&counters)).build().unwrap();

    let mut root = server.root().await;
    let runs = AtomicU32::new(0);
    let ctx = || IdempotencyContext::builder("mysql.tests", "k").build().expect("valid");
    let action = async || {
        runs.fetch_add(1, Ordering::SeqCst);
        garbles.store(true, Ordering::SeqCst);
        kill_all(&mut root, "app").await;
        let error = store.peek(&id("other")).await.expect_err("no handshake");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(format!("{error:?}").contains("TLS"), "{error:?}");
        let error = MysqlStore::connect(config.clone()).await.expect_err("no handshake");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let garbles = Arc::clone(&garbles);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            garbles.store(false, Ordering::SeqCst);
        });
        Ok::<_, std::io::Error>(1_u32)
    };
    assert!(engine.execute(ctx(), action).await.expect("executed").is_executed());
    // The engine may still be repeating the completion in the background.
    for _ in 0..100 {
        if counters.read().completed == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again = engine.execute(ctx(), async || Ok::<_, std::io::Error>(2_u32)).await;
    assert!(again.is_ok_and(|outcome| outcome.is_replayed()), "the result was given up");
    assert_eq!((runs.load(Ordering::SeqCst), counters.read().completed), (1, 1));
}
