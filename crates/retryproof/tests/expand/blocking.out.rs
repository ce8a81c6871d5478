// SPDX-License-Identifier: MIT OR Apache-2.0
use super::prelude::*;
pub(crate) fn import<T: Shelf>(
    engine: &blocking::Engine,
    shelf: &T,
    order: Order,
) -> Result<Receipt, Failure> {
    ::retryproof::__private::blocking! {
        let call = ::retryproof::__private::Keyed::function(const {
            ::retryproof::__private::default_scope(::core::concat!(::core::module_path!(), "::", "import"))
        }, &(order.id), || (),).lease(::core::time::Duration::new(60u64, 0u32));
        let engine = ::retryproof::__private::ProvidesEngine::<::retryproof::__private::BlockingEngine>::engine(&(engine));
        call.run_blocking::<Result<Receipt, Failure>, _>(engine, move || -> Result<Receipt, Failure> {
            shelf.put(order)
        })
    }
}
