//! Whether a cgroup is systemd's, and so is changed through systemd alone.

use super::{Systemd, unit};
use crate::cgroup::Cgroup;
use crate::error::{HwError, Operation};
use crate::root::Root;

/// The unit whose group this is. Fails if it is none: then it says what else can be done.
pub(crate) fn unit_at<'a>(group: &Cgroup, path: &'a str) -> Result<&'a str, HwError> {
    unit::unit_of(path).ok_or_else(|| {
        let allowed = "the group of a slice, scope or service; others with groups.by = \"cgroup\"";
        HwError::value(group.dir(), Operation::Read, path, allowed)
    })
}

/// What may be done about a group that is systemd's.
const UNIT: &str = "a group that nobody but the agent writes: below a unit with Delegate=cpuset cpu, or not \
                               of systemd. A unit itself is bound with groups.by = \"systemd\", a libvirt \
                               domain with \"libvirt\"; groups.even_units = true writes all the same, until \
                               systemd writes it again";

/// Whether systemd owns the group at `path`: it is that of a unit. What is below one is left to whom it was
/// delegated; systemd itself makes nothing there.
fn is_systemds(root: &Root, path: &str) -> bool {
    Systemd::is_booted(root) && unit::unit_of(path).is_some()
}

/// Refuses to write `file` of a group that is systemd's.
pub(crate) fn refuse_systemds(root: &Root, path: &str, file: &str, even_units: bool) -> Result<(), HwError> {
    if even_units || !is_systemds(root, path) {
        return Ok(());
    }
    let file = Cgroup::of_vm_or_pod(root, path)?.dir().join(file);
    Err(HwError::value(&file, Operation::Write, "", UNIT))
}
