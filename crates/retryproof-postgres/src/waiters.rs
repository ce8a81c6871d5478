// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Wake`]: who waits for which record, in this process and in others (ACQ-4).
//!
//! Other processes are told by NOTIFY, and only of records for which one of them has announced a
//! waiter: the server's queue of notifications is locked over a commit, which would cost two thirds
//! of the throughput if every completion went through it. So:
//! 1. A waiter announces the hash of its identity, looks at the record, and sleeps.
//! 2. Every process that listens remembers what was announced. When it has completed or released
//!    such a record, *after* the commit, it notifies, from a connection of its own; what comes up
//!    meanwhile goes along in the next message.
//! 3. An announcement may come just after the completion: what was finished in the last two seconds
//!    is answered at once.
//!
//! A poll is the net under all that: nothing here is needed for a waiter to end, only for it to end
//! soon.

pub(crate) mod notify;
pub(crate) mod recent;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{Identity, OwnerId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::record::hash::hash;
use crate::waiters::recent::Recent;

/// For how long an announcement holds; a waiter that sleeps for longer repeats it in time.
const ANNOUNCED_FOR: Duration = Duration::from_secs(60);
pub(crate) const ANNOUNCE_AGAIN: Duration = Duration::from_secs(20);
/// For how long a record counts as just finished, and how many do.
const JUST_FINISHED: Duration = Duration::from_secs(2);
const MOST_FINISHED: usize = 4_096;
/// Most announcements that are remembered; above them the oldest are forgotten, and the poll has to
/// do.
const MOST_ANNOUNCED: usize = 65_536;
/// The server takes payloads below 8,000 bytes.
const MOST_PAYLOAD: usize = 7_900;

/// What one process tells the others about an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Word {
    /// Somebody waits for it.
    Waiting,
    /// It may have changed.
    Changed,
}

/// The waiters of one store in this process, and its part in waking those of others.
pub(crate) struct Wake {
    waiters: Mutex<HashMap<u64, (Arc<Notify>, usize)>>,
    /// Whether notifications arrive.
    listening: AtomicBool,
    announced: Mutex<Recent>,
    /// Whether there are any: a completion without waiters takes no lock.
    has_announced: AtomicBool,
    finished: Mutex<Recent>,
    outbox: Mutex<Outbox>,
    /// There is something to send, or soon will be.
    pub(crate) post: Notify,
    /// Tells our own messages from those of others.
    nonce: u64,
    dice: AtomicU32,
}

/// What is to be sent, each word once.
#[derive(Default)]
struct Outbox {
    order: VecDeque<(Word, u64)>,
    held: HashSet<(Word, u64)>,
}

/// A place among the waiters of a record; given back on drop.
pub(crate) struct Subscription<'a> {
    wake: &'a Wake,
    hash: u64,
    pub(crate) bell: Arc<Notify>,
}

impl Wake {
    pub(crate) fn new() -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *OwnerId::new().as_bytes();
        Self {
            waiters: Mutex::default(),
            listening: AtomicBool::new(false),
            announced: Mutex::new(Recent::new(ANNOUNCED_FOR, MOST_ANNOUNCED)),
            has_announced: AtomicBool::new(false),
            finished: Mutex::new(Recent::new(JUST_FINISHED, MOST_FINISHED)),
            outbox: Mutex::default(),
            post: Notify::new(),
            nonce: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            dice: AtomicU32::new(0),
        }
    }

    /// Subscribe, then look, then sleep: no change between the look and the sleep is lost.
    pub(crate) fn subscribe(&self, id: &Identity) -> Subscription<'_> {
        let hash = of(id);
        let mut waiters = self.waiters.lock();
        let (bell, count) = waiters.entry(hash).or_default();
        *count += 1;
        Subscription { wake: self, hash, bell: Arc::clone(bell) }
    }

    /// A record was granted anew: the waiters of this process look again.
    pub(crate) fn granted(&self, id: &Identity) {
        self.ring(of(id));
    }

    /// A record was completed or released, and committed so.
    pub(crate) fn finished(&self, id: &Identity) {
        let hash = of(id);
        self.ring(hash);
        if !self.is_listening() {
            return;
        }
        // Noted before it is asked who waits; `heard` does it the other way round, so one of the
        // two sees the other.
        let now = Instant::now();
        self.finished.lock().note(hash, now);
        if self.has_announced.load(Ordering::SeqCst) && self.forget_announced(hash, now) {
            self.send(Word::Changed, hash);
        }
    }

    fn forget_announced(&self, hash: u64, now: Instant) -> bool {
        let mut announced = self.announced.lock();
        let found = announced.forget(hash, now);
        self.has_announced.store(!announced.is_empty(), Ordering::SeqCst);
        found
    }

    /// Wakes the waiters of this process. The lock orders it against [`Self::subscribe`]: either
    /// the waiter is found here, or its look comes after the commit.
    fn ring(&self, hash: u64) {
        if let Some((bell, _)) = self.waiters.lock().get(&hash) {
            bell.notify_waiters();
        }
    }

    fn ring_all(&self) {
        self.waiters.lock().values().for_each(|(bell, _)| bell.notify_waiters());
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Notifications arrive from now on, or do so no more; whatever came meanwhile was missed, so
    /// everybody looks.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.ring_all();
    }

    /// Takes in the message of another process.
    pub(crate) fn heard(&self, payload: &str) {
        let Some((nonce, words)) = payload.as_bytes().split_at_checked(16) else { return };
        if number(nonce) == Some(self.nonce) {
            return;
        }
        for word in words.chunks(17) {
            let Some((kind, hash)) = word.split_first() else { continue };
            match (kind, number(hash)) {
                (b'c', Some(hash)) => self.ring(hash),
                (b'w', Some(hash)) => self.announced(hash),
                // A later version's word.
                _ => {}
            }
        }
    }

    fn announced(&self, hash: u64) {
        let now = Instant::now();
        {
            let mut announced = self.announced.lock();
            announced.note(hash, now);
            self.has_announced.store(true, Ordering::SeqCst);
        }
        if self.finished.lock().has(hash, now) && self.forget_announced(hash, now) {
            self.send(Word::Changed, hash);
        } else {
            // So that the connection is there when it is needed.
            self.post.notify_one();
        }
    }

    fn send(&self, word: Word, hash: u64) {
        let mut outbox = self.outbox.lock();
        if outbox.order.len() < MOST_FINISHED && outbox.held.insert((word, hash)) {
            outbox.order.push_back((word, hash));
        }
        drop(outbox);
        self.post.notify_one();
    }

    /// The next message to send: hex digits and letters only.
    pub(crate) fn next_message(&self) -> Option<String> {
        let mut outbox = self.outbox.lock();
        if outbox.order.is_empty() {
            return None;
        }
        let most = outbox.order.len().min((MOST_PAYLOAD - 16) / 17);
        let mut text = format!("{:016x}", self.nonce);
        for _ in 0..most {
            let Some((word, hash)) = outbox.order.pop_front() else { break };
            outbox.held.remove(&(word, hash));
            let word = match word {
                Word::Waiting => 'w',
                Word::Changed => 'c',
            };
            text.push_str(&format!("{word}{hash:016x}"));
        }
        Some(text)
    }

    /// `time` within 20 % of it, so that waiters do not march in step.
    pub(crate) fn jitter(&self, time: Duration) -> Duration {
        // A Weyl sequence: spread evenly enough for this, without a source of random numbers.
        let step = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }
}

