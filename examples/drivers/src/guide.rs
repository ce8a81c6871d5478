// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the snippets of the guide on joined transactions. A test compares these functions with
//! the guide.

use std::error::Error;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use retryproof::{IdempotencyContext, IdempotencyEngine, JoinedEngine, Outcome};
use sea_orm::DatabaseConnection;

use crate::{diesel_postgres, sea_orm_postgres};

/// Runs an action in a transaction of sqlx 0.9.
///
/// # Errors
/// If the database fails, or the call ends without a result.
pub async fn sqlx_09(
    engine: IdempotencyEngine,
    pool: sqlx::PgPool,
    ctx: IdempotencyContext,
) -> Result<Outcome<String>, Box<dyn Error>> {
    use retryproof::postgres::PostgresTx;

    let joined = engine.joined(pool)?; // a `sqlx::PgPool`; once, at start-up
    let outcome = joined
        .execute(ctx, async |tx: &mut PostgresTx| {
            sqlx::query("INSERT INTO ledger VALUES ('alice', 4200)").execute(&mut **tx).await?;
            Ok::<_, sqlx::Error>("paid".to_owned())
        })
        .await?;
    Ok(outcome)
}

/// Opens the store and the application's pool with the same URL.
///
/// # Errors
/// If the URL is invalid, or if the database cannot be used.
pub async fn one_url() -> Result<JoinedEngine<retryproof::postgres::PostgresTx>, Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let engine = IdempotencyEngine::new(retryproof::connect(&url).await?);
    let pool = sqlx::PgPool::connect(&url).await?; // the application's own connections
    let joined = engine.joined(pool)?;
    Ok(joined)
}

/// Runs an action in a transaction of sqlx 0.8.
///
/// # Errors
/// If the database fails, or the call ends without a result.
pub async fn sqlx_08(
    engine: IdempotencyEngine,
    pool: sqlx_of_08::PgPool,
    ctx: IdempotencyContext,
) -> Result<Outcome<String>, Box<dyn Error>> {
    use retryproof::postgres::sqlx_08::PostgresTx;

    let joined = engine.joined(pool)?; // a `sqlx::PgPool` of 0.8; once, at start-up
    let outcome = joined
        .execute(ctx, async |tx: &mut PostgresTx| {
            sqlx_of_08::query("INSERT INTO ledger VALUES ('alice', 4200)")
                .execute(&mut **tx)
                .await?;
            Ok::<_, sqlx_of_08::Error>("paid".to_owned())
        })
        .await?;
    Ok(outcome)
}

/// Runs an action in a transaction of diesel-async.
///
/// # Errors
/// If the database fails, or the call ends without a result.
pub async fn diesel(
    engine: IdempotencyEngine,
    pool: Pool<AsyncPgConnection>,
    ctx: IdempotencyContext,
) -> Result<Outcome<String>, Box<dyn Error>> {
    use diesel_async::RunQueryDsl;
    use diesel_postgres::{DieselSource, DieselTx}; // the file that you copied

    let joined = engine.joined(DieselSource(pool))?; // a deadpool `Pool<AsyncPgConnection>`
    let outcome = joined
        .call(ctx) // because `RunQueryDsl` adds another method `execute`
        .execute(async |tx: &mut DieselTx| {
            diesel::sql_query("INSERT INTO ledger VALUES ('alice', 4200)")
                .execute(&mut **tx)
                .await?;
            Ok::<_, diesel::result::Error>("paid".to_owned())
        })
        .await?;
    Ok(outcome)
}

/// Runs an action in a transaction of SeaORM.
///
/// # Errors
/// If the database fails, or the call ends without a result.
pub async fn sea_orm(
    engine: IdempotencyEngine,
    db: DatabaseConnection,
    ctx: IdempotencyContext,
) -> Result<Outcome<String>, Box<dyn Error>> {
    use sea_orm::ConnectionTrait;
    use sea_orm_postgres::{SeaSource, SeaTx}; // the file that you copied

    let joined = engine.joined(SeaSource(db))?; // a `DatabaseConnection`
    let outcome = joined
        .execute(ctx, async |tx: &mut SeaTx| {
            tx.execute_unprepared("INSERT INTO ledger VALUES ('alice', 4200)").await?;
            Ok::<_, sea_orm::DbErr>("paid".to_owned())
        })
        .await?;
    Ok(outcome)
}
