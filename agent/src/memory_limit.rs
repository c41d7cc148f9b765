//! How a VM's memory limit is lowered without killing anything, and raised before anything is killed.
//!
//! A `memory.max` below what is in use reclaims, and then kills. So down `memory.high` comes first, which only slows; `memory.max`
//! follows when the use fits with room to spare, and neither `memory.events:high` nor stalls have risen for a while. Up `memory.max`
//! comes first. The state that counts is in the two files: an agent that ends between two writes leaves `max` at or above `high`.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst and accounting/psi.rst.

use core::time::Duration;

use ballast_types::Instant;

const MIB: u64 = 1 << 20;
/// So long it must be quiet before `memory.max` follows.
const QUIET: Duration = Duration::from_secs(10);
/// If it is not quiet by then, `memory.high` is put back.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// While a limit is lowered the VM may stand still for less than [`STALL_MAX_MS`] in so long; one that always does exceeds it in half
/// a second. What comes with the write of `memory.high` does not count: the kernel takes all page cache above it away, and
/// tasks wait for that once.
const STALL_WINDOW: Duration = Duration::from_secs(5);
const STALL_MAX_MS: u64 = 500;
/// After that, or after a kill, nothing is lowered for so long.
const PAUSE: Duration = Duration::from_secs(3600);
/// After a kill or a stall the limit stays raised for so long, unless more is recommended before.
const RAISED: Duration = Duration::from_secs(24 * 3600);

/// The two limits of a group in bytes; `u64::MAX` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// `memory.high`: above it the group is slowed and gives up memory.
    pub high: u64,
    /// `memory.max`: above it a task of the group is killed.
    pub max: u64,
}

/// What the kernel tells of a group; what it does not tell is `None`. Counters count from the making of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// `memory.current`, the page cache included.
    pub used: Option<u64>,
    /// That without what can be given up at once.
    pub working_set: Option<u64>,
    /// `high` of `memory.events`: how often the group was slowed.
    pub high_events: Option<u64>,
    /// `oom_kill` of `memory.events`: tasks, not events.
    pub oom_kills: Option<u64>,
    /// The total of `full` of `memory.pressure`, in milliseconds.
    pub full_stall_ms: Option<u64>,
}

/// One write; each file once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWrite {
    High(u64),
    Max(u64),
}

/// Why a limit that is recommended is not in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryHold {
    /// The kernel does not tell use, events or pressure.
    Unreadable,
    /// The VM uses more, or almost as much.
    BelowUse,
    /// `memory.high` is lowered, and it is not yet quiet.
    Lowering,
    /// It did not become quiet, or the VM stood still for lack of memory: tried again in an hour.
    Pressed,
    /// A task was killed for lack of memory: the limit is raised, and stays for a day.
    Killed,
}

impl MemoryHold {
    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::BelowUse => "below_use",
            Self::Lowering => "lowering",
            Self::Pressed => "pressed",
            Self::Killed => "killed",
        }
    }

    /// For people.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Unreadable => "the kernel does not tell memory.current, memory.events or memory.pressure",
            Self::BelowUse => "the VM uses more, or almost as much",
            Self::Lowering => "memory.high is lowered; memory.max follows when the VM is quiet",
            Self::Pressed => "the VM was short of memory while its limit was lowered: tried again in an hour",
            Self::Killed => "a task was killed for lack of memory: the limit was raised for a day",
        }
    }
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
struct Lowering {
    since: Instant,
    quiet_since: Instant,
    /// When the current [`STALL_WINDOW`] began, and the total of stalls by then, in milliseconds; `None` before the first look
    /// after the write.
    stalls_from: Option<(Instant, u64)>,
    /// `memory.high` as it was, in bytes.
    high_before: u64,
}

/// The memory limit of one VM's group.
#[derive(Clone, Debug, Default)]
pub struct MemoryLimiter {
    before: Option<(Instant, MemoryReading)>,
    lowering: Option<Lowering>,
    /// Nothing is lowered before.
    retry_at: Option<Instant>,
    /// The limit is no lower until then.
    raised: Option<(Instant, u64)>,
    hold: Option<MemoryHold>,
}

/// What came since the reading before.
struct Since {
    killed: bool,
    /// A tenth of the time the whole VM stood still for lack of memory.
    stalled: bool,
    /// Neither events nor stalls; `None` where the kernel does not tell.
    quiet: Option<bool>,
}

impl MemoryLimiter {
    /// Why what is recommended is not in force, if it is not.
    pub const fn hold(&self) -> Option<MemoryHold> {
        self.hold
    }

