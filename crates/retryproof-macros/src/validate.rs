// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges arguments and item together: what is refused at compile time is refused here (ANN-2, CTX-2, CTX-4, ID-3).
//!
//! Every message points at the token that is wrong, and says the way out. Nothing here emits code.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::Span;
use syn::{Expr, FnArg, GenericParam, Lit, LitStr, Path, ReturnType, Safety, Signature, Type};

use crate::attr::{Arg, Args, Errors};
use crate::expand::Framework;
use crate::item::{Function, elides_a_lifetime, is_tx, mentions};

const MOST_SCOPE_BYTES: usize = 255;
/// As axum: a tuple of 15 arguments and the last one.
const MOST_ARGUMENTS: usize = 16;

const DAY: u64 = 86_400;
/// CTX-2, with the bounds as they are written in a message.
const TTL: Bounds = Bounds {
    range: Duration::from_millis(1)..=Duration::from_secs(3_650 * DAY),
    shown: "`PT0.001S` to `P3650D`",
};
const LEASE: Bounds =
    Bounds { range: Duration::from_millis(10)..=Duration::from_secs(DAY), shown: "`PT0.01S` to `PT24H`" };
const WAIT: Bounds = Bounds { range: Duration::ZERO..=Duration::from_secs(DAY), shown: "`PT0S` to `PT24H`" };

struct Bounds {
    range: RangeInclusive<Duration>,
    shown: &'static str,
}

/// What endpoints and functions have in common.
pub(crate) struct Common {
    /// `crate = path`; `None` is `::retryproof`.
    pub(crate) root: Option<Path>,
    pub(crate) scope: Option<LitStr>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait_timeout: Option<Duration>,
}

/// What is to be emitted.
pub(crate) enum Plan {
    /// `#[idempotent(http, ..)]`.
    Endpoint(Common),
    /// `#[idempotent(key = .., ..)]`.
    Keyed(Common, Box<Keyed>),
}

/// The arguments that only functions and methods take.
pub(crate) struct Keyed {
    pub(crate) key: Expr,
    pub(crate) fingerprint: Option<Expr>,
    pub(crate) codec: Option<Expr>,
    pub(crate) completion: Option<Completion>,
    /// `None`: the method's `self` has it.
    pub(crate) engine: Option<Expr>,
    pub(crate) returns: Type,
}

/// CMP-4 and CMP-7, for one function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    LogAndReturn,
    Propagate,
    /// In the transaction that is the argument marked `#[tx]`.
    Joined,
}

/// Judges; `None` if and only if an error was noted.
pub(crate) fn validate(
    framework: Framework,
    args: &Args,
    function: &Function,
    errors: &mut Errors,
) -> Option<Plan> {
    let common = Common {
        root: args.get("crate").and_then(|arg| root(arg, errors)),
        scope: args.get("scope").and_then(|arg| scope(arg, errors)),
        ttl: args.get("ttl").and_then(|arg| duration(arg, &TTL, errors)),
        lease: args.get("lease").and_then(|arg| duration(arg, &LEASE, errors)),
        wait_timeout: args.get("wait_timeout").and_then(|arg| duration(arg, &WAIT, errors)),
    };
    if let Some(second) = function.second() {
        errors
            .at(second, "a second `#[idempotent]` on one function: keep one, a call is never guarded twice");
    }
    if function.body.is_none() {
        errors
            .at(&function.sig, "a declaration has nothing to guard; annotate the function that has the body");
    }
    if let Some(token) = &function.sig.constness {
        errors.at(token, "a `const fn` cannot wait for a store; remove `const`");
    }
    match args.http {
        Some(_) => {
            endpoint(framework, args, function, errors);
            Some(Plan::Endpoint(common))
        }
        None => keyed(args, function, errors).map(|keyed| Plan::Keyed(common, Box::new(keyed))),
    }
}

