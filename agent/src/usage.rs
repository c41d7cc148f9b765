//! One-second readings of every VM's counters become five-minute records.
//!
//! A second is missing, and not zero, when its counter could not be read, went back (the group was made
//! anew), was read late, or when more or less than about a second lies between two reads (a stall, suspend);
//! and around a step of the wall clock.

use core::time::Duration;
use std::collections::BTreeMap;

use ballast_types::{Counters, Instant, MemoryUse, UsageBin, UsageRecord, VmId, VmStart};

/// Between two reads that make one second: less is waited for, more is missing.
const WINDOW: core::ops::RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_millis(2000);
/// A read that takes longer is missing: nobody knows when the counter had that value.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// The wall clock was set, and not slewed, when it moved so much more or less than the clock since boot.
const STEP: Duration = Duration::from_secs(2);
/// 2020-01-01: a wall clock that is before this was never set.
const UNSET_BEFORE: Duration = Duration::from_secs(1_577_836_800);
/// More CPUs than any VM can have: a counter that moves faster is wrong.
const MAX_CPUS: u64 = 4096;

/// What was read of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReading {
    pub vm: VmId,
    /// Which instance of it.
    pub start: VmStart,
    pub cores: u16,
    pub from: Instant,
    pub to: Instant,
    /// CPU time used so far: `usage_usec` of `cpu.stat`; `None` if it could not be read.
    pub used_us: Option<u64>,
    /// Whether its use counts in [`ServerSecond`].
    pub promised: bool,
    /// Whether the agent throttled it at any time since the last reading.
    pub throttled: bool,
    /// Memory, and what else the kernel counts; `None` between two looks at that.
    pub slow: Option<SlowReading>,
}

/// What a VM's cgroup says beside its CPU time, since it was made; what could not be read is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowReading {
    pub memory: MemoryUse,
    pub counters: Counters,
}

/// Gathers readings into records.
#[derive(Clone, Debug, Default)]
pub struct UsageRecorder {
    vms: BTreeMap<(VmId, VmStart), Open>,
    bin: UsageBin,
    /// The two clocks at the last look.
    clocks: Option<(Instant, Duration)>,
    counted: u64,
    second: Option<ServerSecond>,
}

/// What the VMs of a server that were promised CPU time did in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerSecond {
    /// What they used together, in millicores.
    pub used_mc: u64,
    /// How many CPUs they have together.
    pub cores: u64,
}

/// A record under way.
#[derive(Clone, Debug)]
struct Open {
    record: UsageRecord,
    /// The newest counter, and when it was read.
    used: Option<(Instant, u64)>,
    peak_bytes: Option<u64>,
    counters: Counters,
    /// Whether it was there at the last look.
    observed: bool,
}

impl UsageRecorder {
    /// Takes what was read of every VM about now, by the clock since boot and by the wall clock (since
    /// 1970). Gives the records that are whole: in order of VM and start.
    pub fn look(&mut self, now: Instant, wall: Duration, readings: Vec<UsageReading>) -> Vec<UsageRecord> {
        let stepped = self
            .clocks
            .replace((now, wall))
            .is_none_or(|(then, was)| (was + now.since(then)).abs_diff(wall) > STEP || wall < UNSET_BEFORE);
        let bin = UsageBin::of(wall.as_secs());

        // Slewed back over the edge it is still the later one.
        let done = if stepped || bin > self.bin { self.close(bin) } else { vec![] };

        for open in self.vms.values_mut() {
            open.observed = false;
        }
        self.second = Some(ServerSecond::default());
        for reading in readings {
            let open = self.vms.entry((reading.vm.clone(), reading.start)).or_insert_with(|| {
                let UsageReading { vm, start, cores, .. } = &reading;
                let record = UsageRecord::empty(vm.clone(), *start, self.bin, *cores);
                let (used, peak_bytes, counters) = (None, None, Counters::default());
                Open { record, used, peak_bytes, counters, observed: true }
            });

            let used_mc = open.take(&reading, !stepped);
            self.counted += u64::from(used_mc.is_some());
            if reading.promised {
                self.second = self.second.zip(used_mc).map(|(all, used_mc)| ServerSecond {
                    used_mc: all.used_mc + u64::from(used_mc),
                    cores: all.cores + u64::from(reading.cores),
                });
            }
        }

        for gone in self.vms.values_mut().filter(|open| !open.observed) {
            gone.used = None;
        }
        done
    }

    /// Seconds of VMs counted so far, those while throttled among them.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// What these VMs of the last look did since the one before; `None` where one of them was not measured.
    pub fn second(&self) -> Option<ServerSecond> {
        self.second
    }

