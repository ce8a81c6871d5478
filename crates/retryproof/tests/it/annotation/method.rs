// SPDX-License-Identifier: MIT OR Apache-2.0
//! Async methods: the engine comes from `self`.

use std::sync::Arc;
use std::time::Duration;

use retryproof::{
    BytesCodec, IdempotencyContext, IdempotencyEngine, MemoryStore, NoCodec, Outcome, Scope,
    idempotent,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Failure, Runs};

struct Event {
    id: String,
}

fn event(id: &str) -> Event {
    Event { id: id.to_owned() }
}

struct Orders {
    engine: IdempotencyEngine,
    runs: Runs,
    began: Notify,
    go_on: Notify,
    noted: Vec<String>,
}

impl AsRef<IdempotencyEngine> for Orders {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Orders {
    fn new() -> Self {
        Self::on(IdempotencyEngine::new(MemoryStore::new()))
    }

    fn on(engine: IdempotencyEngine) -> Self {
        Self {
            engine,
            runs: Runs::default(),
            began: Notify::new(),
            go_on: Notify::new(),
            noted: Vec::new(),
        }
    }

    #[idempotent(key = event.id)]
    async fn place(&self, event: &Event) -> Result<String, Failure> {
        Ok(format!("{} {}", event.id, self.runs.next()))
    }

    #[idempotent(key = event.id, scope = "orders.slow", wait_timeout = "PT0S", lease = "PT20S")]
    async fn slow(&self, event: &Event) -> Result<u32, Failure> {
        self.began.notify_one();
        self.go_on.notified().await;
        Ok(self.runs.next())
    }

    #[idempotent(key = event.id, scope = "orders.slow", wait_timeout = "PT2.5S")]
    async fn patient(&self, event: &Event) -> Result<u32, Failure> {
        Ok(self.runs.next())
    }

    #[idempotent(key = id, ttl = "PT5S")]
    async fn short(&self, id: u64) -> Result<u32, Failure> {
        Ok(self.runs.next())
    }

    #[idempotent(key = event.id, codec = NoCodec)]
    async fn skip(&self, event: Event) -> Result<(), Failure> {
        self.runs.next();
        drop(event);
        Ok(())
    }

    #[idempotent(key = event.id, codec = BytesCodec)]
    async fn render(self: Arc<Self>, mut event: Event) -> Result<Vec<u8>, Failure> {
        event.id.push('!');
        self.runs.next();
        Ok(event.id.into_bytes())
    }

    #[idempotent(key = id)]
    async fn note(&mut self, id: &str) -> Result<usize, Failure> {
        self.noted.push(id.to_owned());
        Ok(self.noted.len())
    }

    #[idempotent(key = "the same for all".len())]
    async fn consume(self) -> Result<u32, Failure> {
        Ok(self.runs.next())
    }

    #[idempotent(key = id)]
    async fn fails(&self, id: &str, fail: bool) -> Result<u32, Failure> {
        let run = self.runs.next();
        if fail {
            return Err(Failure::Own("declined"));
        }
        let parsed: u32 = "7".parse().map_err(|_| Failure::Own("unreadable"))?;
        Ok(run * parsed)
    }

