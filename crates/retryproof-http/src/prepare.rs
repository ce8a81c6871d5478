// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares an admitted request for the engine: determines scope and caller (HTTP-16), reads the
//! body (HTTP-4, HTTP-5), and adds the fingerprint (FP-3) and the policy's durations.

use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;
use retryproof_core::{Error, ErrorKind, Fingerprint, IdempotencyContext, IntoScope as _, Scope};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;

use crate::body::{BodyError, BoxError, ReplayBody, RequestBody, read_request};
use crate::call::{AdmittedRequest, PreparedRequest};
use crate::filter::{Absent, Caller, CallerFuture, CallerIdentity, Callers, FingerprintMethod};
use crate::head::{AdmittedHead, RequestHead, RouteTemplate};
use crate::protocol::decide::{Finding, OversizeBody};
use crate::protocol::fingerprint::{
    FingerprintAlgorithm, FingerprintHasher, IgnoredMembers, RequestParts, are_comparable,
    fingerprint_without,
};
use crate::protocol::key::MAX_KEY;
use crate::protocol::problem::Code;
use crate::response::ResponseContext;
use crate::served::Served;

/// JSON bodies up to this many bytes are canonicalised on the thread that serves the request. At 32
/// ns a byte, canonicalising such a body takes half a millisecond in the worst case.
const SLOW_JSON: usize = 16 << 10;

/// Bodies up to this many bytes are not compared with the application's own limit before the grant.
/// The application's extractors check that limit anyway, and a look-up here would cost more than
/// the rest of the preparation.
const SMALL_BODY: u64 = 1 << 10;

/// A refusal, boxed so that it takes no space in the future of a request that is not refused.
type RefusalResponse = Box<http::Response<ReplayBody>>;

/// Prepares a request. An `Err` is the response that refuses it.
pub(crate) async fn prepare<H, B>(
    admitted: &AdmittedRequest,
    head: &mut H,
    body: B,
) -> Result<PreparedRequest, RefusalResponse>
where
    H: AdmittedHead,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let caller = match admitted.filter.0.callers.hook().map(|hook| head.caller(hook)) {
        None => None,
        Some(CallerFuture::Now(caller)) => Some(caller),
        Some(CallerFuture::Later(caller)) => Some(caller.await),
    };
    let (scope, caller) = scope_and_caller(admitted, head, caller)?;
    let limit = body_limit(admitted, head, &body);
    let read = if body.size_hint().lower() > limit as u64 {
        Err(BodyError::TooLarge(OversizeBody::Declared))
    } else {
        read_request(body, limit, || hasher_for(admitted, head)).await
    };
    let mut body = read.map_err(|error| {
        let finding = match error {
            BodyError::TooLarge(read) => Finding::BodyTooLarge { read, limit },
            BodyError::Unreadable => Finding::BodyUnreadable,
        };
        refuse(admitted, head, finding)
    })?;
    if is_slow(admitted, &body) {
        let ignored = admitted.filter.0.switches.ignored(&scope).cloned();
        body.fingerprint = canonical_fingerprint(head, body.data.clone(), ignored).await.ok();
    }
    let context = context_of(admitted, head, scope, &caller, &body)?;
    Ok(PreparedRequest { context, body: body.data, trailers: body.trailers })
}

fn scope_and_caller<H: RequestHead>(
    admitted: &AdmittedRequest,
    head: &H,
    caller: Option<Caller>,
) -> Result<(Scope, CallerIdentity), RefusalResponse> {
    let filter = &*admitted.filter.0;
    let scope = match admitted.terms.scope {
        Some(scope) => scope.into_scope(),
        None => default_scope(head),
    };
    let scope = scope.map_err(|error| {
        tracing::error!(%error,
            "requests to a route are refused, because the route has no valid idempotency scope; \
             name a scope for the route (HTTP-16)");
        refuse(admitted, head, Finding::NoScope)
    })?;
    let caller = match (caller, &filter.callers) {
        (None, _) => CallerIdentity::Anyone,
        (Some(Caller::Named(caller)), _) => CallerIdentity::Named(caller),
        (Some(Caller::Absent), Callers::Hook(_, Absent::Shares)) => CallerIdentity::Absent,
        (Some(Caller::Absent), _) => return Err(refuse(admitted, head, Finding::NoCaller)),
        (Some(Caller::Refused(response)), _) => return Err(refused_by_hook(*response)),
    };
    Ok((scope, caller))
}

