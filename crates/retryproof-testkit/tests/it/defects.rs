// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kit judges correctly: a correct store passes, and each planted defect fails a case that
//! names the rule it breaks (STO-2).

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;
use retryproof_testkit::conformance::{Time, cases, run};

use crate::flawed::{ALL, Defect, subject};

/// Returns the names of the cases that the defective store fails. The names are computed once,
/// because several tests use them.
fn caught(defect: Defect) -> Vec<&'static str> {
    static KNOWN: Mutex<Option<HashMap<Defect, Vec<&'static str>>>> = Mutex::new(None);
    if let Some(known) = KNOWN.lock().as_ref().and_then(|known| known.get(&defect)) {
        return known.clone();
    }
    let fails = |case: &&_| {
        let judged =
            catch_unwind(AssertUnwindSafe(|| run(**case, Time::Paused, async || subject(defect))));
        judged.is_err()
    };
    let names: Vec<_> = cases().iter().filter(fails).map(|case| case.name).collect();
    KNOWN.lock().get_or_insert_default().insert(defect, names.clone());
    names
}

#[test]
fn sto_2_the_kit_passes_a_store_without_defect() {
    assert_eq!(caught(Defect::Nothing), <[&str; 0]>::default());
}

#[test]
fn sto_2_the_kit_has_at_least_70_cases_with_names_of_their_own() {
    let mut names: Vec<_> = cases().iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(
        names.len() >= 70 && names.len() == cases().len(),
        "{} of {}",
        names.len(),
        cases().len()
    );
}

#[test]
fn sto_2_every_defect_is_caught_and_every_case_catches_one() {
    let mut useful = BTreeSet::new();
    for defect in ALL {
        let caught = caught(*defect);
        assert!(!caught.is_empty(), "{defect:?} passes the kit");
        useful.extend(caught);
    }
    let idle: Vec<_> =
        cases().iter().map(|case| case.name).filter(|name| !useful.contains(name)).collect();
    assert!(idle.is_empty(), "no planted defect fails {idle:?}");
}

macro_rules! catches {
    ($($test:ident: $defect:ident by $($case:ident),+;)*) => {$(
        #[test]
        fn $test() {
            let caught = caught(Defect::$defect);
            for case in [$(stringify!($case)),+] {
                assert!(caught.contains(&case), "{case} passes {:?}; caught by {caught:?}", Defect::$defect);
            }
        }
    )*};
}

