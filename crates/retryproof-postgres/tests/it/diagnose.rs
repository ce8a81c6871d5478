// SPDX-License-Identifier: MIT OR Apache-2.0
//! `diagnose` names each fault that is planted in a server, a table, a user or a pooler.

use retryproof_core::store::{Severity, StoreFinding};
use retryproof_core::{Error, ErrorKind, IdentitySecret};
use retryproof_postgres::{Pooler, PostgresConfig};

use crate::support::server::Server;
use crate::support::{Stranger, Table, execute, id, pgbouncer, postgres};

async fn findings(config: &PostgresConfig) -> Vec<StoreFinding> {
    config.diagnose().await.unwrap_or_else(|error: Error| panic!("{error}"))
}

fn ids(findings: &[StoreFinding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id).collect()
}

fn problem<'a>(findings: &'a [StoreFinding], id: &str) -> &'a str {
    let found = findings.iter().find(|finding| finding.id == id);
    &found.unwrap_or_else(|| panic!("no {id}: {findings:#?}")).problem
}

#[tokio::test]
async fn ops_5_a_server_in_order_has_no_finding() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("k"), "v").await;
    assert_eq!(findings(&table.config()).await, []);
}

#[tokio::test]
async fn ops_5_settings_that_lose_records_are_named() {
    let server = Server::start().await;
    let table = Table::on(server.url()).await;
    // The test's own server runs without autovacuum.
    assert_eq!(ids(&findings(&table.config()).await), ["autovacuum"]);
    let mut stranger = table.stranger().await;
    for setting in ["fsync=off", "full_page_writes=off", "synchronous_commit=off"] {
        stranger.run(format!("ALTER SYSTEM SET {setting}")).await;
    }
    stranger.run("SELECT pg_reload_conf()").await;
    let expected = ["fsync", "full_page_writes", "synchronous_commit", "autovacuum"];
    // The server applies the settings a moment later.
    for _ in 0..200 {
        if ids(&findings(&table.config()).await) == expected {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let found = findings(&table.config()).await;
    assert_eq!(ids(&found), expected);
    assert_eq!(found[0].severity, Severity::Error);
    assert!(found[1..].iter().all(|finding| finding.severity == Severity::Warning), "{found:#?}");
}

#[tokio::test]
async fn ops_5_a_read_only_server_is_named() {
    let table = Table::new().await;
    let url = format!("{}?options=-c%20default_transaction_read_only=on", table.url);
    let config = PostgresConfig::from_url(&url).unwrap().with_table_name(&table.name);
    let found = findings(&config).await;
    assert_eq!(ids(&found), ["role"]);
    assert_eq!(found[0].severity, Severity::Error);
}

/// Creates a user with a password for the test.
async fn user(table: &Table) -> (Stranger, String, PostgresConfig) {
    let mut stranger = table.stranger().await;
    let name = format!("{}_user", table.name);
    stranger.run(format!("CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'")).await;
    let (_, place) = table.url.split_once('@').expect("a user in the URL");
    let config = PostgresConfig::from_url(&format!("postgres://{name}:secret@{place}"))
        .unwrap()
        .with_table_name(&table.name);
    (stranger, name, config)
}

#[tokio::test]
async fn ops_5_each_missing_privilege_is_named() {
    let table = Table::new().await;
    let (mut stranger, name, config) = user(&table).await;
    let t = &table.name;
    stranger.run(format!("REVOKE ALL ON FUNCTION \"{t}_complete_1\" FROM PUBLIC")).await;
    let all = findings(&config).await;
    assert_eq!(
        problem(&all, "privilege"),
        format!(
            "Calls fail because the user lacks these privileges: SELECT on {t}, INSERT on {t}, \
             UPDATE on {t}, DELETE on {t}, SELECT on {t}_meta, EXECUTE on {t}_complete_1."
        )
    );
    stranger.run(format!("GRANT SELECT, INSERT, UPDATE ON \"{t}\" TO \"{name}\"")).await;
    stranger.run(format!("GRANT SELECT ON \"{t}_meta\" TO \"{name}\"")).await;
    let some = findings(&config).await;
    assert!(
        problem(&some, "privilege")
            .ends_with(&format!(": DELETE on {t}, EXECUTE on {t}_complete_1.")),
        "{some:#?}"
    );
    assert_eq!(some[0].severity, Severity::Error);
    stranger.run(format!("GRANT ALL ON \"{t}\" TO \"{name}\"")).await;
    stranger.run(format!("GRANT EXECUTE ON FUNCTION \"{t}_complete_1\" TO \"{name}\"")).await;
    assert_eq!(findings(&config).await, []);
    stranger.run(format!("DROP OWNED BY \"{name}\"; DROP ROLE \"{name}\"")).await;
}

#[tokio::test]
async fn ops_5_missing_tables_and_functions_are_named() {
    let absent = Table::absent(crate::support::postgres());
    let found = findings(&absent.config()).await;
    assert_eq!(ids(&found), ["schema"]);
    assert_eq!(found[0].severity, Severity::Error);

    let table = Table::new().await;
    let mut stranger = table.stranger().await;
    let grant = format!("\"{}_grant_1\"", table.name);
    stranger.run(format!("DROP FUNCTION {grant}")).await;
    let found = findings(&table.config()).await;
    assert_eq!(ids(&found), ["functions"]);
    assert!(found[0].problem.contains("_grant_1` is missing"), "{found:#?}");

    table.config().migrate().await.unwrap();
    stranger
        .run(format!(
            "UPDATE pg_proc SET prosrc=replace(prosrc,'revision CONSTANT','other CONSTANT') WHERE \
             proname='{}_grant_1'",
            table.name
        ))
        .await;
    let found = findings(&table.config()).await;
    assert_eq!((ids(&found), found[0].severity), (vec!["functions"], Severity::Warning));
    assert!(found[0].problem.contains("has revision 0"), "{found:#?}");

    stranger.run(format!("UPDATE \"{}_meta\" SET value=0 WHERE name='schema'", table.name)).await;
    let old = findings(&table.config()).await;
    assert!(problem(&old, "schema").contains("too old"), "{old:#?}");
}

#[tokio::test]
async fn ops_5_id_5_another_identity_secret_is_named() {
    let secret = |letter: &str| IdentitySecret::new(letter.repeat(32)).expect("32 bytes");
    let tables = (Table::new().await, Table::absent(postgres()));
    let (plain, hashed) = (tables.0.config(), tables.1.config());
    hashed.clone().with_identity_secret(secret("a")).migrate().await.expect("migrated");
    for (config, text) in [
        (plain.clone().with_identity_secret(secret("a")), "set up without an identity secret"),
        (hashed.clone(), "this program has no identity secret"),
        (hashed.clone().with_identity_secret(secret("b")), "another identity secret"),
    ] {
        let found = findings(&config).await;
        assert_eq!(ids(&found), ["identities"], "{found:#?}");
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].problem.contains(text), "{found:#?}");
    }
    for config in [plain, hashed.with_identity_secret(secret("a"))] {
        assert_eq!(findings(&config).await, []);
    }
}

