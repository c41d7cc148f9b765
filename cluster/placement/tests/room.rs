//! Room of more kinds than cores and memory, fault domains, and hosts that come and go.

use std::collections::BTreeMap;

use ballast_placement::inventory::{HostSpec, NamedHost, NamedVm, Overcommit, Ratio, VmSpec};
use ballast_placement::{Inventory, Policy, Ties};
use ballast_types::Instant;

use crate::{NOW, size};

fn host(cores: u64) -> HostSpec {
    HostSpec::new("c1", size(cores * 1000, 64_000_000))
}

fn vm(name: &str, cores: u64) -> NamedVm {
    NamedVm { name: name.into(), spec: VmSpec::new(size(cores * 1000, 1_000_000)) }
}

fn with_gpus(mut vm: NamedVm, gpus: u32) -> NamedVm {
    vm.spec.extras = [("gpu".to_owned(), gpus)].into();
    vm
}

fn place(inventory: &mut Inventory, vm: &NamedVm) -> Result<String, String> {
    let placed = inventory.place(NOW, std::slice::from_ref(vm));
    placed.map(|hosts| hosts[0].clone()).map_err(|error| error.to_string())
}

fn inventory(hosts: &[(&str, HostSpec)]) -> Inventory {
    let mut inventory = Inventory::new(Policy { ties: Ties::Id, ..Policy::POWER });
    for (name, spec) in hosts {
        inventory.set_host(NOW, name, spec).unwrap();
    }
    inventory
}

#[test]
fn a_host_gives_as_much_as_its_ratio_says() {
    let ratio = |cores| Overcommit { cores: Ratio::new(cores).unwrap(), ..Overcommit::default() };
    let mut i = inventory(&[("a", HostSpec { overcommit: ratio(1.5), ..host(4) })]);
    assert_eq!(place(&mut i, &vm("1", 5)).unwrap(), "a");
    assert_eq!(place(&mut i, &vm("2", 1)).unwrap(), "a");
    assert!(place(&mut i, &vm("3", 1)).unwrap_err().contains("too few cores"));
    assert_eq!(
        place(&mut i, &vm("4", 7)).unwrap_err(),
        "VM \"4\" asks for 7 cores, 1 GB: the largest host has 6 cores, 64 GB"
    );

    // Less than there is keeps something back; VMs that are there stay.
    i.set_host(NOW, "a", &HostSpec { overcommit: ratio(0.5), ..host(4) }).unwrap();
    let a = i.host("a").unwrap();
    assert_eq!((a.room, a.free.cores.milli(), a.vms), (size(2000, 64_000_000), 0, 2));
    for bad in [0.0, 0.09, 16.1, f64::NAN, -1.0] {
        assert_eq!(Ratio::new(bad), None, "{bad}");
    }
}

#[test]
fn gpus_are_counted_and_kept_for_those_that_ask() {
    let gpus = |count| HostSpec { extras: [("gpu".to_owned(), count)].into(), ..host(8) };
    let mut i = inventory(&[("a", gpus(2)), ("b", host(8))]);
    let asks = |name, count| with_gpus(vm(name, 1), count);
    assert_eq!(place(&mut i, &vm("plain", 1)).unwrap(), "b", "a has GPUs");
    assert_eq!(place(&mut i, &asks("one", 1)).unwrap(), "a");
    assert_eq!(place(&mut i, &asks("two", 1)).unwrap(), "a");
    let why = place(&mut i, &asks("three", 1)).unwrap_err();
    assert!(why.contains("too little of a resource beside cores and memory; capacity refuses 2"), "{why}");
    let why = place(&mut i, &asks("four", 3)).unwrap_err();
    assert_eq!(why, "VM \"four\" asks for 1 cores, 1 GB, 3 gpu: the largest host has 8 cores, 64 GB, 2 gpu");
    assert_eq!(place(&mut i, &vm("large", 8)).unwrap_err().split(':').nth(1), Some(" no host fits"));
    assert_eq!(place(&mut i, &vm("fills", 7)).unwrap(), "b");
    assert_eq!(place(&mut i, &vm("last", 2)).unwrap(), "a", "where no other has room");

    // A restart knows the kinds by their names, whatever numbers they had.
    let kept = i.snapshot();
    let mut again = inventory(&[("z", HostSpec { extras: [("disk_gb".to_owned(), 9)].into(), ..host(1) })]);
    again.replace(NOW, &kept).unwrap();
    assert_eq!(again.snapshot(), kept);
    i.remove(NOW, "one").unwrap();
    assert_eq!(i.named_extras(i.host("a").unwrap().free.extras), [("gpu".to_owned(), 1)].into());

    // What nobody has any more makes room for another kind.
    for kind in ["x", "y", "z"] {
        let extras = [("gpu", 2), (kind, 1), ("v", 1), ("w", 1)].map(|(name, n)| (name.to_owned(), n));
        i.set_host(NOW, "a", &HostSpec { extras: extras.into(), ..host(8) }).unwrap();
    }
    let extras: BTreeMap<_, _> = ["m", "n", "o"].map(|name| (name.to_owned(), 3)).into();
    let other =
        |name: &str| NamedHost { name: name.into(), spec: HostSpec { extras: extras.clone(), ..host(8) } };
    i.set_hosts(NOW, &[other("a"), other("b")], &[]).unwrap();
    // VMs still have GPUs: with them it would be five.
    let why = i.set_host(NOW, "c", &gpus(1)).err();
    assert_eq!(why, None, "gpu is a kind already");
    let five = HostSpec { extras: [("p".to_owned(), 1)].into(), ..host(8) };
    assert!(i.set_host(NOW, "d", &five).unwrap_err().to_string().contains("there are gpu, m, n, o"));
    let named = i.named_extras(i.host("b").unwrap().free.extras);
    assert_eq!(named, extras);
    let bad = i.put(NOW, &with_gpus(vm("much", 1), 9), "c").unwrap_err().to_string();
    assert!(bad.contains("asks for 1 cores, 1 GB, 9 gpu"), "{bad}");
}

