// SPDX-License-Identifier: MIT OR Apache-2.0
//! Async functions: the engine is an expression.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;

use retryproof::{
    Codec, CodecId, Error, ErrorKind, IdempotencyContext, IdempotencyEngine, MemoryStore, Outcome,
    Payload, Rejected, idempotent,
};

use super::{Failure, Runs};

/// The value in which a program keeps its engine.
struct Context {
    engine: IdempotencyEngine,
    runs: Runs,
}

impl Context {
    fn new() -> Self {
        Self { engine: IdempotencyEngine::new(MemoryStore::new()), runs: Runs::default() }
    }

    fn name(&self) -> &'static str {
        "the same for all"
    }
}

#[idempotent(key = format!("{tenant}/{id}"), engine = ctx.engine)]
async fn charge(ctx: &Context, tenant: &str, id: u64) -> Result<String, Failure> {
    Ok(format!("{tenant} {id} {}", ctx.runs.next()))
}

#[tokio::test]
async fn ann_1_the_key_is_an_expression_over_the_parameters() {
    let ctx = Context::new();
    assert_eq!(charge(&ctx, "acme", 7).await.unwrap(), "acme 7 1");
    assert_eq!(charge(&ctx, "acme", 7).await.unwrap(), "acme 7 1");
    assert_eq!(charge(&ctx, "acme", 8).await.unwrap(), "acme 8 2");
    assert_eq!(charge(&ctx, "apex", 7).await.unwrap(), "apex 7 3");
}

#[tokio::test]
async fn ann_4_the_scope_of_a_function_is_its_path_and_its_name() {
    let ctx = Context::new();
    charge(&ctx, "acme", 7).await.unwrap();
    let same =
        IdempotencyContext::builder(concat!(module_path!(), "::charge"), "acme/7").build().unwrap();
    let outcome =
        ctx.engine.execute(same, async || Err::<String, _>(Failure::Own("ran"))).await.unwrap();
    assert_eq!(outcome, Outcome::Replayed("acme 7 1".to_owned()));
}

async fn nested_in_one(ctx: &Context) -> Result<String, Failure> {
    #[idempotent(key = ctx.name(), engine = ctx.engine)]
    async fn consume(ctx: &Context) -> Result<String, Failure> {
        Ok(format!("one {}", ctx.runs.next()))
    }
    consume(ctx).await
}

async fn nested_in_another(ctx: &Context) -> Result<String, Failure> {
    #[idempotent(key = ctx.name(), engine = ctx.engine)]
    async fn consume(ctx: &Context) -> Result<String, Failure> {
        Ok(format!("another {}", ctx.runs.next()))
    }
    consume(ctx).await
}

#[tokio::test]
async fn ann_4_id_1_functions_inside_of_two_functions_share_no_record() {
    let ctx = Context::new();
    for _ in 0..2 {
        assert_eq!(nested_in_one(&ctx).await.unwrap(), "one 1");
        assert_eq!(nested_in_another(&ctx).await.unwrap(), "another 2");
    }
}

/// Takes arguments with names that the expansion uses itself, a pattern, a generic type and
/// lifetimes.
#[idempotent(key = call, engine = engine, scope = "hygiene")]
async fn hygiene<'a, T: Display + ?Sized>(
    engine: Arc<IdempotencyEngine>,
    call: Cow<'a, str>,
    (body, mut run): (&'a T, u32),
) -> Result<String, Failure> {
    run += 1;
    drop(engine);
    Ok(format!("{call} {body} {run}"))
}

#[tokio::test]
async fn ann_1_arguments_of_any_shape_and_name() {
    let engine = Arc::new(Context::new().engine);
    let text = String::from("text");
    assert_eq!(
        hygiene(Arc::clone(&engine), Cow::Borrowed("a"), (text.as_str(), 1)).await.unwrap(),
        "a text 2"
    );
    assert_eq!(hygiene(engine, Cow::Owned("a".to_owned()), (&9, 9)).await.unwrap(), "a text 2");
}

