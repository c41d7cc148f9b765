//! `[[vm]]`: the VMs that are known from the start; and what else is said of VMs.

use std::collections::BTreeMap;

use ballast_hw::Cgroup;
use ballast_types::wire::VmSpec;
use ballast_types::{OnExtreme, VmClass, VmId};

use ballast_runtime::config::allowed::{Allowed, ID, choice, flag, whole};
use ballast_runtime::config::reader::Section;

pub(super) fn class() -> Allowed<VmClass> {
    choice(VmClass::ALL.map(|class| (class.name(), class)))
}

/// How many CPUs a VM has.
pub(super) fn cores() -> Allowed<u16> {
    whole("a whole number of cores", 1..=4096)
}

pub(super) fn read_throttle_order(section: &mut Section<'_, '_>) -> u8 {
    let help = "The lowest goes to its floor before the next one is touched.";
    section.key("throttle_order", help).or(0, whole("a whole number", 0..=255))
}

/// Reads `on_extreme`: what may be done to a VM when throttling is not enough.
pub(super) fn read_on_extreme(section: &mut Section<'_, '_>) -> OnExtreme {
    section
        .key("on_extreme", "Rather dead than slow; needs `shedding.allow_kill` and a cgroup of its own.")
        .or(OnExtreme::None, choice([("none", OnExtreme::None), ("kill", OnExtreme::Kill)]))
}

/// Reads `tenant`: whose history counts for a VM that has too little of its own.
pub(super) fn read_tenant(section: &mut Section<'_, '_>) -> Option<String> {
    let help = "Whose the VM is, or its template: before it has a day of records its limits are those of \
                others of the same tenant.";
    let is_allowed = |text: &str| (1..=VmSpec::TENANT_MAX).contains(&text.len()).then(|| text.to_owned());
    section.key("tenant", help).optional(Allowed::text("1 to 256 bytes", is_allowed))
}

/// Reads `pinned`: whether a VM has cores of its own where others share theirs.
pub(super) fn read_pinned(section: &mut Section<'_, '_>) -> bool {
    let help = "With `[pools]`: the VM has whole cores of its own, which are in neither pool.";
    section.key("pinned", help).or(false, flag())
}

/// Every `[[vm]]`; where VMs float, `cpu.max` limits them.
pub(super) fn read(root: &mut Section<'_, '_>, floats: bool) -> BTreeMap<VmId, VmSpec> {
    let mut vms = BTreeMap::new();
    for section in root.sections("vm", "A VM; more come and go by `PUT` and `DELETE /v1/vms/{id}`.") {
        vms.extend(read_vm(section, &vms, floats));
    }
    vms
}

fn read_vm(
    mut section: Section<'_, '_>,
    others: &BTreeMap<VmId, VmSpec>,
    floats: bool,
) -> Option<(VmId, VmSpec)> {
    let id = section.key("id", "The VM's id.").required(Allowed::text(ID, |text| VmId::new(text).ok()));
    let help = "Whom the VM works for. A user-facing VM is never throttled while another core can be; \
                without a class: `auto_class`.";
    let class = section.key("class", help).optional(class());
    let cores = section
        .key("cores", "CPUs: the VM gets whole physical cores with at least as many threads.")
        .required(cores());
    let throttle_order = read_throttle_order(&mut section);
    let cgroup = Allowed::text(Cgroup::PATHS, |path| Cgroup::is_vm_path(path).then(|| path.to_owned()));
    let cgroup = section.key("cgroup", "The VM's cgroup.").optional(cgroup);
    let on_extreme = read_on_extreme(&mut section);
    let tenant = read_tenant(&mut section);
    let pinned = read_pinned(&mut section);

    if id.as_ref().is_some_and(|id| others.contains_key(id)) {
        section.refuse_key("id", "every VM has an id of its own");
    }
    let spec = cores.map(|cores| VmSpec { class, throttle_order, cores, cgroup, on_extreme, tenant, pinned });
    if let Some(why) = spec.as_ref().and_then(|spec| spec.check().err()) {
        section.refuse(why);
    }
    if let Some(why) = spec.as_ref().and_then(has_nothing_to_limit).filter(|_| floats) {
        section.refuse(why);
    }
    section.finish();

    Some((id?, spec?))
}

/// Where VMs float: what is missing of a VM for it to be limited.
pub(crate) fn has_nothing_to_limit(spec: &VmSpec) -> Option<&'static str> {
    let low = spec.class() == VmClass::NonUserFacing;
    (low && spec.cgroup.is_none()).then_some(
        "cgroup is missing: with throttle.actuator = \"cpu-max\" or \"uclamp\" it is what is limited",
    )
}
