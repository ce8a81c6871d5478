// SPDX-License-Identifier: MIT OR Apache-2.0
//! One record under the store's calls, as the judge of histories uses it. The whole table is in
//! the README.

use model::{Answer, Fenced, Op, Owner, Print, Record, Slot, Token, Value};

const FIRST: Owner = Owner(1);
const SECOND: Owner = Owner(2);
const RESULT: Value = Value::Result(7);

fn acquire(owner: Owner) -> Op {
    Op::Acquire { owner, lease: 3, ttl: 9, print: Some(Print(owner.0)) }
}

fn complete(owner: Owner) -> Op {
    Op::Complete { owner, value: RESULT, ttl: 9 }
}

fn granted(token: u16, took_over: bool) -> Answer {
    Answer::Granted { token: Token(token), took_over }
}

/// Makes calls on a new record; returns the record that is left, and the answers.
fn play(calls: &[(u16, Op)]) -> (Slot, Vec<Answer>) {
    let mut slot = Slot::default();
    let answers = calls.iter().map(|&(now, op)| {
        let (next, answer) = slot.step(now, op);
        slot = next;
        answer
    });
    let answers = answers.collect();
    (slot, answers)
}

#[test]
fn acq_2_one_winner_at_expiry() {
    let (_, answers) = play(&[(0, acquire(FIRST)), (3, acquire(SECOND)), (3, acquire(Owner(3)))]);
    assert_eq!(answers[1..], [granted(2, true), Answer::Busy { remaining: 3, token: Token(2) }]);
}

#[test]
fn acq_9_the_same_owner_gets_its_lease_again() {
    let (_, answers) = play(&[(0, acquire(FIRST)), (2, acquire(FIRST)), (4, acquire(SECOND))]);
    assert_eq!(answers[1], granted(1, false));
    // The lease was renewed; otherwise it would have ended at 3.
    assert_eq!(answers[2], Answer::Busy { remaining: 1, token: Token(1) });
    let (_, answers) = play(&[(0, acquire(FIRST)), (8, acquire(FIRST))]);
    assert_eq!(answers[1], granted(1, false));
}

#[test]
fn acq_12_a_takeover_asked_for_again_says_so_again() {
    let (slot, answers) = play(&[(0, acquire(FIRST)), (3, acquire(SECOND)), (4, acquire(SECOND))]);
    assert_eq!(answers[1..], [granted(2, true), granted(2, true)]);
    // The lease was renewed at 4, so it ends at 7, and another owner can then take it.
    assert_eq!(slot.step(7, acquire(FIRST)).1, granted(3, true));
    let slot = slot.step(5, Op::Release { owner: SECOND }).0;
    assert_eq!(slot.step(5, acquire(FIRST)).1, granted(3, false));
}

#[test]
fn acq_10_tokens_grow_over_release_purge_and_ttl() {
    let (slot, _) = play(&[(0, acquire(FIRST)), (0, Op::Release { owner: FIRST })]);
    let (slot, answer) = slot.step(0, acquire(SECOND));
    assert_eq!(answer, granted(2, false));
    let slot = slot.step(0, complete(SECOND)).0;
    assert_eq!(slot.step(9, acquire(FIRST)).1, granted(3, false));
    let slot = slot.step(9, Op::Purge).0;
    assert_eq!(slot.record, Record::Absent);
    assert_eq!(slot.step(9, acquire(FIRST)).1, granted(3, false));
}

#[test]
fn cmp_2_late_calls_of_the_recorded_owner_are_accepted() {
    let (held, _) = play(&[(0, acquire(FIRST))]);
    for op in [Op::Extend { owner: FIRST, lease: 3 }, complete(FIRST), Op::Release { owner: FIRST }]
    {
        assert_eq!(held.step(5, op).1, Answer::Fenced(Fenced::Done));
    }
}

#[test]
fn cmp_2_run_3_calls_of_a_lost_owner_change_nothing() {
    let (held, _) = play(&[(0, acquire(FIRST)), (3, acquire(SECOND))]);
    let (done, _) = held.step(3, complete(SECOND));
    for slot in [held, done] {
        for op in
            [Op::Extend { owner: FIRST, lease: 3 }, complete(FIRST), Op::Release { owner: FIRST }]
        {
            assert_eq!(slot.step(4, op), (slot, Answer::Fenced(Fenced::Lost)));
        }
    }
}

