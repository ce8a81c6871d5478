// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
#[cfg(not(miri))]
#[doc = " Takes a payment."]
#[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
#[derive(::core::clone::Clone, ::core::fmt::Debug)]
pub(crate) struct pay(pub(crate) ::retryproof::__private::http::IdempotencyFilter);
#[cfg(not(miri))]
const _: () = {
    #[expect(clippy::unused_async, reason = "an attribute of the function, so it stays there")]
    async fn pay(
        ledger: web::Data<Ledger>,
        web::Json(order): web::Json<Order>,
        request: HttpRequest,
    ) -> actix_web::Result<web::Json<Receipt>> {
        let tenant = request.headers().contains_key("x-tenant");
        Ok(web::Json(ledger.charge(&order, tenant)))
    }
    impl pay {
        #[doc = r" The function itself, unguarded, for unit tests and for guarded callers."]
        #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
        pub(crate) fn call(
            retryproof_argument_1: web::Data<Ledger>,
            retryproof_argument_2: web::Json<Order>,
            retryproof_argument_3: HttpRequest,
        ) -> impl ::core::future::Future<Output = actix_web::Result<web::Json<Receipt>>> {
            pay(retryproof_argument_1, retryproof_argument_2, retryproof_argument_3)
        }
    }
};
#[cfg(not(miri))]
impl pay {
    #[doc = r" The attribute's settings. A duration that is `None` is the configured default."]
    pub(crate) const POLICY: ::retryproof::__private::http::Policy =
        ::retryproof::__private::http::Policy::new("payments")
            .with_ttl(::core::time::Duration::new(86400u64, 0u32))
            .with_lease(::core::time::Duration::new(30u64, 0u32))
            .with_wait_timeout(::core::time::Duration::new(2u64, 500000000u32));
}
#[cfg(not(miri))]
impl
    ::retryproof::__private::actix::endpoint::Handler<
        ::retryproof::__private::actix::endpoint::EndpointRequest,
    > for pay
{
    type Output = ::retryproof::__private::actix::endpoint::HttpResponse;
    type Future = ::retryproof::__private::actix::endpoint::EndpointFuture;
    fn call(
        &self,
        retryproof_request: ::retryproof::__private::actix::endpoint::EndpointRequest,
    ) -> Self::Future {
        ::retryproof::__private::actix::endpoint::run_endpoint::<
            (web::Data<Ledger>, web::Json<Order>, HttpRequest),
            _,
            _,
            _,
        >(
            &self.0,
            &Self::POLICY,
            retryproof_request,
            |(retryproof_argument_1, retryproof_argument_2, retryproof_argument_3)| {
                Self::call(retryproof_argument_1, retryproof_argument_2, retryproof_argument_3)
            },
        )
    }
}
#[doc = " Nothing to extract."]
#[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
#[derive(::core::clone::Clone, ::core::fmt::Debug)]
pub(crate) struct ping(pub(crate) ::retryproof::__private::http::IdempotencyFilter);
const _: () = {
    async fn ping() -> &'static str {
        "pong"
    }
    impl ping {
        #[doc = r" The function itself, unguarded, for unit tests and for guarded callers."]
        #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
        pub(crate) fn call() -> impl ::core::future::Future<Output = &'static str> {
            ping()
        }
    }
};
impl ping {
    #[doc = r" The attribute's settings. A duration that is `None` is the configured default."]
    pub(crate) const POLICY: ::retryproof::__private::http::Policy =
        ::retryproof::__private::http::Policy::unnamed();
}
impl
    ::retryproof::__private::actix::endpoint::Handler<
        ::retryproof::__private::actix::endpoint::EndpointRequest,
    > for ping
{
    type Output = ::retryproof::__private::actix::endpoint::HttpResponse;
    type Future = ::retryproof::__private::actix::endpoint::EndpointFuture;
    fn call(
        &self,
        retryproof_request: ::retryproof::__private::actix::endpoint::EndpointRequest,
    ) -> Self::Future {
        ::retryproof::__private::actix::endpoint::run_endpoint::<(), _, _, _>(
            &self.0,
            &Self::POLICY,
            retryproof_request,
            |()| Self::call(),
        )
    }
}