fn endpoint(framework: Framework, args: &Args, function: &Function, errors: &mut Errors) {
    let layer = match framework {
        Framework::Axum => {
            "guard its route by the layer instead: `.route_layer(filter.guard(Policy::new(\"..\")))`"
        }
        Framework::Actix => {
            "guard its resource by the middleware instead: `.wrap(Idempotency::new(&filter, Policy::new(\"..\")))`"
        }
    };
    let structure = match framework {
        Framework::Axum => "unit struct",
        Framework::Actix => "struct",
    };
    let engine = match framework {
        Framework::Axum => "the filter in the router's state brings its own",
        Framework::Actix => "the filter that the handler is mounted with brings its own",
    };
    for (name, reason) in [
        ("key", "the client sends the key in a header"),
        ("fingerprint", "the filter takes that of the request (`web.fingerprint`)"),
        ("codec", "the response is stored as it is"),
        ("completion", "the filter's configuration decides (`completion-failure-policy`)"),
        ("engine", engine),
    ] {
        if let Some(arg) = args.get(name) {
            errors.at(
                &arg.name,
                format!("`{name}` is not taken on an HTTP endpoint: {reason}; remove it, or remove `http` if this is no endpoint"),
            );
        }
    }
    for marked in function.marked() {
        errors.at(
            marked,
            "`#[tx]` is for functions with a `key`; an endpoint takes its transaction as an argument of the type `GuardedTx<..>`, and joins by that alone",
        );
    }
    let sig = &function.sig;
    if sig.asyncness.is_none() && sig.constness.is_none() {
        errors.at(
            sig.fn_token,
            "an HTTP endpoint is an `async fn`; blocking functions take `key` instead of `http`",
        );
    }
    if !matches!(sig.safety, Safety::Default) || sig.abi.is_some() {
        errors.at(&sig.ident, "an HTTP endpoint is neither `unsafe` nor `extern`");
    }
    if !sig.generics.params.is_empty() {
        errors.at(
            &sig.generics,
            format!("a generic handler cannot be annotated, because it becomes a {structure}; {layer}"),
        );
    }
    if let Some(clause) = &sig.generics.where_clause {
        errors.at(clause, format!("a handler with a `where` clause cannot be annotated; {layer}"));
    }
    if sig.inputs.len() > MOST_ARGUMENTS {
        errors.at(
            sig.inputs.iter().nth(MOST_ARGUMENTS),
            format!(
                "a handler takes at most {MOST_ARGUMENTS} arguments; put some of them into one extractor"
            ),
        );
    }
    for input in &sig.inputs {
        match input {
            FnArg::Receiver(receiver) => errors.at(
                receiver,
                "a method is no endpoint: `self` is not extracted from a request; annotate a free function, or use `key` instead of `http`",
            ),
            FnArg::Typed(input) if mentions(&input.ty, "impl") => errors.at(
                &input.ty,
                format!("a handler with an `impl Trait` argument is generic and cannot be annotated; {layer}"),
            ),
            FnArg::Typed(input) if mentions(&input.ty, "Self") => {
                errors.at(&input.ty, "an endpoint is a free function; `Self` has no meaning there");
            }
            FnArg::Typed(input) if elides_a_lifetime(&input.ty) => {
                errors.at(&input.ty, "a handler's arguments are owned: an extractor lends nothing");
            }
            FnArg::Typed(input) if input.attrs.iter().any(|attr| attr.path().is_ident("cfg")) => {
                errors.at(&input.ty, "an argument of an endpoint is not conditional; write the function twice");
            }
            FnArg::Typed(_) => {}
        }
    }
}

