// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
pub(crate) fn import<T: Shelf>(
    engine: &blocking::Engine,
    shelf: &T,
    order: Order,
) -> Result<Receipt, Failure> {
    ::retryproof::__private::blocking! {
        let retryproof_call = ::retryproof::__private::AnnotatedCall::new("import", &(order.id)).lease(::core::time::Duration::new(60u64, 0u32));
        let retryproof_engine = ::retryproof::__private::ProvidesEngine::<::retryproof::__private::BlockingEngine>::engine(&(engine));
        retryproof_call.run_blocking::<Result<Receipt, Failure>, _, _>(retryproof_engine, |_| false, move | _ | -> Result<Receipt, Failure> {
            shelf.put(order)
        })
    }
}