macro_rules! consumers {
    ($($name:ident $scope:literal $wait:expr),*) => {$(
        #[idempotent(key = id, scope = $scope, wait_timeout = $wait, engine = ctx.engine, crate = retryproof)]
        async fn $name(ctx: &Context, id: u8) -> Result<u32, Failure> {
            let _ = id;
            Ok(ctx.runs.next())
        }
    )*};
}

consumers!(first "shared" "PT1S", second "shared" "PT0S", third "own" "PT0S");

#[tokio::test]
async fn ann_4_functions_of_one_named_scope_share_records() {
    let ctx = Context::new();
    assert_eq!(first(&ctx, 1).await.unwrap(), 1);
    assert_eq!(second(&ctx, 1).await.unwrap(), 1);
    assert_eq!(third(&ctx, 1).await.unwrap(), 2);
}

/// A generic function has to name its scope, and its key has to contain its type argument.
#[idempotent(key = format!("{}/{id}", E::NAME), scope = "events.consume", engine = ctx.engine)]
async fn consume_event<E: Event>(ctx: &Context, id: u64) -> Result<String, Failure> {
    Ok(format!("{} {id} {}", E::NAME, ctx.runs.next()))
}

trait Event {
    const NAME: &'static str;
}

struct Created;
struct Cancelled;

impl Event for Created {
    const NAME: &'static str = "created";
}

impl Event for Cancelled {
    const NAME: &'static str = "cancelled";
}

#[tokio::test]
async fn ann_1_id_1_a_generic_function_names_its_scope_and_keys_its_instantiations() {
    let ctx = Context::new();
    for _ in 0..2 {
        assert_eq!(consume_event::<Created>(&ctx, 17).await.unwrap(), "created 17 1");
        assert_eq!(consume_event::<Cancelled>(&ctx, 17).await.unwrap(), "cancelled 17 2");
    }
}

/// The body moves an argument that the fingerprint borrows.
#[idempotent(key = id, fingerprint = (amount, &currency), engine = ctx.engine)]
async fn transfer(ctx: &Context, id: u64, amount: u64, currency: String) -> Result<u32, Failure> {
    drop(currency);
    match amount {
        0 => Err(Failure::Own("nothing to transfer")),
        _ => Ok(u32::try_from(id).unwrap() + ctx.runs.next()),
    }
}

#[tokio::test]
async fn ann_1_fp_1_a_key_with_another_fingerprint_is_refused_and_runs_nothing() {
    let ctx = Context::new();
    let eur = || "EUR".to_owned();
    // An error deletes the record with its fingerprint, so the next call may have a different
    // fingerprint (FP-2).
    assert!(matches!(transfer(&ctx, 7, 0, eur()).await, Err(Failure::Own(_))));
    for _ in 0..2 {
        assert_eq!(transfer(&ctx, 7, 100, eur()).await.unwrap(), 8);
        for (amount, currency) in [(101, "EUR"), (0, "EUR"), (100, "EU"), (100, "SEK")] {
            let refused = transfer(&ctx, 7, amount, currency.to_owned()).await;
            assert!(
                matches!(refused, Err(Failure::Rejected(Rejected::Mismatch))),
                "{amount} {currency}"
            );
        }
    }
    assert_eq!(ctx.runs.count(), 1);
}

#[tokio::test]
async fn ann_1_fp_4_a_fingerprint_that_cannot_be_taken_is_an_error_before_anything_runs() {
    struct Broken;
    impl serde::Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("broken"))
        }
    }
    #[idempotent(key = 7.to_string(), fingerprint = value, engine = ctx.engine)]
    async fn consume(ctx: &Context, value: Broken) -> Result<u32, Failure> {
        let _ = value;
        Ok(ctx.runs.next())
    }
    let ctx = Context::new();
    assert_eq!(consume(&ctx, Broken).await.unwrap_err().kind(), Some(ErrorKind::Codec));
    assert_eq!(ctx.runs.count(), 0);
}

