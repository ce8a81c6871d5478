// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs: each is found by the property that it breaks, in the fewest possible steps.

use std::collections::BTreeSet;

use model::{Bounds, Budget, DEFECTS, Defect, Protocol, WRONGS, Wakeup, Wrong};

use crate::checker::{ENDS, seek};
use crate::tables::assert_in_readme;

fn world(clients: u8) -> Bounds {
    Bounds {
        budget: Budget { calls: 4, strangers: 1, tombstones: 0, crashes: 0, losses: 1 },
        ..Bounds::new(clients)
    }
}

/// Returns a world with callers of one process, in which nothing is lost.
fn shared(clients: u8) -> Bounds {
    let budget = Budget { calls: 4, strangers: 0, tombstones: 0, crashes: 0, losses: 0 };
    Bounds { wakeup: Wakeup::One, budget, ..Bounds::new(clients) }
}

/// A planted bug, the property that it breaks, and a world in which it does.
struct Planted {
    defect: Defect,
    breaks: &'static str,
    world: Bounds,
}

impl Planted {
    /// Returns the length of the shortest path to the violation.
    fn steps(&self) -> usize {
        let found = seek(Protocol::new(self.world).with(self.defect), self.breaks);
        let Some(path) = found.paths.get(self.breaks) else {
            panic!(
                "{:?} was not found; in {} states only {:?}",
                self.defect,
                found.states,
                found.violated()
            )
        };
        println!(
            "{:?} found in {} steps, {} states: {path:?}",
            self.defect,
            path.len(),
            found.states
        );
        path.len()
    }
}

macro_rules! planted {
    ($($test:ident: $defect:ident breaks $name:expr, in $world:expr;)*) => {
        const PLANTED: &[fn() -> Planted] =
            &[$(|| Planted { defect: Defect::$defect, breaks: $name, world: $world }),*];

        $(#[test]
        fn $test() {
            let planted = Planted { defect: Defect::$defect, breaks: $name, world: $world };
            assert!(planted.steps() > 0);
        })*
    };
}

planted! {
    cmp_2_no_owner_check: NoOwnerCheck breaks Wrong::StaleAccepted.name(), in world(2);
    run_3_a_beat_of_any_owner: BeatAnyOwner breaks Wrong::Revived.name(), in world(2);
    acq_2_takeover_before_expiry: EarlyTakeover breaks Wrong::TookOverEarly.name(), in world(2);
    acq_2_get_then_set: GetThenSet breaks Wrong::TookOverEarly.name(), in shared(2);
    cmp_2_release_deletes_any_owner: ReleaseAnyOwner breaks Wrong::StaleAccepted.name(), in world(2);
    run_3_extend_revives: ExtendRevives breaks Wrong::Revived.name(), in world(2);
    run_3_extend_revives_a_result: ExtendRevives breaks Wrong::ResultChanged.name(), in world(2);
    cmp_3_complete_overwrites_complete: CompleteOverwrites breaks Wrong::TwoValues.name(), in shared(2);
    acq_7_client_clock: ClientClock breaks Wrong::TookOverEarly.name(), in Bounds { skew: 2, ..world(2) };
    acq_1_waiter_does_not_look_again: WaiterBlind breaks Wrong::InFlightUntrue.name(), in world(2);
    fp_1_mismatch_judged_after_the_run: MismatchAfterRun breaks Wrong::RanUngranted.name(), in world(2);
    fp_2_fingerprint_ignored: PrintIgnored breaks Wrong::PrintUnjudged.name(), in world(2);
    id_2_identities_merged: IdentitiesMerged breaks Wrong::Bled.name(), in Bounds { identities: 2, ..shared(2) };
    run_3_heartbeat_not_stopped: BeatsGoOn breaks Wrong::BeatAfterEnd.name(), in world(2);
    http_6_ack_before_completion: AckBeforeCompletion breaks Wrong::RecordedUntrue.name(), in world(2);
    acq_4_wake_up_lost_between_look_and_sleep: WakeLost breaks Wrong::SleeperForgotten.name(), in world(2);
    acq_5_dropped_waiter_keeps_the_wake_up: WakeKept breaks Wrong::SleeperForgotten.name(), in shared(3);
    acq_3_refused_caller_spends_the_wake_up: WakeSpent breaks Wrong::SleeperForgotten.name(), in shared(3);
    acq_2_sleep_without_a_limit: SleepForever breaks Wrong::SleeperForgotten.name(), in world(2);
    acq_6_deadline_ignored: DeadlineIgnored breaks Wrong::DeadlinePassed.name(), in world(2);
    run_4_failure_completes: FailureCompletes breaks Wrong::FailureCompleted.name(), in world(2);
    cmp_4_doubt_releases: DoubtReleases breaks Wrong::ReleasedAfterReturn.name(), in world(2);
    cmp_3_doubt_hangs: DoubtHangs breaks ENDS, in Bounds { budget: Budget { calls: 1, ..world(1).budget }, ..world(1) };
    cmp_2_fenced_by_time: FencedByTime breaks Wrong::OwnRefused.name(), in world(2);
    cmp_3_repetition_refused: RepeatRefused breaks Wrong::OwnRefused.name(), in world(2);
    cmp_6_ttl_counted_from_the_acquire: TtlFromAcquire breaks Wrong::ResultChanged.name(), in world(2);
    cmp_6_expired_result_replayed: ReplaysExpired breaks Wrong::ReplayDiffers.name(), in shared(2);
    cmp_6_result_forgotten_early: ForgetsEarly breaks Wrong::RanAfterCompletion.name(), in shared(2);
    acq_10_tokens_restart: TokenRestarts breaks Wrong::TokenOrder.name(), in world(2);
    acq_9_token_drawn_again: TokenRedrawn breaks Wrong::TokenOrder.name(), in world(2);
    sto_4_purge_takes_an_expired_lease: PurgeEager breaks Wrong::PurgedLive.name(), in world(2);
    acq_12_takeover_untold: TakeoverUntold breaks Wrong::AttemptUntold.name(), in world(2);
    acq_12_takeover_forgotten: TakeoverForgotten breaks Wrong::AttemptUntold.name(), in world(2);
    cmp_5_beat_brings_back_a_record: ExtendRevives breaks Wrong::RecordUntrue.name(), in world(2);
}

#[test]
fn every_bug_is_sought_and_every_property_has_one() {
    let planted: Vec<_> = PLANTED.iter().map(|planted| planted()).collect();
    let sought: BTreeSet<_> = planted.iter().map(|planted| planted.defect).collect();
    assert_eq!(sought, DEFECTS.into_iter().collect());
    let broken: BTreeSet<_> = planted.iter().map(|planted| planted.breaks).collect();
    assert_eq!(broken, WRONGS.iter().map(|wrong| wrong.name()).chain([ENDS]).collect());
}

#[test]
fn the_readme_lists_the_planted_bugs() {
    let mut table = String::from("| Bug | breaks | in steps |\n|---|---|---|\n");
    for planted in PLANTED.iter().map(|planted| planted()) {
        let Planted { defect, breaks, .. } = planted;
        table += &format!("| `{defect:?}` | {breaks} | {} |\n", planted.steps());
    }
    assert_in_readme("planted bugs", &table);
}