    /// Gives the records under way, as far as they are: the agent stops.
    pub fn finish(mut self) -> Vec<UsageRecord> {
        self.close(self.bin)
    }

    /// Ends what is under way and goes on with `bin`. VMs that have gone are forgotten, once told of.
    fn close(&mut self, bin: UsageBin) -> Vec<UsageRecord> {
        self.bin = bin;
        let next = |open: &mut Open| {
            let UsageRecord { vm, start, cores, .. } = &open.record;
            let next = UsageRecord::empty(vm.clone(), *start, bin, *cores);
            core::mem::replace(&mut open.record, next)
        };
        let done = self.vms.values_mut().map(next).filter(|record| !record.is_empty()).collect();
        self.vms.retain(|_, open| open.observed);
        done
    }
}

impl Open {
    /// Takes a reading; `counts` is false when nobody knows which second it belongs to.
    /// What was used in the second that was counted, in millicores.
    fn take(&mut self, reading: &UsageReading, counts: bool) -> Option<u32> {
        (self.observed, self.record.cores) = (true, reading.cores);
        if let Some(slow) = reading.slow.filter(|_| counts) {
            self.take_slow(slow);
        }
        let late = reading.to.since(reading.from) > READ_WITHIN;
        let Some(used) = reading.used_us.filter(|_| !late) else {
            self.used = None;
            return None;
        };

        let Some((then, before)) = self.used else {
            self.used = Some((reading.to, used));
            return None;
        };

        let window = reading.to.since(then);

        if window < *WINDOW.start() {
            // The next one is long enough.
            return None;
        }

        self.used = Some((reading.to, used));
        let used = used.checked_sub(before).filter(|_| counts && WINDOW.contains(&window));
        let window = window.as_micros() as u64;
        let used = used.filter(|used| *used <= window * MAX_CPUS)?;

        let mc = (used * 1000 + window / 2) / window;
        let seconds = if reading.throttled { &mut self.record.throttled } else { &mut self.record.cpu };
        let mc = u32::try_from(mc).unwrap_or(u32::MAX);
        seconds.add(mc);

        Some(mc)
    }

