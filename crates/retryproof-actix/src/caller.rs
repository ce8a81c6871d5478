// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`caller`]: a caller hook that looks at actix's own request (HTTP-16).

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::Pin;

use actix_web::HttpRequest;
use http::request::Parts;
use retryproof_http::adapter::CallerFuture;
use retryproof_http::{Caller, IntoCaller};

thread_local! {
    /// The request whose caller a hook is asked for.
    static REQUEST: RefCell<Option<HttpRequest>> = const { RefCell::new(None) };
}

/// Takes the request away again, also from a hook that panics: actix wants to reuse it.
struct Looking(Option<HttpRequest>);

impl Drop for Looking {
    fn drop(&mut self) {
        REQUEST.set(self.0.take());
    }
}

/// Asks a hook where it finds the request.
pub(crate) fn looking_at(
    request: &HttpRequest,
    ask: impl FnOnce() -> CallerFuture,
) -> CallerFuture {
    let _looking = Looking(REQUEST.replace(Some(request.clone())));
    ask()
}

/// A hook for [`FilterBuilder::caller`](retryproof_http::FilterBuilder::caller) that sees the
/// request as actix has it: extensions that an authentication middleware has left, connection info,
/// cookies.
///
/// ```
/// use actix_web::{HttpMessage, HttpRequest};
/// use retryproof_core::{IdempotencyEngine, MemoryStore};
/// use retryproof_http::IdempotencyFilter;
///
/// struct Tenant(String);
///
/// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
///     .caller(retryproof_actix::caller(|request: &HttpRequest| {
///         // Left there by the authentication, which stands outside.
///         request.extensions().get::<Tenant>().map(|tenant| tenant.0.clone())
///     }))
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
/// A hook that takes `&http::request::Parts` works too, and in every framework; it sees method,
/// target and fields. Outside of actix this one refuses every request, 500: it cannot know the
/// caller.
pub fn caller<C: IntoCaller>(
    hook: impl Fn(&HttpRequest) -> C + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Caller + Send + Sync + 'static {
    move |_| seen().map_or_else(unseen, |request| hook(&request).into_caller())
}

/// As [`caller`](fn@caller), for
/// [`FilterBuilder::caller_async`](retryproof_http::FilterBuilder::caller_async). What the hook
/// needs of the request it takes before it waits: actix's request stays on its thread, and a
/// filter's hook may not.
///
/// ```
/// use actix_web::HttpRequest;
/// use retryproof_core::{IdempotencyEngine, MemoryStore};
/// use retryproof_http::IdempotencyFilter;
///
/// async fn tenant_of(token: &str) -> Option<String> {
///     Some(format!("the tenant of {token}"))
/// }
///
/// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
///     .caller_async(retryproof_actix::caller_async(|request: &HttpRequest| {
///         let token = request.headers().get("authorization").cloned();
///         async move { tenant_of(token?.to_str().ok()?).await }
///     }))
///     .challenge("Bearer")
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
pub fn caller_async<Fut>(
    hook: impl Fn(&HttpRequest) -> Fut + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Pin<Box<dyn Future<Output = Caller> + Send>> + Send + Sync + 'static
where
    Fut: Future<Output: IntoCaller> + Send + 'static,
{
    move |_| match seen().map(|request| hook(&request)) {
        Some(answering) => Box::pin(async move { answering.await.into_caller() }),
        None => Box::pin(ready(unseen())),
    }
}

fn seen() -> Option<HttpRequest> {
    REQUEST.with_borrow(Clone::clone)
}

fn unseen() -> Caller {
    tracing::error!("a caller hook of actix was asked about a request that is not actix's");
    let mut answer = http::Response::new("the caller is not known");
    *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    Caller::refuse(answer)
}
