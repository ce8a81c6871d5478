// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spans of a call (RUN-10).

use std::collections::BTreeMap;
use std::fmt;
use std::io::Error as IoError;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::config::ScopeConfig;
use retryproof_core::{
    Acquisition, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::SlowStore;
use tracing::Instrument as _;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// The spans that were created, in order.
#[derive(Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<Vec<SeenSpan>>>);

#[derive(Debug, Clone)]
struct SeenSpan {
    id: Id,
    name: &'static str,
    level: Level,
    parent: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
    closed: bool,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").replace('"', ""));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let metadata = attributes.metadata();
        let parent = ctx.span(id).and_then(|span| span.parent().map(|parent| parent.name()));
        self.0.lock().push(SeenSpan {
            id: id.clone(),
            name: metadata.name(),
            level: *metadata.level(),
            parent,
            fields,
            closed: false,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(span) = self.0.lock().iter_mut().rev().find(|span| span.id == *id) {
            values.record(&mut Fields(&mut span.fields));
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        if let Some(span) = self.0.lock().iter_mut().rev().find(|span| span.id == id) {
            span.closed = true;
        }
    }
}

impl Spans {
    pub(crate) fn listen(
        filter: impl Filter<Registry> + Send + Sync + 'static,
    ) -> (Self, DefaultGuard) {
        let spans = Self::default();
        let subscriber = tracing_subscriber::registry().with(spans.clone().with_filter(filter));
        (spans, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the name of each span, with the name of its parent.
    pub(crate) fn parents(&self) -> Vec<(&'static str, Option<&'static str>)> {
        self.seen().iter().map(|span| (span.name, span.parent)).collect()
    }

    fn seen(&self) -> Vec<SeenSpan> {
        self.0.lock().clone()
    }

    fn calls(&self) -> Vec<SeenSpan> {
        self.seen().into_iter().filter(|span| span.name == "idempotency.call").collect()
    }
}

fn context() -> IdempotencyContext {
    IdempotencyContext::builder("spans", "canary-17").build().unwrap()
}

async fn pay(engine: &IdempotencyEngine) {
    let outcome = engine.execute(context(), || async { Ok::<_, IoError>(1) }).await.unwrap();
    assert_eq!(outcome.into_value(), Some(1));
}

#[tokio::test]
async fn run_10_a_call_has_one_span_with_the_fields_of_its_outcome() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    pay(&engine).await;
    pay(&engine).await;
    let seen = spans.seen();
    let [executed, replayed] = &seen[..] else { panic!("one span for each call: {seen:#?}") };
    for (span, outcome) in [(executed, "executed"), (replayed, "replayed")] {
        assert_eq!((span.name, span.level), ("idempotency.call", Level::INFO));
        assert_eq!(span.fields["outcome"], outcome);
        assert_eq!(span.fields["scope"], "spans");
        assert!(span.fields["identity"].starts_with("spans#"), "ID-4: {span:?}");
        assert!(span.closed, "{span:?}");
        assert!(!format!("{span:?}").contains("canary"), "ID-4: {span:?}");
    }
    assert_eq!(executed.fields["attempt"], "first");
    assert_eq!(executed.fields["recorded"], "yes");
    assert!(executed.fields.contains_key("held") && !executed.fields.contains_key("took"));
    assert!(replayed.fields.contains_key("took") && !replayed.fields.contains_key("held"));
}

#[tokio::test]
async fn run_10_the_action_runs_inside_the_span_and_its_phase_is_shown_at_debug() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let action = || async {
        drop(tracing::info_span!("charge"));
        Ok::<_, IoError>(1)
    };
    assert!(engine.execute(context(), action).await.unwrap().is_executed());
    let parent = |name: &str| spans.seen().into_iter().find(|span| span.name == name)?.parent;
    assert_eq!(parent("idempotency.action"), Some("idempotency.call"));
    assert_eq!(parent("charge"), Some("idempotency.action"));
}

/// Creates a span when it is dropped.
struct Undo;

impl Drop for Undo {
    fn drop(&mut self) {
        drop(tracing::info_span!("undo"));
    }
}

#[tokio::test]
async fn run_10_each_poll_and_the_drop_of_a_call_are_inside_its_span() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let action = || async {
        let _undo = Undo;
        tokio::task::yield_now().await;
        drop(tracing::info_span!("charge"));
        std::future::pending::<Result<i32, IoError>>().await
    };
    let call = tokio::time::timeout(Duration::from_millis(20), engine.execute(context(), action));
    assert!(call.await.is_err(), "the call is dropped");
    let parent = |name: &str| spans.seen().into_iter().find(|span| span.name == name)?.parent;
    assert_eq!(parent("charge"), Some("idempotency.call"));
    assert_eq!(parent("undo"), Some("idempotency.call"));
}

#[tokio::test]
async fn run_10_a_wait_is_shown_below_the_call_at_debug() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let Acquisition::Granted(held) = engine.try_acquire(&context()).await.unwrap() else {
        panic!("the key is free")
    };
    let ctx = IdempotencyContext::builder("spans", "canary-17")
        .wait_timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let outcome = engine.execute(ctx, || async { Ok::<_, IoError>(1) }).await.unwrap();
    assert_eq!(outcome.into_value(), None);
    drop(held);
    let wait = spans.seen().into_iter().find(|span| span.name == "idempotency.wait").unwrap();
    assert_eq!((wait.level, wait.parent), (Level::DEBUG, Some("idempotency.call")));
    let outcomes: Vec<String> =
        spans.calls().iter().map(|call| call.fields["outcome"].clone()).collect();
    assert_eq!(outcomes, ["failed", "in_flight"], "the holder was dropped");
}

#[tokio::test]
async fn run_10_a_spawned_action_has_the_span_of_its_call() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let action = || async {
        drop(tracing::info_span!("charge"));
        Ok::<_, IoError>(1)
    };
    assert!(engine.spawn(context(), action).await.unwrap().is_executed());
    let charge = spans.seen().into_iter().find(|span| span.name == "charge").unwrap();
    assert_eq!(charge.parent, Some("idempotency.call"));
    assert_eq!(spans.calls()[0].fields["outcome"], "executed");
}

