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
        let status = read_text(&root.path("proc/self/status")).unwrap_or_default();
        let limits = read_text(&root.path("proc/self/limits")).unwrap_or_default();
        let after = |text: &str, name: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };

        // `Uid:` real, effective, saved, of the file system.
        let uid = after(&status, "Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let bits = after(&status, "CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok());

        // Soft, hard, unit.
        let limit = |name| {
            let text = after(&limits, name)?;
            match text.split_whitespace().next()? {
                "unlimited" => Some(u64::MAX),
                number => number.parse().ok(),
            }
        };

        Self {
            uid,
            capabilities: bits,
            realtime_priority: limit("Max realtime priority"),
            locked_memory: limit("Max locked memory"),
        }
    }

    /// Whether it has a capability.
    #[must_use]
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
    use crate::testing::Tree;

    #[test]
    fn rights_and_limits_are_read_as_the_kernel_writes_them() {
        let tree = Tree::new();
        tree.write("proc/self/status", "Name:\tballast\nUid:\t1000\t0\t0\t0\nCapEff:\t0000000000804000\n");

        tree.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max locked memory         8388608              8388608              bytes     \n\
             Max realtime priority     unlimited            unlimited                      \n",
        );

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