impl Subscription<'_> {
    /// Tells the other processes that somebody waits here.
    pub(crate) fn announce(&self) {
        if self.wake.is_listening() {
            self.wake.send(Word::Waiting, self.hash);
        }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut waiters = self.wake.waiters.lock();
        if let Some((_, count)) = waiters.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(&self.hash);
            }
        }
    }
}

pub(crate) fn of(id: &Identity) -> u64 {
    hash(id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

fn number(hex: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(hex).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: &str) -> Identity {
        Identity::of("wake", key).unwrap()
    }

    fn pair() -> (Wake, Wake) {
        let (a, b) = (Wake::new(), Wake::new());
        a.set_listening(true);
        b.set_listening(true);
        (a, b)
    }

    #[test]
    fn acq_4_only_announced_records_are_notified() {
        let (holder, waiter) = pair();
        holder.finished(&id("nobody waits"));
        assert!(holder.next_message().is_none());
        let place = waiter.subscribe(&id("k"));
        place.announce();
        let said = waiter.next_message().unwrap();
        assert_eq!(said.len(), 33);
        waiter.heard(&said);
        assert!(waiter.announced.lock().is_empty(), "one's own words are not heard");
        holder.heard(&said);
        holder.finished(&id("k"));
        assert!(holder.next_message().is_some());
        holder.finished(&id("k"));
        assert!(holder.next_message().is_none(), "said once");
    }

    #[test]
    fn acq_4_a_late_announcement_is_answered_at_once() {
        let (holder, waiter) = pair();
        holder.finished(&id("k"));
        waiter.subscribe(&id("k")).announce();
        holder.heard(&waiter.next_message().unwrap());
        assert!(holder.next_message().is_some());
    }

    #[test]
    fn acq_4_long_messages_are_cut() {
        let (a, b) = pair();
        for at in 0..1_000 {
            a.subscribe(&id(&at.to_string())).announce();
        }
        let mut messages = 0;
        while let Some(text) = a.next_message() {
            assert!(text.len() < 8_000);
            b.heard(&text);
            messages += 1;
        }
        assert_eq!((messages, b.announced.lock().len()), (3, 1_000));
    }

    /// Says that each of them has waiters, in messages of 400.
    fn said(waiter: &Wake, keys: std::ops::Range<usize>) -> Vec<String> {
        let mut messages = Vec::new();
        for at in keys {
            waiter.subscribe(&id(&at.to_string())).announce();
            if at % 400 == 399 {
                messages.extend(std::iter::from_fn(|| waiter.next_message()));
            }
        }
        messages.extend(std::iter::from_fn(|| waiter.next_message()));
        messages
    }

    #[test]
    fn acq_4_above_the_bound_the_newest_announcements_hold_and_cost_no_more() {
        let (holder, waiter) = pair();
        let below = said(&waiter, 0..MOST_ANNOUNCED);
        let above = said(&waiter, MOST_ANNOUNCED..MOST_ANNOUNCED + 20_000);
        let hear = |messages: &[String]| {
            let began = Instant::now();
            messages.iter().for_each(|message| holder.heard(message));
            began.elapsed()
        };
        let (below, above) = (hear(&below), hear(&above));
        assert_eq!(holder.announced.lock().len(), MOST_ANNOUNCED);
        // Fewer than a third as many.
        assert!(
            above < below * 10,
            "{above:?} for 20,000 announcements, {below:?} for the first 65,536"
        );
        holder.finished(&id(&(MOST_ANNOUNCED + 19_999).to_string()));
        assert!(holder.next_message().is_some(), "the newest is told");
        holder.finished(&id("0"));
        assert!(holder.next_message().is_none(), "the oldest made room");
    }

    #[test]
    fn acq_4_foreign_messages_are_ignored() {
        let wake = Wake::new();
        for text in [
            "",
            "é",
            "0123456789abcdef",
            "0123456789abcdefw",
            "0123456789abcdefwxyz",
            "0123456789abcdéf",
        ] {
            wake.heard(text);
        }
        assert!(wake.announced.lock().is_empty());
    }
}
