// SPDX-License-Identifier: MIT OR Apache-2.0
// ANN-1: an endpoint may have any name, because none clashes with a name in the expansion.
#![deny(warnings)]
use axum::Router;
use axum::http::Method;
use axum::routing::post;
use retryproof::http::IdempotencyFilter;
use retryproof::{IdempotencyEngine, Lease, Rejected, blocking, idempotent};

macro_rules! endpoints {
    ($($name:ident)*) => {
        $(
            #[idempotent(http)]
            async fn $name(method: Method, $name: String) -> String {
                format!("{method} {}", $name)
            }
        )*

        fn router() -> Router<IdempotencyFilter> {
            Router::new()$(.route(concat!("/", stringify!($name)), post($name)))*
        }
    };
}

endpoints!(request state last call engine body key run filter handler argument argument_1 argument_2 lease policy);

struct Orders {
    owned: IdempotencyEngine,
}

impl AsRef<IdempotencyEngine> for Orders {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.owned
    }
}

impl Orders {
    #[idempotent(key = id, fingerprint = id, hold_when = |error| matches!(error, Rejected::Mismatch))]
    async fn call(&self, id: u8, #[lease] held: &Lease) -> Result<String, Rejected> {
        Ok(format!("{id} {}", held.downstream_key("call")))
    }
}

#[idempotent(key = id, engine = orders)]
async fn booked(orders: &Orders, id: u8) -> Result<u8, Rejected> {
    Ok(id)
}

#[idempotent(key = id, engine = shop)]
fn sold(shop: &blocking::Engine, id: u8) -> Result<u8, Rejected> {
    Ok(id)
}

mod actix {
    use actix_web::{Resource, web};
    use retryproof::actix::idempotent;
    use retryproof::http::IdempotencyFilter;

    macro_rules! endpoints {
        ($($name:ident)*) => {
            $(
                #[idempotent(http)]
                async fn $name(id: web::Path<u8>, $name: String) -> String {
                    format!("{id} {}", $name)
                }
            )*

            pub fn resources(filter: &IdempotencyFilter) -> Vec<Resource> {
                vec![$(web::resource(stringify!($name)).route(web::post().to($name(filter.clone())))),*]
            }
        };
    }

    endpoints!(request state last call engine body key run handler argument argument_1 argument_2 policy);
}

fn main() {
    drop(router());
    let owned = IdempotencyEngine::new(retryproof::MemoryStore::new());
    let other = IdempotencyFilter::builder(owned.clone()).callers_share_keys().build().unwrap();
    assert_eq!(actix::resources(&other).len(), 13);
    let orders = Orders { owned };
    drop((orders.call(1), booked(&orders, 1)));
    let _: fn(_, _) -> _ = sold;
}
