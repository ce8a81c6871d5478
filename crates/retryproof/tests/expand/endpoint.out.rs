// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
#[cfg(not(miri))]
#[doc = " Takes a payment."]
#[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
#[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
pub(crate) struct pay;
#[cfg(not(miri))]
const _: () = {
    #[expect(clippy::unused_async, reason = "an attribute of the function, so it stays there")]
    async fn pay(
        State(ledger): State<Ledger>,
        headers: HeaderMap,
        Json(order): Json<Order>,
    ) -> Result<Json<Receipt>, Failure> {
        let tenant = headers.get("x-tenant").map(|tenant| tenant.as_bytes().len());
        ledger.charge(&order, tenant).map(Json)
    }
    impl pay {
        #[doc = r" The function itself, unguarded, for unit tests and for guarded callers."]
        #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
        pub(crate) fn call(
            retryproof_argument_1: State<Ledger>,
            retryproof_argument_2: HeaderMap,
            retryproof_argument_3: Json<Order>,
        ) -> impl ::core::future::Future<Output = Result<Json<Receipt>, Failure>> {
            pay(retryproof_argument_1, retryproof_argument_2, retryproof_argument_3)
        }
    }
};
#[cfg(not(miri))]
::retryproof::__private::endpoint! {
    impl pay {
        #[doc = r" The attribute's settings. A duration that is `None` is the configured default."]
        pub(crate) const POLICY: ::retryproof::__private::http::Policy = ::retryproof::__private::http::Policy::new("payments").with_ttl(::core::time::Duration::new(86400u64, 0u32)).with_lease(::core::time::Duration::new(30u64, 0u32)).with_wait_timeout(::core::time::Duration::new(2u64, 500000000u32));
    }
    impl<__State, __Via> ::retryproof::__private::http::axum::Handler<(__Via, State<Ledger>, HeaderMap, Json<Order>), __State> for pay
    where
        __State: ::retryproof::__private::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
        State<Ledger>: ::retryproof::__private::http::axum::FromRequestParts<__State> + ::core::marker::Send + 'static,
        HeaderMap: ::retryproof::__private::http::axum::FromRequestParts<__State> + ::core::marker::Send + 'static,
        Json<Order>: ::retryproof::__private::http::axum::LastArgument<__State, __Via>,
    {
        type Future = ::retryproof::__private::http::axum::EndpointFuture;
        fn call(self, retryproof_request: ::retryproof::__private::http::axum::Request, retryproof_state: __State) -> Self::Future {
            ::retryproof::__private::http::axum::run_endpoint::<__State, __Via, (State<Ledger>, HeaderMap,), Json<Order>, _, _, _>(&Self::POLICY, retryproof_request, retryproof_state, |(retryproof_argument_1, retryproof_argument_2,), retryproof_last| Self::call(retryproof_argument_1, retryproof_argument_2, retryproof_last),)
        }
    }
}
