// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stored result of a record, decoded if its codec is known.

use bytes::Bytes;
use retryproof::http::StoredResponse;
use retryproof::{CodecId, Opened, Payload};
use serde_json::{Value, json};

use crate::exit::VerbError;
use crate::output::{harmless, json_of, text_of};
use crate::recording::{self, Recording, Stream};

/// The labels of the numbers that say whether the work succeeded.
const EXIT_CODE: &str = "exit code";
const HTTP_STATUS: &str = "HTTP status";

/// A stored result, decoded for printing.
#[derive(Debug)]
pub(super) struct DecodedResult {
    pub(super) text: String,
    pub(super) json: Value,
}

impl DecodedResult {
    /// Creates a remark in place of a result.
    pub(super) fn absent(remark: &str) -> Self {
        Self { text: remark.to_owned(), json: Value::Null }
    }
}

impl From<(String, Value)> for DecodedResult {
    fn from((text, json): (String, Value)) -> Self {
        Self { text, json }
    }
}

/// Returns the number that says whether the work succeeded, without decoding the rest of a result
/// that may be large.
pub(super) fn code(opened: &Opened) -> Result<Option<(&'static str, i32)>, VerbError> {
    let (payload, is_tombstone) = match opened {
        Opened::Value(payload) => (payload, false),
        Opened::Tombstone(tombstone) => (tombstone.detail(), true),
        Opened::Mismatch => return Err(VerbError::other("the fingerprint differs")),
    };
    Ok(match (payload.codec(), is_tombstone) {
        (CodecId::HTTP, _) => Some((HTTP_STATUS, i32::from(stored_response(payload)?.status()))),
        (recording::CODEC, false) => Some((EXIT_CODE, Recording::decode(payload)?.code())),
        (recording::CODEC, true) => Some((EXIT_CODE, recording::code_of_tombstone(payload)?)),
        _ => None,
    })
}

/// Decodes a stored result.
pub(super) fn decoded(opened: &Opened) -> Result<DecodedResult, VerbError> {
    match opened {
        Opened::Value(payload) => value(payload),
        Opened::Tombstone(tombstone) => {
            let detail = tombstone.detail();
            let mut result = match detail.codec() {
                CodecId::NONE => DecodedResult::absent(""),
                CodecId::HTTP => response(detail)?,
                recording::CODEC => {
                    let code = recording::code_of_tombstone(detail)?;
                    DecodedResult {
                        text: format!("exit code {code}"),
                        json: json!({ "exit_code": code }),
                    }
                }
                _ => unknown(detail).into(),
            };
            let text = format!("(done, but the result cannot be replayed)\n{}", result.text);
            result.text = text.trim_end().to_owned();
            result.json = json!({ "codec": "tombstone", "detail": result.json });
            Ok(result)
        }
        Opened::Mismatch => Err(VerbError::other("the fingerprint differs")),
    }
}

fn value(payload: &Payload) -> Result<DecodedResult, VerbError> {
    let body = payload.body();
    Ok(match payload.codec() {
        CodecId::NONE => ("(no value)".to_owned(), json!({ "codec": "none" })).into(),
        CodecId::BYTES => (text_of(body), with_codec("bytes", json_of(body))).into(),
        CodecId::JSON => {
            // If the value is not valid JSON, show its bytes, because an operator still needs to
            // see the value.
            let parsed: Option<Value> = serde_json::from_slice(body).ok();
            let decoded = match parsed {
                Some(value) => {
                    (harmless(&format!("{value:#}")), json!({ "codec": "json", "value": value }))
                }
                None => (text_of(body), with_codec("json", json_of(body))),
            };
            decoded.into()
        }
        CodecId::HTTP => response(payload)?,
        recording::CODEC => output(&Recording::decode(payload)?),
        _ => unknown(payload).into(),
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

fn stored_response(payload: &Payload) -> Result<StoredResponse, VerbError> {
    let record = Bytes::copy_from_slice(payload.body());
    StoredResponse::decode(record).map_err(|error| VerbError::other(error.to_string()))
}

fn response(payload: &Payload) -> Result<DecodedResult, VerbError> {
    let response = stored_response(payload)?;
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
    Ok(DecodedResult { text: text.trim_end().to_owned(), json: value })
}

fn output(recording: &Recording) -> DecodedResult {
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
    DecodedResult { text, json: value }
}
