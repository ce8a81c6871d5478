// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Expected`]: which cases of the kit should catch a defect, and which layers cannot.

use defects::Defect;

use crate::options::Layer;

/// A defect in one store, and which layers should catch it.
pub(crate) struct Expected {
    defect: Defect,
    in_one_process: bool,
}

impl Expected {
    pub(crate) fn of(defect: Defect, store: &str) -> Self {
        Self { defect, in_one_process: store == "memory" }
    }

    /// Returns why this layer cannot catch the defect, or `None` if it can.
    pub(crate) fn exempt(&self, layer: Layer) -> Option<&'static str> {
        match (layer, self.defect) {
            (Layer::Kit, Defect::LostReplyRefused) => {
                Some("the kit tests stores, and this defect is in the engine: see the other layers")
            }
            (Layer::Kit | Layer::Kill, Defect::NoPoll) if self.in_one_process => {
                Some("no defect: every change is made in the one process")
            }
            _ => None,
        }
    }

    /// Returns the cases of the kit that should catch the defect, cheap ones first.
    pub(crate) const fn cases(defect: Defect) -> &'static [&'static str] {
        match defect {
            Defect::NoWakeUp => &["acq_4_a_change_wakes_a_waiter_before_its_next_read"],
            Defect::NoPoll => &["acq_4_a_waiter_on_another_handle_is_woken"],
            Defect::Deaf => &["acq_4_completion_wakes_a_waiter"],
            Defect::NoHeartbeat | Defect::LateHeartbeat => &["run_1_extend_renews_the_lease"],
            Defect::TtlFromAcquire => &["cmp_6_ttl_runs_from_completion"],
            Defect::FingerprintDropped => &["fp_1_nothing_is_judged_while_the_holder_runs"],
            Defect::AlteredReplay => &["cmp_1_results_come_back_byte_for_byte"],
            Defect::TimeFenced => &["cmp_2_a_late_completion_by_the_recorded_owner_counts"],
            Defect::EarlyTakeover => &["acq_2_no_takeover_before_expiry"],
            Defect::GetThenSet => &["acq_2_one_winner_at_expiry"],
            Defect::NoOwnerCheck => &["cmp_2_a_zombie_completion_is_lost"],
            Defect::RepeatedToken => &["acq_10_tokens_grow_over_takeovers"],
            Defect::EarlyPurge => &["sto_4_purge_keeps_an_expired_lease_within_its_ttl"],
            Defect::LostReplyRefused => &[],
        }
    }
}
