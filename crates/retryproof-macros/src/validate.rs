// SPDX-License-Identifier: MIT OR Apache-2.0
//! Validates the arguments and the item together. Refuses what ANN-2, CTX-2, CTX-4 and ID-3 forbid.
//!
//! Each message points at the offending token, if there is one, and says what to do. Nothing here
//! emits code.

mod keyed;

use std::ops::RangeInclusive;
use std::time::Duration;

use syn::{Expr, FnArg, Lit, LitStr, Path, Safety, Type};

use crate::attr::{Arg, Args, Errors};
use crate::item::{AnnotatedFunction, LEASE_MARK, TX_MARK, elides_a_lifetime, mentions};

/// The framework whose handlers `http` creates.
#[derive(Clone, Copy)]
pub(crate) enum Framework {
    Axum,
    Actix,
}

const MOST_SCOPE_BYTES: usize = 255;
/// axum's limit: a tuple of 15 arguments, plus the last argument.
const MOST_ARGUMENTS: usize = 16;

const DAY: u64 = 86_400;
/// The bounds of CTX-2, each with the text that error messages show for it.
const TTL: Bounds = Bounds {
    range: Duration::from_millis(1)..=Duration::from_secs(3_650 * DAY),
    shown: "`PT0.001S` to `P3650D`",
};
const LEASE: Bounds = Bounds {
    range: Duration::from_millis(10)..=Duration::from_secs(DAY),
    shown: "`PT0.01S` to `PT24H`",
};
const WAIT: Bounds =
    Bounds { range: Duration::ZERO..=Duration::from_secs(DAY), shown: "`PT0S` to `PT24H`" };

struct Bounds {
    range: RangeInclusive<Duration>,
    shown: &'static str,
}

/// The arguments that endpoints and functions share.
pub(crate) struct Common {
    /// The path in `crate = path`; `None` means `::retryproof`.
    pub(crate) root: Option<Path>,
    pub(crate) scope: Option<LitStr>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait_timeout: Option<Duration>,
}

/// The kind of code to emit, with the validated arguments.
pub(crate) enum Expansion {
    /// `#[idempotent(http, ..)]`.
    Endpoint(Common),
    /// `#[idempotent(key = .., ..)]`.
    Keyed(Common, Box<Keyed>),
}

/// The arguments that only functions and methods take.
pub(crate) struct Keyed {
    pub(crate) key: Expr,
    pub(crate) fingerprint: Option<Expr>,
    /// The person or tenant whom the result is about (SEAL-3).
    pub(crate) subject: Option<Expr>,
    pub(crate) codec: Option<Expr>,
    pub(crate) completion: Option<CompletionMode>,
    /// Which errors hold the key until the lease runs out.
    pub(crate) hold_when: Option<Expr>,
    /// `None` if the method's `self` provides the engine.
    pub(crate) engine: Option<Expr>,
    pub(crate) returns: Type,
}

/// How a function's result is recorded (CMP-4, CMP-7).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletionMode {
    LogAndReturn,
    Propagate,
    /// The result is recorded in the transaction that is passed as the `#[tx]` argument.
    Joined,
}

/// Validates the input, and adds an error to `errors` for each problem. Use the result only if
/// `errors` is empty; `None` implies an error.
pub(crate) fn validate(
    framework: Framework,
    args: &Args,
    function: &AnnotatedFunction,
    errors: &mut Errors,
) -> Option<Expansion> {
    let common = Common {
        root: args.get("crate").and_then(|arg| root(arg, errors)),
        scope: args.get("scope").and_then(|arg| scope(arg, errors)),
        ttl: args.get("ttl").and_then(|arg| duration(arg, &TTL, errors)),
        lease: args.get("lease").and_then(|arg| duration(arg, &LEASE, errors)),
        wait_timeout: args.get("wait_timeout").and_then(|arg| duration(arg, &WAIT, errors)),
    };
    if let Some(second) = function.second() {
        errors.at(
            second,
            "the function has two `#[idempotent]` attributes; keep one, because a call cannot be \
             guarded twice",
        );
    }
    if function.body.is_none() {
        errors.at(
            &function.sig,
            "this function has no body, so there is nothing to guard; annotate the implementation \
             instead",
        );
    }
    if let Some(token) = &function.sig.constness {
        errors.at(token, "a `const fn` cannot wait for a store; remove `const`");
    }
    match args.http {
        Some(_) => {
            endpoint(framework, args, function, errors);
            Some(Expansion::Endpoint(common))
        }
        None => keyed::keyed(args, function, errors)
            .map(|keyed| Expansion::Keyed(common, Box::new(keyed))),
    }
}

