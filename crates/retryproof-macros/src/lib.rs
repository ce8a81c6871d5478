// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The attribute `#[idempotent]` of `retryproof`; use it as `retryproof::idempotent`. For the
//! full documentation, see [`macro@idempotent`].
//!
//! `attr` parses the arguments. `validate` refuses invalid input, with an error at the offending
//! token. `expand` emits a small amount of code that calls `::retryproof::__private`. This crate
//! enforces the compile-time part of ANN-1 to ANN-6; the library enforces the run-time part.

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
/// There are two forms. `#[idempotent(http, ..)]` creates an axum endpoint whose key comes from the
/// client. `#[idempotent(key = .., ..)]` guards a function or method whose key is computed from the
/// arguments.
///
/// # Arguments
///
/// | argument | value | endpoint | function, method |
/// |---|---|---|---|
/// | `http` | none; comes first | required | refused |
/// | `key` | an expression that uses the parameters and implements `Display`; its value is borrowed once per call, before the body runs | refused | required |
/// | `fingerprint` | an expression that uses the parameters and implements `Serialize`; its value must be the same in all calls with the same key, and is borrowed once per call, before the body runs | refused | optional |
/// | `subject` | an expression that uses the parameters and implements `Display`; [names the person or tenant whom the result is about](#sealed-results) | refused | optional |
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
/// `"PT30S"` or `"P7D"`; the attribute checks it at compile time. If a duration is omitted, the
/// configured default applies. The configuration of a named scope takes precedence over the
/// attribute.
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
///   both the struct and the function, and `cfg` to all emitted items. An attribute that generates
///   further items, such as `utoipa::path`, belongs above this one.
/// * Arguments are extracted before the key lookup, on every call including replays, so an
///   extractor that authenticates also protects replays. Only a last argument that reads the body
///   is extracted after the grant. If an argument is rejected, the response is not stored, and the
///   key stays free.
/// * The default `scope` is the method and the matched route with parameter names erased: `POST
///   /orders/{}`.
/// * The returned response is stored and replayed, even if it comes from an `Err`, unless it is
///   marked `Release` or `Hold`. The attribute does not inspect a `Result`.
/// * Where the endpoint is in scope, a local variable cannot have the endpoint's name, except
///   inside the endpoint's own function. In a pattern, such as the left side of a `let`, that name
///   refers to the unit struct instead of binding a variable.
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
/// The signature stays the same, except that arguments marked `#[lease]` or `#[tx]` are removed.
/// The first call with a key runs the body. Later calls with the key return the first call's value,
/// and the body does not run again. An error from the body is returned unchanged and frees the key,
/// [unless the error holds it](#errors-and-the-lease). Every other error is a `Rejected`, converted
/// by the error type's `From<Rejected>`: `InFlight` with the time to wait before a retry, an error
/// from the store, or a result that cannot be replayed.
///
/// * With a `fingerprint`, a call with a known key and a different fingerprint returns
///   `Rejected::Mismatch`, and its body does not run. Without a fingerprint, a call with a known
///   key gets the first call's value, even if its other arguments differ. The usual expression is a
///   tuple of all values that matter: `(order.amount, &order.currency)`. `Fingerprint::of`
///   describes what is compared.
/// * The value must implement `Serialize` and `DeserializeOwned`, or the traits that the `codec`
///   requires.
/// * The engine comes from `engine = ..`, or from `self`: `Self: AsRef<IdempotencyEngine>`.
/// * The default `scope` is the full path. For a function, this is `module_path!()` and the name;
///   for a method, `type_name::<Self>()` and the name; for a trait method, `<Type as
///   Trait<..>>::name`. The trait's parameters are included, so a type that handles two events has
///   two scopes. For an associated function whose signature has neither `self` nor `Self`, and for
///   a function inside a function, the scope is the path as the compiler writes it. Renaming a
///   function orphans its records, so name the scope if records outlive a release. A generic
///   function, or one with an `impl Trait` argument, must name its scope, because all
///   instantiations have the same path and would share records. Put what distinguishes the
///   instantiations into the `key`. Also name the scope if the path is longer than 255 bytes.
///   Otherwise, a plain function does not compile, and calls of a method fail with
///   `Rejected::Store` of kind `Invalid`.
/// * An async body runs within the caller's future, so it can borrow. If the future is dropped
///   before the body begins, the key is free. If the future is dropped later, the key becomes free
///   when the lease runs out.
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
/// By default, an error frees the key, and the next call runs immediately. This is right if the
/// failed run certainly had no effect. **An error for which `hold_when` is true holds the key**:
/// the effect is unknown, so no call runs until the lease ends. The next run is then a takeover
/// (`lease.attempt()`). In both cases the caller gets the error unchanged.
///
/// * An argument marked `#[lease]`, of type `&Lease` or `Lease`, receives the lease of the run. The
///   lease offers `downstream_key(step)` for calls to other systems, `attempt()`, `lost()`, and
///   `hold_on_error()`, which makes every later error, panic or drop hold the key. **Callers do not
///   pass this argument**, and it is not part of the key.
/// * An endpoint has no `hold_when`. To hold the key, it marks its response with an `AnswerFate`;
///   to use the lease, it extracts the lease as an argument.
///
/// # Sealed results
///
/// If the engine's store has sealed results, each result is encrypted with the key of one subject:
/// the person or tenant whom the result is about. `subject = order.customer` names the subject.
/// When the key of that customer is destroyed, the result can no longer be read. Without a
/// `subject`, all calls of the scope share one key. Other stores ignore the subject. An endpoint
/// has no `subject`: the filter uses the caller, or what its `subject` hook returns.
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
/// The record is written in the same transaction as the body's writes. They commit together or not
/// at all: if the process dies before the commit, the database has neither.
///
/// * Exactly one argument, of type `&mut T`, is marked `#[tx]`. **Callers do not pass it**: the
///   engine opens the transaction after the key is granted, and commits it when the body has
///   returned `Ok`. An `Err`, a panic, or a drop before the commit rolls the transaction back and
///   frees the key, [unless the error holds it](#errors-and-the-lease).
/// * The engine is a `JoinedEngine<T>` (blocking: `blocking::JoinedEngine<T>`), created at start-up
///   by `engine.joined(source)?`, which refuses a store that cannot join.
/// * If the record cannot be written, the body's writes are rolled back, and the call fails with
///   `Rejected::LeaseLost` or `Rejected::Completion`.
/// * An endpoint joins a transaction by taking a `GuardedTx<T>`, without an argument of the
///   attribute.
///
/// # Showing the expansion
///
/// `RETRYPROOF_MACROS_DEBUG=pay cargo check` prints the expansion of the function `pay` when cargo
/// compiles the crate; `*` prints all expansions. After a build without changes, touch the crate's
/// `lib.rs` first.
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
/// implements actix's `Handler`: `pay(filter)` is the guarded handler. The filter is passed where
/// the handler is mounted, because actix's router has no typed state. Without the filter,
/// `web::post().to(pay)` does not compile.
///
/// * `pay::call(..)` is the function itself, unguarded, for unit tests; `pay::POLICY` holds the
///   attribute's settings.
/// * Arguments are extracted before the key lookup, on every call including replays. Only the
///   argument that reads the body is extracted after the grant. It can be in any position; the
///   library recognises it at run time, because it takes the payload. If an argument is rejected,
///   the response is not stored, and the key stays free.
/// * actix's routing attributes (`#[post("/payments")]`) need a function, so they do not work on an
///   annotated handler: mount it with `.to(pay(filter))`.
/// * Everything else, and functions and methods with a `key`, work as in [`idempotent`].
#[proc_macro_attribute]
pub fn idempotent_actix(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(Framework::Actix, arguments.into(), item.into()).into()
}
