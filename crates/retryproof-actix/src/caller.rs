// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`caller`]: a caller hook that reads actix's own request (HTTP-16).

use std::cell::RefCell;
use std::future::{Future, ready};
use std::pin::Pin;

use actix_web::HttpRequest;
use http::request::Parts;
use retryproof_http::adapter::CallerFuture;
use retryproof_http::{Caller, IntoCaller};

thread_local! {
    /// The request whose caller hook is running on this thread.
    static REQUEST: RefCell<Option<HttpRequest>> = const { RefCell::new(None) };
}

/// Restores the previous request on drop, even after a panic. Otherwise the thread would keep the
/// request after its response.
struct RestoreRequest(Option<HttpRequest>);

impl Drop for RestoreRequest {
    fn drop(&mut self) {
        REQUEST.set(self.0.take());
    }
}

/// Runs a hook that can read actix's request.
pub(crate) fn with_request(
    request: &HttpRequest,
    hook: impl FnOnce() -> CallerFuture,
) -> CallerFuture {
    let _restore = RestoreRequest(REQUEST.replace(Some(request.clone())));
    hook()
}

/// Returns a hook for [`FilterBuilder::caller`](retryproof_http::FilterBuilder::caller) that reads
/// actix's request. The hook can read, for example, the extensions that an authentication
/// middleware inserted, the connection info or the cookies.
///
/// ```
/// use actix_web::{HttpMessage, HttpRequest};
/// use retryproof_core::IdempotencyEngine;
/// use retryproof_memory::MemoryStore;
/// use retryproof_http::IdempotencyFilter;
///
/// struct Tenant(String);
///
/// let filter = IdempotencyFilter::builder(IdempotencyEngine::new(MemoryStore::new()))
///     .caller(retryproof_actix::caller(|request: &HttpRequest| {
///         // The authentication middleware, outside the guard, inserts this.
///         request.extensions().get::<Tenant>().map(|tenant| tenant.0.clone())
///     }))
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
/// A hook that takes `&http::request::Parts` works in every framework, but sees only the method,
/// target and header fields of an actix request. Outside actix, the hook that this function returns
/// refuses every request with 500, because it cannot determine the caller.
pub fn caller<C: IntoCaller>(
    hook: impl Fn(&HttpRequest) -> C + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Caller + Send + Sync + 'static {
    move |_| current_request().map_or_else(no_request, |request| hook(&request).into_caller())
}

/// Like [`caller`](fn@caller), for
/// [`FilterBuilder::caller_async`](retryproof_http::FilterBuilder::caller_async). The hook must
/// copy what it needs from the request before its first `await`. The request stays on its thread,
/// but the hook's future can move to another thread.
///
/// ```
/// use actix_web::HttpRequest;
/// use retryproof_core::IdempotencyEngine;
/// use retryproof_memory::MemoryStore;
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
    move |_| match current_request().map(|request| hook(&request)) {
        Some(caller) => Box::pin(async move { caller.await.into_caller() }),
        None => Box::pin(ready(no_request())),
    }
}

fn current_request() -> Option<HttpRequest> {
    REQUEST.with_borrow(Clone::clone)
}

fn no_request() -> Caller {
    tracing::error!(
        "a request was refused, because a caller hook for actix-web was called outside actix-web; \
         outside actix-web, use a hook that takes `&Parts`"
    );
    let mut response = http::Response::new("the caller could not be identified");
    *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    Caller::refuse(response)
}