    fn take_slow(&mut self, SlowReading { memory, counters }: SlowReading) {
        // `memory.peak` counts since the group was made: it is this record's where it has risen.
        let before = core::mem::replace(&mut self.peak_bytes, memory.peak_bytes);
        let risen = memory.peak_bytes.filter(|peak| before.is_some_and(|before| *peak > before));
        let peak_bytes = memory.peak_bytes.and(risen.max(memory.used_bytes));

        self.record.memory = self.record.memory.max(MemoryUse { peak_bytes, ..memory });
        self.record.counters = self.record.counters.plus(counters.since(&mut self.counters));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A Monday in 2026, at the beginning of a bin.
    const T0: u64 = 1_795_392_000;

    fn wall(ms: u64) -> Duration {
        Duration::from_secs(T0) + Duration::from_millis(ms)
    }
    fn reading(ms: u64, used_us: impl Into<Option<u64>>) -> UsageReading {
        let (at, vm, used_us) = (Instant::from_millis(ms), VmId::new("v").unwrap(), used_us.into());
        let (from, to, start) = (at, at, VmStart(1));
        UsageReading { vm, start, cores: 2, from, to, used_us, promised: true, throttled: false, slow: None }
    }
    /// Reads at these milliseconds, with these counters; what has been counted then.
    fn after(reads: &[(u64, Option<u64>)]) -> (u64, u64) {
        let mut recorder = UsageRecorder::default();
        for (ms, used) in reads {
            let at = Instant::from_millis(*ms);
            assert!(recorder.look(at, wall(*ms), vec![reading(*ms, *used)]).is_empty());
        }
        let done = recorder.finish();
        done.first().map_or((0, 0), |record| (record.cpu.samples(), record.cpu.sum_mc))
    }

    #[test]
    fn what_cannot_be_measured_is_missing() {
        let some = |ms, used| (ms, Some(used));
        for (why, reads, counted) in [
            ("two seconds", vec![some(0, 7), some(1000, 500_007), some(2000, 2_500_007)], (2, 2_500)),
            ("idle is a value", vec![some(0, 7), some(1000, 7)], (1, 0)),
            ("more than its cores is what it is", vec![some(0, 0), some(1000, 9_000_000)], (1, 9_000)),
            ("one read is none", vec![some(0, 7)], (0, 0)),
            ("counter went back", vec![some(0, 9), some(1000, 8), some(2000, 1_000_008)], (1, 1_000)),
            ("implausible counter", vec![some(0, 9), some(1000, u64::MAX), some(2000, 5)], (0, 0)),
            ("unreadable", vec![some(0, 0), (1000, None), some(2000, 400), some(3000, 400)], (1, 0)),
            ("stall or suspend", vec![some(0, 0), some(2001, 1), some(3001, 1)], (1, 0)),
            ("too soon: one of 1.3 s", vec![some(0, 0), some(300, 5), some(1300, 1_300_000)], (1, 1_000)),
        ] {
            assert_eq!(after(&reads), counted, "{why}");
        }

        let mut recorder = UsageRecorder::default();
        recorder.look(Instant::ZERO, wall(0), vec![reading(0, 0)]);
        let late = UsageReading { to: Instant::from_millis(1101), ..reading(1000, 5) };
        recorder.look(Instant::from_millis(1000), wall(1000), vec![late]);
        recorder.look(Instant::from_millis(2000), wall(2000), vec![reading(2000, 5)]);
        assert_eq!(recorder.finish(), []);
    }

    #[test]
    fn a_vm_that_vanishes_or_starts_anew_leaves_a_gap() {
        let mut recorder = UsageRecorder::default();
        let mut look = |ms: u64, readings| recorder.look(Instant::from_millis(ms), wall(ms), readings);
        look(0, vec![reading(0, 0)]);
        look(1000, vec![reading(1000, 1_000_000)]);
        look(2000, vec![]);
        look(3000, vec![reading(3000, 5_000_000)]);
        let anew = |ms, used| UsageReading { start: VmStart(2), ..reading(ms, used) };
        look(4000, vec![anew(4000, 100)]);
        look(5000, vec![anew(5000, 2_000_100)]);
        let mut done = look(300_000, vec![anew(300_000, 0)]);
        done.extend(look(600_000, vec![]));
        done.extend(look(900_000, vec![]));
        let seen: Vec<_> =
            done.iter().map(|it| (it.start.0, it.bin.0, it.cpu.samples(), it.mean())).collect();
        let bin = UsageBin::of(T0).0;
        assert_eq!(seen, [(1, bin, 1, Some(0.5)), (2, bin, 1, Some(1.0))]);
        assert!(recorder.vms.is_empty(), "who has gone is forgotten");
    }

    #[test]
    fn a_second_of_the_server_is_known_where_every_vm_was_measured() {
        let other = |ms, used_us| UsageReading { vm: VmId::new("w").unwrap(), ..reading(ms, used_us) };
        let mut recorder = UsageRecorder::default();
        let mut look = |ms: u64, used: u64, other_used: Option<u64>| {
            let readings = vec![reading(ms, used), other(ms, other_used)];
            recorder.look(Instant::from_millis(ms), wall(ms), readings);
            recorder.second().map(|it| (it.used_mc, it.cores))
        };
        assert_eq!(look(0, 0, Some(0)), None);
        assert_eq!(look(1000, 500_000, Some(1_500_000)), Some((2000, 4)));
        assert_eq!(look(2000, 500_000, None), None);
        assert_eq!(look(3000, 500_000, Some(0)), None);
        assert_eq!(look(4000, 500_000, Some(100_000)), Some((100, 4)));

        // Nothing was promised to the other one: it is neither counted nor missed.
        let mut recorder = UsageRecorder::default();
        let mut look = |ms: u64, used: u64, other_used: Option<u64>| {
            let unpromised = UsageReading { promised: false, ..other(ms, other_used) };
            recorder.look(Instant::from_millis(ms), wall(ms), vec![reading(ms, used), unpromised]);
            recorder.second().map(|it| (it.used_mc, it.cores))
        };
        look(0, 0, None);
        assert_eq!(look(1000, 500_000, None), Some((500, 2)));
    }

    #[test]
    fn throttled_seconds_are_counted_apart_with_what_was_used_at_least() {
        let mut recorder = UsageRecorder::default();
        for n in 0..=10u64 {
            let it = UsageReading { throttled: n >= 7, ..reading(n * 1000, n * 1_000_000) };
            recorder.look(Instant::from_millis(n * 1000), wall(n * 1000), vec![it]);
        }
        let done = recorder.finish();
        let seconds = [&done[0].cpu, &done[0].throttled].map(|it| (it.samples(), it.sum_mc, it.squares_mc2));
        assert_eq!(seconds, [(6, 6000, Some(6_000_000)), (4, 4000, Some(4_000_000))]);
    }

    #[test]
    fn memory_is_the_most_of_this_record_and_kills_are_the_new_ones() {
        let mut recorder = UsageRecorder::default();
        let mut done = vec![];
        let looks: [(u64, [Option<u64>; 3]); 6] = [
            (0, [Some(50), Some(900), Some(3)]),
            (10, [Some(70), Some(900), Some(3)]),
            // It rose between two looks, and two processes were killed.
            (20, [Some(60), Some(950), Some(5)]),
            (300, [Some(40), Some(950), Some(5)]),
            (310, [None, None, None]),
            // The counters went back, and there is no memory.peak any more.
            (600, [Some(45), None, Some(0)]),
        ];

        for (s, [used_bytes, peak_bytes, oom_kills]) in looks {
            let memory = MemoryUse { used_bytes, peak_bytes, working_set_bytes: None };
            let mut counters = Counters::default();
            counters.0[0] = oom_kills;
            let it = UsageReading { slow: Some(SlowReading { memory, counters }), ..reading(s * 1000, 0) };
            done.extend(recorder.look(Instant::from_millis(s * 1000), wall(s * 1000), vec![it]));
        }

        done.extend(recorder.finish());
        let recorded: Vec<_> =
            done.iter().map(|it| (it.memory.used_bytes, it.memory.peak_bytes, it.counters.0[0])).collect();

        // The first look is never counted: nobody knows what the clock did before.
        let of_bins = [(Some(70), Some(950), Some(2)), (Some(40), Some(40), Some(0)), (Some(45), None, None)];
        assert_eq!(recorded, of_bins);
    }

    #[test]
    fn a_step_of_the_wall_clock_ends_the_record_and_a_slew_does_not() {
        for (step_s, whole) in [(0, 1), (1, 1), (3, 2), (3600, 2), (-3600, 2), (-1, 1)] {
            let mut recorder = UsageRecorder::default();
            let mut done = vec![];
            for n in 0..20u64 {
                let step_s = if n < 10 { 0 } else { step_s };
                let wall = wall(100_000 + n * 1000).as_secs().wrapping_add_signed(step_s);
                let it = reading(n * 1000, n * 1_000_000);
                let at = Instant::from_millis(n * 1000);
                done.extend(recorder.look(at, Duration::from_secs(wall), vec![it]));
            }

            done.extend(recorder.finish());
            assert_eq!(done.len(), whole, "{step_s}");
            let seconds: u64 = done.iter().map(|it| it.cpu.samples()).sum();
            assert_eq!(seconds, if whole == 1 { 19 } else { 18 }, "{step_s}");
        }

        let mut unset = UsageRecorder::default();
        for n in 0..20u64 {
            let it = reading(n * 1000, n);
            unset.look(Instant::from_millis(n * 1000), Duration::from_secs(n), vec![it]);
        }

        assert_eq!(unset.finish(), []);
    }

    proptest! {
        /// Whatever the clocks and counters do, records are of the VM's own seconds: none twice, none made up.
        #[test]
        fn seconds_are_counted_once_and_shares_are_shares(
            steps in proptest::collection::vec(
                (0u64..4000, -4000i64..4000, proptest::option::of(0u64..u64::MAX / 2),
                 any::<bool>(), 0u64..3, 0u64..200),
                1..120,
            ),
        ) {
            let mut recorder = UsageRecorder::default();
            let (mut ms, mut offset, mut done) = (0, 400_000i64, vec![]);
            let mut reads = 0;

            for (gap, step, used, throttled, start, took) in steps {
                ms += gap;

                // Mostly steady.
                offset += if step.abs() > 3500 { step * 100 } else { 0 };
                let it = UsageReading {
                    start: VmStart(start),
                    throttled,
                    to: Instant::from_millis(ms + took),
                    ..reading(ms, used.map(|used| if used % 3 == 0 { used } else { ms * 700 }))
                };

                reads += 1;
                let wall = wall(0).as_millis() as i64 + ms as i64 + offset;
                let wall = Duration::from_millis(wall as u64);
                done.extend(recorder.look(Instant::from_millis(ms), wall, vec![it]));
            }

            done.extend(recorder.finish());
            let seconds: u64 = done.iter().map(|it| it.cpu.samples() + it.throttled.samples()).sum();
            prop_assert!(seconds < reads.max(1));

            for record in &done {
                for it in [&record.cpu, &record.throttled] {
                    let most = it.samples() * u64::from(it.peak_mc);
                    prop_assert!(it.sum_mc <= most && it.squares_mc2 <= Some(most * u64::from(it.peak_mc)));
                }
                prop_assert!(!record.is_empty() && record.mean().is_some() == (record.cpu.samples() > 0));
            }
        }
    }
}