#[tokio::test]
async fn ops_5_no_purge_for_a_day_is_named() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("k"), "v").await;
    let mut stranger = table.stranger().await;
    let mut expired = async |hours: i64| {
        stranger
            .run(format!(
                "UPDATE \"{}\" SET expires_at=now()-interval '{hours} hours',purge_bucket=(extract(\
                 epoch FROM now()-interval '{hours} hours')*1000000)::bigint",
                table.name
            ))
            .await
    };
    expired(23).await;
    assert_eq!(findings(&table.config()).await, []);
    expired(50).await;
    let found = findings(&table.config()).await;
    assert_eq!(ids(&found), ["purge"]);
    assert!(found[0].problem.contains("50 h"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_dead_rows_and_a_table_without_autovacuum_are_named() {
    let table = Table::new().await;
    let mut stranger = table.stranger().await;
    stranger.run(format!("ALTER TABLE \"{}\" SET (autovacuum_enabled=off)", table.name)).await;
    let found = findings(&table.config()).await;
    assert_eq!(ids(&found), ["autovacuum"]);
    assert!(found[0].problem.contains("for the table"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_a_pooler_is_named() {
    let table = Table::new().await;
    let (_, database) = table.url.rsplit_once('/').expect("a database");
    let (server, _) =
        pgbouncer().rsplit_once('/').map(|(s, d)| (s.to_owned(), d.to_owned())).unwrap();
    let config = PostgresConfig::from_url(&format!("{server}/{database}")).unwrap();
    let config = config.with_table_name(&table.name);
    for (pooler, severity) in [(Pooler::Detect, Severity::Note), (Pooler::Session, Severity::Error)]
    {
        let found = findings(&config.clone().with_pooler(pooler)).await;
        assert_eq!(ids(&found), ["pooler"], "{found:#?}");
        assert_eq!(found[0].severity, severity, "{found:#?}");
    }
}

#[tokio::test]
async fn ops_5_a_server_that_is_away_is_an_error() {
    let away = PostgresConfig::from_url("postgres://u:canary@127.0.0.1:1/d").unwrap();
    let error = away.diagnose().await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Some("diagnose")));
    assert!(!crate::support::whole(&error).contains("canary"));
}
