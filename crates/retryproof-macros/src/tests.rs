// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the text of every refusal. The facade's UI tests check the place at which the compiler
//! reports each refusal.

mod snapshot;

use proc_macro2::TokenStream;
use quote::quote;

use crate::validate::Framework;

/// A function that accepts every argument of `#[idempotent(key = .., ..)]`.
const METHOD: &str =
    "async fn consume(&self, order: &Order) -> Result<Receipt, HandlerError> { body() }";
const ENDPOINT: &str = "async fn pay(Json(order): Json<Order>) -> String { String::new() }";

fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    crate::expand::idempotent(Framework::Axum, arguments, item)
}

/// Returns the messages of an expansion, in order.
fn messages(arguments: &str, item: &str) -> Vec<String> {
    let expansion =
        idempotent(arguments.parse().expect("tokens"), item.parse().expect("tokens")).to_string();
    let mut found = Vec::new();
    let mut rest = expansion.as_str();
    while let Some((_, after)) = rest.split_once("compile_error ! {") {
        let (literal, after) = after.split_once("\" }").expect("a closed call");
        let literal: syn::LitStr =
            syn::parse_str(&format!("{}\"", literal.trim())).expect("one literal");
        found.push(literal.value());
        rest = after;
    }
    found
}

#[track_caller]
fn takes(arguments: &str, item: &str) {
    assert_eq!(messages(arguments, item), [""; 0], "#[idempotent({arguments})] {item}");
}

/// Expects exactly one message, which contains `part`.
#[track_caller]
fn refuses(arguments: &str, item: &str, part: &str) {
    let found = messages(arguments, item);
    let fits = found.len() == 1 && found[0].contains(part);
    assert!(fits, "#[idempotent({arguments})] {item}\n  said {found:?}\n  not  {part:?}");
}

#[test]
fn ann_1_every_argument_is_taken() {
    let every = r#"key = order.id, fingerprint = (order.amount, &order.currency), subject = order.customer, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT0S", scope = "orders",
        codec = retryproof::JsonCodec, completion = "propagate", hold_when = HandlerError::is_unknown, engine = self.engine,
        crate = ::retryproof"#;
    takes(every, METHOD);
    takes(&format!("{every},"), METHOD);
    takes("key = id::<A, B>(order, |a, b| a)", METHOD);
    takes("http", ENDPOINT);
    takes(
        r#"http, ttl = "PT24H", lease = "PT30S", wait_timeout = "PT0S", scope = "pay""#,
        ENDPOINT,
    );
    takes("http, crate = retryproof", ENDPOINT);
}

#[test]
fn ann_2_endpoints_refuse_what_functions_take() {
    refuses("http, key = order.id", ENDPOINT, "`key` cannot be used on an HTTP endpoint");
    refuses(
        "http, fingerprint = body",
        ENDPOINT,
        "`fingerprint` cannot be used on an HTTP endpoint",
    );
    refuses("http, subject = order.customer", ENDPOINT, "what its `subject` hook returns");
    refuses("http, codec = JsonCodec", ENDPOINT, "`codec` cannot be used on an HTTP endpoint");
    refuses(
        "http, completion = \"propagate\"",
        ENDPOINT,
        "`completion` cannot be used on an HTTP endpoint",
    );
    refuses("http, hold_when = E::is_unknown", ENDPOINT, "the response's `AnswerFate`");
    refuses("http, engine = x", ENDPOINT, "`engine` cannot be used on an HTTP endpoint");
}

#[test]
fn ann_2_ctx_4_malformed_durations_are_named_with_their_value() {
    for (text, problem) in [
        ("24h", "does not begin with `P`"),
        ("P1M", "years and months are not allowed"),
        ("P1Y", "years and months are not allowed"),
        ("P0.5D", "only seconds can have a fraction"),
        ("PT1,5S", "a fraction must begin with a dot"),
        ("pt5s", "its letters must be upper case"),
        ("P1DT", "nothing follows"),
        ("-PT5S", "cannot have a sign"),
        ("", "it is empty"),
    ] {
        for name in ["ttl", "lease", "wait_timeout"] {
            let arguments = format!("http, {name} = {text:?}");
            refuses(&arguments, ENDPOINT, &format!("`{name} = {text:?}` is not a duration: "));
            refuses(&arguments, ENDPOINT, problem);
        }
    }
    refuses("http, ttl = 30", ENDPOINT, "`ttl` must be an ISO 8601 duration in a string literal");
    refuses("http, ttl = Duration::from_secs(1)", ENDPOINT, "in a string literal");
}

