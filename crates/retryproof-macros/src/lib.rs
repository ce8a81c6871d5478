// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! `#[idempotent]`, the attribute of `retryproof`. Use it from there (`retryproof::idempotent`);
//! its page here is its manual.
//!
//! The crate only reads, judges and emits: `attr` reads the arguments, `validate` refuses what
//! cannot work, with a message at the token that is wrong, and `expand` emits thin code that calls
//! `::retryproof::__private`. So the promises are the library's, and this crate's are those of
//! ANN-1 to ANN-6 that concern compilation.

mod attr;
mod debug;
mod expand;
mod item;
#[cfg(test)]
mod tests;
mod validate;

use proc_macro::TokenStream;

use crate::validate::Framework;

/// Runs a function once per key.
///
/// Two forms: `#[idempotent(http, ..)]` makes an axum endpoint, whose key is sent by the client;
/// `#[idempotent(key = .., ..)]` guards a function or method, whose key is computed from its
/// arguments.
///
/// # Arguments
///
/// | argument | value | endpoint | function, method |
/// |---|---|---|---|
/// | `http` | none; stands first | required | refused |
/// | `key` | an expression over the parameters that implements `Display`; it is borrowed, once per call, before the body | refused | required |
/// | `fingerprint` | an expression over the parameters that implements `Serialize`: what has to be the same when the key is; it is borrowed, once per call, before the body | refused | optional |
/// | `scope` | string literal, 1 to 255 bytes | optional | optional; required where the function is generic |
/// | `ttl` | duration, 1 ms to 3,650 days: how long the result is kept, from completion | optional | optional |
/// | `lease` | duration, 10 ms to 24 h: how long a holder that went silent keeps the key | optional | optional |
/// | `wait_timeout` | duration, 0 to 24 h: how long a duplicate waits for the holder; `"PT0S"` looks once | optional | optional |
/// | `codec` | an expression that is a `Codec` of the returned value; `JsonCodec` unless given | refused | optional |
/// | `completion` | `"log-and-return"` or `"propagate"`: what happens when the result cannot be recorded; `"joined"`: [it is recorded in the transaction of the writes](#joined-to-a-transaction) | refused | optional |
/// | `hold_when` | a function of the error, a path or a closure: [which errors hold the key](#errors-and-the-lease) | refused | optional |
/// | `engine` | an expression that is `AsRef<IdempotencyEngine>`, for blocking functions `AsRef<blocking::Engine>`, for joined ones `AsRef<JoinedEngine<T>>` | refused | required without `self` |
/// | `crate` | path under which the crate `retryproof` is found, for those who re-export it | optional | optional |
///
/// A duration is an ISO 8601 one in a string literal: `PnW` or `P[nD][T[nH][nM][n[.f]S]]`, such as
/// `"PT30S"` or `"P7D"`; it is checked at compile time. One that is not given is the configured
/// default, and the configuration of a named scope wins over the attribute.
///
/// # Endpoints
///
/// ```
/// # // The library is out of reach here; `tests/it/manual/endpoint.rs` of the facade is compiled and run.
/// # #[cfg(any())] fn main() {
/// #[derive(Clone, FromRef)]
/// struct App { idempotency: IdempotencyFilter, payments: Arc<Payments> }
///
/// #[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT10S", scope = "payments")]
/// async fn pay(State(payments): State<Arc<Payments>>, Json(order): Json<Order>) -> Result<Json<Receipt>, AppError> {
///     Ok(Json(payments.charge(&order).await?))
/// }
///
/// let app = Router::new().route("/payments", post(pay)).with_state(app);
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
///
/// The function becomes a unit struct of the same name that is an axum `Handler`: `post(pay)` is
/// the guarded handler, and there is no other to mount. The router's state has to hold an
/// `IdempotencyFilter` (`FromRef`, or the filter itself as the state); without one, mounting does
/// not compile.
///
/// * `pay::call(..)` is the function itself, unguarded, for unit tests; `pay::POLICY` is what the
///   attribute says.
/// * Attributes below this one stay with the function, whose name they see: `tracing::instrument`,
///   `axum::debug_handler`. Documentation, `deprecated` and `cfg` go to the struct, lint levels to
///   both. Whatever leaves something beside the function, such as `utoipa::path`, stands above.
/// * Arguments are extracted before the key is looked at, on every call, replays included: an
///   extractor that authenticates also stands before a replay. Only the body, the last argument, is
///   read after the grant. A rejection is answered unstored, and the key stays free.
/// * Without `scope`, the scope is the method and the matched route, parameter names erased:
///   `POST /orders/{}`.
/// * Whatever the function returns is stored and replayed, an `Err` too, unless the response is
///   marked `Release` or `Hold`. The attribute never looks into a `Result`.
/// * The name of the endpoint is a constant in patterns, as that of every unit struct: outside of
///   the function, a local variable cannot have it where the endpoint is in scope.
/// * A generic handler cannot be annotated, nor one with an `impl Trait` argument; guard its route
///   by the layer: `post(handler).route_layer(filter.guard(Policy::new("..")))`.
///
/// # Functions and methods
///
/// ```
/// # // The library is out of reach here; `tests/it/manual/function.rs` of the facade is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Orders { // impl AsRef<IdempotencyEngine> for Orders
///     #[idempotent(key = event.id, scope = "orders.created", ttl = "P7D", wait_timeout = "PT0S")]
///     async fn on_created(&self, event: &OrderCreated) -> Result<(), HandlerError> {
///         self.mail.thank(&event.customer).await
///     }
/// }
///
/// #[idempotent(key = format!("{tenant}/{}", order.id), fingerprint = order.amount, engine = ctx.engine)]
/// async fn consume(ctx: &Context, tenant: &str, order: Order) -> Result<Receipt, HandlerError> {
///     ctx.ledger.charge(tenant, &order).await
/// }
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
///
/// The signature stays. A call returns the value of the first one with its key, and its body does
/// not run again; where the value is `()`, a duplicate is skipped. An error of the body is returned
/// unchanged and leaves the key free, [unless it holds it](#errors-and-the-lease). What else can
/// happen arrives as `Rejected`, through the error type's `From<Rejected>`: `InFlight` with the
/// time after which to try again, the store's errors, a result that cannot be replayed.
///
/// * With a `fingerprint`, a call with a known key and another fingerprint is `Rejected::Mismatch`,
///   and its body does not run. Without one it gets the first call's value, whatever its other
///   arguments are. `Fingerprint::of` says what counts: a tuple of all that matters is the usual
///   expression, `(order.amount, &order.currency)`.
/// * The value implements `Serialize` and `DeserializeOwned`, or what the `codec` asks for.
/// * The engine is `engine = ..`, or that of `self`: `Self: AsRef<IdempotencyEngine>`.
/// * Without `scope`, the scope is the full path: `module_path!()` and the name; in a method
///   `type_name::<Self>()` and the name; in a method of a trait `<Type as Trait<..>>::name`, with
///   the trait's parameters, so that the handlers of two events on one type are two. For an
///   associated function whose signature has neither `self` nor `Self`, and for a function inside a
///   function, it is the path as the compiler writes it. A rename orphans the records, so name the
///   scope of whatever outlives a release. A generic function, also by an `impl Trait` argument,
///   has to name it, since its instantiations have one path: they share the scope, so put into the
///   `key` what tells them apart. A path of more than 255 bytes has to be named, else calls fail
///   with `Rejected::Store` of kind `Invalid` (that of a plain function does not compile).
/// * An async body runs within the caller's future, so it may borrow. A future that is dropped
///   before the body began leaves the key free; dropped later, the key is free when the lease has
///   run out.
/// * A function that is not `async` takes a `blocking::Engine` (feature `blocking`), which refuses
///   to run inside a runtime.
///
/// # Errors and the lease
///
/// ```
/// # // The library is out of reach here; the guide page on functions has a program that is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Till { // impl AsRef<IdempotencyEngine> for Till
///     #[idempotent(key = order.id, scope = "charge", hold_when = |error| matches!(error, PayError::TimedOut))]
///     async fn charge(&self, order: &Order, #[lease] lease: &Lease) -> Result<Receipt, PayError> {
///         self.provider.charge(&lease.downstream_key("charge"), order.amount).await
///     }
/// }
///
/// till.charge(&order).await?; // without the lease: the engine hands it in
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
///
/// An error frees the key, and the next call runs at once: right where surely nothing happened. **An
/// error for which `hold_when` is true holds the key**: the effect is unknown, so the lease runs
/// out first, and the next run is told that it is a takeover. The caller gets its error unchanged
/// in both cases.
///
/// * An argument marked `#[lease]`, of the type `&Lease` or `Lease`, is the lease of the run:
///   `downstream_key(step)` for calls to others, `attempt()`, `lost()`; and `hold_on_error()`,
///   which holds from then on whatever the error is, a panic and a drop too. **Callers do not pass
///   it**, and it is no part of the key.
/// * An endpoint has both by other means: the answer's `AnswerFate`, and an argument that extracts
///   the lease.
///
/// # Joined to a transaction
///
/// ```
/// # // The library is out of reach here; `tests/it/manual/function.rs` of the facade is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Till { // impl AsRef<JoinedEngine<SqliteTx>> for Till
///     #[idempotent(key = order.id, scope = "till", completion = "joined")]
///     async fn charge(&self, order: &Order, #[tx] tx: &mut SqliteTx) -> Result<i64, HandlerError> {
///         tx.execute("INSERT INTO ledger VALUES (?1)", [order.id])?;
///         Ok(tx.last_insert_rowid())
///     }
/// }
///
/// till.charge(&order).await?; // without the transaction: the engine opens it
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
///
/// The record is written in the transaction of the body's own writes: they commit together or not
/// at all, and a process that dies in between leaves neither.
///
/// * Exactly one argument is marked `#[tx]`, of the type `&mut T`. **Callers do not pass it**: the
///   engine opens the transaction once the key is granted, and commits it when the body has
///   returned `Ok`. An `Err`, a panic or a drop rolls it back and frees the key.
/// * The engine is a `JoinedEngine<T>` (blocking: `blocking::JoinedEngine<T>`), made at start-up by
///   `engine.joined(source)?`, which refuses a store that cannot join.
/// * Whatever goes wrong with the record fails the call, for the writes are gone with it:
///   `Rejected::LeaseLost`, `Rejected::Completion`.
/// * An endpoint joins by taking a `GuardedTx<T>`; the attribute says nothing about it.
///
/// # Looking at the expansion
///
/// `RETRYPROOF_MACROS_DEBUG=pay cargo check` prints the expansion of the function `pay`, `*` those
/// of all.
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(Framework::Axum, arguments.into(), item.into()).into()
}

