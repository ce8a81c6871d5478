// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message that the driver cannot decode ends the connection over which it arrives.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::Reason;
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Topology;

use crate::support::{PATIENCE, Running, TestQueues, eventually, url};

/// Returns a frame of AMQP 0-9-1.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    [&[kind][..], &channel.to_be_bytes(), &length.to_be_bytes(), payload, &[0xce]].concat()
}

/// Returns a frame with a method's class, number and arguments.
fn method(channel: u16, class: u16, number: u16, arguments: &[&[u8]]) -> Vec<u8> {
    frame(
        1,
        channel,
        &[&class.to_be_bytes()[..], &number.to_be_bytes(), &arguments.concat()].concat(),
    )
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("short")][..], text].concat()
}

fn long(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("short").to_be_bytes()[..], text].concat()
}

/// Reads frames until the method arrives, and returns its arguments.
fn until(line: &mut TcpStream, class: u16, number: u16) -> Vec<u8> {
    loop {
        let mut head = [0; 7];
        line.read_exact(&mut head).expect("a frame");
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
        let mut payload = vec![0; usize::try_from(length).expect("short") + 1];
        line.read_exact(&mut payload).expect("a whole frame");
        if head[0] == 1 && payload[..4] == [class.to_be_bytes(), number.to_be_bytes()].concat() {
            return payload.split_off(4);
        }
    }
}

/// Publishes a message whose `message-id` is not UTF-8, frame by frame, because the driver would
/// not send such a message. Returns when the broker has the message.
fn publish_unreadable(queue: &str) {
    let url = url();
    let (login, address) =
        url.trim_start_matches("amqp://").rsplit_once('@').expect("user and server");
    let (user, password) = login.split_once(':').expect("a password");
    let address = address.split('/').next().expect("an address");
    let mut line = TcpStream::connect(address).expect("connected");
    line.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut send = |bytes: &[u8]| {
        line.write_all(bytes).map(|()| line.try_clone()).expect("sent").expect("a line")
    };
    let mut answers = send(b"AMQP\0\0\x09\x01");
    until(&mut answers, 10, 10);
    let plain = format!("\0{user}\0{password}");
    send(&method(
        0,
        10,
        11,
        &[&long(b""), &short(b"PLAIN"), &long(plain.as_bytes()), &short(b"en_US")],
    ));
    let tune = until(&mut answers, 10, 30);
    // Accept the limits that the broker proposes, but turn heartbeats off.
    send(&method(0, 10, 31, &[&tune[..6], &[0, 0]]));
    send(&method(0, 10, 40, &[&short(b"/"), &short(b""), &[0]]));
    until(&mut answers, 10, 41);
    send(&method(1, 20, 10, &[&short(b"")]));
    until(&mut answers, 20, 11);
    send(&method(1, 85, 10, &[&[0]]));
    until(&mut answers, 85, 11);
    let body = b"paid";
    // This content header has class 60, weight 0, the size of the body, and the flag for
    // `message-id`.
    let header =
        [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0x80][..], &short(b"\xff\xfe")].concat();
    send(&method(1, 60, 40, &[&[0, 0], &short(b""), &short(queue.as_bytes()), &[0]]));
    send(&frame(2, 1, &header));
    send(&frame(3, 1, body));
    until(&mut answers, 60, 80);
}

#[tokio::test]
async fn lst_2_a_message_that_the_driver_cannot_read_ends_alone_among_the_dead_letters_and_the_others_run()
 {
    let queues = TestQueues::bare().await;
    // The delivery limit is lower than the number of good messages that are prefetched together
    // with the unreadable one.
    Topology::new(&queues.queue).delivery_limit(4).declare(&url()).await.expect("declared");
    for n in 0..10 {
        queues.publish(&format!("before-{n}"), "paid").await;
    }
    let queue = queues.queue.clone();
    tokio::task::spawn_blocking(move || publish_unreadable(&queue)).await.expect("published");
    for n in 0..10 {
        queues.publish(&format!("after-{n}"), "paid").await;
    }
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener().prefetch(100).build().expect("built");
    let running = Running::counting(listener, &engine, &runs);
    eventually("all the good ones run", async || runs.load(Ordering::SeqCst) == 20).await;
    eventually("the bad one is a dead letter", async || queues.ready(&queues.dead()).await == 1)
        .await;
    eventually("the queue is empty", async || queues.ready(&queues.queue).await == 0).await;
    // The consumer still works.
    queues.publish("last", "paid").await;
    running.answered(Reason::Executed, 21).await;
    running.stop().await.expect("stopped");
    assert_eq!((queues.ready(&queues.queue).await, queues.ready(&queues.dead()).await), (0, 1));
    queues.clean().await;
}
