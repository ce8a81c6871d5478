// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the default scopes (ANN-4) with the paths that today's compiler writes.

use std::marker::PhantomData;

use super::*;

struct Orders;

fn scope(call: AnnotatedCall) -> String {
    let ctx = call.context.and_then(ContextBuilder::build).unwrap();
    ctx.identity().scope().as_str().to_owned()
}

/// The scope of the enclosing method, as the attribute generates it.
macro_rules! method {
    ($name:literal) => {
        scope(AnnotatedCall::method::<Self, _, _>($name, "k", || ()))
    };
}

macro_rules! function {
    ($name:literal) => {
        scope(AnnotatedCall::function(
            default_scope(concat!(module_path!(), "::", $name)),
            "k",
            || (),
        ))
    };
}

const HERE: &str = module_path!();

mod apart {
    use super::*;

    pub(super) trait Handler<E> {
        async fn handle(&self) -> String;

        async fn provided(&self) -> String {
            method!("provided")
        }

        fn without_self(_: E) -> String {
            function!("without_self")
        }

        fn associated(_: E) -> String;
    }

    pub(super) trait Run {
        fn run(&self) -> String {
            method!("run")
        }
    }

    impl Run for Orders {}

    impl dyn Run {
        pub(super) fn inherent(&self) -> String {
            method!("inherent")
        }
    }

    impl Orders {
        pub(super) async fn apart(&self) -> String {
            method!("apart")
        }
    }
}

use apart::{Handler, Run};

struct Created;
struct Batch<'a, T>(PhantomData<&'a T>);

impl Orders {
    async fn on<'a>(&'a self, _: &'a str) -> String
    where
        'a: 'a,
    {
        method!("on")
    }

    fn r#type(&self) -> String {
        method!("r#type")
    }

    fn run(&self) -> String {
        method!("run")
    }

    fn associated() -> String {
        function!("associated")
    }
}

impl<T> Batch<'_, T> {
    async fn on(&self) -> String {
        method!("on")
    }

    fn without_self() -> String {
        function!("without_self")
    }
}

impl Handler<Created> for Orders {
    async fn handle(&self) -> String {
        async { method!("handle") }.await
    }

    fn associated(_: Created) -> String {
        function!("associated")
    }
}

impl Handler<fn(u8) -> u8> for Orders {
    async fn handle(&self) -> String {
        method!("handle")
    }

    fn associated(_: fn(u8) -> u8) -> String {
        function!("associated")
    }
}

impl<T> Handler<T> for Batch<'_, T> {
    async fn handle(&self) -> String {
        method!("handle")
    }

    fn associated(_: T) -> String {
        function!("associated")
    }
}

mod elsewhere {
    use super::*;

    impl<T> Handler<Vec<T>> for Orders {
        async fn handle(&self) -> String {
            method!("handle")
        }

        fn associated(_: Vec<T>) -> String {
            function!("associated")
        }
    }
}

