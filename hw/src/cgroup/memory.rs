//! The memory that a group uses: `memory.current`, `memory.peak`, `memory.events`.

use super::Cgroup;
use crate::root::read_text;

/// What a group's files say of its memory; what is not there, or cannot be read, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub current_bytes: Option<u64>,
    /// The most that ever was in use; kernels before 5.19 do not tell.
    pub peak_bytes: Option<u64>,
    /// Processes of it that the kernel killed because memory ran out.
    pub oom_kills: Option<u64>,
}

impl Cgroup {
    /// The memory that it uses. Where its controller is off, nothing is known.
    pub fn memory(&self) -> MemoryUse {
        let text = |file: &str| read_text(&self.dir.join(file)).ok();
        let number = |file: &str| text(file)?.trim().parse().ok();
        let kills = |events: String| {
            events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        };
        MemoryUse {
            current_bytes: number("memory.current"),
            peak_bytes: number("memory.peak"),
            oom_kills: text("memory.events").and_then(kills),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn what_is_not_a_number_is_not_known() {
        let tree = Tree::new();
        let dir = "sys/fs/cgroup/machine.slice/v.scope";
        tree.write(&format!("{dir}/cpu.stat"), "usage_usec 1\n");
        let group = Cgroup::at(tree.root(), "machine.slice/v.scope").unwrap();
        assert_eq!(group.memory(), MemoryUse::default());
        tree.write(&format!("{dir}/memory.current"), "4096\n");
        tree.write(&format!("{dir}/memory.peak"), "max\n");
        tree.write(&format!("{dir}/memory.events"), "low 1\noom 9\noom_kill 2\noom_group_kill 5\n");
        let known = MemoryUse { current_bytes: Some(4096), peak_bytes: None, oom_kills: Some(2) };
        assert_eq!(group.memory(), known);
    }
}
