//! One way to bind a VM to CPUs, and what is kept to undo it.

use serde::{Deserialize, Serialize};

use crate::error::{HwError, Operation};
use crate::libvirt::Pins;
use crate::{Cgroup, CpuList};

/// The CPUs of a VM as they were before, and how they are put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetOriginal {
    /// The list to write back; never empty.
    pub cpus: String,
    pub via: Via,
}

/// Through whom a VM was bound, with what only he knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    Cgroup {
        /// The inode of the cgroup's directory: a new group of the same name has never been bound.
        inode: u64,
    },
    Systemd {
        unit: String,
        /// `AllowedCPUs`; empty when it had none of its own.
        allowed: String,
    },
    Libvirt {
        uri: String,
        /// Which one, in this boot.
        domain: u32,
        /// Where its threads were.
        pins: Pins,
    },
}

/// One way to bind a VM. `path` is that of its cgroup, as in its spec.
pub trait Binder {
    /// What must be put back. It must be on disk before [`Binder::bind`]. Fails if the VM is not there, or
    /// cannot be bound this way: then it says how it can.
    fn original(&self, path: &str) -> Result<CpusetOriginal, HwError>;

    /// Binds the VM, and checks what was granted.
    fn bind(&self, path: &str, cpus: &CpuList) -> Result<(), HwError>;

    /// Puts back what was there. A VM that has ended needs nothing.
    fn restore(&self, path: &str, original: &CpusetOriginal) -> Result<(), HwError>;

    /// The CPUs that the VM may use now. Fails if they cannot be read; `is_missing` if the VM is not there.
    fn effective(&self, path: &str) -> Result<CpuList, HwError>;
}

impl CpusetOriginal {
    /// The list to put back.
    pub(super) fn list(&self, group: &Cgroup) -> Result<CpuList, HwError> {
        let list: Option<CpuList> = self.cpus.parse().ok();
        list.filter(|list| !list.is_empty()).ok_or_else(|| {
            let allowed = "a CPU list such as 0-3,8";
            HwError::value(&group.dir().join("cpuset.cpus"), Operation::Write, &self.cpus, allowed)
        })
    }

    /// Whether this is of another group than the one that has the name now.
    pub fn is_of_another(&self, now: u64) -> bool {
        matches!(self.via, Via::Cgroup { inode } if inode != now)
    }
}
