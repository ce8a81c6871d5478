// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit: one macro call tests a store (STO-2).
//!
//! ```
//! use retryproof_memory::MemoryStore;
//! use retryproof_testkit::{Subject, conformance};
//!
//! async fn subject() -> Subject {
//!     Subject::of(MemoryStore::new()).with_purge().build()
//! }
//!
//! // In a file of tests, at the level of items: one `#[test]` per case, named after rule and behaviour.
//! conformance! { time = paused, factory = subject }
//! # fn main() {}
//! ```
//!
//! # Time
//! With `time = paused`, each case has a single-threaded runtime whose clock is paused. Choose this
//! setting for a store that uses tokio's clock and does nothing on other threads. With `time =
//! real`, each case has a runtime of two threads on the host's clock. A lease that must run out
//! lasts a few tens of milliseconds. The kit relies on the store's answers instead of measured
//! time, so a loaded machine slows the kit down but causes no false failures.
//!
//! If your store has an injected clock, declare that clock under either setting with
//! [`with_clock`](crate::SubjectBuilder::with_clock). Expiry is then tested to the last
//! millisecond.
//!
//! The cases of ACQ-7 shift the runtime's clock by hours, or stop it, while the store's clock runs
//! on. These cases cannot test a store that uses the runtime's clock itself. With `time = real`,
//! such a store declares [`ExpiryClock::Process`](retryproof_core::store::ExpiryClock::Process) in
//! its profile.
//!
//! # The profile
//! The kit holds a store to its [profile](retryproof_core::store::StoreProfile). A lease or a ttl
//! that is shorter than the store's shortest is replaced by the shortest, a value over the store's
//! limit by one at the limit, and a waiter may be as late as the store's longest pause between two
//! polls. The summary prints the profile and what was not applicable because of it.
//!
//! # Joined transactions
//! For a SQL store, use [`with_joined`](crate::SubjectBuilder::with_joined) to declare which
//! transactions its completions join, and pass a [`Ledger`](crate::Ledger) that writes in these
//! transactions. The cases of CMP-7 then test the store and the ledger together, including the
//! driver's `TxPort`.
//!
//! # Hashed identities
//! For a store that offers hashed identities, use
//! [`with_identities`](crate::SubjectBuilder::with_identities) to declare how to set up and open a
//! store under a name that the kit chooses. The cases of ID-5 then set up several stores, with and
//! without a secret. The cases of sealed results (SEAL-1) use such a store, too.
//!
//! # The factory
//! The kit calls the factory once per case. The factory returns a [`Subject`], or `None` if the
//! store's server is missing. Without a subject, the kit skips the case with a message; with
//! `RETRYPROOF_REQUIRE_STORES=1`, the case fails instead.
//!
//! # Skipped cases
//! If the subject lacks something that a case [needs](Need), the case passes without testing
//! anything. A case never stops early for any other reason, so every case that was not skipped has
//! tested the store. An additional test, `sto_2_summary_of_the_kit`, names the skipped cases and
//! the reasons in one line. The line goes directly to standard error, so Rust's own test harness
//! does not capture it. (A harness that hides the output of passing tests, such as nextest, shows
//! the line with `--success-output final`.)
//!
//! ```text
//! it::conformance (redis): 111 of 121 cases run; skipped, grouped by what the store does not
//! offer: purge (8): sto_4_purge_keeps_what_is_live, …; profile: values of up to 4194304 bytes; …
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::subject::Subject;

pub mod audit;
mod caller;
pub mod cancel;
pub mod fence;
pub mod fingerprint;
pub mod force;
pub mod forms;
pub mod grant;
pub mod handles;
pub mod hashed;
pub mod holder;
pub mod identity;
pub mod inspect;
pub mod joined;
pub mod look;
mod need;
pub mod property;
pub mod purge;
pub mod race;
pub mod release;
pub mod result;
mod runner;
pub mod scan;
pub mod sealed;
pub mod skew;
pub mod takeover;
pub mod token;
pub mod wait;

pub use need::{Need, summary};
#[doc(hidden)]
pub use runner::say;
pub use runner::{Time, run};

/// One case of the kit.
#[derive(Clone, Copy)]
pub struct Case {
    /// The rule and the behaviour that the case tests, such as `acq_2_one_winner_at_expiry`.
    pub name: &'static str,
    /// The module that contains the case.
    pub group: &'static str,
    /// What the case needs beyond the contract.
    pub needs: &'static [Need],
    #[doc(hidden)]
    pub run: for<'a> fn(&'a Subject) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.group, self.name)
    }
}

