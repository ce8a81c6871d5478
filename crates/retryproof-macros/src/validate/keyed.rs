// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks that apply only to functions and methods, `#[idempotent(key = .., ..)]`.

use proc_macro2::Span;
use syn::{FnArg, GenericParam, LitStr, ReturnType, Signature, Type};

use super::{CompletionMode, Keyed, is_literal, literal};
use crate::attr::{Arg, Args, Errors};
use crate::item::{AnnotatedFunction, LEASE_MARK, TX_MARK, elides_a_lifetime, is_marked, mentions};

pub(super) fn keyed(
    args: &Args,
    function: &AnnotatedFunction,
    errors: &mut Errors,
) -> Option<Keyed> {
    let sig = &function.sig;
    let key = args.get("key").map(|arg| arg.value.clone());
    match &key {
        None => errors.at_span(
            Span::call_site(),
            "`key` is missing; add an expression that uses the parameters, as in `key = order.id`, \
             or write `http` first if this function is an HTTP endpoint",
        ),
        Some(key) if is_literal(key) => errors.at(
            key,
            "a literal key is the same for every call, so the function would run only once; write \
             an expression that uses the parameters, without quotes, as in `key = order.id`",
        ),
        Some(_) => {}
    }
    let fingerprint = args.get("fingerprint").map(|arg| arg.value.clone());
    if let Some(text) = fingerprint.as_ref().filter(|value| is_literal(value)) {
        errors.at(
            text,
            "a literal fingerprint is the same for every call, so it distinguishes no calls; write \
             an expression that uses the parameters, without quotes, as in `fingerprint = \
             (order.amount, &order.currency)`",
        );
    }
    let subject = args.get("subject").map(|arg| arg.value.clone());
    if let Some(text) = subject.as_ref().filter(|value| is_literal(value)) {
        errors.at(
            text,
            "a literal subject is the same for every call; write an expression that uses the \
             parameters, without quotes, as in `subject = order.customer`, or leave `subject` out: \
             all calls of the scope then share one subject",
        );
    }
    let codec = args.get("codec").map(|arg| arg.value.clone());
    if let Some(text) = codec.as_ref().filter(|codec| is_literal(codec)) {
        errors.at(
            text,
            "`codec` must be an expression, as in `codec = retryproof::BytesCodec`, not a literal",
        );
    }
    let completion = args.get("completion").and_then(|arg| {
        let completion = completion(arg, errors)?;
        if completion == CompletionMode::Joined && function.marked(TX_MARK).next().is_none() {
            errors.at(
                &arg.value,
                "`completion = \"joined\"` needs a transaction argument; mark an argument with \
                 `#[tx]`, as in `#[tx] tx: &mut SqliteTx` (the engine opens the transaction, and \
                 callers do not pass this argument)",
            );
            return None;
        }
        Some(completion)
    });
    transaction(function, args.get("completion").is_some(), completion, errors);
    lease(function, errors);
    let hold_when = args.get("hold_when").map(|arg| arg.value.clone());
    if let Some(text) = hold_when.as_ref().filter(|value| is_literal(value)) {
        errors.at(
            text,
            "`hold_when` must be a function that takes the error, as in `hold_when = \
             PayError::is_unknown` or `hold_when = |error| matches!(error, PayError::TimedOut)`",
        );
    }
    let engine = args.get("engine").map(|arg| arg.value.clone());
    if engine.is_none() && sig.receiver().is_none() {
        errors.at(
            &sig.ident,
            "a function without `self` has no engine; name one with an expression that implements \
             `AsRef<IdempotencyEngine>`, as in `engine = ctx.engine`",
        );
    }
    if args.get("scope").is_none() {
        generic(sig, errors);
    }
    let returns = returns(&sig.output, sig.ident.span(), errors);
    Some(Keyed {
        key: key?,
        fingerprint,
        subject,
        codec,
        completion,
        hold_when,
        engine,
        returns: returns?,
    })
}

/// ANN-1: refuses a generic function without a `scope`, because the default scope is the function's
/// path, and all instantiations would share it. A generic `impl` or trait is allowed, because
/// `Self` distinguishes its instantiations. Lifetimes are allowed, because they create no
/// instantiations.
fn generic(sig: &Signature, errors: &mut Errors) {
    const ONE_SCOPE: &str = "all instantiations of a generic function would share their records; \
                             name the scope, as in `scope = \"orders.consume\"`, and make sure \
                             that the key differs between the instantiations";
    for param in &sig.generics.params {
        match param {
            GenericParam::Type(param) => errors.at(&param.ident, ONE_SCOPE),
            GenericParam::Const(param) => errors.at(&param.ident, ONE_SCOPE),
            GenericParam::Lifetime(_) => {}
        }
    }
    for input in &sig.inputs {
        match input {
            // Skip the arguments that the engine supplies, because other checks already require
            // named types for them.
            FnArg::Typed(_) if is_marked(input, TX_MARK) || is_marked(input, LEASE_MARK) => {}
            FnArg::Typed(argument) if mentions(&argument.ty, "impl") => {
                errors.at(&argument.ty, ONE_SCOPE);
            }
            _ => {}
        }
    }
}