fn keyed(args: &Args, function: &Function, errors: &mut Errors) -> Option<Keyed> {
    let sig = &function.sig;
    let key = args.get("key").map(|arg| arg.value.clone());
    match &key {
        None => errors.at_span(
            Span::call_site(),
            "`key` is missing: give an expression over the parameters, as in `key = order.id`, or write `http` first if this is an HTTP endpoint",
        ),
        Some(key) if is_literal(key) => errors.at(
            key,
            "a literal key is the same for every call, which would run once in all; write an expression over the parameters, without quotes, as in `key = order.id`",
        ),
        Some(_) => {}
    }
    let fingerprint = args.get("fingerprint").map(|arg| arg.value.clone());
    if let Some(text) = fingerprint.as_ref().filter(|value| is_literal(value)) {
        errors.at(
            text,
            "a literal fingerprint is the same for every call, and tells none apart; write an expression over the parameters, without quotes, as in `fingerprint = (order.amount, &order.currency)`",
        );
    }
    let codec = args.get("codec").map(|arg| arg.value.clone());
    if let Some(text) = codec.as_ref().filter(|codec| is_literal(codec)) {
        errors.at(text, "`codec` is an expression, as in `codec = retryproof::BytesCodec`, not a literal");
    }
    let completion = args.get("completion").and_then(|arg| {
        let completion = completion(arg, errors)?;
        if completion == Completion::Joined && function.marked().next().is_none() {
            errors.at(
                &arg.value,
                "`completion = \"joined\"` wants a transaction argument: mark one with `#[tx]`, as in `#[tx] tx: &mut SqliteTx`; the engine opens it after the grant, and callers do not pass it",
            );
            return None;
        }
        Some(completion)
    });
    transaction(function, args.get("completion").is_some(), completion, errors);
    let engine = args.get("engine").map(|arg| arg.value.clone());
    if engine.is_none() && sig.receiver().is_none() {
        errors.at(
            &sig.ident,
            "a function without `self` has no engine at hand; name it, as in `engine = ctx.engine`, an expression that is `AsRef<IdempotencyEngine>`",
        );
    }
    if args.get("scope").is_none() {
        generic(sig, errors);
    }
    let returns = returns(&sig.output, sig.ident.span(), errors);
    Some(Keyed { key: key?, fingerprint, codec, completion, engine, returns: returns? })
}

/// ANN-1: the default scope is the function's path, which its instantiations share. Those of a generic `impl` or trait are told apart by
/// `Self`; lifetimes make no instantiations.
fn generic(sig: &Signature, errors: &mut Errors) {
    const ONE_SCOPE: &str = "instantiations of a generic function would share their records: name the scope, as in `scope = \"orders.consume\"`, and put into the key what tells them apart";
    for param in &sig.generics.params {
        match param {
            GenericParam::Type(param) => errors.at(&param.ident, ONE_SCOPE),
            GenericParam::Const(param) => errors.at(&param.ident, ONE_SCOPE),
            GenericParam::Lifetime(_) => {}
        }
    }
    for input in &sig.inputs {
        match input {
            // A transaction names its type, whatever the scope.
            FnArg::Typed(input) if mentions(&input.ty, "impl") && !input.attrs.iter().any(is_tx) => {
                errors.at(&input.ty, ONE_SCOPE);
            }
            _ => {}
        }
    }
}

/// CMP-7: at most one argument is marked, and it can be lent.
fn transaction(function: &Function, given: bool, completion: Option<Completion>, errors: &mut Errors) {
    let mut marked = function.marked();
    let Some(tx) = marked.next() else { return };
    for second in marked {
        errors.at(second, "a second `#[tx]`: the record joins one transaction");
    }
    // Where `completion` itself was refused, one message is enough.
    if !given || completion.is_some_and(|completion| completion != Completion::Joined) {
        errors.at(
            tx,
            "`#[tx]` marks the transaction of `completion = \"joined\"`; write that, or drop the mark",
        );
    }
    let FnArg::Typed(argument) = tx else {
        errors.at(tx, "`self` is no transaction; mark another argument with `#[tx]`");
        return;
    };
    match &*argument.ty {
        Type::Reference(lent) if lent.mutability.is_some() && lent.lifetime.is_none() => {
            if mentions(&lent.elem, "impl") {
                errors.at(
                    &lent.elem,
                    "name the type of the transaction: it says which joined engine is wanted",
                );
            } else if elides_a_lifetime(&lent.elem) {
                errors.at(
                    &lent.elem,
                    "the engine owns the transaction, so that its type borrows nothing: write `'static`",
                );
            }
        }
        other => errors.at(other, "the transaction is lent by the engine: its type is `&mut ..`"),
    }
}

