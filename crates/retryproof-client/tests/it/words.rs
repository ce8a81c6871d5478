// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's instructions in an answer, and whether the client follows them.

use retryproof_client::{CallError, ErrorKind, GaveUp, IdempotentResponse as _};

use crate::server::{Reply, Server, URL, answer, problem, with};

async fn attempts(reply: Reply) -> (u32, Option<GaveUp>) {
    let server = Server::with([reply, answer(200)]);
    let answer = server.client(|b| b).post(URL).body("{}").send().await.unwrap();
    let report = answer.call().unwrap();
    assert_eq!(server.sent().len(), usize::try_from(report.attempts).unwrap());
    (report.attempts, report.gave_up)
}

#[tokio::test(start_paused = true)]
async fn fp_1_what_is_refused_for_good_is_sent_once() {
    for (status, code) in [
        (422, "fingerprint-mismatch"),
        (409, "result-not-replayable"),
        (400, "key-invalid"),
        (413, "body-too-large"),
        (500, "response-failed"),
        (500, "completion-failed"),
    ] {
        assert_eq!(
            attempts(problem(status, code, false, Some("1"))).await,
            (1, None),
            "{status} {code}"
        );
    }
    for status in [200, 201, 204, 304, 400, 401, 403, 404, 409, 422, 500, 501] {
        assert_eq!(attempts(answer(status)).await, (1, None), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_11_what_may_pass_is_sent_again() {
    for (status, code) in [
        (409, "in-flight"),
        (425, "in-flight"),
        (503, "store-unavailable"),
        (503, "shutting-down"),
        (503, "too-busy"),
        (500, "completion-failed"),
    ] {
        assert_eq!(attempts(problem(status, code, true, None)).await, (2, None), "{status} {code}");
    }
    for status in [408, 425, 429, 502, 503, 504] {
        assert_eq!(attempts(answer(status)).await, (2, None), "{status}");
    }
    assert_eq!(attempts(with(409, &[("retry-after", "1")], "")).await, (2, None));
}

#[tokio::test(start_paused = true)]
async fn http_8_a_replay_is_final_whatever_its_status() {
    for status in [409, 429, 500, 503] {
        let reply =
            with(status, &[("idempotent-replayed", "true"), ("retry-after", "1")], "stored");
        assert_eq!(attempts(reply).await, (1, None), "{status}");
    }
    // Only the value `true` marks a replay, so this answer is retried like any other 503.
    assert_eq!(attempts(with(503, &[("idempotent-replayed", "maybe")], "")).await, (2, None));
}

#[tokio::test(start_paused = true)]
async fn http_11_the_code_is_told_and_the_problem_is_still_there_to_read() {
    let server = Server::with([problem(422, "fingerprint-mismatch", false, None)]);
    let answer = server.client(|b| b).post(URL).send().await.unwrap();
    assert_eq!(answer.call().unwrap().code.as_deref(), Some("fingerprint-mismatch"));
    assert!(answer.text().await.unwrap().contains("\"code\":\"fingerprint-mismatch\""));
}

/// The other middleware can have sent the request before it failed, so the key is told.
#[tokio::test(start_paused = true)]
async fn an_error_of_another_middleware_is_not_tried_again() {
    let server = Server::with([Reply::Refusal]);
    let error = server.client(|b| b).post(URL).send().await.unwrap_err();
    let error = CallError::of(&error).expect("the middleware's error");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::GaveUp, 1));
    assert!(error.key().is_some());
    assert_eq!(std::error::Error::source(error).unwrap().to_string(), "no token");
    assert_eq!(server.sent().len(), 1);
}

#[tokio::test]
async fn a_request_that_cannot_be_built_comes_back_as_reqwest_says_it() {
    let server = Server::default();
    let error = server.client(|b| b).post("no url").send().await.unwrap_err();
    assert!(error.is_builder(), "{error}");
}