catches! {
    acq_9_owners_compared_in_part_are_caught: OwnersComparedInPart by acq_9_owners_that_differ_in_one_bit_are_strangers;
    cmp_2_completion_by_any_owner_is_caught: AnyOwnerCompletes by
        cmp_2_a_zombie_completion_is_lost, cmp_2_a_strangers_completion_is_lost, sto_2_random_steps_agree_with_the_model;
    run_4_release_by_any_owner_is_caught: AnyOwnerReleases by
        run_4_a_strangers_release_is_lost, run_4_a_zombie_release_is_lost, run_4_a_completed_record_is_not_released,
        sto_2_random_steps_agree_with_the_model;
    run_2_extend_by_any_owner_is_caught: AnyOwnerExtends by
        run_2_a_strangers_extend_is_lost, run_2_extend_after_a_takeover_is_lost, sto_2_random_steps_agree_with_the_model;
    cmp_6_overwritten_results_are_caught: CompletionOverwrites by
        cmp_3_completing_twice_is_already_done, cmp_6_a_result_never_changes_within_its_ttl,
        cmp_6_completing_again_prolongs_nothing, sto_2_random_steps_agree_with_the_model;
    cmp_2_completion_fenced_by_time_is_caught: CompletionFencedByTime by
        cmp_2_a_late_completion_by_the_recorded_owner_counts, sto_2_random_steps_agree_with_the_model;
    cmp_3_completion_done_twice_is_caught: CompletionAnswersDoneTwice by
        cmp_3_completing_twice_is_already_done, cmp_3_completions_of_one_owner_at_once_count_once;
    cmp_6_ttl_from_the_acquire_is_caught: CompletionTtlFromAcquire by cmp_6_ttl_runs_from_completion;
    fp_1_dropped_fingerprints_are_caught: CompletionDropsFingerprint by fp_1_the_completions_fingerprint_is_kept;
    acq_2_early_takeover_is_caught: EarlyTakeover by
        acq_2_a_live_lease_is_not_taken_over, acq_2_no_takeover_before_expiry, sto_2_random_steps_agree_with_the_model;
    acq_2_takeover_in_two_steps_is_caught: TakeoverInTwoSteps by
        acq_2_one_winner_at_expiry, acq_1_a_herd_gets_one_grant, cmp_2_a_late_completion_meets_takeovers,
        acq_2_one_winner_over_all_handles;
    acq_12_an_unsaid_takeover_is_caught: TakeoverUnsaid by acq_2_an_expired_lease_is_taken_over;
    acq_12_a_forgotten_takeover_is_caught: TakeoverForgotten by acq_12_a_takeover_asked_for_again_says_so_again;
    fp_2_a_kept_fingerprint_is_caught: TakeoverKeepsFingerprint by
        fp_2_a_takeover_replaces_the_fingerprint, fp_6_a_grant_replaces_the_fingerprint_to_compare_with;
    fp_6_a_store_that_compares_nothing_is_caught: BusyComparesNothing by
        fp_6_a_busy_answer_tells_whether_the_request_differs;
    acq_12_a_release_taken_for_a_death_is_caught: ReleaseIsATakeover by acq_12_only_a_takeover_says_so;
    run_4_a_release_that_shows_is_caught: ReleaseKeepsTheRecord by
        run_4_releasing_again_is_already_done, cmp_5_a_released_record_looks_deleted;
    sto_5_a_call_that_never_ends_is_caught: ReleaseNeverEnds by run_4_a_released_key_is_fresh;
    run_3_a_revived_result_is_caught: ExtendRevivesResults by
        run_3_extend_revives_no_finished_record, sto_2_random_steps_agree_with_the_model;
    run_3_a_record_made_by_extend_is_caught: ExtendMakesRecords by run_3_extend_revives_no_released_record;
    run_1_extend_fenced_by_time_is_caught: ExtendNeedsALiveLease by
        run_1_an_expired_lease_of_ones_own_is_extended, sto_2_random_steps_agree_with_the_model;
    run_1_extend_that_never_shortens_is_caught: ExtendNeverShortens by run_1_extend_counts_from_now;
    acq_10_repeated_tokens_are_caught: TokenRepeatsAfterRelease by
        acq_10_tokens_grow_over_releases, acq_10_tokens_grow_over_purges, sto_2_random_steps_agree_with_the_model;
    acq_10_tokens_drawn_before_the_lock_are_caught: TokenDrawnBeforeTheLock by acq_10_tokens_grow_in_the_order_of_grants;
    acq_9_a_new_token_for_the_same_owner_is_caught: SameOwnerGetsANewToken by
        acq_9_the_same_owner_gets_its_lease_again, acq_9_acquires_of_one_owner_at_once_get_one_lease;
    acq_9_an_owner_kept_out_is_caught: SameOwnerIsBusy by
        acq_9_the_same_owner_gets_its_lease_again, acq_9_the_same_owner_gets_its_expired_lease_again;
    acq_9_a_result_taken_back_is_caught: SameOwnerTakesBackItsResult by acq_9_the_completer_asking_again_gets_its_result;
    cmp_6_results_past_their_ttl_are_caught: ResultOutlivesItsTtl by cmp_6_a_result_past_its_ttl_counts_as_absent;
    cmp_1_cut_results_are_caught: ResultIsCutAtAZero by cmp_1_results_come_back_byte_for_byte;
    acq_8_a_look_that_deletes_is_caught: LookDeletesExpiredLeases by
        acq_8_look_grants_nothing, acq_8_look_tells_where_the_record_stands;
    acq_8_a_look_that_shows_the_dead_is_caught: LookShowsExpiredLeases by acq_8_look_tells_where_the_record_stands;
    acq_8_a_replay_that_writes_is_caught: ReplayWrites by acq_8_look_and_replay_write_nothing;
    acq_4_a_lost_wake_up_is_caught: WakeUpLost by acq_4_no_wake_up_is_lost_between_look_and_sleep;
    acq_4_a_wake_up_for_one_is_caught: WakeUpOfOneWaiterOnly by acq_4_every_waiter_is_woken;
    acq_4_a_hot_loop_is_caught: ChangedReturnsForNothing by acq_4_changed_sleeps_while_the_holder_is_at_work;
    acq_4_sleeping_without_a_look_is_caught: ChangedSleepsWithoutALook by
        acq_4_changed_returns_at_once_when_there_is_nothing_to_wait_for;
    acq_5_waiters_that_hold_the_store_are_caught: ChangedHoldsTheStore by acq_5_sleeping_waiters_hold_nothing_up;
    id_2_joined_names_are_caught: NamesJoinedWithoutLengths by
        id_2_separators_join_nothing, sto_2_random_steps_agree_with_the_model;
    id_2_folded_names_are_caught: NamesFolded by id_2_identities_compare_byte_for_byte, id_3_the_longest_identities_fit;
    id_2_trimmed_names_are_caught: NamesTrimmed by id_2_identities_compare_byte_for_byte;
    id_3_cut_names_are_caught: NamesCut by id_3_the_longest_identities_fit;
    id_4_printed_names_are_caught: NamesPrinted by id_4_a_store_prints_neither_keys_nor_values;
    id_5_an_undeclared_secret_is_caught: SecretNotDeclared by id_5_a_hashed_store_keeps_no_key;
    id_5_another_secret_accepted_is_caught: AnotherSecretAccepted by
        id_5_identities_never_mix, id_5_a_hashed_store_keeps_no_key;
    acq_7_the_clients_clock_is_caught: ClientsClock by
        acq_7_hours_on_the_clients_clock_end_nothing, acq_7_the_stores_clock_ends_them;
    sto_4_a_purged_lease_is_caught: PurgeIgnoresTheLease by sto_4_purge_keeps_what_is_live;
    sto_4_a_purged_owner_is_caught: PurgeIgnoresTheTtl by sto_4_purge_keeps_an_expired_lease_within_its_ttl;
    sto_4_an_unbounded_purge_is_caught: PurgeIgnoresItsLimit by sto_4_purge_takes_no_more_than_its_limit;
    sto_4_a_purged_result_is_caught: PurgeForgetsResults by
        sto_4_purge_goes_by_the_completions_ttl, sto_4_purge_keeps_a_record_that_was_used_again;
    cmp_8_a_corrupt_record_granted_is_caught: CorruptIsAbsent by cmp_8_a_corrupt_record_fails_closed;
    cmp_9_an_ignored_limit_is_caught: TooLargeIsAccepted by cmp_9_a_value_over_the_limit_is_refused;
    acq_11_a_lease_left_by_a_drop_is_caught: DroppedAcquireStays by acq_11_a_dropped_acquire_leaves_at_most_one_lease;
    acq_1_handles_apart_are_caught: HandlesKeepTheirOwnRecords by
        acq_1_a_holder_is_seen_through_every_handle, cmp_1_a_result_is_replayed_through_every_handle,
        cmp_2_a_takeover_through_another_handle_fences;
    acq_4_a_wake_up_of_ones_own_handle_is_caught: HandlesWakeTheirOwnWaiters by
        acq_4_a_waiter_on_another_handle_is_woken;
    acq_1_a_result_that_is_not_replayed_is_caught: AcquireNeverReplays by acq_1_a_completed_key_answers_with_its_result;
    acq_12_a_takeover_of_nothing_is_caught: AcquireSaysTakeover by acq_1_a_fresh_key_is_granted;
    acq_10_another_token_is_caught: BusyShowsAnotherToken by acq_1_a_held_key_is_busy, acq_10_busy_shows_the_holders_token;
    acq_7_remaining_that_stands_still_is_caught: RemainingStandsStill by acq_7_remaining_follows_the_stores_clock;
    acq_10_falling_tokens_are_caught: TokensFallAtTakeovers by acq_10_tokens_grow_over_takeovers;
    run_1_an_idle_extend_is_caught: ExtendChangesNothing by run_1_extend_renews_the_lease;
    acq_4_sleeping_on_is_caught: ChangedSleepsOn by
        acq_4_completion_wakes_a_waiter, acq_3_release_wakes_a_waiter, acq_4_a_takeover_wakes_a_waiter,
        acq_4_a_dropped_waiter_takes_no_wake_up_along;
    acq_4_polling_alone_is_caught: ChangedOnlyPolls by acq_4_a_change_wakes_a_waiter_before_its_next_read;
    acq_6_an_unbounded_wait_is_caught: ChangedIgnoresItsBound by acq_6_changed_ends_by_its_bound;
    cmp_1_rewritten_envelopes_are_caught: EnvelopesAreRewritten by
        cmp_1_codec_and_schema_are_kept, cmp_9_a_tombstone_comes_back_as_one;
    cmp_8_an_unreadable_result_granted_is_caught: UnreadableIsAbsent by cmp_8_an_unreadable_envelope_fails_closed;
    id_1_ignored_scopes_are_caught: ScopesIgnored by id_1_scope_and_key_name_a_record_together;
    sto_4_an_idle_purge_is_caught: PurgeDoesNothing by
        sto_4_purge_removes_what_is_over, sto_4_purge_takes_no_more_than_its_limit;
    sto_6_a_claim_without_end_is_caught: PurgeClaimNeverEnds by
        sto_6_a_claim_keeps_others_out_until_it_ends, sto_6_of_racing_claims_one_is_granted;
    sto_6_a_claim_that_ends_with_a_purge_is_caught: PurgeClaimEndsWithAPurge by
        sto_6_a_claim_keeps_others_out_until_it_ends;
    sto_6_a_claim_in_two_steps_is_caught: PurgeClaimInTwoSteps by sto_6_of_racing_claims_one_is_granted;
    sto_4_a_greedy_purge_is_caught: PurgeTakesEverything by
        sto_4_purge_keeps_what_is_live, sto_4_purge_from_two_instances_at_once;
    acq_8_a_lock_left_by_a_drop_is_caught: DroppedCallsLeaveALock by
        acq_8_a_dropped_look_leaves_nothing, run_1_a_dropped_beat_may_be_repeated, cmp_3_a_dropped_completion_may_be_repeated;
    sto_2_hidden_records_are_caught: InspectHidesTheDead by sto_2_an_operator_sees_where_a_record_stands;
    cmp_7_a_forgotten_record_is_caught: JoinForgetsTheRecord by cmp_7_a_joined_record_and_the_writes_are_one_commit;
    cmp_7_kept_writes_are_caught: JoinKeepsTheWrites by cmp_7_a_joined_action_that_fails_leaves_neither;
    cmp_7_a_statement_in_autocommit_is_caught: JoinOutlivesItsTransaction by
        cmp_7_a_joined_action_that_goes_on_without_its_transaction_leaves_neither;
    sto_2_counts_of_nothing_are_caught: InspectCountsNothing by sto_2_an_operator_counts_the_records;
    rec_2_a_hidden_note_is_caught: InspectHidesTheNote by rec_2_an_operator_sees_the_holder;
    rec_2_a_hidden_age_is_caught: InspectHidesTheAge by rec_2_an_operator_sees_the_holder;
    sto_2_a_wrong_end_is_caught: InspectMisdatesTheEnd by sto_2_an_operator_sees_when_a_record_ended;
    rec_2_a_cut_note_is_caught: NoteCut by rec_2_notes_of_every_length_are_kept;
    rec_2_a_note_lost_at_a_beat_is_caught: NoteLostAtABeat by rec_2_a_beat_leaves_the_note;
    rec_2_a_note_lost_at_completion_is_caught: NoteLostAtCompletion by
        rec_2_a_completion_keeps_the_note, rec_2_an_operator_sees_the_holder,
        rec_2_a_joined_completion_keeps_the_note;
    rec_2_a_note_lost_at_a_late_completion_is_caught: NoteLostAtALateCompletion by
        rec_2_a_late_completion_keeps_the_note;
    rec_2_a_note_that_is_not_cleared_is_caught: NoteNotCleared by
        rec_2_a_takeover_replaces_the_note, rec_2_the_same_owner_renews_its_note;
    rec_2_the_note_of_a_loser_is_caught: NoteOfTheLoser by
        rec_2_busy_answers_show_the_holders_note, rec_2_of_racing_takers_the_winners_note_stays;
    rec_2_a_note_touched_by_a_zombie_is_caught: NoteOfTheZombie by rec_2_a_takeover_replaces_the_note;
    rec_2_a_note_that_is_set_once_is_caught: NoteSetOnce by rec_2_the_same_owner_renews_its_note;
    rec_2_a_note_that_outlives_a_release_is_caught: NoteOutlivesARelease by rec_2_a_released_key_has_no_note;
    rec_2_a_note_that_outlives_a_result_is_caught: NoteOutlivesAResult by rec_2_an_expired_result_leaves_no_note;
    rec_2_a_peek_without_the_note_is_caught: NoteInAcquiresOnly by rec_2_busy_answers_show_the_holders_note;
    rec_2_takeovers_kept_as_a_flag_are_caught: TakeoversStopAtOne by rec_2_an_operator_sees_takeovers;
    ops_1_pages_by_count_are_caught: ScanGoesByCount by ops_1_deletions_hide_no_other_record;
    ops_1_a_scan_without_the_dead_is_caught: ScanHidesTheDead by ops_1_a_scan_finds_every_record;
    ops_1_a_scan_of_one_page_is_caught: ScanStopsAfterAPage by
        ops_1_a_scan_finds_every_record, ops_2_records_are_filtered_and_counted_by_scope;
    ops_1_a_page_of_nothing_is_caught: ScanOfNothingGoesOn by ops_1_every_limit_leads_to_the_end;
    ops_1_an_uncounted_record_is_caught: ScanSkipsTheUnreadable by ops_1_an_unreadable_record_is_counted;
    ops_3_an_ignored_token_is_caught: ForceIgnoresTheToken by ops_3_another_token_is_refused;
    ops_3_an_ignored_lease_is_caught: ForceIgnoresTheLease by ops_3_a_live_lease_is_refused;
    ops_3_an_ignored_state_is_caught: ForceIgnoresTheState by ops_3_each_action_has_its_state;
    ops_3_a_check_before_the_write_is_caught: ForceInTwoSteps by
        ops_3_a_release_races_a_takeover, ops_3_a_resolve_races_a_completion;
    ops_3_a_record_lost_by_a_drop_is_caught: ForceLosesADroppedRecord by
        ops_3_a_dropped_call_may_be_repeated;
    ops_3_a_record_made_up_is_caught: ForceKnowsNoAbsence by ops_3_an_absent_record_is_said_to_be_absent;
    ops_4_a_live_lease_that_never_ends_is_caught: ForceNeverEndsALiveLease by
        ops_4_a_live_lease_ends_if_asked_for;
    ops_4_a_forced_release_as_a_takeover_is_caught: ForceReleaseIsATakeover by ops_4_a_released_key_is_fresh;
    ops_4_a_resolve_for_the_holder_is_caught: ForceResolveKeepsTheOwner by
        ops_4_a_resolved_record_is_replayed, ops_4_a_live_lease_ends_if_asked_for;
    ops_3_a_repeated_resolve_refused_is_caught: ForceResolveTwiceIsFinished by
        ops_4_a_resolved_record_is_replayed;
    ops_4_a_resolve_without_the_fingerprint_is_caught: ForceResolveDropsTheFingerprint by
        ops_4_a_resolve_keeps_the_fingerprint;
    ops_4_a_forgotten_token_is_caught: ForceForgetsTheToken by
        ops_4_a_released_key_is_fresh, ops_4_a_forgotten_key_runs_again;
    ops_4_a_result_that_stays_is_caught: ForceForgetsNothing by ops_4_a_forgotten_key_runs_again;
    ops_4_an_answer_that_stays_is_caught: ForceErasesNothing by ops_4_an_erased_answer_is_a_tombstone;
    ops_4_an_erased_promise_is_caught: ForceErasesTheRecord by ops_4_an_erased_answer_is_a_tombstone;
    ops_4_an_erased_fingerprint_is_caught: ForceEraseDropsTheFingerprint by
        ops_4_an_erased_answer_is_a_tombstone;
    ops_4_a_tombstone_with_a_new_ttl_is_caught: ForceEraseStartsTheTtlAgain by
        ops_4_an_erased_answer_keeps_its_ttl;
    ops_4_waiters_left_asleep_are_caught: ForceWakesNobody by ops_4_waiters_are_woken;
    ops_10_a_forgotten_record_is_caught: AuditForgetsTheRecord by
        ops_10_entries_come_back_newest_first, ops_10_the_longest_texts_are_kept;
    ops_10_the_oldest_entry_first_is_caught: AuditReturnsTheOldestFirst by
        ops_10_entries_come_back_newest_first, ops_10_pages_lead_through_all_entries;
    ops_10_a_time_that_stands_still_is_caught: AuditTimeStandsStill by ops_10_entries_come_back_newest_first;
    ops_10_pages_by_count_are_caught: AuditGoesByCount by ops_10_pages_lead_through_all_entries;
    ops_10_cut_texts_are_caught: AuditCutsTexts by ops_10_the_longest_texts_are_kept;
    ops_10_a_purged_entry_is_caught: AuditIsPurged by ops_10_a_purge_and_another_handle_keep_entries;
    ops_10_a_plain_key_is_caught: SecretNotDeclared by
        ops_10_an_audited_store_with_hashed_identities_keeps_no_key;
    rec_2_takeovers_that_are_never_reset_are_caught: TakeoversNeverReset by
        rec_2_takeovers_count_from_the_last_time_a_key_was_free;
}
