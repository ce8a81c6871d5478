// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives facts about each call that are known only when the history has ended.

use super::{NEVER, Run, StoreClock, rewound, tenure};

impl Run {
    /// Ends the history: no further event follows.
    pub fn close(&mut self) {
        self.bound_faults();
        let clock = StoreClock::of(&self.faults);
        // The tokens of these stores come from a counter.
        let follows = !["sqlite", "memory"].contains(&self.manifest.store.as_str());
        for story in &mut self.stories {
            for op in &mut story.ops {
                if op.is_info() && op.gave_up.is_none() {
                    // The process was killed at some time before its next life began.
                    let lives = self.begun.get(&op.actor.proc).into_iter().flatten();
                    op.gave_up = lives.copied().filter(|begun| *begun > op.invoke).min();
                }
                let end = op.answer.or(op.gave_up).unwrap_or(NEVER);
                let aways = self.aways.get(&op.actor.proc).into_iter().flatten();
                if op.is_info() && aways.clone().any(|(from, to)| *from <= op.invoke && end <= *to)
                {
                    (op.failed, op.answer) = (true, op.gave_up);
                }
                op.clock = (clock.earliest(op.invoke, op.end()), clock.latest(op.invoke, op.end()));
                op.twice = self.faults.iter().any(|fault| {
                    fault.cuts(op.actor.proc)
                        && fault.from <= end
                        && op.invoke <= fault.to.unwrap_or(u64::MAX)
                });
            }
            story.ops.sort_by_key(|op| op.invoke);
            for (at, op) in story.ops.iter_mut().enumerate() {
                op.at = at;
            }
            story.calls.sort_by_key(|call| call.invoke);
            story.acts.sort_by_key(|act| act.start);
            for moments in [&mut story.told, &mut story.effects, &mut story.dumps] {
                moments.sort_by_key(|moment| moment.at);
            }
            story.tenures = tenure::tenures(&story.ops);
            story.clock = clock.clone();
            story.rewound = follows && rewound::is_rewound(story);
        }
    }
}