    /// The writes of this moment, in order: two at most. Each must be done before the next; where one fails, the others are left,
    /// and the next call finds in `in_force` what there is.
    ///
    /// `target` is what is recommended, in bytes; without one the `original` is put back. No limit is ever above the original.
    pub fn step(
        &mut self,
        now: Instant,
        target: Option<u64>,
        in_force: MemoryBounds,
        original: MemoryBounds,
        reading: MemoryReading,
    ) -> Vec<MemoryWrite> {
        let is_ours = in_force.max < original.max || in_force.high < original.high;
        let since = self.since(now, reading);
        if is_ours && (since.killed || since.stalled && self.lowering.is_none()) {
            let had = in_force.max.min(in_force.high.max(MIB));
            let floor = self.raised.map_or(0, |(_, floor)| floor);
            let raised = whole_mib(had.saturating_add(had / 5)).max(floor);
            self.raised = Some((now + RAISED, raised));
            self.retry_at = Some(now + PAUSE);
            self.hold = Some(if since.killed { MemoryHold::Killed } else { MemoryHold::Pressed });
        }
        self.raised = self.raised.filter(|(until, floor)| now < *until && target < Some(*floor));
        self.retry_at = self.retry_at.filter(|until| now < *until);

        let target = target.map(|target| whole_mib(target.max(self.raised.map_or(0, |(_, floor)| floor))));
        let goal = match target.filter(|target| *target < original.max) {
            Some(target) => MemoryBounds { high: target.min(original.high), max: target },
            None => original,
        };

        let up = raise(goal, in_force);
        if !up.is_empty() || goal == in_force {
            self.lowering = None;
            if self.raised.is_none() {
                self.hold = None;
            }
            return up;
        }
        self.lower(now, goal, in_force, reading, &since)
    }

    fn since(&mut self, now: Instant, reading: MemoryReading) -> Since {
        let Some((at, before)) = self.before.replace((now, reading)) else {
            let tells = reading.high_events.is_some() && reading.full_stall_ms.is_some();
            return Since { killed: false, stalled: false, quiet: tells.then_some(false) };
        };
        // What went back belongs to a group that was made anew.
        let more = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
        let elapsed_ms = now.since(at).as_millis() as u64;
        let stalled_ms = more(reading.full_stall_ms, before.full_stall_ms);
        let events = more(reading.high_events, before.high_events);
        Since {
            killed: more(reading.oom_kills, before.oom_kills).is_some_and(|kills| kills > 0),
            stalled: stalled_ms.is_some_and(|ms| ms > 0 && ms >= elapsed_ms / 10),
            quiet: stalled_ms.zip(events).map(|(ms, events)| ms == 0 && events == 0),
        }
    }

    fn lower(
        &mut self,
        now: Instant,
        goal: MemoryBounds,
        in_force: MemoryBounds,
        reading: MemoryReading,
        since: &Since,
    ) -> Vec<MemoryWrite> {
        let readings = (reading.used, reading.working_set, reading.oom_kills);
        let (Some(used), Some(working_set), Some(_)) = readings else {
            return self.abort(MemoryHold::Unreadable);
        };
        let Some((quiet, stall_ms)) = since.quiet.zip(reading.full_stall_ms) else {
            return self.abort(MemoryHold::Unreadable);
        };
        let room = working_set.saturating_add(goal.max / 20) <= goal.max;

        let Some(lowering) = &mut self.lowering else {
            if self.retry_at.is_some() {
                return vec![];
            }
            if !room {
                self.hold = Some(MemoryHold::BelowUse);
                return vec![];
            }
            let high_before = in_force.high;
            self.lowering = Some(Lowering { since: now, quiet_since: now, stalls_from: None, high_before });
            self.hold = Some(MemoryHold::Lowering);
            let high = Some(MemoryWrite::High(goal.high)).filter(|_| in_force.high > goal.high);
            return high.into_iter().collect();
        };

        if !quiet || !room || used > goal.max {
            lowering.quiet_since = now;
        }
        let (from, stalls) = *lowering.stalls_from.get_or_insert((now, stall_ms));
        let is_stalled = stall_ms.saturating_sub(stalls) >= STALL_MAX_MS;
        if now.since(from) >= STALL_WINDOW {
            lowering.stalls_from = Some((now, stall_ms));
        }
        if is_stalled || now.since(lowering.since) > WAIT_MAX {
            self.retry_at = Some(now + PAUSE);
            return self.abort(MemoryHold::Pressed);
        }
        if in_force.high > goal.high {
            // Less is recommended than when it began.
            lowering.quiet_since = now;
            return vec![MemoryWrite::High(goal.high)];
        }
        if now.since(lowering.quiet_since) < QUIET {
            return vec![];
        }
        (self.lowering, self.hold) = (None, None);
        vec![MemoryWrite::Max(goal.max)]
    }