#[tokio::test]
async fn ann_1_id_3_a_bad_key_is_an_error_before_anything_runs() {
    #[idempotent(key = id, engine = ctx.engine)]
    async fn consume(ctx: &Context, id: &str) -> Result<u32, Failure> {
        let _ = id;
        Ok(ctx.runs.next())
    }
    let ctx = Context::new();
    for bad in ["", " ", "canary\n", &"canary".repeat(100)] {
        let failure = consume(&ctx, bad).await.unwrap_err();
        assert_eq!(failure.kind(), Some(ErrorKind::Invalid));
        // ID-4: an error never shows the key.
        assert!(!format!("{failure:?}").contains("canary"));
    }
    assert_eq!(ctx.runs.count(), 0);
}

/// A codec that encodes nothing, so a completion becomes a tombstone (CMP-9).
struct Broken;

impl Codec<u32> for Broken {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn encode(&self, _: &u32, _: &mut Vec<u8>) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Codec, "broken"))
    }

    fn decode(&self, _: &Payload) -> Result<u32, Error> {
        Err(Error::new(ErrorKind::Codec, "broken"))
    }
}

#[idempotent(key = id, engine = ctx.engine, codec = Broken, completion = "propagate")]
async fn strict(ctx: &Context, id: u8) -> Result<u32, Failure> {
    let _ = id;
    Ok(ctx.runs.next())
}

#[idempotent(key = id, engine = ctx.engine, codec = Broken, completion = "log-and-return")]
async fn lenient(ctx: &Context, id: u8) -> Result<u32, Failure> {
    let _ = id;
    Ok(ctx.runs.next())
}

#[tokio::test]
async fn ann_1_cmp_4_the_attribute_chooses_what_a_failed_completion_does() {
    let ctx = Context::new();
    assert!(matches!(strict(&ctx, 1).await, Err(Failure::Rejected(Rejected::Completion(_)))));
    assert_eq!(lenient(&ctx, 1).await.unwrap(), 2);
    assert!(matches!(strict(&ctx, 1).await, Err(Failure::Rejected(Rejected::NotReplayable))));
    assert!(matches!(lenient(&ctx, 1).await, Err(Failure::Rejected(Rejected::NotReplayable))));
    assert_eq!(ctx.runs.count(), 2);
}

#[tokio::test]
async fn ann_5_a_value_of_another_type_is_an_error_and_runs_nothing() {
    #[idempotent(key = id, engine = ctx.engine, scope = "types")]
    async fn text(ctx: &Context, id: u8) -> Result<String, Failure> {
        Ok(format!("{id} {}", ctx.runs.next()))
    }
    #[idempotent(key = id, engine = ctx.engine, scope = "types")]
    async fn number(ctx: &Context, id: u8) -> Result<u32, Failure> {
        let _ = id;
        Ok(ctx.runs.next())
    }
    let ctx = Context::new();
    text(&ctx, 1).await.unwrap();
    assert!(matches!(number(&ctx, 1).await, Err(Failure::Rejected(Rejected::Codec(_)))));
    assert_eq!(ctx.runs.count(), 1);
}

/// A key that counts how often it is formatted.
struct Counted<'a>(&'a Runs);

impl Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.next();
        f.write_str("key")
    }
}

#[tokio::test]
async fn ann_1_the_key_is_borrowed_and_shown_once_a_call() {
    #[idempotent(key = key, engine = ctx.engine)]
    async fn consume(ctx: &Context, key: Counted<'_>) -> Result<u32, Failure> {
        let _moved = key;
        Ok(ctx.runs.next())
    }
    let (ctx, shown) = (Context::new(), Runs::default());
    consume(&ctx, Counted(&shown)).await.unwrap();
    assert_eq!(shown.count(), 1);
    consume(&ctx, Counted(&shown)).await.unwrap();
    assert_eq!((shown.count(), ctx.runs.count()), (2, 1));
}

#[tokio::test]
async fn run_5_a_call_that_is_never_polled_does_nothing() {
    let ctx = Context::new();
    drop(charge(&ctx, "acme", 7));
    assert_eq!(charge(&ctx, "acme", 7).await.unwrap(), "acme 7 1");
}

/// The future of an annotated function is `Send` if the body's is, so that callers can spawn it.
#[test]
fn ann_1_the_future_is_send() {
    fn send(_: impl Future + Send) {}
    let ctx = Context::new();
    send(charge(&ctx, "acme", 7));
}
