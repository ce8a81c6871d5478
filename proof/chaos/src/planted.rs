// SPDX-License-Identifier: MIT OR Apache-2.0
//! The defects that can be planted: the [`Defect`]s of a store or of an engine, and one of
//! operators. A run that shows no violation without a defect has to show one with it.

use defects::Defect;
use retryproof::store::{ForceRequest, Forced};
use retryproof::{Identity, Result, SharedStore};

/// The defect in which an intervention changes the record regardless of what the operator saw. The
/// operators themselves cause it ([`unfenced`]), on an unchanged store.
pub(crate) const UNFENCED_OPERATOR: &str = "unfenced-operator";

/// Returns whether a defect with this name can be planted.
pub(crate) fn is_known(name: &str) -> bool {
    name == UNFENCED_OPERATOR || Defect::named(name).is_some()
}

/// Returns the names of all defects that can be planted.
pub(crate) fn names() -> String {
    let names = Defect::ALL.iter().map(|defect| defect.name());
    names.chain([UNFENCED_OPERATOR]).collect::<Vec<_>>().join(", ")
}

/// Intervenes without fencing: with the record's present token, and even if the lease is live.
pub(crate) async fn unfenced(
    store: &SharedStore,
    id: &Identity,
    req: &ForceRequest,
) -> Result<Forced> {
    let mut req = req.clone().even_if_live();
    if let Some(found) = store.get(id).await? {
        req.token = found.token;
    }
    store.force(id, &req).await
}