    fn abort(&mut self, why: MemoryHold) -> Vec<MemoryWrite> {
        self.hold = Some(why);
        let before = self.lowering.take().map(|lowering| MemoryWrite::High(lowering.high_before));
        before.into_iter().collect()
    }
}

/// Up `memory.max` comes first.
fn raise(goal: MemoryBounds, in_force: MemoryBounds) -> Vec<MemoryWrite> {
    let max = Some(MemoryWrite::Max(goal.max)).filter(|_| goal.max > in_force.max);
    let high = Some(MemoryWrite::High(goal.high)).filter(|_| goal.high > in_force.high);
    max.into_iter().chain(high).collect()
}

/// The kernel counts pages, which divide a MiB.
fn whole_mib(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(MIB).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: MemoryBounds = MemoryBounds { high: u64::MAX, max: u64::MAX };

    /// A group whose files take what is written.
    struct Group {
        limiter: MemoryLimiter,
        now: Instant,
        in_force: MemoryBounds,
        original: MemoryBounds,
        reading: MemoryReading,
    }

    impl Group {
        fn new(used_mib: u64) -> Self {
            let used = Some(used_mib * MIB);
            let zero = Some(0);
            let reading = MemoryReading {
                used,
                working_set: used,
                high_events: zero,
                oom_kills: zero,
                full_stall_ms: zero,
            };
            let limiter = MemoryLimiter::default();
            Self { limiter, now: Instant::ZERO, in_force: NONE, original: NONE, reading }
        }

        fn seconds(&mut self, seconds: u64, target_mib: u64) -> Vec<MemoryWrite> {
            let mut all = vec![];
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                let target = Some(target_mib * MIB);
                let writes = self.limiter.step(self.now, target, self.in_force, self.original, self.reading);
                writes.iter().for_each(|write| self.write(*write));
                all.extend(writes);
            }
            all
        }

        fn write(&mut self, write: MemoryWrite) {
            match write {
                MemoryWrite::High(bytes) => self.in_force.high = bytes,
                MemoryWrite::Max(bytes) => self.in_force.max = bytes,
            }
            let is_original = self.in_force.high == self.original.high;
            assert!(self.in_force.max >= self.in_force.high || is_original, "{:?}", self.in_force);
            assert!(self.in_force.max <= self.original.max && self.in_force.high <= self.original.high);
        }
    }

    const fn high(mib: u64) -> MemoryWrite {
        MemoryWrite::High(mib * MIB)
    }
    const fn max(mib: u64) -> MemoryWrite {
        MemoryWrite::Max(mib * MIB)
    }

    #[test]
    fn down_high_comes_first_and_up_max_does() {
        let mut group = Group::new(500);
        assert_eq!(group.seconds(1, 1000), [high(1000)]);
        assert_eq!((group.seconds(9, 1000), group.limiter.hold()), (vec![], Some(MemoryHold::Lowering)));
        assert_eq!((group.seconds(3, 1000), group.limiter.hold()), (vec![max(1000)], None));
        assert_eq!(group.seconds(1, 1200), [max(1200), high(1200)]);
        assert_eq!(group.seconds(30, 800), [high(800), max(800)]);
    }

    #[test]
    fn a_limit_at_what_is_used_or_blind_is_not_set() {
        let mut group = Group::new(500);
        assert_eq!((group.seconds(30, 520), group.limiter.hold()), (vec![], Some(MemoryHold::BelowUse)));
        let whole = group.reading;
        for blind in [
            MemoryReading { used: None, ..whole },
            MemoryReading { high_events: None, ..whole },
            MemoryReading { oom_kills: None, ..whole },
            MemoryReading { full_stall_ms: None, ..whole },
        ] {
            group.reading = blind;
            assert_eq!(
                (group.seconds(30, 900), group.limiter.hold()),
                (vec![], Some(MemoryHold::Unreadable))
            );
        }
        // In the middle of it high is put back.
        group.reading = whole;
        assert_eq!(group.seconds(3, 900), [high(900)]);
        group.reading.full_stall_ms = None;
        assert_eq!(group.seconds(1, 900), [MemoryWrite::High(u64::MAX)]);
    }

    #[test]
    fn what_does_not_become_quiet_is_put_back_and_tried_an_hour_later() {
        let mut group = Group::new(500);
        assert_eq!(group.seconds(1, 900), [high(900)]);
        let mut writes = vec![];
        for _ in 0..30 {
            group.reading.high_events = group.reading.high_events.map(|events| events + 1);
            writes.extend(group.seconds(5, 900));
        }
        assert_eq!(writes, [MemoryWrite::High(u64::MAX)]);
        assert_eq!(group.limiter.hold(), Some(MemoryHold::Pressed));
        assert_eq!(group.seconds(3500, 900), []);
        assert_eq!(group.seconds(200, 900), [high(900), max(900)]);

        // The page cache that is taken away costs a moment; a VM that stands still ends it.
        assert_eq!(group.seconds(1, 700), [high(700)]);
        group.reading.full_stall_ms = Some(3000);
        assert_eq!(group.seconds(1, 700), []);
        group.reading.full_stall_ms = Some(3400);
        assert_eq!(group.seconds(5, 700), []);
        group.reading.full_stall_ms = Some(3800);
        assert_eq!(group.seconds(1, 700), []);
        group.reading.full_stall_ms = Some(3900);
        assert_eq!(group.seconds(1, 700), [high(900)]);
        assert_eq!(group.limiter.hold(), Some(MemoryHold::Pressed));
    }

    #[test]
    fn a_kill_raises_at_once_and_for_a_day() {
        let mut group = Group::new(500);
        group.original.max = 1100 * MIB;
        group.in_force.max = 1100 * MIB;
        group.seconds(20, 1000);
        group.reading.oom_kills = Some(1);
        assert_eq!(
            group.seconds(1, 1000),
            [max(1100), MemoryWrite::High(u64::MAX)],
            "never above the original"
        );
        assert_eq!(group.limiter.hold(), Some(MemoryHold::Killed));
        assert_eq!(group.seconds(23 * 3600, 1000), []);
        assert_eq!(group.seconds(2 * 3600, 1000), [high(1000), max(1000)]);
    }

    proptest! {
        /// Whatever comes, and wherever the agent ends, `max` is never below `high`, nor either above the original; a max is
        /// lowered only to what leaves room for what is in use.
        #[test]
        fn nothing_is_killed_by_a_limit(
            steps in prop::collection::vec((0u64..2000, 0u64..2000, 0u64..3, 0u64..3, any::<bool>()), 1..80)
        ) {
            let mut group = Group::new(100);
            group.original = MemoryBounds { high: 1500 * MIB, max: 1700 * MIB };
            group.in_force = group.original;
            for (used, target, events, stall, ends) in steps {
                group.reading.used = Some(used * MIB);
                group.reading.working_set = Some(used * MIB / 2);
                group.reading.high_events = group.reading.high_events.map(|it| it + events / 2);
                group.reading.full_stall_ms = group.reading.full_stall_ms.map(|it| it + stall / 2 * 50);
                if ends {
                    group.limiter = MemoryLimiter::default();
                }
                for _ in 0..15 {
                    let before = group.in_force;
                    group.seconds(1, target + 1);
                    if group.in_force.max < before.max {
                        prop_assert!(group.reading.used <= Some(group.in_force.max));
                    }
                }
            }
        }
    }

    /// A kill or a stall without a lowered limit has another cause.
    #[test]
    fn only_a_lowered_limit_is_raised() {
        let mut group = Group::new(990);
        assert_eq!((group.seconds(2, 1000), group.limiter.hold()), (vec![], Some(MemoryHold::BelowUse)));
        group.reading.oom_kills = Some(1);
        assert_eq!(group.seconds(1, 1000), []);
        (group.reading.used, group.reading.working_set) = (Some(500 * MIB), Some(500 * MIB));
        assert_eq!(group.seconds(20, 1000), [high(1000), max(1000)]);

        // A tenth of a second is the limit: 20 % more for a day.
        group.reading.full_stall_ms = Some(99);
        assert_eq!(group.seconds(1, 1000), []);
        group.reading.full_stall_ms = Some(199);
        assert_eq!(group.seconds(1, 1000), [max(1200), high(1200)]);
        assert_eq!(group.limiter.hold(), Some(MemoryHold::Pressed));
        assert_eq!(group.seconds(23 * 3600, 1000), []);
    }
}
