// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests over sockets: after which connection failures the client tries again. The server writes
//! raw bytes, so its answers can be malformed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use retryproof_client::{
    CallError, ErrorKind, IdempotencyMiddleware, IdempotentRequest as _, IdempotentResponse as _,
    same_origin_redirects,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

/// A server that gives each request the next answer of a list, on a new connection. The last answer
/// repeats.
struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    /// The bytes of the last request.
    last: Arc<Mutex<String>>,
}

impl Server {
    async fn with(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let last = Arc::<Mutex<String>>::default();
        let (count, seen) = (Arc::clone(&requests), Arc::clone(&last));
        tokio::spawn(async move {
            while let Ok((mut line, _)) = listener.accept().await {
                // The body is a single byte after the empty line.
                let mut request = Vec::new();
                while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n")
                    || !request.ends_with(b"!")
                {
                    if line.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                *seen.lock() = String::from_utf8_lossy(&request).into_owned();
                let number = count.fetch_add(1, Ordering::SeqCst);
                let answer = answers[number.min(answers.len() - 1)];
                let _ = line.write_all(answer.as_bytes()).await;
            }
        });
        Self { address, requests, last }
    }
}

fn client() -> ClientWithMiddleware {
    let middleware = IdempotencyMiddleware::builder()
        .attempts(4)
        .deadline(Duration::from_secs(120))
        .backoff(Duration::ZERO, Duration::ZERO)
        .build()
        .unwrap();
    ClientBuilder::new(reqwest::Client::builder().no_proxy().build().unwrap())
        .with(middleware)
        .build()
}

#[tokio::test]
async fn lines_that_break_anywhere_in_an_answer_are_tried_again() {
    let server = Server::with(&[
        "",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nrec",
        "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nreceipt",
    ])
    .await;
    let answer =
        client().post(format!("http://{}/", server.address)).body("!").send().await.unwrap();
    assert_eq!(answer.call().unwrap().attempts, 4);
    assert!(
        answer.remote_addr().is_some(),
        "everything that reqwest reports of an answer is still there"
    );
    assert_eq!(answer.text().await.unwrap(), "receipt");
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_tried_again_and_then_told() {
    let server = Server::with(&["* OK IMAP4rev1\r\n"]).await;
    let error =
        client().post(format!("http://{}/", server.address)).body("!").send().await.unwrap_err();
    let ours = CallError::of(&error).unwrap();
    assert_eq!((ours.kind(), ours.attempts()), (ErrorKind::GaveUp, 4));
    assert!(ours.transport().is_some() && ours.key().is_some());
}

#[tokio::test]
async fn a_connection_that_is_refused_is_tried_again_and_then_told() {
    // The socket is bound but does not listen, so no other process can have the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let error = client().post(url).body("!").send().await.unwrap_err();
    let ours = CallError::of(&error).unwrap();
    assert_eq!((ours.kind(), ours.attempts()), (ErrorKind::GaveUp, 4));
    assert!(ours.transport().is_some_and(reqwest::Error::is_connect), "{ours:?}");
}

/// A middleware that lets one request pass, and then fails, as one that cannot renew its token.
struct LetsOnePass(AtomicUsize);

#[async_trait::async_trait]
impl Middleware for LetsOnePass {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => next.run(request, extensions).await,
            _ => Err(reqwest_middleware::Error::middleware(std::io::Error::other("no token"))),
        }
    }
}

#[tokio::test]
async fn an_error_after_a_lost_answer_tells_the_key() {
    let server = Server::with(&[""]).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let middleware = IdempotencyMiddleware::builder().backoff(Duration::ZERO, Duration::ZERO);
    let client = ClientBuilder::new(client)
        .with(middleware.build().unwrap())
        .with(LetsOnePass(AtomicUsize::new(0)))
        .build();
    let call = client.post(format!("http://{}/", server.address)).body("!");
    let error = call.send().await.unwrap_err();
    let error = CallError::of(&error).expect("the middleware's error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::GaveUp, 2));
    let key = error.key().expect("the key").expose().to_owned();
    assert!(server.last.lock().contains(&key), "the key that was sent");
}

#[tokio::test]
async fn id_4_no_error_shows_the_password_of_a_url() {
    // The socket is bound but does not listen.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://canary-user:canary-17@{}/", socket.local_addr().unwrap());
    let request = reqwest::Request::new(reqwest::Method::POST, url.parse().unwrap());
    let error = client().execute(request).await.unwrap_err();
    let error = CallError::of(&error).unwrap();
    assert!(error.transport().is_some_and(|error| error.url().is_some()), "{error:?}");
    let shown = format!("{error} {error:?} {}", std::error::Error::source(error).unwrap());
    assert!(!shown.contains("canary"), "{shown}");
}

#[tokio::test]
async fn an_endless_redirect_is_not_tried_again() {
    let again = "HTTP/1.1 307 Temporary Redirect\r\nlocation: /\r\ncontent-length: \
         0\r\nconnection: close\r\n\r\n";
    let server = Server::with(Box::leak(Box::new([again]))).await;
    let error =
        client().post(format!("http://{}/", server.address)).body("!").send().await.unwrap_err();
    // The server may have carried out the request before it redirected, so the key is not lost.
    let error = CallError::of(&error).unwrap();
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::GaveUp, 1));
    assert!(error.key().is_some() && error.transport().unwrap().is_redirect(), "{error}");
    assert_eq!(server.requests.load(Ordering::SeqCst), 11, "reqwest follows ten, once");
}

/// Returns a redirect, followed by an answer.
fn redirect(to: &str) -> &'static [&'static str] {
    let head = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\n");
    let first = format!("{head}content-length: 0\r\nconnection: close\r\n\r\n");
    let done = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    Box::leak(Box::new([Box::leak(first.into_boxed_str()), done]))
}

#[tokio::test]
async fn id_4_a_redirect_to_another_origin_does_not_take_the_key_along() {
    let client =
        reqwest::Client::builder().no_proxy().redirect(same_origin_redirects()).build().unwrap();
    let client = ClientBuilder::new(client).with(IdempotencyMiddleware::default()).build();
    let stranger = Server::with(redirect("/")).await;
    let guarded = Server::with(redirect(&format!("http://{}/", stranger.address))).await;
    let call =
        client.post(format!("http://{}/", guarded.address)).idempotency_key("canary-17").body("!");
    let answer = call.send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.call().unwrap().attempts), (307, 1));
    assert_eq!(stranger.requests.load(Ordering::SeqCst), 0, "{}", stranger.last.lock());

    let own = Server::with(redirect("/moved")).await;
    let call =
        client.post(format!("http://{}/", own.address)).idempotency_key("canary-17").body("!");
    assert_eq!(call.send().await.unwrap().status(), 200);
    let last = own.last.lock().clone();
    assert!(last.starts_with("POST /moved ") && last.contains("canary-17"), "{last}");
}

#[tokio::test]
async fn a_url_that_nothing_can_be_sent_to_is_not_tried_again() {
    let error = client().post("ftp://127.0.0.1/").body("!").send().await.unwrap_err();
    assert!(error.is_builder(), "{error}");
}
