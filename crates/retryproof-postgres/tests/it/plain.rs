// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plain dialect (STO-9), for a role that can call no function beside the few that the dialect
//! needs, and that can create none. A proxy reads every statement of the store.

mod conflicts;
mod interleaved;
mod operate;
pub(crate) mod place;
mod setup;
mod tap;

use std::sync::Arc;

use retryproof_postgres::PostgresStore;
use retryproof_testkit::wire::WireProxy;
use retryproof_testkit::{Subject, SubjectBuilder};

use crate::conformance::subject_on;
use crate::round_trips::proxied;
use conflicts::inject;
use place::{Place, patient};
use tap::Tap;

/// Returns the store of the place, and its proxies. The store's connections have these parameters
/// in their URL. Joined transactions also go through the tap, but with the server's own settings.
async fn subject(parameters: &str, place: Place) -> (SubjectBuilder<PostgresStore>, Arc<Proxies>) {
    let Place { table, tap, url } = place;
    // One more proxy counts the round trips of this store, but not those of the application.
    let (counter, counted) = proxied(&url).await;
    let app = url.replace(parameters, "");
    let config = retryproof_postgres::PostgresConfig::from_url(&format!("{counted}&dialect=plain"));
    let config = patient(config.expect("a valid URL"));
    let config = config.with_pooler(retryproof_postgres::Pooler::Session);
    let proxies = Arc::new(Proxies { counter, _tap: tap });
    (subject_on(table, config, &app, Arc::clone(&proxies)).await, proxies)
}

/// The proxies of a test, which live as long as its subject. The tap fails the test if it is
/// dropped after a forbidden statement.
struct Proxies {
    counter: WireProxy,
    _tap: Tap,
}

mod read_committed {
    use super::*;

    async fn read_committed() -> Subject {
        let (subject, proxies) = subject("", Place::new("").await).await;
        subject.with_round_trips(move || proxies.counter.flights()).build()
    }

    retryproof_testkit::conformance! { time = real, factory = read_committed }
}

/// One change of five fails with 40001, and one of ten at its commit. The application's joined
/// transactions are spared, because nothing can repeat them. The table has partitions.
mod serializable {
    use super::*;

    const LEVEL: &str =
        "&options[default_transaction_isolation]=serializable&application_name=store";

    async fn serializable() -> Subject {
        let place = Place::absent(LEVEL).await;
        place.config().with_partitions(3).migrate().await.expect("the role creates its tables");
        // To find the number of partitions, `migrate` has read the catalogue.
        place.tap.take_forbidden();
        let of_store = "current_setting('application_name')='store' AND random() <";
        inject(&place.table, &format!("{of_store} 0.2"), &format!("{of_store} 0.1")).await;
        let (subject, _) = subject(LEVEL, place).await;
        // Repeated statements cost round trips, so the kit does not count them here.
        subject.build()
    }

    retryproof_testkit::conformance! { time = real, factory = serializable }
}

/// The other dialect shows that the tap and the role would notice it.
#[tokio::test]
async fn sto_9_the_other_dialect_is_noticed() {
    let place = Place::absent("").await;
    let other = place.config().with_dialect(retryproof_postgres::SqlDialect::Postgres);
    let error = other.migrate().await.expect_err("the role may not lock");
    assert!(error.to_string().contains("create"), "{error}");
    assert!(!place.tap.take_forbidden().is_empty());
    // Tables with functions, which a superuser has created.
    let table = crate::support::Table::on(place.table.url.clone()).await;
    let mut admin = table.stranger().await;
    admin.run(format!("GRANT ALL ON \"{0}\", \"{0}_meta\" TO PUBLIC", table.name)).await;
    let through = other.with_table_name(&table.name);
    PostgresStore::connect(through).await.map(drop).expect_err("the role may read no setting");
    assert!(!place.tap.take_forbidden().is_empty());
}
