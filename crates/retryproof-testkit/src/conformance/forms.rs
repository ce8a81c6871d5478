// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls all methods through the concrete store, through `SharedStore` and through `DynStore`.

use retryproof_core::store::SharedStore;

use crate::script::{dyn_script, script};
use crate::subject::Subject;

/// Every form of the store gives the same answers.
pub async fn sto_2_the_concrete_and_the_shared_form_agree(s: &Subject) {
    let concrete = s.concrete(s.id("concrete")).await;
    let shared = script(s.store(), &s.id("shared")).await;
    let dynamic = dyn_script(s.store().as_dyn(), &s.id("dynamic")).await;
    let nested = script(&SharedStore::new(s.store().clone()), &s.id("nested")).await;
    let expected = [
        "absent",
        "Ok(NotOwner)",
        "Ok(NotOwner)",
        "Ok(AlreadyApplied)",
        "granted, takeover false",
        "busy",
        "busy",
        "true",
        "Ok(Applied)",
        "Ok(NotOwner)",
        "Ok(NotOwner)",
        "Ok(Applied)",
        "Ok(AlreadyApplied)",
        "Ok(NotOwner)",
        "true",
        "complete [98, 111, 116, 104] Some([1, 4])",
        "complete [98, 111, 116, 104]",
        "Ok(NotOwner)",
    ];
    assert_eq!(concrete[..concrete.len() - 1], expected);
    assert_eq!(shared, concrete);
    assert_eq!(dynamic, concrete);
    assert_eq!(nested, concrete);
}
