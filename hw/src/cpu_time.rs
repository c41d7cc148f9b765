//! How busy all CPUs together have been, by `/proc/stat`.

use std::fs::File;
use std::io::BufReader;

use procfs_core::{ExplicitSystemInfo, FromBufReadSI, KernelStats};

use crate::Root;
use crate::error::{HwError, Operation};

const ALLOWED: &str = "a line \"cpu\" with user, nice, system, idle, iowait and more ticks, and the kernel's \
                       other counters";
/// Ticks are compared with ticks: how long one is does not matter, nor does the rest.
const TICKS: ExplicitSystemInfo =
    ExplicitSystemInfo { boot_time_secs: 0, ticks_per_second: 100, page_size: 4096, is_little_endian: true };

/// Clock ticks of all online CPUs since the boot.
///
/// Idle is what the kernel calls idle and iowait; busy is everything else. Guest time is part of user time.
/// Source: Documentation/filesystems/proc.rst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    idle: u64,
}

impl CpuTime {
    /// As it is now. Fails if the file cannot be read, or does not begin as it should.
    pub fn read(root: &Root) -> Result<Self, HwError> {
        let path = root.path("proc/stat");
        let file = File::open(&path).map_err(|e| HwError::io(&path, Operation::Read, ALLOWED, e))?;
        let stats = KernelStats::from_buf_read(BufReader::new(file), &TICKS)
            .map_err(|e| HwError::value(&path, Operation::Read, e, ALLOWED))?;

        let all = stats.total;
        let or_0 = Option::unwrap_or_default;
        let busy = [all.user, all.nice, all.system, or_0(all.irq), or_0(all.softirq), or_0(all.steal)];
        let sum = |ticks: &[u64]| ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));

        Ok(Self { busy: sum(&busy), idle: sum(&[all.idle, or_0(all.iowait)]) })
    }

    /// The share of time that the CPUs were busy since `before`; `None` if no time has passed. iowait may
    /// go back a little, and then counts as none.
    pub fn busy_since(&self, before: &Self) -> Option<f64> {
        let busy = self.busy.saturating_sub(before.busy);
        let all = busy.saturating_add(self.idle.saturating_sub(before.idle));
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting() {
        let tree = Tree::new();
        let read = |line: &str| {
            tree.write(
                "proc/stat",
                &format!("{line}\ncpu0 1 2 3 4\nintr 5 6\nctxt 7\nbtime 8\nprocesses 9\n"),
            );
            CpuTime::read(tree.root())
        };
        let before = read("cpu  100 10 50 1000 40 5 5 2 77 7").unwrap();
        assert_eq!(before, CpuTime { busy: 172, idle: 1040 });
        let after = read("cpu  150 10 60 1030 50 5 5 2 99 9").unwrap();
        assert_eq!(after.busy_since(&before), Some(0.6));
        assert_eq!(after.busy_since(&after), None);
        assert_eq!(before.busy_since(&after), None);
        let most = u64::MAX;
        let huge = read(&format!("cpu  {most} {most} 50 {most} 40 5 5 2 77 7")).unwrap();
        assert_eq!(huge, CpuTime { busy: most, idle: most });
        assert_eq!(huge.busy_since(&CpuTime { busy: 0, idle: 0 }), Some(1.0));
        for bad in ["", "cpu", "cpu 1 2 3", "cpu 1 2 x 4", "cpu0 1 2 3 4", "cpu -1 2 3 4"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("proc/stat") && error.contains("user, nice"), "{error}");
        }
    }
}