#[test]
fn cmp_3_completing_twice_is_success() {
    let (slot, answers) = play(&[(0, acquire(FIRST)), (1, complete(FIRST)), (2, complete(FIRST))]);
    assert_eq!(answers[2], Answer::Fenced(Fenced::AlreadyDone));
    // CMP-6: the repeated completion does not extend the ttl.
    assert_eq!(slot.step(10, Op::Look).1, Answer::Absent);
}

#[test]
fn run_3_nothing_revives_what_is_gone() {
    let (gone, _) = play(&[(0, acquire(FIRST)), (0, Op::Release { owner: FIRST })]);
    assert_eq!(
        gone.step(0, Op::Extend { owner: FIRST, lease: 3 }),
        (gone, Answer::Fenced(Fenced::Lost))
    );
    assert_eq!(gone.step(0, complete(FIRST)), (gone, Answer::Fenced(Fenced::Lost)));
    assert_eq!(
        gone.step(0, Op::Release { owner: FIRST }),
        (gone, Answer::Fenced(Fenced::AlreadyDone))
    );
}

#[test]
fn fp_2_a_grant_replaces_the_fingerprint_and_the_result_carries_it() {
    let (_, answers) = play(&[
        (0, acquire(FIRST)),
        (3, acquire(SECOND)),
        (3, complete(SECOND)),
        (4, acquire(FIRST)),
    ]);
    assert_eq!(answers[3], Answer::Complete { value: RESULT, print: Some(Print(SECOND.0)) });
}

#[test]
fn acq_8_looks_and_refusals_write_nothing() {
    let (held, _) = play(&[(0, acquire(FIRST))]);
    let (done, _) = held.step(0, complete(FIRST));
    for slot in [Slot::default(), held, done] {
        for now in [1, 3, 9] {
            assert_eq!(slot.step(now, Op::Look).0, slot);
        }
    }
    assert_eq!(held.step(2, acquire(SECOND)).0, held);
    assert_eq!(done.step(8, acquire(SECOND)).0, done);
}

#[test]
fn acq_4_a_waiter_sleeps_only_while_the_lease_that_it_saw_runs() {
    let (held, _) = play(&[(0, acquire(FIRST))]);
    assert!(held.may_sleep(2, Token(1)));
    assert!(!held.may_sleep(3, Token(1)));
    let (taken, _) = held.step(3, acquire(SECOND));
    assert!(!taken.may_sleep(3, Token(1)));
    assert!(taken.may_sleep(3, Token(2)));
    assert!(!taken.step(3, complete(SECOND)).0.may_sleep(3, Token(2)));
    assert!(!taken.step(3, Op::Release { owner: SECOND }).0.may_sleep(3, Token(2)));
}

#[test]
fn sto_4_purge_takes_only_what_is_over() {
    let (held, _) = play(&[(0, acquire(FIRST))]);
    assert_eq!(held.step(8, Op::Purge), (held, Answer::Purged(false)));
    assert_eq!(held.step(9, Op::Purge).1, Answer::Purged(true));
    let (beaten, _) = held.step(8, Op::Extend { owner: FIRST, lease: 3 });
    assert_eq!(beaten.step(9, Op::Purge).1, Answer::Purged(false));
    let (done, _) = held.step(1, complete(FIRST));
    assert_eq!(done.step(9, Op::Purge).1, Answer::Purged(false));
    assert_eq!(done.step(10, Op::Purge).1, Answer::Purged(true));
}

/// A store may drop an expired record at any time: both answers are correct, and no other is.
#[test]
fn cmp_6_purged_or_not_is_the_stores_choice() {
    let (done, _) = play(&[(0, acquire(FIRST)), (0, complete(FIRST))]);
    let answers =
        |slot: Slot, now, op| slot.allowed(now, op).map(|(_, answer)| answer).collect::<Vec<_>>();
    let (already, lost) = (Answer::Fenced(Fenced::AlreadyDone), Answer::Fenced(Fenced::Lost));
    assert_eq!(answers(done, 8, complete(FIRST)), [already]);
    assert_eq!(answers(done, 9, complete(FIRST)), [already, lost]);
    assert_eq!(answers(done, 9, acquire(SECOND)), [granted(2, false); 2]);
}
