// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that async-nats cannot decode breaks the connection each time it is delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{TestStreams, counting, start, until, url};

/// Publishes a message with a header that is not UTF-8. The request is written by hand, because the
/// client does not send such headers.
async fn publish_not_utf8(streams: &TestStreams) {
    let before = streams.info().await.num_pending;
    let mut line =
        TcpStream::connect(url().trim_start_matches("nats://")).await.expect("connected");
    let headers = b"NATS/1.0\r\nEvent-Id: \xff\xfe\r\n\r\n";
    let (subject, size) = (streams.subject(), headers.len());
    let options = r#"{"verbose":false,"headers":true,"protocol":1}"#;
    let order = format!("CONNECT {options}\r\nHPUB {subject} {size} {}\r\n", size + 2);
    line.write_all(&[order.as_bytes(), headers, b"{}\r\nPING\r\n"].concat())
        .await
        .expect("written");
    let mut found = Vec::new();
    while !found.windows(6).any(|found| found == b"PONG\r\n") {
        assert!(line.read_buf(&mut found).await.expect("read") > 0, "hung up");
    }
    while streams.info().await.num_pending == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn lst_2_a_header_that_breaks_the_connection_keeps_no_good_message_from_its_run() {
    let streams = TestStreams::new().await;
    // Use a separate connection, because the unreadable message breaks it.
    let own = jetstream::new(async_nats::connect(url()).await.expect("connected"));
    let config = Config { ack_wait: Duration::from_secs(1), ..Config::default() };
    let consumer = streams.consumer_over(&own, config).await;
    publish_not_utf8(&streams).await;
    for n in 0..20 {
        if n == 10 {
            publish_not_utf8(&streams).await;
        }
        streams.publish(&format!("o-{n}"), "{}").await;
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = streams.builder(own, consumer).build().expect("built");
    let running = start(listener, counting(&streams, &runs));
    until("the good ones", || runs.load(Ordering::SeqCst) == 20).await;
    // The messages have to be deleted by hand, as the guide describes.
    let stream = streams.jetstream.get_stream(&streams.name).await.expect("the stream");
    for bad in [1, 12] {
        stream.delete_message(bad).await.expect("deleted");
    }
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 20);
    assert!(streams.letters().await.is_empty());
    streams.leave().await;
}
