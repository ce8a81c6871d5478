// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a script. Every endpoint of the lab does this, guarded or not.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use retryproof::http::AnswerFate;
use sha2::{Digest, Sha256};

use crate::body::Scripted;
use crate::runs::Run;
use crate::script::{Fail, Script, lines};

/// The first argument of every guarded endpoint. It requires the header `x-user` if the script says
/// `auth` (ANN-6).
#[derive(Debug)]
pub(crate) struct User;

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // A malformed script is refused later, by the handler.
        let wanted = Script::of(&parts.headers).is_ok_and(|script| script.auth);
        if wanted && !parts.headers.contains_key("x-user") {
            return Err((StatusCode::UNAUTHORIZED, "the header x-user is missing\n"));
        }
        Ok(Self)
    }
}

/// Follows the script in the header `x-lab`.
pub(crate) async fn run(headers: &HeaderMap, body: &Bytes) -> Response {
    match scripted(headers, body).await {
        Ok(response) => response,
        Err(problem) => {
            (StatusCode::BAD_REQUEST, AnswerFate::Release, format!("bad script: {problem}\n"))
                .into_response()
        }
    }
}

async fn scripted(headers: &HeaderMap, request: &Bytes) -> Result<Response, String> {
    let script = Script::of(headers)?;
    let status =
        StatusCode::from_u16(script.status.unwrap_or(200)).map_err(|error| error.to_string())?;
    let own_headers = lines(&script.headers)?;
    let trailers = lines(&script.trailers)?;
    let own_body = script.own_body()?;

    let run = Run::start(script.tag.clone());
    if script.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(script.delay_ms)).await;
    }
    assert!(script.fail != Some(Fail::Panic), "the script requested a panic");
    let json = own_body.is_none() && !script.echo;
    let data: Bytes = match own_body {
        Some(body) => body.into(),
        None if script.echo => request.clone(),
        None => account(run.number, script.tag.as_deref(), request).into(),
    };
    let mut response = answer(&script, data, trailers);
    *response.status_mut() = status;
    if json && !script.sse {
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in &own_headers {
        response.headers_mut().append(name, value.clone());
    }
    run.finish();
    Ok(match script.fail {
        Some(Fail::Release) => AnswerFate::Release.mark(response),
        Some(Fail::Hold) => AnswerFate::Hold.mark(response),
        _ => response,
    })
}

/// Returns the default body, which differs in every run.
fn account(run: u64, tag: Option<&str>, request: &Bytes) -> String {
    let hash: String = Sha256::digest(request).iter().map(|byte| format!("{byte:02x}")).collect();
    serde_json::json!({ "run": run, "tag": tag, "body_sha256": hash }).to_string()
}

fn answer(script: &Script, data: Bytes, trailers: HeaderMap) -> Response {
    if script.sse {
        let events = Bytes::from_static(b"data: one\n\ndata: two\n\ndata: six\n\n");
        let mut response = Response::new(Body::new(Scripted::pieces(&events)));
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return response;
    }
    let body = match (script.fail, script.chunked) {
        (Some(Fail::BodyError), _) => Scripted::broken(&data),
        (_, true) => Scripted::pieces(&data),
        (_, false) => Scripted::whole(data),
    };
    if trailers.is_empty() {
        return Response::new(Body::new(body));
    }
    // An HTTP/1.1 server sends only the trailers that the `Trailer` field announces.
    let names: Vec<_> = trailers.keys().map(|name| name.as_str()).collect();
    let announced = HeaderValue::from_str(&names.join(", "));
    let mut response = Response::new(Body::new(body.with_trailers(trailers.clone())));
    if let Ok(announced) = announced {
        response.headers_mut().insert(header::TRAILER, announced);
    }
    response
}