#[tokio::test]
async fn run_10_a_failed_action_shows_its_phase() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let failing = || async { Err::<u8, _>(IoError::other("refused")) };
    engine.execute(context(), failing).await.unwrap_err();
    let calls = spans.calls();
    assert_eq!(calls[0].fields["outcome"], "failed");
    assert_eq!(calls[0].fields["phase"], "Action");
}

#[tokio::test]
async fn run_10_ctx_5_a_call_of_a_scope_that_is_off_has_a_span_too() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let mut config = IdempotencyConfig::default();
    let off = ScopeConfig { enabled: Some(false), ..ScopeConfig::default() };
    config.scopes.insert("spans".to_owned(), off);
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    pay(&engine).await;
    let calls = spans.calls();
    assert_eq!((calls.len(), &*calls[0].fields["outcome"]), (1, "unguarded"));
    assert!(calls[0].closed && !calls[0].fields.contains_key("recorded"), "{calls:#?}");
}

#[tokio::test]
async fn run_10_a_span_of_the_program_is_not_changed() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let own = tracing::info_span!("own", outcome = tracing::field::Empty);
    let in_span = own.entered();
    let Acquisition::Granted(held) = engine.try_acquire(&context()).await.unwrap() else {
        panic!("the key is free")
    };
    held.release().await.unwrap();
    drop(in_span);
    let own = spans.seen().into_iter().find(|span| span.name == "own").unwrap();
    assert!(own.fields.is_empty(), "{own:?}");
    let calls = spans.calls();
    assert_eq!((calls.len(), calls[0].parent), (1, Some("own")));
    assert_eq!(calls[0].fields["outcome"], "released");
    assert!(calls[0].closed, "the span of a lease ends with the lease");
}

