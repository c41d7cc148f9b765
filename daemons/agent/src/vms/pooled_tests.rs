//! Pools on folders that look like cgroups: who is bound to what, and what happens where binding fails.

use ballast_agent_core::ControlledVm;
use ballast_hw::By;
use ballast_types::OnExtreme;
use ballast_types::VmClass::{NonUserFacing, UserFacing};

use super::tests::{Server, alarms, id, spec};
use super::*;

const POOLS: &str = "[pools]\nenabled = true\n";
const SLICES: &str = "user_facing_slice = \"high.slice\"\nbatch_slice = \"low.slice\"\n";
const RULES: &str = "[[discover]]\npattern = \"high.slice/*\"\nclass = \"user-facing\"\n\
                     [[discover]]\npattern = \"low.slice/*\"\nclass = \"non-user-facing\"\n\
                     on_extreme = \"kill\"\n";

/// Every VM with its class, its CPUs and the first and last core that it shares.
fn shown(set: &[ControlledVm]) -> Vec<(&str, VmClass, Option<u16>, [u16; 2])> {
    let ends = |vm: &ControlledVm| [vm.cores[0].0, vm.cores[vm.cores.len() - 1].0];
    set.iter().map(|vm| (vm.id.as_str(), vm.class, vm.vcpus, ends(vm))).collect()
}

