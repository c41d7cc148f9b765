use procfs_core::FromRead;
use procfs_core::process::{Limit, LimitValue, Limits, Status};
use serde::Serialize;

use crate::Root;
use crate::root::read_text;

/// Who asks: this process, its rights and its limits.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    pub uid: Option<u32>,
    /// The capabilities in force, as in `/proc/self/status`.
    pub capabilities: Option<u64>,
    /// The highest real-time priority it may take; 0 is none, `u64::MAX` any.
    pub realtime_priority: Option<u64>,
    /// Bytes that it may lock in memory; `u64::MAX` is any number.
    pub locked_memory: Option<u64>,
}

impl Process {
    /// `CAP_SYS_NICE`: real-time priorities, whatever the limit.
    pub const SYS_NICE: u32 = 23;
    /// `CAP_IPC_LOCK`: locked memory, whatever the limit.
    pub const IPC_LOCK: u32 = 14;

    pub(super) fn read(root: &Root) -> Self {
        let file = |name| read_text(&root.path(&format!("proc/self/{name}"))).unwrap_or_default();

        // A recording leaves the name out, and the parser wants one.
        let status = Status::from_read(format!("Name:\t-\n{}", file("status")).as_bytes()).ok();
        let limits = Limits::from_read(file("limits").as_bytes()).ok();
        let soft = |limit: &Limit| match limit.soft_limit {
            LimitValue::Unlimited => u64::MAX,
            LimitValue::Value(value) => value,
        };

        Self {
            uid: status.as_ref().map(|status| status.euid),
            capabilities: status.map(|status| status.capeff),
            realtime_priority: limits.as_ref().map(|limits| soft(&limits.max_realtime_priority)),
            locked_memory: limits.map(|limits| soft(&limits.max_locked_memory)),
        }
    }

    pub fn can(&self, capability: u32) -> bool {
        self.capabilities.is_some_and(|bits| bits >> capability & 1 == 1)
    }
}

/// Services that Ballast can work with; told by the files that they leave in `/run`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Services {
    /// systemd runs this machine.
    pub systemd: bool,
    /// The system's message bus.
    pub dbus: bool,
    /// libvirt's daemon, whole or by parts.
    pub libvirt: bool,
}

impl Services {
    pub(super) fn read(root: &Root) -> Self {
        let has = |path: &str| root.path(path).exists();
        Self {
            systemd: has("run/systemd/system"),
            dbus: has("run/dbus/system_bus_socket"),
            libvirt: has("run/libvirt/libvirt-sock") || has("run/libvirt/virtqemud-sock"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Tree};

    #[test]
    fn rights_and_limits_are_read_as_the_kernel_writes_them() {
        let tree = Tree::new();
        tree.write("proc/self/status", &testing::status(0, 0x80_4000));
        tree.write("proc/self/limits", &testing::limits("8388608", "unlimited"));
        let process = Process::read(tree.root());
        assert_eq!((process.uid, process.locked_memory), (Some(0), Some(8_388_608)));
        assert_eq!(process.realtime_priority, Some(u64::MAX));
        assert!(process.can(Process::SYS_NICE) && process.can(Process::IPC_LOCK));
        assert!(!process.can(21));
        let nothing = Process::read(Tree::new().root());
        assert_eq!((nothing.uid, nothing.realtime_priority), (None, None));
        assert!(!nothing.can(0));
    }
}