#[tokio::test]
async fn run_10_a_span_of_the_program_with_the_name_or_the_target_of_ours_is_not_changed() {
    let none = tracing::field::Empty;
    for named in [true, false] {
        let (spans, _guard) = Spans::listen(filter_fn(|span| {
            span.target() != "retryproof::call" || span.name() != "idempotency.call"
        }));
        let engine = IdempotencyEngine::new(MemoryStore::new());
        let (own, name) = if named {
            (tracing::info_span!("idempotency.call", outcome = none), "idempotency.call")
        } else {
            (tracing::info_span!(target: "retryproof::call", "own", outcome = none), "own")
        };
        pay(&engine).instrument(own).await;
        let own = spans.seen().into_iter().find(|span| span.name == name).unwrap();
        assert!(own.fields.is_empty(), "{own:?}");
    }
}

#[tokio::test]
async fn run_10_a_span_of_the_program_is_not_changed_in_place_of_one_that_is_filtered_out() {
    let (spans, _guard) = Spans::listen(filter_fn(|span| span.name() != "idempotency.call"));
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let own = tracing::info_span!("own", outcome = tracing::field::Empty);
    let both = async {
        pay(&engine).await;
        pay(&engine).await;
    };
    both.instrument(own).await;
    let own = spans.seen().into_iter().find(|span| span.name == "own").unwrap();
    assert!(own.fields.is_empty(), "{own:?}");
    assert!(spans.calls().is_empty());
}

#[tokio::test]
async fn run_10_an_acquire_and_a_completion_that_wait_are_shown_at_debug() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let ms = Duration::from_millis(1);
    let engine =
        IdempotencyEngine::new(SharedStore::new(SlowStore::new(MemoryStore::new(), ms, ms)));
    pay(&engine).await;
    let seen = spans.seen();
    let call = "idempotency.call";
    let below = |name| (name, Some(call));
    let [acquire, action, complete] =
        ["idempotency.acquire", "idempotency.action", "idempotency.complete"].map(below);
    assert_eq!(spans.parents(), [(call, None), acquire, action, complete]);
    assert!(seen.iter().all(|span| span.closed), "{seen:#?}");
}

#[cfg(feature = "blocking")]
#[test]
fn run_10_a_blocking_call_has_the_same_spans() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let engine = retryproof_core::blocking::Engine::new(MemoryStore::new()).unwrap();
    let action = || {
        drop(tracing::info_span!("charge"));
        Ok::<_, IoError>(1)
    };
    assert!(engine.execute(context(), action).unwrap().is_executed());
    let call = "idempotency.call";
    let action = "idempotency.action";
    assert_eq!(spans.parents(), [(call, None), (action, Some(call)), ("charge", Some(action))]);
    assert_eq!(spans.calls()[0].fields["outcome"], "executed");
}

#[tokio::test]
async fn run_10_a_call_inside_an_action_has_its_own_span() {
    let (spans, _guard) = Spans::listen(LevelFilter::INFO);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let inner = IdempotencyContext::builder("inner", "canary-18").build().unwrap();
    let action = || async {
        let Acquisition::Granted(held) = engine.try_acquire(&inner).await.unwrap() else {
            panic!("the key is free")
        };
        held.release().await.unwrap();
        Ok::<_, IoError>(1)
    };
    assert!(engine.execute(context(), action).await.unwrap().is_executed());
    let calls = spans.calls();
    let [outer, inner] = &calls[..] else { panic!("two calls: {calls:#?}") };
    assert_eq!((&*outer.fields["scope"], &*outer.fields["outcome"]), ("spans", "executed"));
    assert_eq!((&*inner.fields["scope"], &*inner.fields["outcome"]), ("inner", "released"));
    assert_eq!(inner.parent, Some("idempotency.call"));
}

#[tokio::test]
async fn run_10_a_waiter_that_is_granted_the_lease_shows_its_outcome_at_debug() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let Acquisition::Granted(held) = engine.try_acquire(&context()).await.unwrap() else {
        panic!("the key is free")
    };
    let (released, ()) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            held.release().await
        },
        pay(&engine)
    );
    released.unwrap();
    let outcomes: Vec<String> =
        spans.calls().iter().map(|call| call.fields["outcome"].clone()).collect();
    assert_eq!(outcomes, ["released", "executed"]);
}

#[tokio::test]
async fn run_10_without_a_subscriber_a_call_has_no_span() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let inside = || async { Ok::<_, IoError>(tracing::Span::current().is_disabled()) };
    assert_eq!(engine.execute(context(), inside).await.unwrap().into_value(), Some(true));
}
