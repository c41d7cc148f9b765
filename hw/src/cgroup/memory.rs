//! The memory that a group uses, and what the kernel counts of the group: `memory.current`, `memory.peak`, `memory.stat`,
//! `memory.events`, `cpu.pressure`, `memory.pressure`.

use ballast_types::{Counters, MemoryUse};

use super::{Cgroup, CpuTimes};
use crate::Root;
use crate::root::read_text;

/// How much memory this machine has; `None` where `/proc/meminfo` does not tell.
pub fn memory_bytes(root: &Root) -> Option<u64> {
    let text = read_text(&root.path("proc/meminfo")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok().filter(|kib| *kib > 0)?.checked_mul(1024)
}

impl Cgroup {
    /// The memory that it uses. Where its controller is off, nothing is known.
    pub fn memory(&self) -> MemoryUse {
        let used_bytes = self.number("memory.current");
        let inactive = || self.value("memory.stat", "inactive_file ");
        MemoryUse {
            used_bytes,
            peak_bytes: self.number("memory.peak"),
            working_set_bytes: used_bytes.zip(inactive()).map(|(used, file)| used.saturating_sub(file)),
        }
    }

    /// What the kernel has counted of it since it was made, and in `times`. Kernels without pressure stall information, and
    /// groups without a controller, count less.
    pub fn counters(&self, times: Option<&CpuTimes>) -> Counters {
        let stalled = |file, kind| Some(self.value(file, kind)? / 1000);
        Counters([
            self.value("memory.events", "oom_kill "),
            times.and_then(|times| times.stopped_periods),
            times.and_then(|times| times.stopped).map(|stopped| stopped.as_millis() as u64),
            stalled("cpu.pressure", "some "),
            stalled("memory.pressure", "some "),
            stalled("memory.pressure", "full "),
        ])
    }

    /// How often the group was above its `memory.high`.
    pub fn high_events(&self) -> Option<u64> {
        self.value("memory.events", "high ")
    }

    fn number(&self, file: &str) -> Option<u64> {
        read_text(&self.dir.join(file)).ok()?.trim().parse().ok()
    }

    /// The number at the end of the first line that begins so.
    fn value(&self, file: &str, line: &str) -> Option<u64> {
        let text = read_text(&self.dir.join(file)).ok()?;
        let rest = text.lines().find_map(|it| it.strip_prefix(line))?;
        rest.rsplit([' ', '=']).next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_machines_memory_is_read_or_not_known() {
        let tree = Tree::new();
        assert_eq!(memory_bytes(tree.root()), None);
        for (text, bytes) in [
            ("MemFree: 1 kB\nMemTotal:       16302440 kB\n", Some(16_302_440 << 10)),
            ("MemTotal: 0 kB\n", None),
            ("MemTotal: x kB\n", None),
        ] {
            tree.write("proc/meminfo", text);
            assert_eq!(memory_bytes(tree.root()), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_number_is_not_known() {
        let tree = Tree::new();
        let dir = "sys/fs/cgroup/machine.slice/v.scope";
        tree.write(&format!("{dir}/cpu.stat"), "usage_usec 1\n");
        let group = Cgroup::at(tree.root(), "machine.slice/v.scope").unwrap();
        let times = group.times().unwrap();
        assert_eq!((group.memory(), group.counters(Some(&times))), Default::default());

        let psi = |kind, total| format!("{kind} avg10=0.12 avg60=0.00 avg300=0.00 total={total}\n");
        for (file, text) in [
            ("cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 5999\n".to_owned()),
            ("memory.current", "8192\n".to_owned()),
            ("memory.peak", "max\n".to_owned()),
            ("memory.stat", "anon 1\ninactive_anon 7\ninactive_file 4096\n".to_owned()),
            ("memory.events", "low 1\noom 9\noom_kill 2\noom_group_kill 5\n".to_owned()),
            ("cpu.pressure", psi("some", "7999") + &psi("full", "0")),
            ("memory.pressure", psi("some", "x")),
        ] {
            tree.write(&format!("{dir}/{file}"), &text);
        }
        let memory = MemoryUse { used_bytes: Some(8192), peak_bytes: None, working_set_bytes: Some(4096) };
        assert_eq!(group.memory(), memory);
        let times = group.times().unwrap();
        assert_eq!(times.stopped, Some(Duration::from_micros(5999)));
        let counted = [Some(2), Some(4), Some(5), Some(7), None, None];
        assert_eq!(group.counters(Some(&times)), Counters(counted));
    }
}
