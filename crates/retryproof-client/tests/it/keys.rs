// SPDX-License-Identifier: MIT OR Apache-2.0
//! One key per logical call, with the same bytes each time, and the requests that are refused
//! before anything is sent.

use bytes::Bytes;
use http::HeaderName;
use http_body::Frame;
use reqwest::{Body, Method};
use retryproof_client::{
    Builder, CallError, ErrorKind, GaveUp, IdempotencyKey, IdempotencyMiddleware,
    IdempotentRequest as _, IdempotentResponse as _,
};

use crate::server::{Pieces, Reply, Sent, Server, URL, answer, with};

fn stream() -> Body {
    Pieces::body([Ok(Frame::data(Bytes::from_static(b"abc")))])
}

fn kind(error: &reqwest_middleware::Error) -> Option<ErrorKind> {
    CallError::of(error).map(CallError::kind)
}

#[tokio::test(start_paused = true)]
async fn http_2_every_attempt_has_the_same_key_and_the_same_bytes() {
    let server = Server::with([answer(503), answer(502), Reply::Silence, answer(429), answer(201)]);
    let call = server.client(|b| b).post(URL).header("content-type", "text/plain").body("4200");
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let sent = server.sent();
    assert_eq!(sent.len(), 5);
    let key = sent[0].key().expect("a key was drawn").to_owned();
    assert!(key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    for one in &sent {
        assert_eq!((one.method.as_str(), one.url.as_str()), ("POST", URL));
        assert_eq!(one.key(), Some(key.as_str()));
        assert_eq!(one.body.as_deref(), Some(&b"4200"[..]));
        assert_eq!(one.header("content-type"), Some("text/plain"));
    }
    let report = answer.call().unwrap();
    assert_eq!((report.attempts, report.gave_up), (5, None));
    assert_eq!(report.key.as_ref().map(IdempotencyKey::expose), Some(key.as_str()));
}

#[tokio::test(start_paused = true)]
async fn http_2_each_call_has_a_key_of_its_own() {
    let server = Server::with((0..20).map(|_| answer(200)));
    let client = server.client(|b| b);
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        for _ in 0..5 {
            client.request(method.clone(), URL).send().await.unwrap();
        }
    }
    let keys: std::collections::HashSet<_> =
        server.sent().iter().map(|one| one.key().expect("drawn").to_owned()).collect();
    assert_eq!(keys.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn http_2_the_callers_own_key_is_sent_bare_or_quoted() {
    let server = Server::with((0..3).map(|_| answer(200)));
    let client = server.client(|b| b);
    client.post(URL).idempotency_key("order-17").send().await.unwrap();
    client.get(URL).idempotency_key(String::from("order 17, again")).send().await.unwrap();
    let mut extensions = http::Extensions::new();
    extensions.insert(IdempotencyKey::new("order-18").unwrap());
    let request = client.post(URL).build().unwrap();
    client.execute_with_extensions(request, &mut extensions).await.unwrap();
    let sent = server.sent();
    let keys: Vec<_> = sent.iter().filter_map(Sent::key).collect();
    assert_eq!(keys, ["order-17", "\"order 17, again\"", "order-18"]);
}

#[tokio::test(start_paused = true)]
async fn http_2_every_key_is_quoted_where_the_server_wants_strings() {
    let server = Server::with((0..3).map(|_| answer(200)));
    let client = server.client(Builder::quoted_keys);
    client.post(URL).idempotency_key("order-17").send().await.unwrap();
    client.post(URL).idempotency_key("a\"b").send().await.unwrap();
    let drawn = client.post(URL).send().await.unwrap();
    let drawn = format!("\"{}\"", drawn.call().unwrap().key.as_ref().unwrap().expose());
    let sent = server.sent();
    let keys: Vec<_> = sent.iter().filter_map(Sent::key).collect();
    assert_eq!(keys, ["\"order-17\"", "\"a\\\"b\"", &drawn]);
}

#[tokio::test(start_paused = true)]
async fn http_2_the_key_of_a_call_that_gave_up_is_that_of_the_next_one() {
    let server = Server::with([Reply::Silence, answer(200)]);
    let client = server.client(|b| b.attempts(1));
    let error = client.post(URL).send().await.unwrap_err();
    let key = CallError::of(&error).and_then(CallError::key).expect("it was drawn");
    client.post(URL).idempotency_key(key).send().await.unwrap();
    let sent = server.sent();
    assert_eq!((sent[0].key(), sent[1].key()), (Some(key.expose()), Some(key.expose())));
}

#[tokio::test(start_paused = true)]
async fn http_2_a_header_written_by_hand_is_left_alone_and_the_call_is_repeated() {
    let server = Server::with([answer(503), answer(200)]);
    let client = server.client(Builder::given_keys_only);
    let answer = client.post(URL).header("idempotency-key", "by-hand").send().await.unwrap();
    assert_eq!(answer.call().unwrap().attempts, 2);
    assert!(answer.call().unwrap().key.is_none());
    assert!(server.sent().iter().all(|one| one.key() == Some("by-hand")));
}

#[tokio::test(start_paused = true)]
async fn http_2_the_header_has_the_name_that_the_server_wants() {
    let server = Server::with([answer(200)]);
    let client = server.client(|b| b.header(HeaderName::from_static("x-key")));
    client.post(URL).idempotency_key("k-1").send().await.unwrap();
    let sent = server.sent();
    assert_eq!((sent[0].header("x-key"), sent[0].key()), (Some("k-1"), None));
}

#[tokio::test(start_paused = true)]
async fn a_safe_request_has_no_key_and_is_repeated_all_the_same() {
    let server = Server::with([answer(503), Reply::Silence, answer(200)]);
    let answer = server.client(Builder::given_keys_only).get(URL).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.call().unwrap().attempts), (200, 3));
    assert!(server.sent().iter().all(|one| one.key().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_key_is_passed_on_as_it_is() {
    let server = Server::with([answer(503)]);
    let answer = server.client(|b| b).post(URL).without_key().body(stream()).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.call().is_none() && !answer.is_replay());
    let sent = server.sent();
    assert_eq!((sent.len(), sent[0].key()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_one_is_refused_before_anything_is_sent() {
    let server = Server::default();
    let client = server.client(|b| b);
    for key in ["", "  ", "a\nb", "é", &"x".repeat(256)] {
        let error = client.post(URL).idempotency_key(key).send().await.unwrap_err();
        assert_eq!(kind(&error), Some(ErrorKind::InvalidKey), "{error}");
    }
    // A request with a valid key and then an invalid key is refused too.
    let twice = client.post(URL).idempotency_key("good").idempotency_key("");
    assert_eq!(kind(&twice.send().await.unwrap_err()), Some(ErrorKind::InvalidKey));
    assert!(server.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_client_of_given_keys_draws_none() {
    let server = Server::with([answer(200), answer(200)]);
    let client = server.client(Builder::given_keys_only);
    let error = client.post(URL).send().await.unwrap_err();
    assert_eq!(kind(&error), Some(ErrorKind::KeyMissing));
    assert!(server.sent().is_empty());
    client.post(URL).idempotency_key("given").send().await.unwrap();
    client.get(URL).send().await.unwrap();
    assert_eq!(server.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_refused_before_anything_is_sent() {
    let server = Server::default();
    let client = server.client(|b| b);
    for request in [client.post(URL), client.post(URL).idempotency_key("k"), client.get(URL)] {
        let error = request.body(stream()).send().await.unwrap_err();
        assert_eq!(kind(&error), Some(ErrorKind::BodyNotReplayable));
        assert!(error.to_string().contains("send_once()"), "{error}");
    }
    assert!(server.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_once_has_a_key_and_no_second_attempt() {
    let server = Server::with([with(503, &[("retry-after", "1")], ""), Reply::Silence]);
    let client = server.client(|b| b);
    let answer = client.post(URL).body(stream()).send_once().send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.call().unwrap().gave_up, Some(GaveUp::SentOnce));
    let error = client.post(URL).body("bytes").send_once().send().await.unwrap_err();
    let ours = CallError::of(&error).unwrap();
    assert_eq!((ours.kind(), ours.attempts()), (ErrorKind::GaveUp, 1));
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|one| one.key().is_some()));
}

#[tokio::test(start_paused = true)]
async fn id_4_no_key_body_or_password_is_shown_by_anything() {
    let server = Server::with((0..3).map(|_| Reply::Silence));
    let client = server.client(|b| b.attempts(3));
    let url = "http://user:canary-password@payments.test/";
    let request = client.post(url).idempotency_key("canary-key").body("canary-body");
    let error = request.send().await.unwrap_err();
    let ours = CallError::of(&error).unwrap();
    assert_eq!(ours.key().map(IdempotencyKey::expose), Some("canary-key"));
    let answered = Server::with([answer(200)]);
    let answer =
        answered.client(|b| b).post(url).idempotency_key("canary-key").send().await.unwrap();
    // No process listens on port 1, so the operating system refuses the connection.
    let direct = reqwest::Client::builder().no_proxy().build().unwrap();
    let nowhere = direct.post("http://user:canary-password@127.0.0.1:1/").send().await;
    let shown = [
        format!("{error} {error:?} {error:#?}"),
        format!("{ours} {ours:?}"),
        format!("{answer:?} {:?}", answer.call()),
        format!("{:?}", server.sent()[0].headers.get("idempotency-key")),
        format!("{:?} {:?}", IdempotencyMiddleware::default(), nowhere.unwrap_err()),
    ];
    for text in shown {
        assert!(!text.contains("canary"), "{text}");
    }
}
