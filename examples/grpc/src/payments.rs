// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service itself. The guard handles the keys, so the service only says which errors had no
//! effect.

use std::sync::{Arc, Mutex, PoisonError};

use retryproof::http::grpc::FATE;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::proto::{ChargeRequest, HistoryRequest, Payments, Receipt, Receipts};

/// The payments made in this process.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Receipt>>>);

impl Ledger {
    /// Returns all receipts.
    #[must_use]
    pub fn receipts(&self) -> Vec<Receipt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn enter(&self, account: String, cents: u64) -> Receipt {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let receipt = Receipt { number: ledger.len() as u64 + 1, account, cents };
        ledger.push(receipt.clone());
        receipt
    }
}

impl Payments for Ledger {
    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Receipt>, Status> {
        let ChargeRequest { account, cents } = request.into_inner();
        if cents == 0 {
            // This refusal is stored like any other answer, and every retry gets it.
            return Err(Status::failed_precondition("there is nothing to pay"));
        }
        if account.is_empty() {
            // Nothing was charged, and a retry may succeed, so free the key.
            let mut status = Status::unavailable("accounts cannot be looked up now");
            status.metadata_mut().insert(FATE, MetadataValue::from_static("release"));
            return Err(status);
        }
        let receipt = self.enter(account, cents);
        let number = MetadataValue::from(receipt.number);
        let mut response = Response::new(receipt);
        response.metadata_mut().insert("x-ledger-number", number);
        Ok(response)
    }

    async fn history(
        &self,
        request: Request<HistoryRequest>,
    ) -> Result<Response<Receipts>, Status> {
        let HistoryRequest { account } = request.into_inner();
        let receipts =
            self.receipts().into_iter().filter(move |receipt| receipt.account == account).map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(receipts))))
    }
}