    #[idempotent(key = id)]
    async fn panics(&self, id: &str, panic: bool) -> Result<u32, Failure> {
        let run = self.runs.next();
        assert!(!panic, "as told");
        Ok(run)
    }
}

#[tokio::test]
async fn ann_1_ann_5_a_duplicate_gets_the_stored_value() {
    let orders = Orders::new();
    assert_eq!(orders.place(&event("a")).await.unwrap(), "a 1");
    assert_eq!(orders.place(&event("a")).await.unwrap(), "a 1");
    assert_eq!(orders.place(&event("b")).await.unwrap(), "b 2");
    assert_eq!(orders.runs.count(), 2);
}

#[tokio::test]
async fn ann_5_a_duplicate_without_a_value_is_skipped() {
    let orders = Orders::new();
    for _ in 0..3 {
        orders.skip(event("a")).await.unwrap();
    }
    assert_eq!(orders.runs.count(), 1);
}

#[tokio::test]
async fn ann_1_the_codec_carries_the_value_and_arguments_may_move() {
    let orders = Arc::new(Orders::new());
    for _ in 0..2 {
        assert_eq!(Arc::clone(&orders).render(event("a")).await.unwrap(), b"a!");
    }
    assert_eq!(orders.runs.count(), 1);
}

#[tokio::test]
async fn ann_1_every_kind_of_receiver_is_taken() {
    let mut orders = Orders::new();
    assert_eq!(orders.note("a").await.unwrap(), 1);
    assert_eq!(orders.note("b").await.unwrap(), 2);
    assert_eq!(orders.note("a").await.unwrap(), 1);
    let engine = orders.engine.clone();
    assert_eq!(orders.consume().await.unwrap(), 1);
    assert_eq!(Orders::on(engine).consume().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn ann_5_lst_1_in_flight_is_an_error_with_the_time_to_come_back() {
    let orders = Arc::new(Orders::new());
    let first = tokio::spawn({
        let orders = Arc::clone(&orders);
        async move { orders.slow(&event("a")).await }
    });
    orders.began.notified().await;
    let began = Instant::now();
    // With a wait of PT0S, the call reads the record once. The holder's lease has 20 s left.
    assert_eq!(orders.slow(&event("a")).await.unwrap_err().retry_after(), Some(20));
    assert_eq!(began.elapsed(), Duration::ZERO);
    // `patient` uses the same record, but waits longer.
    assert!(orders.patient(&event("a")).await.unwrap_err().retry_after().is_some());
    assert!((2_500..2_600).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    orders.go_on.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(orders.patient(&event("a")).await.unwrap(), 1);
    assert_eq!(orders.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn ann_1_the_ttl_of_the_attribute_counts() {
    let orders = Orders::new();
    assert_eq!(orders.short(1).await.unwrap(), 1);
    tokio::time::advance(Duration::from_millis(4_900)).await;
    assert_eq!(orders.short(1).await.unwrap(), 1);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(orders.short(1).await.unwrap(), 2);
}

#[tokio::test]
async fn run_4_an_error_of_the_body_is_unchanged_and_frees_the_key() {
    let orders = Orders::new();
    assert!(matches!(orders.fails("a", true).await, Err(Failure::Own("declined"))));
    assert_eq!(orders.fails("a", false).await.unwrap(), 14);
    assert_eq!(orders.fails("a", true).await.unwrap(), 14);
}

#[tokio::test]
async fn run_4_a_panic_of_the_body_resumes_and_frees_the_key() {
    let orders = Arc::new(Orders::new());
    let other = Arc::clone(&orders);
    let panicked = tokio::spawn(async move { other.panics("a", true).await }).await.unwrap_err();
    assert_eq!(panicked.into_panic().downcast_ref::<&str>(), Some(&"as told"));
    assert_eq!(orders.panics("a", false).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn run_5_a_call_that_is_dropped_in_its_body_leaves_the_key_to_the_lease() {
    let orders = Arc::new(Orders::new());
    let other = Arc::clone(&orders);
    let call = tokio::spawn(async move { other.slow(&event("a")).await });
    orders.began.notified().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(orders.patient(&event("a")).await.unwrap_err().retry_after(), Some(18));
    tokio::time::advance(Duration::from_secs(18)).await;
    assert_eq!(orders.patient(&event("a")).await.unwrap(), 1);
}

mod twin {
    use super::{Event, Failure, IdempotencyEngine, Runs, idempotent};

    /// A second type named `Orders`, with a method of the same name.
    pub(super) struct Orders {
        pub(super) engine: IdempotencyEngine,
        pub(super) runs: Runs,
    }

    impl AsRef<IdempotencyEngine> for Orders {
        fn as_ref(&self) -> &IdempotencyEngine {
            &self.engine
        }
    }

    impl Orders {
        #[idempotent(key = event.id)]
        pub(super) async fn place(&self, event: &Event) -> Result<String, Failure> {
            Ok(format!("twin {} {}", event.id, self.runs.next()))
        }
    }
}

/// In a trait, `Self` is the implementing type.
trait Handles: AsRef<IdempotencyEngine> {
    #[idempotent(key = id)]
    async fn handle(&self, id: u8) -> Result<String, Failure> {
        Ok(format!("{} {id}", std::any::type_name::<Self>()))
    }
}

impl Handles for Orders {}
impl Handles for twin::Orders {}

#[tokio::test]
async fn ann_4_methods_that_share_their_last_names_share_no_record() {
    let orders = Orders::new();
    let twin = twin::Orders { engine: orders.engine.clone(), runs: Runs::default() };
    assert_eq!(orders.place(&event("a")).await.unwrap(), "a 1");
    assert_eq!(twin.place(&event("a")).await.unwrap(), "twin a 1");
    assert_eq!(orders.place(&event("a")).await.unwrap(), "a 1");
    assert_eq!(Handles::handle(&orders, 1).await.unwrap(), concat!(module_path!(), "::Orders 1"));
    assert_eq!(
        Handles::handle(&twin, 1).await.unwrap(),
        concat!(module_path!(), "::twin::Orders 1")
    );
}

/// A trait that a type implements once for each kind of event, as in a dispatcher.
trait Handler<E> {
    async fn handle(&self, event: E) -> Result<String, Failure>;

    async fn consume_event(engine: &IdempotencyEngine, event: E) -> Result<String, Failure>;
}

struct Created(u8);
struct Paid(u8);

impl Handler<Created> for Orders {
    #[idempotent(key = event.0)]
    async fn handle(&self, event: Created) -> Result<String, Failure> {
        Ok(format!("created {} {}", event.0, self.runs.next()))
    }

    #[idempotent(key = event.0, engine = engine)]
    async fn consume_event(engine: &IdempotencyEngine, event: Created) -> Result<String, Failure> {
        Ok(format!("consumed: created {}", event.0))
    }
}

impl Handler<Paid> for Orders {
    #[idempotent(key = event.0)]
    async fn handle(&self, event: Paid) -> Result<String, Failure> {
        Ok(format!("paid {} {}", event.0, self.runs.next()))
    }

    #[idempotent(key = event.0, engine = engine)]
    async fn consume_event(engine: &IdempotencyEngine, event: Paid) -> Result<String, Failure> {
        Ok(format!("consumed: paid {}", event.0))
    }
}

/// A handler whose type parameter is known only at the call.
struct Batch<'a>(&'a Orders);

impl AsRef<IdempotencyEngine> for Batch<'_> {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.0.engine
    }
}

impl<T> Handler<Vec<T>> for Batch<'_> {
    #[idempotent(key = event.len())]
    async fn handle(&self, event: Vec<T>) -> Result<String, Failure> {
        Ok(format!("{} {} {}", event.len(), std::any::type_name::<T>(), self.0.runs.next()))
    }

    #[idempotent(key = event.len(), engine = engine)]
    async fn consume_event(engine: &IdempotencyEngine, event: Vec<T>) -> Result<String, Failure> {
        Ok(format!("consumed: {} {}", event.len(), std::any::type_name::<T>()))
    }
}

/// ID-1: with a shared record, the second handler would not run and would return the result of the
/// first.
#[tokio::test]
async fn ann_4_id_1_methods_of_two_traits_on_one_type_share_no_record() {
    let orders = Orders::new();
    for _ in 0..2 {
        assert_eq!(Handler::handle(&orders, Created(7)).await.unwrap(), "created 7 1");
        assert_eq!(Handler::handle(&orders, Paid(7)).await.unwrap(), "paid 7 2");
        assert_eq!(
            Handles::handle(&orders, 7).await.unwrap(),
            concat!(module_path!(), "::Orders 7")
        );
    }
    let engine = &orders.engine;
    for _ in 0..2 {
        assert_eq!(Orders::consume_event(engine, Created(7)).await.unwrap(), "consumed: created 7");
        assert_eq!(Orders::consume_event(engine, Paid(7)).await.unwrap(), "consumed: paid 7");
    }
}

#[tokio::test]
async fn ann_4_id_1_instantiations_of_a_generic_impl_share_no_record() {
    let orders = Orders::new();
    let batch = Batch(&orders);
    for _ in 0..2 {
        assert_eq!(batch.handle(vec![7_u8]).await.unwrap(), "1 u8 1");
        assert_eq!(batch.handle(vec![7_u16]).await.unwrap(), "1 u16 2");
        assert_eq!(
            Batch::consume_event(&orders.engine, vec![7_u8]).await.unwrap(),
            "consumed: 1 u8"
        );
        assert_eq!(
            Batch::consume_event(&orders.engine, vec![7_u16]).await.unwrap(),
            "consumed: 1 u16"
        );
    }
}

#[tokio::test]
async fn ann_4_the_scope_of_a_trait_method_has_the_trait() {
    let orders = Orders::new();
    Handler::handle(&orders, Created(7)).await.unwrap();
    let here = module_path!();
    let scope = format!("<{here}::Orders as {here}::Handler<{here}::Created>>::handle");
    let ctx = IdempotencyContext::builder(Scope::new(scope).unwrap(), "7").build().unwrap();
    let outcome =
        orders.engine.execute(ctx, async || Err::<String, _>(Failure::Own("ran"))).await.unwrap();
    assert_eq!(outcome, Outcome::Replayed("created 7 1".to_owned()));
}

#[tokio::test]
async fn ann_4_the_scope_of_a_method_is_its_types_path_and_its_name() {
    let orders = Orders::new();
    orders.place(&event("a")).await.unwrap();
    let ctx = IdempotencyContext::builder(concat!(module_path!(), "::Orders::place"), "a")
        .build()
        .unwrap();
    let outcome =
        orders.engine.execute(ctx, async || Err::<String, _>(Failure::Own("ran"))).await.unwrap();
    assert_eq!(outcome, Outcome::Replayed("a 1".to_owned()));
}