#[test]
fn a_host_has_no_more_vms_than_it_may() {
    let mut i = inventory(&[("a", HostSpec { max_vms: Some(1), ..host(8) })]);
    place(&mut i, &vm("1", 1)).unwrap();
    let refusals = i.refusals(NOW, &vm("2", 1).spec, "a").unwrap();
    assert_eq!(refusals, [("capacity", "1 VMs are here, and no more may be".to_owned())]);
    assert_eq!(
        i.put(NOW, &vm("2", 1), "a").unwrap_err().to_string(),
        "VM \"2\": host \"a\" may have 1 VMs (`max_vms`), and has no place for more"
    );
    i.change(NOW, &vm("1", 4)).unwrap();
    i.observe(NOW, &vm("2", 1), "a").unwrap();
}

#[test]
fn a_deployment_is_spread_over_fault_domains_as_evenly_as_it_asks() {
    let of = |domain: &str| HostSpec { fault_domain: Some(domain.into()), ..host(4) };
    let mut i =
        inventory(&[("a1", of("a")), ("a2", of("a")), ("a3", of("a")), ("b1", of("b")), ("c1", of("c"))]);
    let web = |n: u32, skew| {
        let mut vm = vm(&format!("web-{n}"), 2);
        (vm.spec.deployment, vm.spec.domain_skew) = (Some("web".into()), skew);
        vm
    };
    let domain = |host: String| host[..1].to_owned();

    let all: Vec<NamedVm> = (0..6).map(|n| web(n, 1)).collect();
    let hosts = i.place(NOW, &all).unwrap();
    let mut domains: Vec<String> = hosts.iter().cloned().map(domain).collect();
    assert!(domains[..3].iter().collect::<std::collections::BTreeSet<_>>().len() == 3, "{domains:?}");
    domains.sort();
    assert_eq!(domains, ["a", "a", "b", "b", "c", "c"]);

    // b and c are full: a seventh would be one more in a, an eighth two.
    assert_eq!(domain(place(&mut i, &web(6, 1)).unwrap()), "a");
    let why = place(&mut i, &web(7, 1)).unwrap_err();
    assert!(why.contains("fault-domains refuses"), "{why}");
    assert_eq!(domain(place(&mut i, &web(7, 2)).unwrap()), "a");

    // A host that moves takes its VMs along.
    i.set_host(NOW, "c1", &of("d")).unwrap();
    i.set_host(NOW, "e1", &of("e")).unwrap();
    assert_eq!(place(&mut i, &web(8, 1)).unwrap(), "e1", "the emptiest domain");
    let reason = i.refusals(NOW, &web(9, 1).spec, "a1").unwrap();
    assert!(
        reason.iter().any(|(fit, why)| *fit == "fault-domains" && why.ends_with("at most 1")),
        "{reason:?}"
    );
}

/// Ties go by names, whatever was told first; others' names change nothing.
#[test]
fn hosts_that_come_in_another_order_are_chosen_alike() {
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    for ties in [Ties::Id, Ties::HASH] {
        let chosen = |order: &[String], first: usize| {
            let mut i = Inventory::new(Policy { ties, ..Policy::POWER });
            order.iter().for_each(|name| i.set_host(NOW, name, &host(4)).unwrap());
            // A host that was there for a while leaves nothing behind.
            i.set_host(NOW, "s1-b", &host(4)).unwrap();
            i.remove_host(NOW, "s1-b", false).unwrap();
            let vms = (0..60).map(|n| place(&mut i, &vm(&format!("{n}"), 1 + n % 3)));
            (vms.collect::<Vec<_>>(), i.hosts().nth(first).unwrap().name.to_owned())
        };
        let turned: Vec<String> = names.iter().rev().cloned().collect();
        assert_eq!(chosen(&names, 3), chosen(&turned, 3), "{ties}");
    }
}

#[test]
fn hosts_are_told_all_or_none() {
    let mut i = inventory(&[("a", host(4)), ("b", host(4))]);
    i.put(Instant::from_millis(5), &vm("1", 1), "b").unwrap();
    let before = i.snapshot();
    let told = |name: &str, spec| NamedHost { name: name.into(), spec };
    let gone = |name: &str| [name.to_owned()];
    assert!(i.set_hosts(NOW, &[told("c", host(4)), told("d", host(0))], &gone("a")).is_err());
    assert!(i.set_hosts(NOW, &[told("c", host(4))], &gone("b")).is_err(), "it has a VM");
    assert!(i.set_hosts(NOW, &[told("c", host(4))], &gone("x")).is_err());
    assert_eq!(i.snapshot(), before);
    i.set_hosts(NOW, &[told("c", host(2)), told("b", host(2))], &gone("a")).unwrap();
    assert_eq!(i.hosts().map(|host| host.name).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(i.vm("1").unwrap().since, Instant::from_millis(5));
    assert_eq!(i.cluster().open().milli_cores, 3000);
}
