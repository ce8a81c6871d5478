// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input: keys, bodies, scripts, stores and command lines. Nothing runs, nothing is stored, and
//! the error says why.

use axum::http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Ask, runs};
use crate::place::Folder;
use crate::server::{Lab, refusal};

#[tokio::test]
async fn http_2_http_3_bad_keys_are_400_and_run_nothing() {
    let lab = Lab::start().await;
    let script = json!({ "tag": "keys" });
    let long = "k".repeat(256);
    for key in
        ["", " ", "\"\"", "a,b", "a b", "\"open", "\"a\" x", "k\u{e9}y", long.as_str(), "\"a\\x\""]
    {
        let answer = Ask::post("/lab/std").key(key).script(&script).send(lab.address).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "key-invalid"),
            "{key:?}"
        );
    }
    let two = Ask::post("/lab/std").key("a").key("a").script(&script).send(lab.address).await;
    assert_eq!(two.code(), "key-invalid");
    let missing = Ask::post("/lab/std").script(&script).send(lab.address).await;
    assert_eq!((missing.status, missing.code().as_str()), (StatusCode::BAD_REQUEST, "key-missing"));
    assert_eq!(runs(lab.address, "keys").await, (0, 0, 0));
    // The bare form and the quoted form are the same key.
    let bare = Ask::post("/lab/std").key("same").script(&script).send(lab.address).await;
    let quoted = Ask::post("/lab/std").key("\"same\";p=1").script(&script).send(lab.address).await;
    assert!(!bare.is_replay() && quoted.is_replay());
}

#[tokio::test]
async fn http_4_bodies_over_the_limit_are_413_declared_or_not() {
    let lab = Lab::start().await;
    let script = json!({ "tag": "size" });
    let ask = |key: &str, size: usize| {
        Ask::post("/lab/std").key(key).script(&script).body(vec![b'x'; size])
    };
    let over = ask("over", (1 << 20) + 1).send(lab.address).await;
    assert_eq!(
        (over.status, over.code().as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large")
    );
    // The client declares a body that is too large but never sends it. The refusal does not wait
    // for the body.
    let mut stream = TcpStream::connect(lab.address).await.unwrap();
    let head = "POST /lab/std HTTP/1.1\r\nhost: lab\r\nidempotency-key: \
         declared\r\ncontent-length: 99999999\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("connection: close"), "{answer}");
    // A chunked body has no declared length, so it is refused when it reaches the limit.
    let mut stream = TcpStream::connect(lab.address).await.unwrap();
    let head = "POST /lab/std HTTP/1.1\r\nhost: lab\r\nidempotency-key: \
         chunked\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    for _ in 0..17 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert_eq!(runs(lab.address, "size").await, (0, 0, 0));
    assert_eq!(
        ask("exact", 1 << 20).send(lab.address).await.status,
        StatusCode::OK,
        "exactly the limit passes"
    );
    assert_eq!(
        ask("over", 10).send(lab.address).await.status,
        StatusCode::OK,
        "a 413 left no record"
    );
}

#[tokio::test]
async fn http_7_a_malformed_script_is_400_and_not_stored() {
    let lab = Lab::start().await;
    for script in [
        "{",
        "[]",
        r#"{"tag":7}"#,
        r#"{"unknown":1}"#,
        r#"{"status":99999}"#,
        r#"{"headers":[["bad name","x"]]}"#,
    ] {
        let answer = Ask::post("/lab/std").key("k").header("x-lab", script).send(lab.address).await;
        assert_eq!(
            (answer.status, answer.is_replay()),
            (StatusCode::BAD_REQUEST, false),
            "{script}"
        );
    }
    let good = Ask::post("/lab/std").key("k").send(lab.address).await;
    assert_eq!((good.status, good.is_replay()), (StatusCode::OK, false));
}

#[tokio::test]
async fn http_3_keys_may_be_optional_by_configuration() {
    let lab =
        Lab::start_with(&["--store", "memory:"], &[("IDEMPOTENCY_WEB_REQUIRED", "false")]).await;
    let ask = Ask::post("/lab/std")
        .script(&json!({ "tag": "free", "echo": true }))
        .body(vec![b'y'; 3 << 19]);
    let answer = ask.send(lab.address).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "unbuffered and untouched, beyond max-body-bytes: {answer:?}"
    );
    assert_eq!(answer.body.len(), 3 << 19);
    assert!(Ask::post("/lab/std").key("k").send(lab.address).await.status.is_success());
    assert!(Ask::post("/lab/std").key("k").send(lab.address).await.is_replay());
}

#[tokio::test]
async fn cfg_1_sto_1_what_cannot_start_says_why_and_how_it_ends() {
    let folder = Folder::new();
    let (code, said) = refusal(&["--what"], &[]).await;
    assert_eq!(code, Some(2), "{said}");
    let (code, said) =
        refusal(&["--store", "memory:"], &[("IDEMPOTENCY_DEFAULT_LEASE", "30s")]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("IDEMPOTENCY_DEFAULT_LEASE") && said.contains("30s"), "{said}");
    let file = folder.path().join("lab.toml");
    std::fs::write(&file, "[idempotency.web]\nmax-boddy-bytes = 1\n").unwrap();
    let (code, said) = refusal(&["--config", file.to_str().unwrap()], &[]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("max-boddy-bytes") && said.contains("lab.toml"), "{said}");
    let (code, said) = refusal(&["--store", "postgres://user:canary@localhost/db"], &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(!said.contains("canary"), "{said}");
    let missing = format!("sqlite:{}", folder.path().join("no/such/folder/r.db").display());
    let (code, said) = refusal(&["--store", &missing], &[]).await;
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    std::fs::write(
        folder.path().join("text.db"),
        "this is no database, it is a text that is long enough",
    )
    .unwrap();
    let text = format!("sqlite:{}", folder.path().join("text.db").display());
    let (code, said) = refusal(&["--store", &text], &[]).await;
    assert_eq!(code, Some(1), "{said}");
}

#[tokio::test]
async fn http_14_health_tells_whether_the_store_answers() {
    let lab = Lab::start().await;
    let health = Ask::post("/open/health").method("GET").send(lab.address).await;
    assert_eq!((health.status, health.json()["answers"].as_bool()), (StatusCode::OK, Some(true)));
}
