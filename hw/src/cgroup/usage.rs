//! The CPU time that a group used: `cpu.stat`.

use core::time::Duration;

use ballast_types::{Instant, Utilisation};

use super::Cgroup;
use crate::error::{HwError, Operation};
use crate::root::read_text;

impl Cgroup {
    /// What `cpu.stat` has counted since it was made. Fails if the file is unreadable or has no `usage_usec`.
    pub fn times(&self) -> Result<CpuTimes, HwError> {
        let file = self.dir.join("cpu.stat");
        let text = read_text(&file)?;
        let word = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |name| word(name).and_then(|number| number.trim().parse::<u64>().ok());
        let Some(used) = number("usage_usec ") else {
            let allowed = "a line usage_usec with a whole number";
            let value = word("usage_usec ").unwrap_or_default();
            return Err(HwError::value(&file, Operation::Read, value, allowed));
        };
        let (used, stopped_periods) = (Duration::from_micros(used), number("nr_throttled "));
        let stopped = number("throttled_usec ").map(Duration::from_micros);
        Ok(CpuTimes { used, stopped_periods, stopped })
    }
}

/// What `cpu.stat` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// CPU time used: `usage_usec`.
    pub used: Duration,
    /// Periods in which a bandwidth limit stopped the group: `nr_throttled`; only where its bandwidth can be limited.
    pub stopped_periods: Option<u64>,
    /// How long it was stopped: `throttled_usec`; likewise.
    pub stopped: Option<Duration>,
}

/// What a group did between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUse {
    /// Share of the offered cores' time.
    pub utilisation: Utilisation,
    /// A bandwidth limit stopped it.
    pub stopped: bool,
}

/// The CPU use of one group between two reads.
#[derive(Clone, Debug)]
pub struct UsageMeter {
    group: Cgroup,
    last: Option<(Instant, CpuTimes)>,
}

impl UsageMeter {
    pub fn new(group: Cgroup) -> Self {
        Self { group, last: None }
    }

    /// The share of `cores` cores' time since the last read; `None` at the first read, or when the
    /// counter went back (the group was made anew). `now` must be taken just before the call.
    pub fn sample(&mut self, now: Instant, cores: usize) -> Result<Option<CpuUse>, HwError> {
        let times = self.group.times()?;
        let last = self.last.replace((now, times));
        Ok(last.and_then(|(then, before)| {
            let used = times.used.checked_sub(before.used)?.as_secs_f64();
            let offered = now.since(then).as_secs_f64() * cores as f64;
            let utilisation = (offered > 0.0).then(|| Utilisation::from_ratio(used / offered))??;
            let periods = |times: CpuTimes| times.stopped_periods.unwrap_or(0);
            let stopped = periods(times) != periods(before);
            Some(CpuUse { utilisation, stopped })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/fs/cgroup/machine.slice/vm1.scope";

    #[test]
    fn utilisation_is_cpu_time_over_offered_time() {
        let tree = Tree::new();
        let stat = format!("{DIR}/cpu.stat");
        tree.write(&stat, "usage_usec 1000000\nuser_usec 900000\n");
        let group = Cgroup::at(tree.root(), "machine.slice/vm1.scope").unwrap();
        let mut meter = UsageMeter::new(group);
        assert_eq!(meter.sample(Instant::ZERO, 4).unwrap(), None);
        tree.write(&stat, "user_usec 5\nusage_usec 1400000\n");
        let half = |stopped| Some(CpuUse { utilisation: Utilisation::from_ratio(0.5).unwrap(), stopped });
        assert_eq!(meter.sample(Instant::from_millis(200), 4).unwrap(), half(false));
        tree.write(&stat, "usage_usec 1800000\nnr_periods 9\nnr_throttled 3\nthrottled_usec 5\n");
        assert_eq!(meter.sample(Instant::from_millis(400), 4).unwrap(), half(true));
        tree.write(&stat, "usage_usec 7\n");
        assert_eq!(meter.sample(Instant::from_millis(400), 4).unwrap(), None);
        assert_eq!(meter.sample(Instant::from_millis(400), 0).unwrap(), None);

        for bad in ["", "usage_usec", "usage_usec x\n", "usage_usec -1\n"] {
            tree.write(&stat, bad);
            assert!(meter.sample(Instant::from_millis(600), 4).is_err(), "{bad:?}");
        }
    }
}
