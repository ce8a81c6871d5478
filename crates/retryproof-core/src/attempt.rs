// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Attempt`]: whether a grant is the first for its key, or a takeover (ACQ-12).

/// Whether a grant found the key free, or took the key over from an owner whose lease had run out
/// (ACQ-12).
/// ```
/// use retryproof_core::{Attempt, IdempotencyContext, IdempotencyEngine};
/// # use retryproof_memory::MemoryStore;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = IdempotencyEngine::new(MemoryStore::new());
/// # async fn charge(_: String) -> Result<u64, std::io::Error> { Ok(1) }
/// # async fn find_charge(_: &str) -> Result<Option<u64>, std::io::Error> { Ok(None) }
/// let ctx = IdempotencyContext::builder("charges", "order-7").build()?;
/// let charged = engine.execute_with(ctx, |lease| async move {
///     let key = lease.downstream_key("charge");
///     if lease.attempt() == Attempt::Takeover
///         && let Some(receipt) = find_charge(&key).await?
///     {
///         return Ok::<_, std::io::Error>(receipt); // the earlier run had made the charge
///     }
///     charge(key).await
/// });
/// assert_eq!(charged.await?.into_value(), Some(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// The key was free.
    First,
    /// Another owner's lease had run out. That owner's work may have had effects, so check for them
    /// before you repeat the work.
    Takeover,
}
