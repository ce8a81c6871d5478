// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`caller`]: a caller hook that looks at actix's own request (HTTP-16).

use std::future::Future;
use std::rc::Rc;

use actix_web::HttpRequest;
use http::request::Parts;
use retryproof_http::{Caller, IntoCaller};

/// Whatever has the request while the guard prepares its call.
pub(crate) trait Request {
    fn look(&self, hook: &mut dyn FnMut(&HttpRequest));
}

impl Request for HttpRequest {
    fn look(&self, hook: &mut dyn FnMut(&HttpRequest)) {
        hook(self);
    }
}

tokio::task_local! {
    static REQUEST: Rc<dyn Request>;
}

/// Runs a guarded call where its hook finds the request.
pub(crate) async fn at<F: Future>(request: Rc<dyn Request>, guarded: F) -> F::Output {
    // On the heap, for the future of a call without a hook is not to have its room.
    Box::pin(REQUEST.scope(request, guarded)).await
}

/// A hook for [`FilterBuilder::caller`](retryproof_http::FilterBuilder::caller) that sees the request as actix has it:
/// extensions that an authentication middleware has left, connection info, cookies.
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
/// A hook that takes `&http::request::Parts` works too, and in every framework; it sees method, target and fields. Outside of actix this one
/// refuses every request, 500: it cannot know the caller.
pub fn caller<C: IntoCaller>(
    hook: impl Fn(&HttpRequest) -> C + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Caller + Send + Sync + 'static {
    move |_| {
        let mut caller = None;
        let _ = REQUEST.try_with(|request| {
            request.look(&mut |request| caller = Some(hook(request).into_caller()));
        });
        caller.unwrap_or_else(|| {
            tracing::error!("a caller hook of actix was asked about a request that is not actix's");
            let mut answer = http::Response::new("the caller is not known");
            *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            Caller::refuse(answer)
        })
    }
}