fn endpoint(framework: Framework, args: &Args, function: &AnnotatedFunction, errors: &mut Errors) {
    let layer = match framework {
        Framework::Axum => {
            "guard its route with the layer instead: \
             `.route_layer(filter.guard(Policy::new(\"..\")))`"
        }
        Framework::Actix => {
            "guard its resource with the middleware instead: `.wrap(Idempotency::new(&filter, \
             Policy::new(\"..\")))`"
        }
    };
    let structure = match framework {
        Framework::Axum => "unit struct",
        Framework::Actix => "struct",
    };
    let engine = match framework {
        Framework::Axum => "the filter in the router's state has an engine",
        Framework::Actix => "the filter with which the handler is mounted has an engine",
    };
    for (name, reason) in [
        ("key", "the client sends the key in a header"),
        ("fingerprint", "the filter computes the fingerprint of the request (`web.fingerprint`)"),
        ("subject", "the filter names the subject: the caller, or what its `subject` hook returns"),
        ("codec", "the response is stored without a codec"),
        ("completion", "the setting `completion-failure-policy` takes its place"),
        ("hold_when", "the response's `AnswerFate` decides whether the key is held"),
        ("engine", engine),
    ] {
        if let Some(arg) = args.get(name) {
            errors.at(
                &arg.name,
                format!(
                    "`{name}` cannot be used on an HTTP endpoint, because {reason}; remove \
                     `{name}`, or remove `http` if this function is not an endpoint"
                ),
            );
        }
    }
    for marked in function.marked(TX_MARK) {
        errors.at(
            marked,
            "`#[tx]` is for functions with a `key`; an endpoint takes its transaction as an \
             argument of the type `GuardedTx<..>`, without `#[tx]`",
        );
    }
    for marked in function.marked(LEASE_MARK) {
        errors.at(
            marked,
            "`#[lease]` is for functions with a `key`; an endpoint takes its lease as an \
             argument, without `#[lease]`",
        );
    }
    let sig = &function.sig;
    if sig.asyncness.is_none() && sig.constness.is_none() {
        errors.at(
            sig.fn_token,
            "an HTTP endpoint must be an `async fn`; blocking functions take `key` instead of \
             `http`",
        );
    }
    if !matches!(sig.safety, Safety::Default) || sig.abi.is_some() {
        errors.at(&sig.ident, "an HTTP endpoint cannot be `unsafe` or `extern`");
    }
    if !sig.generics.params.is_empty() {
        errors.at(
            &sig.generics,
            format!(
                "a generic handler cannot be annotated, because the attribute turns the handler \
                 into a {structure}; {layer}"
            ),
        );
    }
    if let Some(clause) = &sig.generics.where_clause {
        errors.at(clause, format!("a handler with a `where` clause cannot be annotated; {layer}"));
    }
    if sig.inputs.len() > MOST_ARGUMENTS {
        errors.at(
            sig.inputs.iter().nth(MOST_ARGUMENTS),
            format!(
                "a handler can have at most {MOST_ARGUMENTS} arguments; combine some of them in \
                 one extractor"
            ),
        );
    }
    for input in &sig.inputs {
        match input {
            FnArg::Receiver(receiver) => errors.at(
                receiver,
                "a method cannot be an endpoint, because `self` cannot be extracted from a \
                 request; annotate a free function, or use `key` instead of `http`",
            ),
            FnArg::Typed(input) if mentions(&input.ty, "impl") => errors.at(
                &input.ty,
                format!(
                    "a handler with an `impl Trait` argument is generic and cannot be \
                     annotated; {layer}"
                ),
            ),
            FnArg::Typed(input) if mentions(&input.ty, "Self") => {
                errors.at(
                    &input.ty,
                    "an endpoint must be a free function, where `Self` has no meaning; name the \
                     type instead",
                );
            }
            FnArg::Typed(input) if elides_a_lifetime(&input.ty) => {
                errors.at(
                    &input.ty,
                    "a handler's arguments must be owned, because an extractor cannot return a \
                     reference",
                );
            }
            FnArg::Typed(input) if input.attrs.iter().any(|attr| attr.path().is_ident("cfg")) => {
                errors.at(
                    &input.ty,
                    "an argument of an endpoint cannot have a `#[cfg]`; write the function twice, \
                     once for each configuration",
                );
            }
            FnArg::Typed(_) => {}
        }
    }
}

fn root(arg: &Arg, errors: &mut Errors) -> Option<Path> {
    match ungrouped(&arg.value) {
        Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => {
            Some(path.path.clone())
        }
        other => {
            errors.at(
                other,
                "`crate` must be the path of the crate `retryproof`, as in \
                 `crate = my_framework::retryproof`",
            );
            None
        }
    }
}

/// Checks the whole of ID-3 at compile time. This is possible because the scope is a literal.
fn scope(arg: &Arg, errors: &mut Errors) -> Option<LitStr> {
    let Some(text) = literal(&arg.value) else {
        errors.at(
            &arg.value,
            "`scope` must be a string literal, as in `scope = \"payments\"`, because a scope is \
             part of the code and not of the data",
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
        "contains a control character"
    } else {
        return Some(text);
    };
    errors.at(
        &arg.value,
        format!(
            "this `scope` {problem}; expected 1 to {MOST_SCOPE_BYTES} bytes of non-blank text \
             without control characters"
        ),
    );
    None
}

fn duration(arg: &Arg, bounds: &Bounds, errors: &mut Errors) -> Option<Duration> {
    let name = &arg.name;
    let Some(text) = literal(&arg.value) else {
        errors.at(
            &arg.value,
            format!(
                "`{name}` must be an ISO 8601 duration in a string literal, as in \
                 `{name} = \"PT30S\"`"
            ),
        );
        return None;
    };
    let text = text.value();
    match retryproof_duration::parse(&text) {
        Err(problem) => {
            errors.at(&arg.value, format!("`{name} = {text:?}` is not a duration: {problem}"))
        }
        Ok(duration) if !bounds.range.contains(&duration) => {
            errors.at(
                &arg.value,
                format!("`{name} = {text:?}` is out of range: expected {}", bounds.shown),
            );
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

/// Removes the invisible group in which a `macro_rules!` macro passes a fragment on.
fn ungrouped(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped(&group.expr),
        other => other,
    }
}