#[test]
fn ann_2_ctx_2_bounds_are_judged_at_compile_time() {
    for (name, inside, outside) in [
        ("ttl", ["PT0.001S", "P3650D"], ["PT0S", "P3650DT0.001S"]),
        ("lease", ["PT0.01S", "P1D"], ["PT0.009S", "PT24H0.001S"]),
        ("wait_timeout", ["PT0S", "PT24H"], ["PT24H0.001S", "P2D"]),
    ] {
        for text in inside {
            takes(&format!("http, {name} = {text:?}"), ENDPOINT);
        }
        for text in outside {
            let message = format!("`{name} = {text:?}` is out of range");
            refuses(&format!("http, {name} = {text:?}"), ENDPOINT, &message);
        }
    }
    // A lease is allowed to be longer than the ttl, because the ttl starts at completion.
    takes(r#"http, ttl = "PT1S", lease = "PT1H""#, ENDPOINT);
}

#[test]
fn ann_2_id_3_scopes_are_judged_at_compile_time() {
    let bad = ["".to_owned(), "  ".to_owned(), "a\\nb".to_owned(), "s".repeat(256)];
    for (scope, problem) in
        bad.iter().zip(["is empty", "is blank", "contains a control character", "is too long"])
    {
        refuses(&format!("http, scope = \"{scope}\""), ENDPOINT, problem);
    }
    takes(&format!("http, scope = {:?}", "s".repeat(255)), ENDPOINT);
    refuses("http, scope = SCOPE", ENDPOINT, "`scope` must be a string literal");
}

#[test]
fn ann_2_unknown_repeated_and_misplaced_arguments() {
    refuses("http, colour = \"red\"", ENDPOINT, "unknown argument `colour`; expected");
    refuses("http, waitTimeout = \"PT1S\"", ENDPOINT, "did you mean `wait_timeout`?");
    refuses("http, blue", ENDPOINT, "unknown argument `blue`");
    refuses("http, ttl", ENDPOINT, "`ttl` needs a value");
    refuses("http, ttl = ", ENDPOINT, "`ttl =` needs a value");
    refuses("http, ttl = \"PT1S\", ttl = \"PT2S\"", ENDPOINT, "`ttl` is given twice");
    refuses("http, http", ENDPOINT, "`http` is given twice");
    refuses("ttl = \"PT1S\", http", ENDPOINT, "`http` must come first");
    refuses("http, \"PT1S\"", ENDPOINT, "an argument must be `http` or `name = value`");
    refuses("http, ttl = \"PT1S\" lease = \"PT1S\"", ENDPOINT, "expected `,`");
}

#[test]
fn ann_2_a_missing_key_and_a_literal_one() {
    refuses("", METHOD, "`key` is missing");
    refuses("ttl = \"PT1S\"", METHOD, "`key` is missing");
    refuses("key = \"order.id\"", METHOD, "a literal key is the same for every call");
    refuses("key = 7", METHOD, "a literal key is the same for every call");
    refuses("key = order.id, fingerprint = \"order\"", METHOD, "a literal fingerprint is the same");
    refuses("key = order.id, subject = \"customer\"", METHOD, "a literal subject is the same");
}

#[test]
fn ann_2_a_function_that_cannot_report_in_flight() {
    for returns in
        ["", "-> ()", "-> Option<u8>", "-> &'static str", "-> (u8, u8)", "-> [u8; 4]", "-> !"]
    {
        refuses(
            "key = id, engine = e",
            &format!("async fn f(id: u8) {returns} {{}}"),
            "must return a `Result`",
        );
    }
    // `async_trait` generates this signature for a method.
    let boxed = "fn f(&self) -> Pin<Box<dyn Future<Output = Result<(), E>>>> {}";
    refuses("key = id", boxed, "must return a `Result`");
    refuses(
        "key = id",
        "async fn f(&self) -> Result<impl Serialize, E> {}",
        "the value's type must be named",
    );
    takes("key = id", "async fn f(&self) -> io::Result<()> {}");
    takes("key = id", "async fn f(&self) -> AliasThatMayBeOne {}");
}

#[test]
fn ann_2_ann_3_a_function_without_an_engine() {
    refuses(
        "key = id",
        "async fn f(id: u8) -> Result<(), E> {}",
        "a function without `self` has no engine",
    );
}

#[test]
fn ann_1_generic_functions_name_their_scope() {
    let shared = "instantiations of a generic function would share their records";
    for item in [
        "async fn on<E: Event>(&self, id: E) -> Result<(), F> {}",
        "fn on<'a, E>(&self, id: &'a str) -> Result<(), F> {}",
        "async fn on<const N: usize>(&self, id: [u8; N]) -> Result<(), F> {}",
        "async fn on(&self, id: impl Event) -> Result<(), F> {}",
        "async fn on(&self, id: &[Box<impl Event>]) -> Result<(), F> {}",
    ] {
        refuses("key = id", item, shared);
        refuses("key = id, completion = \"propagate\"", item, "name the scope");
        takes("key = id, scope = \"orders\"", item);
    }
    // These functions need no named scope, because they have no type parameters of their own. The
    // parameter `T` belongs to the `impl`, and the default scope contains `Self`, which differs for
    // each `T`.
    takes("key = id", "async fn on<'a>(&'a self, id: &'a str) -> Result<(), F> where 'a: 'a {}");
    takes("key = id", "async fn on(&self, id: Batch<T>) -> Result<(), F> where T: Event {}");
    takes("key = id, engine = e", "async fn on(id: &dyn Event, e: fn() -> E) -> Result<(), F> {}");
}

#[test]
fn ann_2_arguments_of_functions_with_values_that_cannot_be() {
    refuses(
        "key = order.id, completion = \"ignore\"",
        METHOD,
        "`completion = \"ignore\"` is unknown",
    );
    refuses(
        "key = order.id, completion = propagate",
        METHOD,
        "`completion` must be a string literal",
    );
    // CMP-7: `joined` needs a transaction argument, and a transaction argument needs `joined`.
    refuses("key = order.id, completion = \"joined\"", METHOD, "needs a transaction argument");
    let with = |tx: &str| {
        format!("async fn on(&self, order: &Order, {tx}) -> Result<(), Failure> {{ Ok(()) }}")
    };
    let joined = "key = order.id, completion = \"joined\"";
    refuses("key = order.id", &with("#[tx] tx: &mut Tx"), "`#[tx]` marks the transaction");
    refuses(
        "key = order.id, completion = \"propagate\"",
        &with("#[tx] tx: &mut Tx"),
        "`#[tx]` marks",
    );
    refuses(joined, &with("#[tx] tx: Tx"), "the argument's type must be `&mut ..`");
    refuses(joined, &with("#[tx] tx: &Tx"), "the argument's type must be `&mut ..`");
    refuses(joined, &with("#[tx] tx: &mut impl Port"), "name the type of the transaction");
    refuses(joined, &with("#[tx] tx: &mut Tx<'_, Db>"), "write `'static`");
    refuses(
        joined,
        &with("#[tx] a: &mut Tx, #[tx] b: &mut Tx"),
        "only one argument can have `#[tx]`",
    );
    refuses("http", "async fn pay(#[tx] tx: Tx) -> String { String::new() }", "`GuardedTx<..>`");
    // RUN-4: the engine supplies the `#[lease]` argument, like the `#[tx]` argument.
    let lease = "key = order.id";
    takes(lease, &with("#[lease] lease: &Lease"));
    takes(lease, &with("#[lease] mut lease: retryproof::Lease"));
    takes(joined, &with("#[lease] lease: &Lease, #[tx] tx: &mut Tx"));
    refuses(
        lease,
        &with("#[lease] a: &Lease, #[lease] b: &Lease"),
        "only one argument can have `#[lease]`",
    );
    refuses(lease, &with("#[lease] lease: impl Leases"), "must be `&Lease` or `Lease`");
    refuses(joined, &with("#[lease] #[tx] tx: &mut Tx"), "mark one with `#[lease]`");
    refuses(lease, "async fn on(#[lease] self) -> Result<(), E> {}", "`self` is not a lease");
    refuses(
        "http",
        "async fn pay(#[lease] lease: Lease) -> String { String::new() }",
        "as an argument, without `#[lease]`",
    );
    refuses(
        "key = order.id, hold_when = \"timeout\"",
        METHOD,
        "`hold_when` must be a function that takes the error",
    );
    refuses("key = order.id, codec = \"json\"", METHOD, "`codec` must be an expression");
    refuses("key = order.id, crate = 1 + 1", METHOD, "`crate` must be the path");
}

#[test]
fn ann_2_handlers_that_are_no_plain_async_functions() {
    let layer = "guard its route with the layer instead";
    refuses("http", "async fn pay<T: Extract>(t: T) {}", layer);
    refuses("http", "async fn pay<'a>(t: Json<u8>) {}", layer);
    refuses("http", "async fn pay(t: impl Extract) {}", layer);
    refuses("http", "async fn pay(t: Json<u8>) where u8: Copy {}", layer);
    refuses("http", "fn pay() {}", "an HTTP endpoint must be an `async fn`");
    refuses("http", "async unsafe fn pay() {}", "cannot be `unsafe` or `extern`");
    refuses("http", "async extern \"C\" fn pay() {}", "cannot be `unsafe` or `extern`");
    refuses("http", "async fn pay(&self) {}", "a method cannot be an endpoint");
    refuses("http", "async fn pay(order: Self) {}", "`Self` has no meaning");
    refuses("http", "async fn pay(order: &Order) {}", "a handler's arguments must be owned");
    refuses(
        "http",
        "async fn pay(order: Json<Cow<'_, str>>) {}",
        "a handler's arguments must be owned",
    );
    refuses("http", "async fn pay(#[cfg(unix)] a: Method) {}", "cannot have a `#[cfg]`");
    takes("http", "async fn pay(Json(pay): Json<Order>) {}");
    takes("http", "async fn pay(order: Json<&'static str>) {}");
    let arguments =
        |count| (0..count).map(|at| format!("a{at}: Method")).collect::<Vec<_>>().join(", ");
    takes("http", &format!("async fn pay({}) {{}}", arguments(16)));
    refuses("http", &format!("async fn pay({}) {{}}", arguments(17)), "at most 16 arguments");
}

#[test]
fn ann_2_items_that_cannot_be_guarded() {
    refuses("http", "struct Pay;", "can be used only on a function or a method");
    refuses("http", "impl Pay {}", "can be used only on a function or a method");
    refuses("http", "fn fn", "expected identifier");
    refuses("key = id", "async fn f(&self) -> Result<(), E>;", "this function has no body");
    refuses("key = id", "const fn f(&self) -> Result<(), E> {}", "a `const fn` cannot wait");
    refuses(
        "key = id",
        "#[retryproof::idempotent(key = a)] fn f(&self) -> Result<(), E> {}",
        "two `#[idempotent]` attributes",
    );
}

#[test]
fn ann_2_several_mistakes_are_shown_at_once() {
    let arguments = r#"http, key = a, ttl = "24h", lease = "PT0S", colour = 1, scope = "", = , wait_timeout = "P1Y""#;
    let found = messages(arguments, "fn pay<T>(&self) {}");
    assert_eq!(found.len(), 10, "{found:#?}");
}

/// After an error, the expansion still contains the item, but only once and without a second
/// attribute.
#[test]
fn ann_2_a_refused_item_is_left_as_it_was() {
    let body = quote!({ this is not (Rust) });
    let item =
        quote!(#[doc = "Docs."] #[idempotent(http)] pub async fn pay<T>(body: T) -> u8 #body);
    let kept = quote!(#[doc = "Docs."] pub async fn pay<T>(body: T) -> u8 #body);
    let expansion = idempotent(quote!(http, ttl = "24h"), item).to_string();
    assert!(expansion.ends_with(&kept.to_string()), "{expansion}");
    let strange = quote!(
        struct Pay {
            field: u8,
        }
    );
    assert!(idempotent(quote!(http), strange.clone()).to_string().ends_with(&strange.to_string()));
}

/// A `macro_rules!` macro passes its fragments on in invisible groups.
#[test]
fn ann_1_arguments_may_come_from_a_macro() {
    let group = |tokens| proc_macro2::Group::new(proc_macro2::Delimiter::None, tokens);
    let item = || ENDPOINT.parse().expect("tokens");
    let (right, wrong) = (group(quote!("PT24H")), group(quote!("24h")));
    assert!(!idempotent(quote!(http, ttl = #right), item()).to_string().contains("compile_error"));
    assert!(
        idempotent(quote!(http, ttl = #wrong), item()).to_string().contains("is not a duration")
    );
}

/// A body that does not parse is emitted unchanged, so that the compiler reports the error.
#[test]
fn ann_1_the_body_is_not_parsed() {
    takes("http", "async fn pay() -> u8 { let x = ; }");
}