/// The return type, unless it surely is no `Result`; an alias of one is left to the type checker.
fn returns(output: &ReturnType, name: Span, errors: &mut Errors) -> Option<Type> {
    const RESULT: &str = "a function with a `key` returns a `Result`, so that it can say that a call is in flight; its error type implements `From<retryproof::Rejected>`";
    let ReturnType::Type(_, ty) = output else {
        errors.at_span(name, RESULT);
        return None;
    };
    if mentions(ty, "impl") {
        errors
            .at(ty, "a replay returns the stored value, so its type is named: write it instead of `impl ..`");
        return None;
    }
    let possible = match &**ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            const NEVER: [&str; 12] =
                ["Option", "Vec", "String", "Box", "Pin", "Arc", "bool", "u8", "u32", "u64", "i64", "usize"];
            !NEVER.iter().any(|never| last.ident == never)
        }),
        Type::Macro(_) | Type::Group(_) | Type::Paren(_) | Type::Verbatim(_) => true,
        _ => false,
    };
    if !possible {
        errors.at(ty, RESULT);
        return None;
    }
    Some((**ty).clone())
}

fn completion(arg: &Arg, errors: &mut Errors) -> Option<Completion> {
    const KNOWN: &str = "it is \"log-and-return\", \"propagate\" or \"joined\"";
    let text = literal(&arg.value);
    match text.as_ref().map(LitStr::value).as_deref() {
        Some("log-and-return") => return Some(Completion::LogAndReturn),
        Some("propagate") => return Some(Completion::Propagate),
        Some("joined") => return Some(Completion::Joined),
        Some(other) => errors.at(&arg.value, format!("`completion = {other:?}` is unknown; {KNOWN}")),
        None => errors.at(&arg.value, format!("`completion` is a string literal; {KNOWN}")),
    }
    None
}

fn root(arg: &Arg, errors: &mut Errors) -> Option<Path> {
    match ungrouped(&arg.value) {
        Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => Some(path.path.clone()),
        other => {
            errors.at(
                other,
                "`crate` is the path of the crate `retryproof`, as in `crate = my_framework::retryproof`",
            );
            None
        }
    }
}

/// ID-3, as far as a literal can be judged: completely.
fn scope(arg: &Arg, errors: &mut Errors) -> Option<LitStr> {
    let Some(text) = literal(&arg.value) else {
        errors.at(
            &arg.value,
            "`scope` is a string literal, as in `scope = \"payments\"`: a scope is code, not data",
        );
        return None;
    };
    let value = text.value();
    let problem = if value.is_empty() {
        "is empty"
    } else if value.len() > MOST_SCOPE_BYTES {
        "is too long"
    } else if value.chars().all(char::is_whitespace) {
        "is blank"
    } else if value.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Some(text);
    };
    errors.at(&arg.value, format!("this `scope` {problem}; it takes 1 to {MOST_SCOPE_BYTES} bytes of text"));
    None
}

fn duration(arg: &Arg, bounds: &Bounds, errors: &mut Errors) -> Option<Duration> {
    let name = &arg.name;
    let Some(text) = literal(&arg.value) else {
        errors.at(
            &arg.value,
            format!("`{name}` is an ISO 8601 duration in a string literal, as in `{name} = \"PT30S\"`"),
        );
        return None;
    };
    let text = text.value();
    match retryproof_duration::parse(&text) {
        Err(problem) => errors.at(&arg.value, format!("`{name} = {text:?}` is not a duration: {problem}")),
        Ok(duration) if !bounds.range.contains(&duration) => {
            errors.at(&arg.value, format!("`{name} = {text:?}` is out of bounds: it takes {}", bounds.shown));
        }
        Ok(duration) => return Some(duration),
    }
    None
}

fn is_literal(value: &Expr) -> bool {
    matches!(ungrouped(value), Expr::Lit(_))
}

fn literal(value: &Expr) -> Option<LitStr> {
    match ungrouped(value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// A fragment that came through a `macro_rules!` stands in an invisible group.
fn ungrouped(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped(&group.expr),
        other => other,
    }
}
