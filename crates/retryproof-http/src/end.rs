// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends a call that records nothing: releases its key, or holds it until the lease runs out
//! (HTTP-7, RUN-4).

use std::panic::resume_unwind;
use std::pin::Pin;

use http::Response;
use retryproof_core::internal::Panic;
use retryproof_core::observe::Phase;

use crate::body::GuardedBody;
use crate::call::RunningCall;
#[cfg(feature = "grpc")]
use crate::fate::RollBackWrites;
use crate::protocol::decide::{Finding, NoTx};
use crate::response::{HandlerResponse, ResponseContext};
use crate::served::Served;

/// Why nothing is recorded.
pub(crate) enum Unrecorded<R, E> {
    Released(Response<R>),
    /// The handler's writes were rolled back, which undid all of its work (CMP-7).
    RolledBack(Response<R>),
    Held(Response<R>),
    Failed(E),
    Panicked(Panic),
}

pub(crate) async fn end_unrecorded<R, E>(
    mut call: Pin<Box<RunningCall<R>>>,
    unrecorded: Unrecorded<R, E>,
) -> Result<HandlerResponse<R>, E> {
    match unrecorded {
        Unrecorded::Released(mut response) => {
            let replacement = response.extensions_mut().remove::<NoTx>().map(|what| {
                let ticket = call.filter().ticket();
                ResponseContext::of_call(call.mark()).refuse(Finding::NoTx { what, ticket })
            });
            release(call, Phase::Released).await;
            Ok(match replacement {
                Some(replacement) => HandlerResponse::in_place(replacement, Served::Released),
                None => of_handler(response, Served::Released),
            })
        }
        Unrecorded::RolledBack(response) => {
            release(call, Phase::RolledBack).await;
            Ok(of_handler(response, Served::Failed))
        }
        Unrecorded::Held(response) => {
            call.roll_back().await;
            // Do not release the key: it stays held until the lease runs out.
            if let Some(lease) = call.as_mut().take_lease() {
                lease.hold();
            }
            Ok(of_handler(response, Served::Failed))
        }
        Unrecorded::Failed(error) => {
            release(call, Phase::Action).await;
            Err(error)
        }
        Unrecorded::Panicked(panic) => {
            release(call, Phase::Panic).await;
            resume_unwind(panic)
        }
    }
}

/// Rolls back the handler's transaction and ends the lease. This frees the key, unless the handler
/// called `hold_on_error` and then failed. If the release fails, the engine logs the error, and the
/// lease runs out (RUN-4).
async fn release<R>(mut call: Pin<Box<RunningCall<R>>>, phase: Phase) {
    call.roll_back().await;
    if let Some(lease) = call.as_mut().take_lease() {
        let _ = lease.release_after(phase).await;
    }
}

/// Prepares the handler's response for sending, and removes the marks that the gRPC layer sets for
/// the guard.
fn of_handler<R>(response: Response<R>, served: Served) -> HandlerResponse<R> {
    #[cfg(feature = "grpc")]
    let response = {
        let mut response = response;
        response.extensions_mut().remove::<RollBackWrites>();
        response
    };
    HandlerResponse::of_handler(response.map(GuardedBody::of_handler), None, served)
}