#[cold]
fn refused_by_hook(mut response: http::Response<Bytes>) -> RefusalResponse {
    response.extensions_mut().insert(Served::Refused(Code::CallerMissing));
    Box::new(response.map(ReplayBody::from))
}

#[cold]
fn refuse(
    admitted: &AdmittedRequest,
    head: &impl RequestHead,
    finding: Finding,
) -> RefusalResponse {
    Box::new(ResponseContext::of_head(&admitted.filter.0, head).refuse(finding))
}

/// Returns the limit for `body` (HTTP-4). If the body can exceed `SMALL_BODY`, this is the filter's
/// limit or the application's limit, whichever is smaller. Otherwise it is the filter's limit.
fn body_limit(admitted: &AdmittedRequest, head: &mut impl AdmittedHead, body: &impl Body) -> usize {
    let max = admitted.filter.0.web.max_body_bytes;
    match body.size_hint().upper() {
        Some(upper) if upper <= SMALL_BODY => max,
        _ => head.body_limit(max),
    }
}

/// Returns the hasher for a body that arrives in several frames; `None` if the algorithm needs the
/// whole body.
fn hasher_for(admitted: &AdmittedRequest, head: &impl RequestHead) -> Option<FingerprintHasher> {
    match &admitted.filter.0.fingerprint {
        FingerprintMethod::BuiltIn(
            algorithm @ (FingerprintAlgorithm::Request | FingerprintAlgorithm::Body),
        ) => Some(FingerprintHasher::new(*algorithm, head.method().as_str(), head.target())),
        FingerprintMethod::BuiltIn(FingerprintAlgorithm::Json) | FingerprintMethod::Custom(_) => {
            None
        }
    }
}

/// Whether the fingerprint of a body takes so long that another thread must compute it.
fn is_slow(admitted: &AdmittedRequest, body: &RequestBody) -> bool {
    body.fingerprint.is_none()
        && body.data.len() > SLOW_JSON
        && matches!(
            admitted.filter.0.fingerprint,
            FingerprintMethod::BuiltIn(FingerprintAlgorithm::Json)
        )
}

/// Computes the fingerprint of canonical JSON on one of the runtime's threads for blocking work.
fn canonical_fingerprint(
    head: &impl RequestHead,
    body: Bytes,
    ignored: Option<Arc<IgnoredMembers>>,
) -> JoinHandle<Fingerprint> {
    let (method, target) = (head.method().to_string(), head.target().to_owned());
    tokio::task::spawn_blocking(move || {
        let parts = RequestParts::new(&method, &target, &body);
        fingerprint_without(ignored.as_deref(), FingerprintAlgorithm::Json, &parts)
    })
}

fn context_of<H: AdmittedHead>(
    AdmittedRequest { filter, terms, key }: &AdmittedRequest,
    head: &H,
    scope: Scope,
    caller: &CallerIdentity,
    body: &RequestBody,
) -> Result<IdempotencyContext, RefusalResponse> {
    let fingerprint = body.fingerprint.unwrap_or_else(|| {
        let parts = RequestParts::new(head.method().as_str(), head.target(), &body.data);
        match &filter.0.fingerprint {
            FingerprintMethod::BuiltIn(algorithm) => {
                let ignored = filter.0.switches.ignored(&scope).map(Arc::as_ref);
                fingerprint_without(ignored, *algorithm, &parts)
            }
            FingerprintMethod::Custom(custom) => {
                Fingerprint::tagged(custom.algorithm(), &custom.digest(&parts))
            }
        }
    });
    let context = engine_key(caller, key.as_bytes(), |key| IdempotencyContext::builder(scope, key));
    // Pass the body's size to the engine, which limits the memory that waiting duplicates may hold
    // (ACQ-13).
    let mut context =
        context.fingerprint(fingerprint).comparable(are_comparable).held_bytes(body.data.len());
    if filter.0.engine.store().seals() {
        let found = filter.0.subject.as_deref().map(|hook| head.caller(hook));
        if let Some(subject) = caller.subject(found).map_err(|found| refused_by_hook(*found))? {
            context = context.subject(subject);
        }
    }
    if let Some(ttl) = terms.ttl {
        context = context.ttl(ttl);
    }
    if let Some(lease) = terms.lease {
        context = context.lease(lease);
    }
    if let Some(wait) = terms.wait_timeout {
        context = context.wait_timeout(wait);
    }
    context
        .build()
        .map_err(|error| Box::new(ResponseContext::of_head(&filter.0, head).fail(&error)))
}