/// The scope of a method in an inherent `impl` is the type and the name. The module of the `impl`
/// and the method's lifetimes do not matter.
#[tokio::test]
async fn ann_4_default_scopes_of_inherent_methods_are_type_and_name() {
    assert_eq!(Orders.on("").await, format!("{HERE}::Orders::on"));
    assert_eq!(Orders.apart().await, format!("{HERE}::Orders::apart"));
    assert_eq!(Orders.r#type(), format!("{HERE}::Orders::r#type"));
    assert_eq!(Orders.run(), format!("{HERE}::Orders::run"));
    assert_eq!(<dyn Run>::inherent(&Orders), format!("dyn {HERE}::apart::Run::inherent"));
    let batch = type_name::<Batch<'_, Created>>();
    assert_eq!(Batch(PhantomData::<&Created>).on().await, format!("{batch}::on"));
    assert_ne!(Batch(PhantomData::<&Created>).on().await, Batch(PhantomData::<&u8>).on().await);
}

/// Two handlers with the same name on the same type have different scopes, because the scope
/// includes the trait and its parameters (ID-1). The compiler writes the path differently if the
/// `impl` is in a module without the trait and the type.
#[tokio::test]
async fn ann_4_default_scopes_of_trait_methods_have_the_trait_and_its_parameters() {
    let of = |owner: &str, handled: &str, name: &str| {
        format!("<{owner} as {HERE}::apart::Handler<{handled}>>::{name}")
    };
    let orders = type_name::<Orders>();
    let created = type_name::<Created>();
    assert_eq!(Handler::<Created>::handle(&Orders).await, of(orders, created, "handle"));
    assert_eq!(
        Handler::<fn(u8) -> u8>::handle(&Orders).await,
        of(orders, "fn(u8) -> u8", "handle")
    );
    assert_eq!(
        Handler::<Vec<u8>>::handle(&Orders).await,
        of(orders, "alloc::vec::Vec<u8>", "handle")
    );
    assert_eq!(
        Handler::<Vec<u16>>::handle(&Orders).await,
        of(orders, "alloc::vec::Vec<u16>", "handle")
    );
    let batch = type_name::<Batch<'_, Created>>();
    assert_eq!(Batch(PhantomData::<&Created>).handle().await, of(batch, created, "handle"));
    assert_eq!(Handler::<Created>::provided(&Orders).await, of(orders, created, "provided"));
    assert_eq!(Run::run(&Orders), format!("<{orders} as {HERE}::apart::Run>::run"));
}

#[test]
fn ann_4_default_scopes_of_functions_are_full_paths() {
    fn inner<'a>(_: &'a str) -> String
    where
        'a: 'a,
    {
        function!("inner")
    }
    fn r#fn() -> String {
        function!("r#fn")
    }
    fn generic<T>(_: T) -> String {
        fn inner() -> String {
            function!("inner")
        }
        inner()
    }
    mod flat {
        use super::*;
        pub(super) fn r#fn() -> String {
            function!("r#fn")
        }
    }
    let test = format!("{HERE}::ann_4_default_scopes_of_functions_are_full_paths");
    assert_eq!(free(), format!("{HERE}::free"));
    assert_eq!(raw::r#fn(), format!("{HERE}::raw::r#fn"));
    // `module_path!()` would leave out the test function that encloses these items.
    assert_eq!(inner(""), format!("{test}::inner"));
    assert_eq!(generic(1_u8), format!("{test}::generic::inner"));
    assert_eq!(r#fn(), format!("{test}::fn"));
    assert_eq!(flat::r#fn(), format!("{test}::flat::fn"));
    assert_eq!(Orders::associated(), format!("{HERE}::Orders::associated"));
    let created = <Orders as Handler<Created>>::associated(Created);
    assert_eq!(
        created,
        format!("<{HERE}::Orders as {HERE}::apart::Handler<{HERE}::Created>>::associated")
    );
    assert_ne!(<Orders as Handler<Vec<u8>>>::associated(Vec::new()), created);
    assert_ne!(Batch::<u8>::associated(1), Batch::<u16>::associated(1));
    assert_ne!(Batch::<u8>::without_self(), Batch::<u16>::without_self());
    let created = <Orders as Handler<Created>>::without_self(Created);
    assert_eq!(
        created,
        format!("<{HERE}::Orders as {HERE}::apart::Handler<{HERE}::Created>>::without_self")
    );
    assert_ne!(<Orders as Handler<Vec<u8>>>::without_self(Vec::new()), created);
}

fn free() -> String {
    function!("free")
}

mod raw {
    use super::*;

    pub(super) fn r#fn() -> String {
        function!("r#fn")
    }
}

/// No compiler writes these paths today. If a later compiler does, two methods must still have
/// different scopes.
#[test]
fn ann_4_a_path_that_is_not_understood_is_taken_as_it_is() {
    for (place, path) in [
        ("a::Own::on", "a::Own::on"),
        ("opaque", "a::Own::on"),
        ("a::other<a::Own>::on", "a::other<a::Own>::on"),
        ("<a::Own is b::Tr>::on", "<a::Own is b::Tr>::on"),
        ("b::<impl b::Tr to a::Own>::on", "b::<impl b::Tr to a::Own>::on"),
        ("a>::on", "a>::on"),
    ] {
        assert_eq!(method_path("a::Own", "on", place), path);
    }
}

#[test]
fn ann_4_id_3_a_default_scope_is_no_longer_than_a_scope() {
    let long: &'static str = "p".repeat(256).leak();
    assert!(std::panic::catch_unwind(|| default_scope(long)).is_err());
    assert_eq!(default_scope(&long[..255]), &long[..255]);
}
