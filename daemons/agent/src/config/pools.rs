//! `[pools]`: VMs share cores by class, on a host that promises more CPUs than it has.

use std::collections::BTreeMap;
use std::time::Duration;

use ballast_agent_core::{Actuator, Pools};
use ballast_hw::{By, Cgroup};
use ballast_types::wire::VmSpec;
use ballast_types::{VmClass, VmId};

use ballast_runtime::config::allowed::{Allowed, flag, seconds, whole};
use ballast_runtime::config::reader::Section;

/// How VMs share cores.
#[derive(Clone, Debug)]
pub struct PoolsConfig {
    /// As it is at first.
    pub pools: Pools,
    /// The slices of both classes, if these are bound instead of every VM.
    pub slices: Option<Slices>,
}

/// The slice of each class: whoever is in it is of that class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    user_facing: String,
    batch: String,
}

impl Slices {
    /// The slice of a class.
    pub fn of(&self, class: VmClass) -> &str {
        match class {
            VmClass::UserFacing => &self.user_facing,
            VmClass::NonUserFacing => &self.batch,
        }
    }

    /// The class of whoever has this cgroup; `None` outside both slices.
    pub fn class(&self, path: &str) -> Option<VmClass> {
        let in_it =
            |class: &VmClass| path.strip_prefix(self.of(*class)).is_some_and(|it| it.starts_with('/'));
        VmClass::ALL.into_iter().find(in_it)
    }
}

impl PoolsConfig {
    /// Reads `[pools]`; `None` where every VM has cores of its own.
    pub(super) fn read(root: &mut Section<'_, '_>, actuator: Actuator, by: &By) -> Option<Self> {
        let mut section = root.section(
            "pools",
            "VMs share cores by class, instead of having cores of their own: for hosts with CPU \
             overcommitment.",
        );
        let enabled =
            section.key("enabled", "Whether they do; a VM that is `pinned` does not.").or(false, flag());
        let min_cores = section
            .key("min_cores", "Neither pool has fewer physical cores; half of the server's at most.")
            .or(1, whole("a whole number of cores", 1..=4096));
        let step = section
            .key("step_s", "Between two moves of one core from pool to pool.")
            .or(Duration::from_secs(10), seconds::<1>("whole seconds", 1..=3600));
        let slice = || {
            let is_slice = |path: &str| Cgroup::is_vm_path(path) && path.ends_with(".slice");
            Allowed::text(SLICES, move |path| is_slice(path).then(|| path.to_owned()))
        };
        let help = "The slice with all user-facing VMs: it is bound instead of each VM, and its VMs are \
                    user-facing.";
        let user_facing = section.key("user_facing_slice", help).optional(slice());
        let batch = section.key("batch_slice", "The same of the other VMs.").optional(slice());

        if enabled && actuator.floats() {
            section
                .refuse_key("enabled", "only with throttle.actuator = \"pstate\": with the others VMs float");
        }
        let nested = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}/"));
        let slices = match (user_facing, batch) {
            (Some(user_facing), Some(batch))
                if nested(&user_facing, &batch) || nested(&batch, &user_facing) =>
            {
                section.refuse_key(
                    "batch_slice",
                    "another slice than user_facing_slice, and neither within the other",
                );
                None
            }
            (Some(user_facing), Some(batch)) => Some(Slices { user_facing, batch }),
            (None, None) => None,
            (one, _) => {
                let (key, other) = ("user_facing_slice", "batch_slice");
                let (key, other) = if one.is_some() { (key, other) } else { (other, key) };
                section.refuse_key(key, format_args!("only with {other}: both slices or none"));
                None
            }
        };
        if slices.is_some() && matches!(by, By::Libvirt(_)) {
            let allowed = "with groups.by = \"systemd\" or \"cgroup\": slices are not libvirt's";
            section.refuse_key("user_facing_slice", allowed);
        }
        section.finish();
        enabled.then(|| Self { pools: Pools::new(min_cores, step), slices })
    }

    /// Which VM's class contradicts the slice that it is in, or which is a slice of ours; and what is allowed.
    pub(crate) fn contradiction(&self, vms: &BTreeMap<VmId, VmSpec>) -> Option<String> {
        let slices = self.slices.as_ref()?;
        vms.iter().find_map(|(id, spec)| {
            let (path, told) = (spec.cgroup.as_deref()?, spec.class);
            let holds = |class: &VmClass| {
                slices
                    .of(*class)
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let is_ours = VmClass::ALL.iter().any(holds);
            if is_ours {
                return Some(format!(
                    "VM {id}: cgroup = {path:?}: a VM's own, and not the slice of a pool or above one"
                ));
            }
            let class = slices.class(path).filter(|class| told.is_some_and(|told| told != *class))?;
            let of = if class == VmClass::UserFacing { "user-facing" } else { "other" };
            Some(format!("VM {id}: cgroup = {path:?}: this is the slice of {of} VMs"))
        })
    }
}

/// The slices that are allowed, in words.
const SLICES: &str = "a slice below sys/fs/cgroup such as \"machine-batch.slice\", with its parents' folders";