/// Runs a function once per key, as [`idempotent`] does; its endpoints are those of actix-web. Use
/// it as `retryproof::actix::idempotent`.
///
/// ```
/// # // The library is out of reach here; the guide page on HTTP has a program that is compiled.
/// # #[cfg(any())] fn main() {
/// use retryproof::actix::idempotent;
///
/// #[idempotent(http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT10S", scope = "payments")]
/// async fn pay(payments: web::Data<Payments>, order: web::Json<Order>) -> Result<web::Json<Receipt>, PayError> {
///     Ok(web::Json(payments.charge(&order).await?))
/// }
///
/// App::new().app_data(payments).route("/payments", web::post().to(pay(filter.clone())))
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
///
/// The function becomes a tuple struct of the same name around an `IdempotencyFilter`, which is an
/// actix `Handler`: `pay(filter)` is the guarded handler, and there is no other to mount;
/// `web::post().to(pay)` does not compile. actix's router has no type for its state, so the filter
/// is handed over where the handler is mounted: a missing one is a compile error here too.
///
/// * `pay::call(..)` is the function itself, unguarded, for unit tests; `pay::POLICY` is what the
///   attribute says.
/// * Arguments are extracted before the key is looked at, on every call, replays included, but for
///   the one that reads the body, which is extracted after the grant. Which one that is is seen at
///   run time: the one that takes the payload, wherever it stands. A rejection is answered
///   unstored, and the key stays free.
/// * The routing attributes of actix (`#[post("/payments")]`) want a function, and do not stand on
///   an annotated one: mount it by `.to(pay(filter))`.
/// * Everything else, and functions and methods with a `key`, are as in [`idempotent`].
#[proc_macro_attribute]
pub fn idempotent_actix(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(Framework::Actix, arguments.into(), item.into()).into()
}
