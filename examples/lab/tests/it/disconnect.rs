// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that disconnect: before the grant, nothing has happened; after it, the work is finished
//! (HTTP-5, HTTP-12).

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{Ask, h2, runs, until_runs};
use crate::server::Lab;

#[tokio::test]
async fn http_12_a_client_that_leaves_mid_handler_finds_its_answer_over_http_1() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/std").key("k").script(&json!({ "tag": "gone", "delay_ms": 600 }));
    let stream = TcpStream::connect(lab.address).await.unwrap();
    let (mut sender, connection) =
        http1::handshake::<_, Full<bytes::Bytes>>(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let sent = tokio::spawn(async move {
        let mut request = ask.request("127.0.0.1:1".parse().unwrap());
        *request.uri_mut() = "/lab/std".parse().unwrap();
        request.headers_mut().insert("host", "lab".parse().unwrap());
        drop(sender.send_request(request).await);
    });
    until_runs(lab.address, "gone", (1, 0, 0)).await;
    connection.abort();
    sent.abort();
    let retry = Ask::post("/lab/std").key("k").script(&json!({ "tag": "gone", "delay_ms": 600 }));
    let answer = retry.send(lab.address).await;
    assert!(answer.is_replay(), "the retry waits and gets the first one's answer");
    assert_eq!(answer.json()["tag"], "gone");
    assert_eq!(runs(lab.address, "gone").await, (1, 1, 0), "started once, finished, never dropped");
}

#[tokio::test]
async fn http_12_a_stream_reset_mid_handler_finds_its_answer_over_h2c() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/std").key("k").script(&json!({ "tag": "reset", "delay_ms": 600 }));
    let connection = h2(lab.address).await;
    let first = {
        let (ask, server, connection) = (ask.clone(), lab.address, connection.clone());
        tokio::spawn(async move { ask.send_h2(server, &connection).await })
    };
    until_runs(lab.address, "reset", (1, 0, 0)).await;
    // Dropping the response future resets the stream, but the connection stays open.
    first.abort();
    let answer = ask.send_h2(lab.address, &connection).await;
    assert!(answer.is_replay());
    assert_eq!(runs(lab.address, "reset").await, (1, 1, 0));
}

#[tokio::test]
async fn http_5_a_client_that_leaves_while_uploading_leaves_nothing() {
    let lab = Lab::start().await;
    let mut stream = TcpStream::connect(lab.address).await.unwrap();
    let head = "POST /lab/now HTTP/1.1\r\nhost: lab\r\nidempotency-key: k\r\nx-lab: \
         {\"tag\":\"half\"}\r\ncontent-length: 10\r\n\r\nhalf";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // Another request can use the key, because a request whose body is incomplete does not hold it.
    let ask = Ask::post("/lab/now").key("k").script(&json!({ "tag": "half" }));
    assert_eq!(ask.send(lab.address).await.status, 200);
    drop(stream);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(runs(lab.address, "half").await, (1, 1, 0));
}

#[tokio::test]
async fn http_12_a_client_that_leaves_while_waiting_costs_nothing() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/patient").key("k").script(&json!({ "tag": "wait", "delay_ms": 800 }));
    let holder = {
        let (ask, server) = (ask.clone(), lab.address);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(lab.address, "wait", (1, 0, 0)).await;
    for _ in 0..20 {
        let left = timeout(Duration::from_millis(10), ask.send(lab.address)).await;
        // On a busy machine, the holder may have finished in the meantime.
        assert!(left.is_err() || runs(lab.address, "wait").await == (1, 1, 0));
    }
    let first = holder.await.unwrap();
    assert_eq!(ask.send(lab.address).await.repeated(), first.repeated());
    assert_eq!(runs(lab.address, "wait").await, (1, 1, 0));
}

#[tokio::test]
async fn run_5_sigterm_drains_what_runs_and_exits_0() {
    let lab = Lab::start().await;
    let (server, script) = (lab.address, json!({ "tag": "drain", "delay_ms": 700 }));
    let first = {
        let ask = Ask::post("/lab/std").key("k").script(&script);
        tokio::spawn(async move { ask.send(server).await })
    };
    until_runs(server, "drain", (1, 0, 0)).await;
    lab.signal("TERM").await;
    let answer = first.await.unwrap();
    assert_eq!(answer.status, 200, "the client that stayed gets its answer");
    assert!(lab.exit(Duration::from_secs(12)).await.success());
}

#[tokio::test]
async fn http_13_an_open_connection_does_not_hold_the_exit_back() {
    let lab = Lab::start().await;
    let stream = TcpStream::connect(lab.address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Ask::post("/open/echo").request(lab.address);
    *request.uri_mut() = "/open/echo".parse().unwrap();
    let response = sender.send_request(request).await.unwrap();
    let _ = response.into_body().collect().await.unwrap();
    lab.signal("TERM").await;
    assert!(lab.exit(Duration::from_secs(12)).await.success());
}