#[test]
fn what_contradicts_the_slices_is_left_out_with_an_alarm_whoever_has_told_it() {
    let server = overcommitted();
    server.make("high.slice", 0, "0-3");
    server.make("low.slice", 0, "4-7");
    // A pattern that matches the slices too, and says of their VMs what is not so of half of them.
    let rules = "[[discover]]\npattern = \"low.slice\"\ncores = 4\n\
                 [[discover]]\npattern = \"low.slice/*\"\nclass = \"user-facing\"\n\
                 [[discover]]\npattern = \"high.slice/*\"\n";
    let (mut vms, set) = server.start(&format!("{POOLS}{SLICES}{rules}"));
    let names: Vec<_> = set.iter().map(|vm| vm.id.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let said = alarms(&vms);
    assert!(said.contains("VM low is left out") && said.contains("VM c is left out"), "{said}");

    // Others come and go all the same; and a VM without a cgroup may run on any core.
    vms.change(id("e"), Some(spec(NonUserFacing, 1, Some("low.slice/e")))).unwrap();
    let set = vms.change(id("nowhere"), Some(spec(UserFacing, 1, None))).unwrap();
    let nowhere = set.iter().find(|vm| vm.id == id("nowhere")).unwrap();
    assert_eq!(nowhere.cores.len(), 8);
    assert!(alarms(&vms).contains("VM nowhere counts as user-facing: it has no cgroup"), "{}", alarms(&vms));
}

#[test]
fn what_a_previous_instance_bound_otherwise_is_given_back_at_the_start() {
    let server = overcommitted();
    server.make("high.slice", 0, "0-3");
    server.make("low.slice", 0, "4-7");
    let (vms, _) = server.start(&format!("{POOLS}{SLICES}{RULES}"));
    assert_eq!(held(&vms).len(), 2);
    // It dies; the next one binds every VM.
    drop(vms);
    let (vms, _) = server.start(&format!("{POOLS}{RULES}"));
    let bound: Vec<_> = held(&vms).into_iter().map(|(path, _)| path.to_owned()).collect();
    assert_eq!(bound, ["high.slice/a", "high.slice/b", "low.slice/c", "low.slice/d"]);
}

/// Which groups are bound, and journalled, with their CPUs.
fn held(vms: &Vms) -> Vec<(&str, String)> {
    assert!(vms.originals.cpusets.keys().eq(vms.bound.keys()));
    vms.bound.iter().map(|(path, bound)| (path.as_str(), bound.cpus().to_string())).collect()
}

/// A server with 16 CPUs' worth of VMs on its eight cores, half of them user-facing.
fn overcommitted() -> Server {
    let server = Server::new();
    for (path, granted) in
        [("high.slice/a", "0-3"), ("high.slice/b", "0-3"), ("low.slice/c", "4-7"), ("low.slice/d", "4-7")]
    {
        server.make(path, 4, granted);
    }
    server
}

#[test]
fn every_vm_is_bound_to_its_classs_pool_and_gets_back_what_it_had() {
    let server = overcommitted();
    let (mut vms, set) = server.start(&format!("{POOLS}{RULES}"));
    assert_eq!(
        shown(&set),
        [
            ("a", UserFacing, Some(4), [0, 3]),
            ("b", UserFacing, Some(4), [0, 3]),
            ("c", NonUserFacing, Some(4), [4, 7]),
            ("d", NonUserFacing, Some(4), [4, 7]),
        ]
    );
    let bound =
        [("high.slice/a", "0-3"), ("high.slice/b", "0-3"), ("low.slice/c", "4-7"), ("low.slice/d", "4-7")];
    assert_eq!(held(&vms), bound.map(|(path, cpus)| (path, cpus.to_owned())));
    assert_eq!(alarms(&vms), "");
    vms.restore(true).unwrap();
    assert!(vms.originals.cpusets.is_empty());
}

#[test]
fn a_slice_is_bound_instead_of_its_vms_and_its_class_is_theirs() {
    let server = overcommitted();
    server.make("high.slice", 0, "0-3");
    server.make("low.slice", 0, "4-7");
    // Without a class it would be user-facing; its slice says better. This one has no set of its own.
    server.make("low.slice/new.scope", 1, "4-7");
    std::fs::remove_file(server.dir("low.slice/new.scope").join("cpuset.cpus.effective")).unwrap();
    let rules = RULES.replace("class = \"non-user-facing\"\non_extreme = \"kill\"\n", "");
    let (vms, set) = server.start(&format!("{POOLS}{SLICES}{rules}"));
    assert!(set.iter().filter(|vm| vm.class == NonUserFacing).count() == 3, "{set:?}");
    assert_eq!(held(&vms), [("high.slice", "0-3".to_owned()), ("low.slice", "4-7".to_owned())]);
    assert_eq!(alarms(&vms), "");
}

#[test]
fn who_cannot_be_held_frees_no_more_than_must_be() {
    let server = overcommitted();
    // The kernel grants more than was asked for: to a batch VM, then to a user-facing one.
    server.write("low.slice/d", "cpuset.cpus.effective", "0-7");
    let (mut vms, set) = server.start(&format!("{POOLS}{RULES}"));
    let of = |set: &[ControlledVm], name: &str| set.iter().find(|vm| vm.id == id(name)).unwrap().clone();
    let batch = of(&set, "d");
    assert_eq!((batch.class, batch.cores.len(), batch.on_extreme), (NonUserFacing, 4, OnExtreme::None));
    assert!(alarms(&vms).contains("VM d may run outside its pool"), "{}", alarms(&vms));
    assert_eq!(of(&set, "c").on_extreme, OnExtreme::Kill);

    server.write("low.slice/d", "cpuset.cpus.effective", "4-7");
    server.write("high.slice/a", "cpuset.cpus.effective", "0-5");
    let set = vms.rescan().expect("another set");
    let web = of(&set, "a");
    assert_eq!(web.cores.iter().map(|core| core.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(alarms(&vms).contains("VM a counts as user-facing"), "{}", alarms(&vms));
}

#[test]
fn contradictions_are_refused_by_name() {
    let server = Server::new();
    let vm =
        |path: &str| format!("[[vm]]\nid = \"v\"\nclass = \"user-facing\"\ncores = 1\ncgroup = {path:?}\n");
    for (config, says) in [
        (format!("[pools]\n{SLICES}batch = 1\n"), "pools.batch: no such key"),
        (
            "[pools]\nuser_facing_slice = \"a.slice\"\n".to_owned(),
            "user_facing_slice = \"a.slice\": only with batch_slice",
        ),
        ("[pools]\nbatch_slice = \"a/b\"\n".to_owned(), "pools.batch_slice = \"a/b\": a slice below"),
        ("[pools]\nmin_cores = 0\n".to_owned(), "pools.min_cores = 0: a whole number"),
        (format!("{POOLS}[throttle]\nactuator = \"cpu-max\"\n"), "pools.enabled = true: only with"),
        (format!("{POOLS}{SLICES}[groups]\nby = \"libvirt\"\n"), "with groups.by ="),
        (
            format!("{POOLS}{}", SLICES.replace("low.slice", "high.slice/low.slice")),
            "neither within the other",
        ),
        (format!("{POOLS}{SLICES}{}", vm("low.slice/x")), "VM v: cgroup = \"low.slice/x\""),
        (format!("{POOLS}{SLICES}{}", vm("low.slice")), "not the slice of a pool or above one"),
    ] {
        let error = server.try_start(&config, By::Cgroup).err().expect(&config).to_string();
        assert!(error.contains(says), "{config}: {error}");
    }

    // By the API too, and without a trace.
    let (mut vms, _) = server.start(&format!("{POOLS}{SLICES}"));
    let refused = vms.change(id("v"), Some(spec(UserFacing, 1, Some("low.slice/x"))));
    assert!(refused.unwrap_err().to_string().contains("low.slice/x"));
    assert!(vms.specs().is_empty());
}