/// Returns the default scope, such as `POST /orders/{}`, or `pay.v1.Payments/Charge` for a gRPC
/// method.
fn default_scope(head: &impl RequestHead) -> Result<Scope, Error> {
    match head.template() {
        Some(RouteTemplate::Path(template)) => {
            Scope::new(scope_of_route(head.method().as_str(), &template))
        }
        Some(RouteTemplate::GrpcMethod(method)) => Scope::new(method.to_owned()),
        None => Err(Error::new(
            ErrorKind::Invalid,
            "the router matched no route for this endpoint, so the endpoint has no default scope",
        )),
    }
}

/// A caller over this many bytes is hashed, so that the engine's key stays within the limit of
/// ID-3. The key then has at most 3 + 1 + 240 + 1 + 255 = 500 bytes.
const MAX_PLAIN_CALLER: usize = 240;

/// Returns a route's default scope: the method, and the template without the names of its
/// parameters. A record stays valid if a parameter is renamed: `POST /orders/{id}/{*rest}` becomes
/// `POST /orders/{}/{*}`.
fn scope_of_route(method: &str, template: &str) -> String {
    let mut scope = String::with_capacity(method.len() + 1 + template.len());
    scope.push_str(method);
    scope.push(' ');
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (literal, brace) = rest.split_at(at);
        scope.push_str(literal);
        // Keep a doubled brace, because the routers read it as an escaped literal brace.
        if brace.starts_with("{{") || brace.starts_with("}}") {
            scope.push_str(&brace[..2]);
            rest = &brace[2..];
        } else if let (Some(name), Some(end)) = (brace.strip_prefix('{'), brace.find('}')) {
            scope.push_str(if name.starts_with('*') { "{*}" } else { "{}" });
            rest = &brace[end + 1..];
        } else {
            scope.push_str(&brace[..1]);
            rest = &brace[1..];
        }
    }
    scope.push_str(rest);
    scope
}

/// Calls `then` with the engine's key, which is at most 500 bytes long. The key is built on the
/// stack, so only the engine allocates.
///
/// The format is injective. For example, callers that share keys, an absent caller, an empty caller
/// and the caller `a` never have the same engine key. Every engine key has a prefix, so a filter to
/// which a `.caller(..)` is added later does not read another caller's record. The guide shows
/// operators the format (`guide/operations.md`).
fn engine_key<T>(caller: &CallerIdentity, key: &[u8], then: impl FnOnce(&str) -> T) -> T {
    match caller {
        // Most keys, such as UUIDs, fit into this small buffer.
        CallerIdentity::Anyone | CallerIdentity::Absent if key.len() <= 60 => {
            then(EngineKeyBuffer { bytes: [0; 62], len: 0 }.write(caller, key))
        }
        _ => then(EngineKeyBuffer { bytes: [0; MAX_ENGINE_KEY], len: 0 }.write(caller, key)),
    }
}

/// Like [`engine_key`], but returns a `String`, and does not limit the length of `key`. Programs
/// that look for a record use this function.
pub(crate) fn stored_key(caller: &CallerIdentity, key: &str) -> String {
    let mut stored = String::new();
    push_prefix(caller, |part| stored.push_str(part));
    stored + key
}

