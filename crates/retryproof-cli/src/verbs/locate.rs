// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`located`]: the record that the arguments name, by its key or by its digest.

use retryproof::{Identity, Scope, SharedStore};

use super::scan::{PAGE, Scan};
use crate::arguments::RecordArguments;
use crate::exit::VerbError;
use crate::record_key::{digits, identity};

/// Returns the identity of the record that the arguments name. The identity is printed as in the
/// logs (ID-5). With `--digest`, reads records until it finds one with this digest.
pub(super) async fn located(
    store: &SharedStore,
    arguments: &RecordArguments,
) -> Result<Identity, VerbError> {
    if !arguments.digest {
        return Ok(store.identify(identity(arguments)?));
    }
    let Some(digits) = digits(&arguments.key) else {
        return Err(VerbError::usage(
            "with `--digest`, the key is the 16 hex digits that `ls` and the logs show",
        ));
    };
    let name = format!("{}#{digits}", Scope::new(arguments.scope.as_str())?);
    let mut scan = Scan::new(store, None);
    loop {
        let page = scan.page(PAGE).await?;
        if let Some(record) = page.records.iter().find(|record| record.id.to_string() == name) {
            return Ok(record.id.clone());
        }
        if !scan.advance(&page) {
            scan.remark_unreadable();
            return Err(VerbError::not_found(&name, ""));
        }
    }
}
