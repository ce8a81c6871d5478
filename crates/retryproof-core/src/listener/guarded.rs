// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`guarded`]: the usual handler of a listener.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{AnyDelivery, Poison, Verdict, json};
use crate::codec::{Codec, JsonCodec};
use crate::engine::{IdempotencyEngine, Lease};

/// The future of a handler. It returns the verdict on one message.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Verdict, Poison>> + Send>>;

/// Creates a handler for a listener's `run`. The handler decodes the body from JSON and runs `work`
/// once for each key, guarded by `engine`. A message is acknowledged after its work has returned
/// and its completion has ended (LST-2). Under the policy `log-and-return`, this completion may
/// have failed (CMP-4).
///
/// # When to use
/// Use this handler unless the record joins the work's transaction. For a joined record, write a
/// closure that calls an engine with the delivery's context and returns the [`Verdict`] on the
/// result. The closure can also call an `#[idempotent(key = ..)]` function.
///
/// ```
/// # use retryproof_core::{IdempotencyContext, IdempotencyEngine, listener};
/// # use retryproof_memory::MemoryStore;
/// use retryproof_core::listener::{AnyDelivery, Poison, Reason, guarded};
///
/// #[derive(Clone)]
/// struct Delivery(&'static str); // stands for the `Delivery` of a listener's crate
/// # impl AnyDelivery for Delivery {
/// #     fn payload(&self) -> &[u8] { self.0.as_bytes() }
/// #     fn context(&self) -> Result<IdempotencyContext, Poison> {
/// #         IdempotencyContext::builder("orders.paid", "o-1").build().map_err(|_| Poison::BadKey)
/// #     }
/// # }
///
/// #[derive(serde::Deserialize)]
/// struct OrderPaid { cents: u64 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let engine = IdempotencyEngine::new(MemoryStore::new());
/// let handler = guarded(&engine, async |order: OrderPaid, _lease| {
///     Ok::<_, std::io::Error>(order.cents)
/// });
/// let reason = async |body| handler(Delivery(body)).await.map(|verdict| verdict.reason());
/// assert_eq!(reason(r#"{"cents": 4200}"#).await, Ok(Reason::Executed));
/// assert_eq!(reason(r#"{"cents": 4200}"#).await, Ok(Reason::Replayed));
/// assert_eq!(reason("no JSON").await, Err(Poison::Unreadable));
/// # }
/// ```
pub fn guarded<D, T, W, Fut, V, E>(
    engine: &IdempotencyEngine,
    work: W,
) -> impl Fn(D) -> HandlerFuture + Send + Sync + use<D, T, W, Fut, V, E>
where
    D: AnyDelivery,
    T: DeserializeOwned + Send + 'static,
    W: Fn(T, Lease) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<V, E>> + Send + 'static,
    V: Send + 'static,
    E: Send + 'static,
    JsonCodec: Codec<V>,
{
    let (engine, work) = (engine.clone(), Arc::new(work));
    move |delivery: D| {
        let (engine, work) = (engine.clone(), Arc::clone(&work));
        Box::pin(async move {
            let (ctx, body) = (delivery.context()?, json::<T>(delivery.payload())?);
            Ok(Verdict::of(&engine.call(ctx).execute_with(|lease| work(body, lease)).await))
        })
    }
}
