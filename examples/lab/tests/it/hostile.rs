// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults that were found by acting as a hostile operator and a hostile client. Each of these tests
//! has failed once.

use std::time::Duration;

use serde_json::json;

use crate::client::{Ask, h2};
use crate::server::{Lab, refusal};

/// `run_5`: SIGTERM drains the lab from the moment at which the lab prints its address.
#[tokio::test]
async fn run_5_sigterm_right_behind_the_listening_line_is_heard() {
    for _ in 0..12 {
        let lab = Lab::start().await;
        lab.signal("TERM").await;
        assert_eq!(lab.exit(Duration::from_secs(10)).await.code(), Some(0));
    }
}

/// If a handler passes on the response of another server, the headers include that server's
/// framing. The guard has collected the whole body, so it sets the framing anew, both for the first
/// answer and for its replay (HTTP-6, HTTP-9).
#[tokio::test]
async fn http_9_a_first_answer_is_framed_anew_whatever_the_handler_said_of_its_framing() {
    let lab = Lab::start().await;
    let framings = [
        json!([["transfer-encoding", "chunked"]]),
        json!([["transfer-encoding", "gzip, chunked"]]),
        json!([["content-length", "1"]]),
        json!([["content-length", "9"]]),
        json!([["content-length", "3"]]),
        json!([["x-one", "1"], ["transfer-encoding", "chunked"], ["x-two", "2"]]),
    ];
    for (number, headers) in framings.iter().enumerate() {
        for path in ["/lab/std", "/lab/layered"] {
            let script = json!({ "chunked": true, "body": "abc", "headers": headers });
            let ask = Ask::post(path).key(format!("f-{number}")).script(&script);
            let first = ask.send(lab.address).await;
            assert_eq!(
                (first.status.as_u16(), &first.body[..], first.is_replay()),
                (200, &b"abc"[..], false)
            );
            let again = ask.send(lab.address).await;
            assert!(again.is_replay());
            assert_eq!(first.repeated(), again.repeated(), "{headers}");
        }
    }
    let connection = h2(lab.address).await;
    let script = json!({ "chunked": true, "body": "abc", "headers": [["content-length", "9"]] });
    let ask = Ask::post("/lab/std").key("f-h2").script(&script);
    assert_eq!(&ask.send_h2(lab.address, &connection).await.body[..], b"abc");
}

#[tokio::test]
async fn id_4_a_refused_store_is_named_without_its_password_wherever_that_stands() {
    let (port, secret) = ("127.0.0.1:1", "hunter2");
    for url in [
        format!("nosuch://user:{secret}@{port}/db"),
        format!("nosuch://user:p@{secret}@{port}/db"),
        format!("nosuch://user:{secret}/{secret}@{port}/db"),
        format!("nosuch://user:{secret}?{secret}@{port}/db"),
        format!("nosuch://{port}/db?password={secret}"),
        format!("nosuch://user@{port}/db?password={secret}&x=a@b"),
        format!("nosuch://user:p@{secret}/x@{port}"),
        format!("nosuch:{secret}"),
    ] {
        for (args, variables) in [
            (vec!["--store", &url], vec![]),
            (vec![], vec![("IDEMPOTENCY_STORE", url.as_str()), ("RUST_LOG", "trace")]),
        ] {
            let (code, said) = refusal(&args, &variables).await;
            assert_eq!(code, Some(2), "{said}");
            assert!(said.contains("nosuch:"), "it names the store: {said}");
            assert!(!said.contains(secret), "{said}");
        }
    }
}
