// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The attribute `#[idempotent]` of `retryproof`; use it as `retryproof::idempotent`. The page of
//! [`macro@idempotent`] is its manual.
//!
//! `attr` parses the arguments. `validate` refuses invalid input, with an error at the offending
//! token. `expand` emits thin code that calls `::retryproof::__private`. This crate enforces what
//! ANN-1 to ANN-6 demand at compile time; the library enforces the rest at run time.

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
/// There are two forms: `#[idempotent(http, ..)]` makes an axum endpoint, for which the client
/// sends the key; `#[idempotent(key = .., ..)]` guards a function or method, and computes the key
/// from its arguments.
///
/// # Arguments
///
/// | argument | value | endpoint | function, method |
/// |---|---|---|---|
/// | `http` | none; comes first | required | refused |
/// | `key` | an expression that uses the parameters and implements `Display`; its value is borrowed once per call, before the body runs | refused | required |
/// | `fingerprint` | an expression that uses the parameters and implements `Serialize`; its value must be the same in all calls with the same key, and is borrowed once per call, before the body runs | refused | optional |
/// | `scope` | string literal, 1 to 255 bytes | optional | optional; required if the function is generic |
/// | `ttl` | duration, 1 ms to 3,650 days: how long the result is kept after completion | optional | optional |
/// | `lease` | duration, 10 ms to 24 h: how long the key stays taken without a heartbeat | optional | optional |
/// | `wait_timeout` | duration, 0 to 24 h: how long a duplicate waits for the holder; with `"PT0S"`, the duplicate only checks once | optional | optional |
/// | `codec` | an expression for the `Codec` of the returned value; the default is `JsonCodec` | refused | optional |
/// | `completion` | `"log-and-return"` or `"propagate"`: what happens when the result cannot be recorded; `"joined"`: [the result is recorded in the transaction of the body's writes](#joined-to-a-transaction) | refused | optional |
/// | `hold_when` | a path or a closure that takes the error and decides [whether the error holds the key](#errors-and-the-lease) | refused | optional |
/// | `engine` | an expression whose value implements `AsRef<IdempotencyEngine>` (blocking functions: `AsRef<blocking::Engine>`; joined functions: `AsRef<JoinedEngine<T>>`) | refused | required without `self` |
/// | `crate` | the path of the crate `retryproof`, for crates that re-export it | optional | optional |
///
/// A duration is a string literal in ISO 8601: `PnW` or `P[nD][T[nH][nM][n[.f]S]]`, such as
/// `"PT30S"` or `"P7D"`; it is checked at compile time. An omitted duration has the configured
/// default. The configuration of a named scope takes precedence over the attribute.
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
/// The function becomes a unit struct of the same name that implements axum's `Handler`:
/// `post(pay)` mounts the guarded handler, and the unguarded function cannot be mounted by mistake.
/// The router's state must contain an `IdempotencyFilter` (through `FromRef`, or as the state
/// itself); without a filter, mounting does not compile.
///
/// * `pay::call(..)` is the function itself, unguarded, for unit tests; `pay::POLICY` holds the
///   attribute's settings.
/// * Attributes below this one, such as `tracing::instrument` and `axum::debug_handler`, stay on
///   the function and see its name. Doc comments and `deprecated` go to the struct, lint levels to
///   both, and `cfg` to everything that is emitted. An attribute that generates further items, such
///   as `utoipa::path`, belongs above this one.
/// * Arguments are extracted before the key lookup, on every call including replays, so an
///   extractor that authenticates also protects replays. Only the body, the last argument, is read
///   after the grant. If an argument is rejected, the response is not stored, and the key stays
///   free.
/// * The default `scope` is the method and the matched route with parameter names erased: `POST
///   /orders/{}`.
/// * The returned response is stored and replayed, even for an `Err`, unless it is marked `Release`
///   or `Hold`. The attribute does not inspect a `Result`.
/// * In a pattern, such as the left side of a `let`, the endpoint's name refers to its unit struct
///   instead of binding a variable. Where the endpoint is in scope, local variables outside the
///   function therefore cannot have the endpoint's name.
/// * A generic handler, or one with an `impl Trait` argument, cannot be annotated. Guard its route
///   with the layer: `post(handler).route_layer(filter.guard(Policy::new("..")))`.
///
/// # Functions and methods
///
/// ```
/// # // The library is out of reach here; `tests/it/manual/function.rs` of the facade is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Orders { // requires `impl AsRef<IdempotencyEngine> for Orders`
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
/// The signature does not change. A call returns the value of the first call with its key, and the
/// body does not run again; if the value is `()`, a duplicate is skipped. An error from the body is
/// returned unchanged and frees the key, [unless the error holds it](#errors-and-the-lease). Every
/// other result is a `Rejected`, converted by the error type's `From<Rejected>`: `InFlight` with
/// the time to wait before a retry, an error from the store, or a result that cannot be replayed.
///
/// * With a `fingerprint`, a call with a known key and a different fingerprint returns
///   `Rejected::Mismatch`, and its body does not run. Without a fingerprint, a call with a known
///   key gets the first call's value, even if its other arguments differ. The usual expression is a
///   tuple of all values that matter: `(order.amount, &order.currency)`. `Fingerprint::of`
///   describes what is compared.
/// * The value must implement `Serialize` and `DeserializeOwned`, or the traits that the `codec`
///   requires.
/// * The engine comes from `engine = ..`, or from `self`: `Self: AsRef<IdempotencyEngine>`.
/// * The default `scope` is the full path: `module_path!()` and the name; for a method,
///   `type_name::<Self>()` and the name; for a trait method, `<Type as Trait<..>>::name`, with the
///   trait's parameters, so that a type that handles two events has two scopes. For an associated
///   function whose signature has neither `self` nor `Self`, and for a function inside a function,
///   the scope is the path as the compiler writes it. Renaming a function orphans its records, so
///   name the scope if records outlive a release. A generic function, or one with an `impl Trait`
///   argument, must name its scope, because all instantiations have the same path and would share
///   records; put what distinguishes them into the `key`. Also name the scope if the path is longer
///   than 255 bytes; otherwise calls fail with `Rejected::Store` of kind `Invalid` (a plain
///   function with such a path does not compile).
/// * An async body runs within the caller's future, so it can borrow. If the future is dropped
///   before the body begins, the key is free. If it is dropped later, the key becomes free when the
///   lease runs out.
/// * A function that is not `async` uses a `blocking::Engine` (feature `blocking`), whose calls
///   return an error inside a runtime.
///
/// # Errors and the lease
///
/// ```
/// # // The library is out of reach here; the guide page on functions has a program that is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Till { // requires `impl AsRef<IdempotencyEngine> for Till`
///     #[idempotent(key = order.id, scope = "charge", hold_when = |error| matches!(error, PayError::TimedOut))]
///     async fn charge(&self, order: &Order, #[lease] lease: &Lease) -> Result<Receipt, PayError> {
///         self.provider.charge(&lease.downstream_key("charge"), order.amount).await
///     }
/// }
/// till.charge(&order).await?; // do not pass the lease; the engine supplies it
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
/// An error frees the key, and the next call runs immediately. Freeing the key is right if it is
/// certain that nothing happened. **An error for which `hold_when` is true holds the key**: the
/// effect is unknown, so nothing runs until the lease runs out, and the next run is a takeover
/// (`lease.attempt()`). In both cases the caller gets the error unchanged.
///
/// * An argument marked `#[lease]`, of type `&Lease` or `Lease`, receives the lease of the run. The
///   lease offers `downstream_key(step)` for calls to other systems, `attempt()`, `lost()`, and
///   `hold_on_error()`, which makes every later error, panic or drop hold the key. **Callers do not
///   pass this argument**, and it is not part of the key.
/// * An endpoint has no `hold_when`: it marks its response with an `AnswerFate`, and extracts the
///   lease as an argument.
///
/// # Joined to a transaction
///
/// ```
/// # // The library is out of reach here; `tests/it/manual/function.rs` of the facade is compiled and run.
/// # #[cfg(any())] fn main() {
/// impl Till { // requires `impl AsRef<JoinedEngine<SqliteTx>> for Till`
///     #[idempotent(key = order.id, scope = "till", completion = "joined")]
///     async fn charge(&self, order: &Order, #[tx] tx: &mut SqliteTx) -> Result<i64, HandlerError> {
///         tx.execute("INSERT INTO ledger VALUES (?1)", [order.id])?;
///         Ok(tx.last_insert_rowid())
///     }
/// }
/// till.charge(&order).await?; // without the transaction: the engine opens it
/// # }
/// # #[cfg(not(any()))] fn main() {}
/// ```
/// The record is written in the same transaction as the body's writes: the record and the writes
/// commit together or not at all, and a process that dies before the commit leaves neither behind.
///
/// * Exactly one argument, of type `&mut T`, is marked `#[tx]`. **Callers do not pass it**: the
///   engine opens the transaction after the key is granted, and commits it when the body has
///   returned `Ok`. An `Err`, a panic or a drop rolls the transaction back and frees the key.
/// * The engine is a `JoinedEngine<T>` (blocking: `blocking::JoinedEngine<T>`), created at start-up
///   by `engine.joined(source)?`, which refuses a store that cannot join.
/// * If the record cannot be written, the writes are rolled back with it, and the call fails with
///   `Rejected::LeaseLost` or `Rejected::Completion`.
/// * An endpoint joins a transaction by taking a `GuardedTx<T>`; its attribute needs no argument
///   for that.
///
/// # Showing the expansion
///
/// `RETRYPROOF_MACROS_DEBUG=pay cargo check` prints the expansion of the function `pay`; `*` prints
/// all expansions.
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(Framework::Axum, arguments.into(), item.into()).into()
}

/// Runs a function once per key, like [`idempotent`], with endpoints for actix-web. Use it as
/// `retryproof::actix::idempotent`.
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
/// The function becomes a tuple struct of the same name that contains an `IdempotencyFilter` and
/// implements actix's `Handler`: `pay(filter)` is the guarded handler, and `web::post().to(pay)`
/// does not compile. actix's router has no typed state, so the filter is passed where the handler
/// is mounted; a missing filter is a compile error here too.
///
/// * `pay::call(..)` is the function itself, unguarded, for unit tests; `pay::POLICY` holds the
///   attribute's settings.
/// * Arguments are extracted before the key lookup, on every call including replays, except for the
///   argument that reads the body, which is extracted after the grant. The argument that reads the
///   body is recognised at run time, in any position, because it takes the payload. If an argument
///   is rejected, the response is not stored, and the key stays free.
/// * actix's routing attributes (`#[post("/payments")]`) need a function, so they do not work on an
///   annotated handler: mount it with `.to(pay(filter))`.
/// * Everything else, and functions and methods with a `key`, work as in [`idempotent`].
#[proc_macro_attribute]
pub fn idempotent_actix(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(Framework::Actix, arguments.into(), item.into()).into()
}