/// Checks the `#[tx]` mark (CMP-7). At most one argument may have the mark, and the argument's type
/// must be a `&mut` that the engine can lend.
fn transaction(
    function: &AnnotatedFunction,
    given: bool,
    completion: Option<CompletionMode>,
    errors: &mut Errors,
) {
    let mut marked = function.marked(TX_MARK);
    let Some(tx) = marked.next() else { return };
    for second in marked {
        errors.at(
            second,
            "only one argument can have `#[tx]`, because the record is written in only one \
             transaction",
        );
    }
    // Add no second error if `completion` itself was refused.
    if !given || completion.is_some_and(|completion| completion != CompletionMode::Joined) {
        errors.at(
            tx,
            "`#[tx]` marks the transaction of `completion = \"joined\"`, which this function does \
             not have; add `completion = \"joined\"`, or remove `#[tx]`",
        );
    }
    let FnArg::Typed(argument) = tx else {
        errors.at(tx, "`self` is not a transaction; mark another argument with `#[tx]`");
        return;
    };
    match &*argument.ty {
        Type::Reference(lent) if lent.mutability.is_some() && lent.lifetime.is_none() => {
            if mentions(&lent.elem, "impl") {
                errors.at(
                    &lent.elem,
                    "name the type of the transaction, because the type determines which \
                     `JoinedEngine` is used",
                );
            } else if elides_a_lifetime(&lent.elem) {
                errors.at(
                    &lent.elem,
                    "the engine owns the transaction, so the transaction's type cannot contain \
                     borrowed data; write `'static`",
                );
            }
        }
        other => errors.at(
            other,
            "the engine owns the transaction and lends it to the function, so the argument's type \
             must be `&mut ..`",
        ),
    }
}

/// Checks the `#[lease]` mark. At most one argument may have the mark, and the engine must be able
/// to supply that argument.
fn lease(function: &AnnotatedFunction, errors: &mut Errors) {
    let mut marked = function.marked(LEASE_MARK);
    let Some(lease) = marked.next() else { return };
    for second in marked {
        errors
            .at(second, "only one argument can have `#[lease]`, because a call has only one lease");
    }
    match lease {
        FnArg::Receiver(_) => {
            errors.at(lease, "`self` is not a lease; mark another argument with `#[lease]`")
        }
        FnArg::Typed(_) if is_marked(lease, TX_MARK) => {
            errors.at(
                lease,
                "one argument cannot be both lease and transaction; mark one with \
                 `#[lease]` and another with `#[tx]`",
            );
        }
        FnArg::Typed(argument) if mentions(&argument.ty, "impl") => {
            errors.at(&argument.ty, "the type of the lease must be `&Lease` or `Lease`");
        }
        FnArg::Typed(_) => {}
    }
}

/// Returns the return type, or adds an error if the type is certainly not a `Result`. An alias is
/// left to the type checker.
fn returns(output: &ReturnType, name: Span, errors: &mut Errors) -> Option<Type> {
    const RESULT: &str = "a function with a `key` must return a `Result`, so that the function can \
                          report a rejected call; the error type must implement \
                          `From<retryproof::Rejected>`";
    let ReturnType::Type(_, ty) = output else {
        errors.at_span(name, RESULT);
        return None;
    };
    if mentions(ty, "impl") {
        errors.at(
            ty,
            "a replay returns the stored value, so the value's type must be named; write the type \
             instead of `impl ..`",
        );
        return None;
    }
    let possible = match &**ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            const NEVER: [&str; 12] = [
                "Option", "Vec", "String", "Box", "Pin", "Arc", "bool", "u8", "u32", "u64", "i64",
                "usize",
            ];
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

fn completion(arg: &Arg, errors: &mut Errors) -> Option<CompletionMode> {
    const KNOWN: &str = "expected \"log-and-return\", \"propagate\" or \"joined\"";
    let text = literal(&arg.value);
    match text.as_ref().map(LitStr::value).as_deref() {
        Some("log-and-return") => return Some(CompletionMode::LogAndReturn),
        Some("propagate") => return Some(CompletionMode::Propagate),
        Some("joined") => return Some(CompletionMode::Joined),
        Some(other) => {
            errors.at(&arg.value, format!("`completion = {other:?}` is unknown; {KNOWN}"))
        }
        None => errors.at(&arg.value, format!("`completion` must be a string literal; {KNOWN}")),
    }
    None
}