/// Passes the prefix of the engine's key to `push`, part by part. The client's key follows the
/// prefix.
fn push_prefix(caller: &CallerIdentity, mut push: impl FnMut(&str)) {
    match caller {
        CallerIdentity::Anyone => push("-"),
        CallerIdentity::Absent => push("a"),
        CallerIdentity::Named(caller)
            if caller.len() <= MAX_PLAIN_CALLER && !caller.chars().any(char::is_control) =>
        {
            push(&caller.len().to_string());
            push(":");
            push(caller);
        }
        CallerIdentity::Named(caller) => {
            push("h:");
            for byte in Sha256::digest(caller) {
                push(&format!("{byte:02x}"));
            }
        }
    }
    push(":");
}

struct EngineKeyBuffer<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

/// Room for the longest prefix (`240:` and a caller of 240 bytes), a colon and the longest key.
const MAX_ENGINE_KEY: usize = 4 + MAX_PLAIN_CALLER + 1 + MAX_KEY;

impl<const ROOM: usize> EngineKeyBuffer<ROOM> {
    fn write(&mut self, caller: &CallerIdentity, key: &[u8]) -> &str {
        push_prefix(caller, |part| self.push(part.as_bytes()));
        self.push(key);
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    fn push(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.len..];
        // The buffer has space for every key that is written to it, so `min` never cuts off text.
        let text = &text[..text.len().min(room.len())];
        room[..text.len()].copy_from_slice(text);
        self.len += text.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use retryproof_core::Key;

    #[test]
    fn http_16_parameter_names_are_erased() {
        for (template, scope) in [
            ("/orders", "POST /orders"),
            ("/orders/{id}", "POST /orders/{}"),
            ("/orders/{order}/items/{*rest}", "POST /orders/{}/items/{*}"),
            ("/v{major}.{minor}", "POST /v{}.{}"),
            ("/{{literal}}/{x}", "POST /{{literal}}/{}"),
            ("/odd{", "POST /odd{"),
            ("/", "POST /"),
        ] {
            assert_eq!(scope_of_route("POST", template), scope);
        }
    }

    fn key_of(caller: Option<&str>, key: &str) -> String {
        let by = caller
            .map_or(CallerIdentity::Absent, |caller| CallerIdentity::Named(caller.to_owned()));
        let folded = engine_key(&by, key.as_bytes(), str::to_owned);
        assert_eq!(stored_key(&by, key), folded);
        folded
    }

    #[test]
    fn http_16_shared_keys_absent_empty_and_named_callers_are_four() {
        assert_eq!(engine_key(&CallerIdentity::Anyone, b"k", str::to_owned), "-:k");
        assert_eq!(stored_key(&CallerIdentity::Anyone, "k"), "-:k");
        assert_eq!(key_of(None, "k"), "a:k");
        assert_eq!(key_of(Some(""), "k"), "0::k");
        assert_eq!(key_of(Some("a"), "k"), "1:a:k");
        assert_eq!(key_of(Some("1:a"), "k"), "3:1:a:k");
        let hash = Sha256::digest("a\nb").iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(key_of(Some("a\nb"), "k"), format!("h:{hash}:k"));
        let (longest, key) = ("c".repeat(240), "k".repeat(255));
        assert_eq!(key_of(Some(&longest), &key), format!("240:{longest}:{key}"));
        for length in [60, 61, 255] {
            assert_eq!(key_of(None, &key[..length]), format!("a:{}", &key[..length]));
        }
        assert_eq!(key_of(Some(&format!("{longest}c")), &key).len(), 2 + 64 + 1 + 255);
    }

    proptest! {
        #[test]
        fn http_16_every_folded_key_is_a_key_of_the_engine(caller in proptest::option::of(
            "\\PC{0,300}|[\\x00-\\x20]{0,9}"), key in "[ -~]{1,255}") {
            let folded = key_of(caller.as_deref(), &key);
            prop_assert!(folded.ends_with(&format!(":{key}")), "nothing is cut off");
            prop_assert!(Key::new(&folded).is_ok(), "{} bytes", folded.len());
        }

        #[test]
        fn http_16_folding_is_injective(
            one in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
            two in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
        ) {
            let folded = |pair: &(Option<String>, String)| key_of(pair.0.as_deref(), &pair.1);
            prop_assert_eq!(folded(&one) == folded(&two), one == two);
        }
    }
}