/// Returns every case of the kit, for a custom harness. Usually,
/// [`conformance!`](crate::conformance!) is enough.
#[must_use]
pub fn cases() -> &'static [Case] {
    crate::__each_case! { table }
}

/// Generates one `#[test]` for each case of the [kit](mod@crate::conformance).
///
/// `conformance! { time = paused | real, factory = path_or_closure }`
#[macro_export]
macro_rules! conformance {
    (time = paused, factory = $factory:expr $(,)?) => {
        $crate::__each_case! { test Paused ($factory) }
    };
    (time = real, factory = $factory:expr $(,)?) => {
        $crate::__each_case! { test Real ($factory) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __each_case {
    (@table $($group:ident: $($case:ident $(($($need:ident),+))?)*;)*) => {
        &[$($($crate::conformance::Case {
            name: stringify!($case),
            group: stringify!($group),
            needs: &[$($($crate::conformance::Need::$need),+)?],
            run: |subject| Box::pin($crate::conformance::$group::$case(subject)),
        },)*)*]
    };
    (@test $time:ident $factory:tt $($group:ident: $($case:ident $(($($need:ident),+))?)*;)*) => {
        #[test]
        fn sto_2_summary_of_the_kit() {
            $crate::conformance::say(module_path!(), $crate::conformance::Time::$time, $factory);
        }
        $($(
            #[test]
            fn $case() {
                let case = $crate::conformance::Case {
                    name: stringify!($case),
                    group: stringify!($group),
                    needs: &[$($($crate::conformance::Need::$need),+)?],
                    run: |subject| Box::pin($crate::conformance::$group::$case(subject)),
                };
                $crate::conformance::run(case, $crate::conformance::Time::$time, $factory);
            }
        )*)*
    };
    ($way:ident $($args:tt)*) => {
        $crate::__each_case! { @$way $($args)*
            grant:
                acq_1_a_fresh_key_is_granted
                acq_1_a_held_key_is_busy
                acq_1_a_completed_key_answers_with_its_result
                acq_7_remaining_follows_the_stores_clock
                acq_9_the_same_owner_gets_its_lease_again
                acq_9_the_same_owner_gets_its_expired_lease_again
                acq_9_asking_again_prolongs_the_lease
                acq_9_the_completer_asking_again_gets_its_result
                ctx_2_leases_from_10_ms_to_24_h
                sto_1_durations_between_two_steps_are_rounded_up
                ctx_2_a_lease_may_be_longer_than_its_ttl;
            takeover:
                acq_2_a_live_lease_is_not_taken_over
                acq_2_an_expired_lease_is_taken_over
                acq_2_no_takeover_before_expiry
                acq_2_one_winner_at_expiry
                acq_2_a_takeover_can_be_taken_over
                acq_12_only_a_takeover_says_so
                acq_12_a_takeover_asked_for_again_says_so_again;
            fence:
                cmp_2_a_late_completion_by_the_recorded_owner_counts
                cmp_2_a_zombie_completion_is_lost
                cmp_2_a_zombie_completion_leaves_the_takers_result
                acq_9_owners_that_differ_in_one_bit_are_strangers
                cmp_2_a_strangers_completion_is_lost
                cmp_2_completing_an_absent_record_is_lost
                cmp_3_completing_twice_is_already_done
                run_1_extend_renews_the_lease
                run_1_extend_counts_from_now
                run_1_an_expired_lease_of_ones_own_is_extended
                run_2_extend_after_a_takeover_is_lost
                run_2_a_strangers_extend_is_lost
                run_3_extend_revives_no_finished_record
                run_3_extend_revives_no_released_record;
            release:
                run_4_a_released_key_is_fresh
                run_4_releasing_again_is_already_done
                run_4_a_strangers_release_is_lost
                run_4_a_zombie_release_is_lost
                run_4_a_completed_record_is_not_released
                run_4_an_expired_lease_of_ones_own_is_released
                cmp_5_a_released_record_looks_deleted;
            look:
                acq_8_look_tells_where_the_record_stands
                acq_8_look_grants_nothing
                acq_8_look_and_replay_write_nothing(Writes)
                acq_8_no_call_costs_more_round_trips_than_declared(RoundTrips);
            wait:
                acq_4_a_wait_can_be_without_end
                acq_4_changed_returns_at_once_when_there_is_nothing_to_wait_for
                acq_4_completion_wakes_a_waiter
                acq_3_release_wakes_a_waiter
                acq_4_a_takeover_wakes_a_waiter
                acq_4_every_waiter_is_woken
                acq_4_a_dropped_waiter_takes_no_wake_up_along
                acq_4_a_wake_up_survives_beats_in_between
                acq_4_no_wake_up_is_lost_between_look_and_sleep
                acq_4_no_wake_up_is_lost_in_a_race
                acq_4_a_waiter_on_another_handle_is_woken(Another)
                acq_4_a_change_wakes_a_waiter_before_its_next_read(WakeUps)
                acq_6_changed_ends_by_its_bound
                acq_4_changed_sleeps_while_the_holder_is_at_work
                acq_5_sleeping_waiters_hold_nothing_up;
            token:
                acq_10_tokens_grow_over_releases
                acq_10_tokens_grow_over_takeovers
                acq_10_tokens_grow_over_expired_results
                acq_10_tokens_grow_over_purges(Purge)
                acq_10_a_renewed_lease_keeps_its_place_in_the_order
                acq_10_busy_shows_the_holders_token
                acq_10_tokens_grow_in_the_order_of_grants
                acq_10_tokens_grow_over_handles(Another);
            result:
                cmp_1_results_come_back_byte_for_byte
                cmp_1_a_large_result_comes_back
                cmp_1_codec_and_schema_are_kept
                cmp_6_ttl_runs_from_completion
                cmp_6_a_result_past_its_ttl_counts_as_absent
                cmp_6_the_completer_past_its_ttl_is_granted_afresh
                cmp_6_a_ttl_of_one_millisecond
                cmp_6_a_ttl_of_ten_years
                cmp_6_a_result_never_changes_within_its_ttl
                cmp_6_completing_again_prolongs_nothing
                cmp_8_an_unreadable_envelope_fails_closed
                cmp_8_a_corrupt_record_fails_closed(Corrupt)
                cmp_9_a_tombstone_comes_back_as_one
                cmp_9_a_value_over_the_limit_is_refused(SmallLimit)
                cmp_6_a_new_result_has_nothing_of_the_old_one;
            fingerprint:
                fp_1_the_completions_fingerprint_is_kept
                fp_1_fingerprints_of_every_length_are_kept
                fp_1_nothing_is_judged_while_the_holder_runs
                fp_2_a_takeover_replaces_the_fingerprint
                fp_2_an_expired_result_leaves_no_fingerprint
                fp_6_a_busy_answer_tells_whether_the_request_differs
                fp_6_a_grant_replaces_the_fingerprint_to_compare_with;
            identity:
                id_1_scope_and_key_name_a_record_together
                id_2_identities_compare_byte_for_byte
                id_2_separators_join_nothing
                id_2_odd_text_is_only_text
                id_3_the_longest_identities_fit
                id_4_a_store_prints_neither_keys_nor_values;
            hashed:
                id_5_a_hashed_store_keeps_no_key(Identities, Inspect)
                id_5_identities_never_mix(Identities);
            sealed:
                seal_1_a_sealed_result_is_replayed_through_every_handle(Identities)
                seal_4_a_destroyed_key_leaves_tombstones(Identities)
                seal_5_a_moved_result_fails_closed(Identities);
            purge:
                sto_4_purge_keeps_what_is_live(Purge)
                sto_4_purge_keeps_an_expired_lease_within_its_ttl(Purge)
                sto_4_purge_removes_what_is_over(Purge)
                sto_4_purge_takes_no_more_than_its_limit(Purge)
                sto_4_purge_comes_back_to_what_it_passed(Purge)
                sto_4_purge_keeps_a_record_that_was_used_again(Purge)
                sto_4_purge_goes_by_the_completions_ttl(Purge)
                sto_4_purge_from_two_instances_at_once(Purge)
                sto_6_a_claim_keeps_others_out_until_it_ends(PurgeClaims)
                sto_6_of_racing_claims_one_is_granted(PurgeClaims);
            inspect:
                sto_2_an_operator_sees_where_a_record_stands(Inspect)
                sto_2_an_operator_sees_when_a_record_ended(Inspect)
                sto_2_an_operator_counts_the_records(Inspect);
            scan:
                ops_1_a_scan_finds_every_record(Inspect)
                ops_1_deletions_hide_no_other_record(Inspect)
                ops_1_every_limit_leads_to_the_end(Inspect)
                ops_1_an_unreadable_record_is_counted(Inspect, Corrupt)
                ops_2_records_are_filtered_and_counted_by_scope(Inspect);
            force:
                ops_3_a_live_lease_is_refused(Force)
                ops_3_another_token_is_refused(Force)
                ops_3_an_absent_record_is_said_to_be_absent(Force)
                ops_3_each_action_has_its_state(Force)
                ops_3_a_dropped_call_may_be_repeated(Force)
                ops_3_a_release_races_a_takeover(Force)
                ops_3_a_resolve_races_a_completion(Force)
                ops_4_a_released_key_is_fresh(Force)
                ops_4_a_live_lease_ends_if_asked_for(Force)
                ops_4_a_resolved_record_is_replayed(Force)
                ops_4_a_resolve_keeps_the_fingerprint(Force)
                ops_4_a_forgotten_key_runs_again(Force)
                ops_4_an_erased_answer_is_a_tombstone(Force)
                ops_4_an_erased_answer_keeps_its_ttl(Force)
                ops_4_waiters_are_woken(Force);
            audit:
                ops_10_entries_come_back_newest_first(Audit)
                ops_10_pages_lead_through_all_entries(Audit)
                ops_10_the_longest_texts_are_kept(Audit)
                ops_10_a_purge_and_another_handle_keep_entries(Audit)
                ops_10_an_audited_store_with_hashed_identities_keeps_no_key(Identities, Audit);
            holder:
                rec_2_busy_answers_show_the_holders_note
                rec_2_notes_of_every_length_are_kept
                rec_2_a_beat_leaves_the_note
                rec_2_a_completion_keeps_the_note
                rec_2_a_late_completion_keeps_the_note
                rec_2_a_takeover_replaces_the_note
                rec_2_a_released_key_has_no_note
                rec_2_an_expired_result_leaves_no_note
                rec_2_the_same_owner_renews_its_note
                rec_2_of_racing_takers_the_winners_note_stays
                rec_2_an_operator_sees_the_holder(Inspect)
                rec_2_an_operator_sees_takeovers(Inspect)
                rec_2_takeovers_count_from_the_last_time_a_key_was_free(Inspect);
            joined:
                cmp_7_a_joined_record_and_the_writes_are_one_commit(Joined)
                cmp_7_a_joined_action_that_fails_leaves_neither(Joined)
                cmp_7_a_joined_action_that_goes_on_without_its_transaction_leaves_neither(Joined)
                rec_2_a_joined_completion_keeps_the_note(Joined);
            handles:
                acq_1_a_holder_is_seen_through_every_handle(Another)
                cmp_1_a_result_is_replayed_through_every_handle(Another)
                cmp_3_an_owner_may_come_through_any_handle(Another)
                cmp_2_a_takeover_through_another_handle_fences(Another)
                acq_2_one_winner_over_all_handles(Another);
            race:
                acq_1_a_herd_gets_one_grant
                acq_9_acquires_of_one_owner_at_once_get_one_lease
                cmp_3_completions_of_one_owner_at_once_count_once
                cmp_2_a_late_completion_meets_takeovers
                run_2_a_late_beat_meets_takeovers
                run_4_a_late_release_meets_acquires
                run_4_a_release_meets_its_owners_late_acquire
                acq_2_one_holder_at_a_time
                acq_1_everybody_reads_the_one_result
                cmp_1_many_keys_at_once_keep_their_results;
            cancel:
                acq_11_a_dropped_acquire_leaves_at_most_one_lease
                acq_8_a_dropped_look_leaves_nothing
                run_1_a_dropped_beat_may_be_repeated
                cmp_3_a_dropped_completion_may_be_repeated
                run_4_a_dropped_release_may_be_repeated;
            skew:
                acq_7_hours_on_the_clients_clock_end_nothing(ClockApart)
                acq_7_the_stores_clock_ends_them(ClockApart);
            forms:
                sto_2_the_concrete_and_the_shared_form_agree;
            property:
                sto_2_random_steps_agree_with_the_model;
        }
    };
}
