// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a memory store can do when an engine has it.

use retryproof_core::SharedStore;
use retryproof_memory::MemoryStore;

#[test]
fn ops_2_ops_3_a_store_of_an_engine_can_be_inspected_and_changed() {
    let store = SharedStore::from(MemoryStore::new());
    assert!(store.can_inspect() && store.can_force());
}
