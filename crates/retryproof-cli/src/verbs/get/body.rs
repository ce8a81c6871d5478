// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stored result of a record, decoded if its codec is known.

use bytes::Bytes;
use retryproof::http::StoredResponse;
use retryproof::{CodecId, Opened, Payload};
use serde_json::{Value, json};

use crate::exit::VerbError;
use crate::output::{harmless, json_of, text_of};
use crate::recording::{self, Recording, Stream};

/// A stored result, as text and as JSON.
pub(super) fn decoded(opened: Opened) -> Result<(String, Value), VerbError> {
    match opened {
        Opened::Value(payload) => value(&payload),
        Opened::Tombstone(tombstone) => {
            let detail = tombstone.detail();
            let (text, detail) = match detail.codec() {
                CodecId::NONE => (String::new(), Value::Null),
                CodecId::HTTP => response(detail)?,
                recording::CODEC => {
                    let code = recording::code_of_tombstone(detail)?;
                    (format!("exit code {code}"), json!({ "exit_code": code }))
                }
                _ => unknown(detail),
            };
            let head = "(done, but the result cannot be replayed)";
            let text = if text.is_empty() { head.to_owned() } else { format!("{head}\n{text}") };
            Ok((text, json!({ "codec": "tombstone", "detail": detail })))
        }
        Opened::Mismatch => Err(VerbError::other("the fingerprint differs")),
    }
}

fn value(payload: &Payload) -> Result<(String, Value), VerbError> {
    let body = payload.body();
    Ok(match payload.codec() {
        CodecId::NONE => ("(no value)".to_owned(), json!({ "codec": "none" })),
        CodecId::BYTES => (text_of(body), with_codec("bytes", json_of(body))),
        CodecId::JSON => {
            // If the value cannot be decoded, show it unchanged, because an operator needs to see
            // it.
            let parsed: Option<Value> = serde_json::from_slice(body).ok();
            match parsed {
                Some(value) => {
                    (harmless(&format!("{value:#}")), json!({ "codec": "json", "value": value }))
                }
                None => (text_of(body), with_codec("json", json_of(body))),
            }
        }
        CodecId::HTTP => response(payload)?,
        recording::CODEC => output(&Recording::decode(payload)?),
        _ => unknown(payload),
    })
}

fn with_codec(codec: &str, mut value: Value) -> Value {
    value["codec"] = json!(codec);
    value
}

fn unknown(payload: &Payload) -> (String, Value) {
    let CodecId(codec) = payload.codec();
    let text = format!("(codec {codec}, schema {}) {}", payload.schema(), text_of(payload.body()));
    let mut value = json_of(payload.body());
    value["codec"] = json!(codec);
    value["schema"] = json!(payload.schema());
    (text, value)
}

fn response(payload: &Payload) -> Result<(String, Value), VerbError> {
    let record = Bytes::copy_from_slice(payload.body());
    let response =
        StoredResponse::decode(record).map_err(|error| VerbError::other(error.to_string()))?;
    let mut text = format!("HTTP status {}\n", response.status());
    let mut headers = Vec::new();
    for (name, field) in response.headers() {
        let field = String::from_utf8_lossy(field);
        text.push_str(&format!("{name}: {}\n", harmless(&field).replace('\n', "\\n")));
        headers.push(json!([name, field]));
    }
    let body = response.body();
    if !body.is_empty() {
        let pretty = serde_json::from_slice::<Value>(&body).map(|json| format!("{json:#}"));
        text.push('\n');
        text.push_str(&pretty.map_or_else(|_| text_of(&body), |json| harmless(&json)));
    }
    let value = json!({
        "codec": "http",
        "status": response.status(),
        "headers": headers,
        "body": json_of(&body),
    });
    Ok((text.trim_end().to_owned(), value))
}

fn output(recording: &Recording) -> (String, Value) {
    let mut streams = [Vec::new(), Vec::new()];
    for (stream, bytes) in recording.chunks() {
        streams[usize::from(*stream == Stream::Stderr)].extend_from_slice(bytes);
    }
    let [stdout, stderr] = streams;
    let mut text = format!("exit code {}", recording.code());
    for (name, bytes) in [("stdout", &stdout), ("stderr", &stderr)] {
        if !bytes.is_empty() {
            text.push_str(&format!("\n{name}:\n{}", text_of(bytes).trim_end()));
        }
    }
    let value = json!({
        "codec": "run",
        "exit_code": recording.code(),
        "stdout": json_of(&stdout),
        "stderr": json_of(&stderr),
    });
    (text, value)
}
