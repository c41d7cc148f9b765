//! Hosts and VMs by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ballast_placement::inventory::{
    HostSpec, NamedHost, NamedVm, Placed, PredictLifetimes, Snapshot, VmSpec, VmTraits,
};
use ballast_placement::{
    Demand, ExpectedEnd, HostState, Inventory, InventoryError, LifetimeRule, Policy, Scores, Totals,
};
use ballast_types::survival::{BINS, CurveId, Curves, SurvivalCurve};
use ballast_types::{Instant, Utilisation, VmClass};
use proptest::prelude::*;

use crate::{NOW, size};

fn host(chassis: &str, cores: u64) -> HostSpec {
    let capacity = size(cores * 1000, 16_000_000);
    HostSpec::new(chassis, capacity)
}

fn vm(name: &str, cores: u64) -> NamedVm {
    NamedVm { name: name.into(), spec: VmSpec::new(size(cores * 1000, 1_000_000)) }
}

fn inventory(hosts: &[(&str, &str, u64)]) -> Inventory {
    let mut inventory = Inventory::new(Policy::POWER);
    for (name, chassis, cores) in hosts {
        inventory.set_host(NOW, name, &host(chassis, *cores)).unwrap();
    }
    inventory
}

fn names(inventory: &Inventory) -> Vec<(String, String)> {
    inventory.vms().map(|vm| (vm.name.to_owned(), vm.host.to_owned())).collect()
}

/// A VM of type `short` has curve 0, others have curve 1, whose VMs live longer; of VMs of tenant `nobody` it says nothing.
#[derive(Debug)]
struct ByType(Arc<Curves>);

impl ByType {
    fn of(hazards: [f64; 2]) -> Arc<dyn PredictLifetimes> {
        let mut curves = Curves::default();
        for hazard in hazards {
            curves.intern(SurvivalCurve::from_hazards(&[hazard; BINS]));
        }
        Arc::new(Self(Arc::new(curves)))
    }
}

impl PredictLifetimes for ByType {
    fn curves(&self) -> Arc<Curves> {
        Arc::clone(&self.0)
    }

    fn curve(&self, vm: &VmSpec, _since: Instant) -> Option<CurveId> {
        let is_long = vm.traits.vm_type.as_deref() != Some("short");
        (vm.tenant.as_deref() != Some("nobody")).then(|| CurveId::new(u32::from(is_long)))
    }
}

#[test]
fn vms_of_which_nobody_tells_when_they_end_have_curves_through_all_that_happens() {
    let mut inventory = Inventory::new(Policy { lifetimes: LifetimeRule::Nilas, ..Policy::POWER });
    inventory.set_host(NOW, "s1", &host("c1", 16)).unwrap();
    let of = |name: &str, vm_type: &str, lifetime: Option<u64>| {
        let traits = VmTraits { vm_type: Some(vm_type.to_owned()), batch_vms: Some(3), ..VmTraits::NONE };
        let spec = VmSpec { traits, lifetime: lifetime.map(Duration::from_secs), ..vm(name, 1).spec };
        NamedVm { name: name.into(), spec }
    };
    let told = ExpectedEnd::At(NOW + Duration::from_secs(60));
    let curve = |n| ExpectedEnd::Curve(CurveId::new(n));
    let ends = |inventory: &Inventory| inventory.vms().map(|vm| vm.end).collect::<Vec<_>>();

    inventory
        .place(NOW, &[of("a", "short", None), of("b", "long", None), of("c", "short", Some(60))])
        .unwrap();
    assert_eq!(ends(&inventory), [None, None, Some(told)], "nobody predicts");
    inventory.set_lifetimes(NOW, Some(ByType::of([0.5, 0.1])));
    assert_eq!(ends(&inventory), [Some(curve(0)), Some(curve(1)), Some(told)]);
    assert!(
        inventory.expected(NOW, &of("", "short", None).spec)
            < inventory.expected(NOW, &of("", "long", None).spec)
    );
    let mut unknown = of("d", "long", None);
    unknown.spec.tenant = Some("nobody".into());
    inventory.put(NOW, &unknown, "s1").unwrap();
    assert_eq!(ends(&inventory)[3], None);

    // A change, a copy and a restart keep what they go by; a refusal leaves it alone.
    inventory.change(NOW, &of("a", "long", None)).unwrap();
    let mut larger = of("a", "short", None);
    larger.spec.resources = size(99_000, 0);
    inventory.change(NOW, &larger).unwrap_err();
    assert_eq!(inventory.vm("a").unwrap().spec, of("a", "long", None).spec);
    let snapshot = inventory.snapshot();
    let mut again = inventory.emptied();
    again.replace(NOW, &snapshot).unwrap();
    assert_eq!((ends(&again), again.snapshot()), (ends(&inventory), snapshot));
    assert_eq!(ends(&again)[0], Some(curve(1)));

    // What is asked is answered by what is known now: rules wake when their time has come.
    let later = NOW + Duration::from_secs(40 * 86_400);
    again.catch_up(later);
    let scores = again.score(later, "e", &of("e", "short", None).spec, 1).unwrap();
    assert!(scores.hosts[0].verdicts[0].reason.starts_with("s1 is expected to be free in "), "{scores:?}");
    again.set_lifetimes(later, None);
    assert_eq!(ends(&again), [None, None, Some(told), None]);
    again.remove(later, "a").unwrap();
    again.place(later, &[vm("a", 1)]).unwrap();
    assert_eq!(again.vm("a").unwrap().spec.traits, VmTraits::NONE, "another of its name");

    let mut bad = of("f", "short", None);
    bad.spec.traits.labels = BTreeMap::from([("zone".into(), "a\nb".into())]);
    let why = again.put(later, &bad, "s1").unwrap_err().to_string();
    assert!(why.contains("is not a valid name of a label"), "{why}");
}

#[test]
fn hosts_join_and_leave_and_vms_stay_where_they_are() {
    let mut inventory = inventory(&[("s2", "c1", 8), ("s4", "c2", 8)]);
    inventory.put(NOW, &vm("a", 4), "s4").unwrap();
    inventory.put(NOW, &vm("b", 2), "s2").unwrap();

    // Every number of a host changes by this; no VM moves.
    inventory.set_host(NOW, "s1", &host("c0", 8)).unwrap();
    inventory.set_host(NOW, "s3", &host("c1", 8)).unwrap();
    let expected = [("a", "s4"), ("b", "s2")].map(|(vm, host)| (vm.to_owned(), host.to_owned()));
    assert_eq!(names(&inventory), expected);
    let order: Vec<_> = inventory.hosts().map(|host| (host.name, &*host.spec.chassis, host.vms)).collect();
    let hosts = [("s1", "c0", 0), ("s2", "c1", 1), ("s3", "c1", 0), ("s4", "c2", 1)];
    assert_eq!(order, hosts);
    let scores: Vec<_> = inventory.hosts().map(|host| host.chassis_score).collect();
    assert_eq!(scores, [1.0, 1.0 - 2.0 / 16.0, 1.0 - 2.0 / 16.0, 0.5]);

    let full = inventory.remove_host(NOW, "s4", false).unwrap_err();
    assert_eq!(full.to_string(), "host \"s4\" has 1 VMs: none may be there when it goes");
    let gone = inventory.remove_host(NOW, "s4", true).unwrap();
    assert_eq!(gone, [Placed { vm: vm("a", 4), host: "s4".into(), since: NOW }]);
    assert_eq!(inventory.remove_host(NOW, "s1", false).unwrap(), []);
    assert_eq!(names(&inventory), expected[1..]);
    let chassis: Vec<_> = inventory.hosts().map(|host| host.spec.chassis.clone()).collect();
    assert_eq!(chassis, ["c1", "c1"]);
}

#[test]
fn a_host_that_is_smaller_than_its_vms_keeps_them_and_gets_no_more() {
    let mut inventory = inventory(&[("s1", "c1", 8), ("s2", "c1", 2)]);
    inventory.put(NOW, &vm("a", 6), "s1").unwrap();
    inventory.set_host(NOW, "s1", &host("c1", 4)).unwrap();
    let s1 = inventory.host("s1").unwrap();
    assert_eq!((s1.free.cores.milli(), s1.taken.milli_cores, s1.vms), (0, 6000, 1));
    inventory.observe(NOW, &vm("b", 1), "s1").unwrap();
    assert_eq!(inventory.place(NOW, &[vm("c", 1)]).unwrap(), ["s2"]);
    // Its VMs may shrink, not grow; when they have left it is as if they had never been.
    inventory.change(NOW, &vm("a", 7)).unwrap_err();
    let smaller = NamedVm { spec: VmSpec::new(size(3000, 0)), ..vm("a", 0) };
    inventory.change(NOW, &smaller).unwrap();
    inventory.change(NOW, &vm("a", 4)).unwrap_err();
    inventory.remove(NOW, "a").unwrap();
    inventory.remove(NOW, "b").unwrap();
    assert_eq!(inventory.host("s1").unwrap().free, host("c1", 4).capacity);
    assert_eq!(inventory.cluster().open().milli_cores, 5000);
}

#[test]
fn an_error_names_who_where_and_what_is_allowed() {
    let mut inventory = inventory(&[("s1", "c1", 8), ("s2", "c1", 4)]);
    inventory.put(NOW, &vm("a", 6), "s1").unwrap();
    let before = inventory.snapshot();
    let told = |says: &str, error: InventoryError| assert_eq!(error.to_string(), says);
    let i = &mut inventory;
    told("VM \"a\" is already placed, on host \"s1\"", i.place(NOW, &[vm("b", 1), vm("a", 1)]).unwrap_err());

    told("VM \"a\" is already placed, on host \"s1\"", i.put(NOW, &vm("a", 6), "s1").unwrap_err());
    told("VM \"b\" is listed twice", i.place(NOW, &[vm("b", 1), vm("b", 1)]).unwrap_err());
    told("host \"s9\" is not known", i.put(NOW, &vm("b", 1), "s9").unwrap_err());
    told("host \"s9\" is not known", i.remove_host(NOW, "s9", true).unwrap_err());
    told("host \"s9\" is not known", i.migrate(NOW, "a", "s9").unwrap_err());
    told("VM \"b\" is not placed", i.remove(NOW, "b").unwrap_err());
    told("VM \"b\" is not placed", i.change(NOW, &vm("b", 1)).unwrap_err());
    told("VM \"b\" asks for no cores: more than 0 is needed", i.place(NOW, &[vm("b", 0)]).unwrap_err());

    told(
        "VM \"b\" asks for 9 cores, 1 GB: the largest host has 8 cores, 16 GB",
        i.place(NOW, &[vm("c", 1), vm("b", 9)]).unwrap_err(),
    );

    told(
        "VM \"b\" asks for 3 cores, 1 GB: host \"s1\" has 2 cores, 15 GB left",
        i.put(NOW, &vm("b", 3), "s1").unwrap_err(),
    );

    told(
        "VM \"d\": no host fits: too few cores; capacity refuses 2",
        i.place(NOW, &[vm("c", 4), vm("d", 4)]).unwrap_err(),
    );

    told(
        "\"a\\nb\" is not a valid name of a host: 1 to 320 bytes without control characters",
        i.set_host(NOW, "a\nb", &host("c1", 1)).unwrap_err(),
    );

    told(
        "host \"s3\" has no cores: more than 0 is needed",
        i.set_host(NOW, "s3", &host("c", 0)).unwrap_err(),
    );

    let demanding = |mean, variance| {
        let spec = VmSpec { demand: Some(Demand { mean, variance }), ..vm("", 1).spec };
        NamedVm { name: "b".into(), spec }
    };

    for (vm, says) in [
        (demanding(f64::NAN, 0.0), "VM \"b\": demand.mean = NaN: a number from 0 to 1e9 is needed"),
        (demanding(1.0, -1.0), "VM \"b\": demand.variance = -1: a number from 0 to 1e9 is needed"),
    ] {
        told(says, i.place(NOW, std::slice::from_ref(&vm)).unwrap_err());
        told(says, i.score(NOW, "b", &vm.spec, 1).unwrap_err());
    }

    let twice = Snapshot { hosts: vec![before.hosts[0].clone(); 2], vms: vec![] };
    told("host \"s1\" is listed twice", i.replace(NOW, &twice).unwrap_err());
    let twice = Snapshot { vms: vec![before.vms[0].clone(); 2], ..before.clone() };
    told("VM \"a\" is listed twice", i.replace(NOW, &twice).unwrap_err());
    let nowhere = Snapshot { hosts: vec![], ..before.clone() };
    told("host \"s1\" is not known", i.replace(NOW, &nowhere).unwrap_err());
    assert_eq!(inventory.snapshot(), before, "nothing was changed");
    assert_eq!(
        Inventory::new(Policy::POWER).place(NOW, &[vm("a", 1)]).unwrap_err().to_string(),
        "VM \"a\" asks for 1 cores, 1 GB: the largest host has 0 cores, 0 GB"
    );
}

#[test]
fn standings_are_the_order_of_scores() {
    let mut inventory = inventory(&[("s1", "c1", 8), ("s2", "c1", 8), ("s3", "c2", 8)]);
    inventory.put(NOW, &vm("a", 4), "s3").unwrap();
    let asked = vm("b", 2).spec;
    let scores = inventory.score(NOW, "b", &asked, 3).unwrap();
    let best: Vec<_> = scores.hosts.iter().map(|s| inventory.host_name(s.host)).collect();
    let standings = inventory.standings(NOW, &asked, &best).unwrap();
    assert!(standings.is_sorted() && standings[0] == 0, "{standings:?}");
    // Two empty hosts of one chassis are alike.
    let standings = inventory.standings(NOW, &asked, &["s2", "s1"]).unwrap();
    assert_eq!(standings, [0, 0]);
    assert!(inventory.refusals(NOW, &asked, "s3").unwrap().is_empty());
    assert_eq!(inventory.refusals(NOW, &vm("c", 5).spec, "s3").unwrap()[0].0, "capacity");
}

#[derive(Clone, Debug)]
enum Step {
    Host(u8, u8, u64, u8),
    Gone(u8, bool),
    Place(Vec<(u8, NamedVm)>),
    Put(u8, NamedVm, u8, bool),
    Remove(u8),
    Migrate(u8, u8),
    Change(u8, NamedVm),
}

fn some_vm() -> impl Strategy<Value = NamedVm> {
    // Some are wrong: no cores, more than any host has, an impossible demand.
    let demand = prop_oneof![4 => Just(None), 1 => Just(Some(f64::NAN)), 1 => Just(Some(0.5))];
    (0..11u64, 0..18u64, 0..4u8, 0..=10_000u16, any::<(bool, bool)>(), demand).prop_map(
        |(cores, gb, deployment, p95, (spread, batch), mean)| {
            let mut spec = VmSpec::new(size(cores * 500, gb * 1_000_000));
            spec.deployment = (deployment > 0).then(|| format!("d{deployment}"));
            spec.tenant = spec.deployment.clone();
            spec.p95 = Utilisation::from_ratio(f64::from(p95) / 1e4).unwrap();
            spec.spread = spread;
            spec.lifetime = batch.then_some(Duration::from_secs(3600 * gb));
            spec.class = if batch { VmClass::NonUserFacing } else { VmClass::UserFacing };
            spec.demand = mean.map(|mean| Demand { mean, variance: 1.0 });
            NamedVm { name: String::new(), spec }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..12u8;
    prop_oneof![
        2 => (0..6u8, 0..3u8, 0..6u64, 0..3u8).prop_map(|(h, c, cores, s)| Step::Host(h, c, cores, s)),
        1 => (0..7u8, any::<bool>()).prop_map(|(h, vms)| Step::Gone(h, vms)),
        4 => prop::collection::vec((name.clone(), some_vm()), 1..4).prop_map(Step::Place),
        2 => (name.clone(), some_vm(), 0..7u8, any::<bool>()).prop_map(|(n, v, h, o)| Step::Put(n, v, h, o)),
        2 => name.clone().prop_map(Step::Remove),
        1 => (name.clone(), 0..7u8).prop_map(|(n, h)| Step::Migrate(n, h)),
        1 => (name, some_vm()).prop_map(|(n, v)| Step::Change(n, v)),
    ]
}

fn named(n: u8, vm: &NamedVm) -> NamedVm {
    NamedVm { name: format!("vm-{n}"), spec: vm.spec.clone() }
}

fn take(inventory: &mut Inventory, now: Instant, step: &Step) -> Result<(), InventoryError> {
    let host_name = |n: &u8| format!("s{n}");
    match step {
        Step::Host(n, chassis, cores, state) => {
            let state = [HostState::Open, HostState::Cordoned, HostState::Draining][usize::from(*state)];
            let spec = HostSpec { state, ..host(&format!("c{chassis}"), *cores) };
            inventory.set_host(NOW, &host_name(n), &spec)
        }
        Step::Gone(n, vms) => inventory.remove_host(now, &host_name(n), *vms).map(drop),
        Step::Place(vms) => {
            let vms: Vec<NamedVm> = vms.iter().map(|(n, vm)| named(*n, vm)).collect();
            inventory.place(now, &vms).map(drop)
        }
        Step::Put(n, vm, at, true) => inventory.observe(now, &named(*n, vm), &host_name(at)),
        Step::Put(n, vm, at, false) => inventory.put(now, &named(*n, vm), &host_name(at)),
        Step::Remove(n) => inventory.remove(now, &format!("vm-{n}")).map(drop),
        Step::Migrate(n, to) => inventory.migrate(now, &format!("vm-{n}"), &host_name(to)),
        Step::Change(n, vm) => inventory.change(now, &named(*n, vm)),
    }
}

/// The same but for the order of a sum.
fn is_close(a: (f64, f64), b: (f64, f64)) -> bool {
    (a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn what_fails_changes_nothing_and_a_snapshot_makes_one_that_answers_alike(
        steps in prop::collection::vec(step(), 1..60),
        probes in prop::collection::vec(some_vm(), 3),
    ) {
        let mut inventory = inventory(&[("s0", "c0", 5), ("s1", "c0", 4), ("s2", "c1", 5)]);
        for step in &steps {
            // Compared as text: a NaN is not even itself.
            let before = format!("{:?}", inventory.snapshot());
            if take(&mut inventory, NOW, step).is_err() {
                prop_assert_eq!(before, format!("{:?}", inventory.snapshot()), "{:?}", step);
            }
            let snapshot = inventory.snapshot();
            let mut again = Inventory::new(Policy::POWER);

            // The order of a list means nothing.
            let turned = Snapshot {
                hosts: snapshot.hosts.iter().rev().cloned().collect(),
                vms: snapshot.vms.iter().rev().cloned().collect(),
            };

            again.replace(NOW, &turned).unwrap();
            prop_assert_eq!(&again.snapshot(), &snapshot);
            prop_assert!(is_close(again.balance(), inventory.balance()));
            prop_assert!(again.hosts().eq(inventory.hosts()));
            prop_assert_eq!(again.cluster().open(), inventory.cluster().open());
            prop_assert_eq!(again.cluster().allocated(), inventory.cluster().allocated());

            for probe in &probes {
                let scores = inventory.score(NOW, "probe", &probe.spec, 4);
                let named = |of: &Inventory, scores: &Result<Scores, InventoryError>| {
                    let hosts = scores.iter().flat_map(|scores| &scores.hosts);
                    let hosts: Vec<_> =
                        hosts.map(|it| (of.host_name(it.host).to_owned(), it.verdicts.clone())).collect();
                    let counts = scores.as_ref().map(|it| (it.fitting, it.refused.clone()));
                    (hosts, counts.map_err(ToString::to_string))
                };
                prop_assert_eq!(
                    named(&again, &again.score(NOW, "probe", &probe.spec, 4)), named(&inventory, &scores)
                );

                // Where it would go is where it goes.
                let probe = self::named(99, probe);

                if let (Ok(scores), Ok(hosts)) = (scores, again.place(NOW, std::slice::from_ref(&probe))) {
                    prop_assert_eq!(inventory.host_name(scores.hosts[0].host), &hosts[0]);
                    again.remove(NOW, "vm-99").unwrap();
                }
            }

            prop_assert!(is_close(again.balance(), inventory.balance()));
        }

        let all: Vec<String> = inventory.vms().map(|vm| vm.name.to_owned()).collect();

        for name in all {
            inventory.remove(NOW, &name).unwrap();
        }
        prop_assert_eq!(inventory.balance(), (0.0, 0.0));
        prop_assert_eq!(inventory.cluster().allocated().milli_cores, 0);

        for host in inventory.hosts() {
            prop_assert_eq!(host.free, host.room);
        }
    }
}

/// What an inventory should know, kept as simply as can be: no lists, no sums.
#[derive(Default)]
struct Model {
    hosts: BTreeMap<String, HostSpec>,
    vms: BTreeMap<String, (VmSpec, String, Instant)>,
}

impl Model {
    /// A step that the inventory has taken; it alone knows which hosts it chose.
    fn take(&mut self, inventory: &Inventory, now: Instant, step: &Step) {
        let (host_name, vm_name) = (|n: &u8| format!("s{n}"), |n: &u8| format!("vm-{n}"));
        match step {
            Step::Host(n, ..) => {
                let host = inventory.host(&host_name(n)).unwrap();
                self.hosts.insert(host_name(n), host.spec.clone());
            }
            Step::Gone(n, _) => {
                self.hosts.remove(&host_name(n));
                self.vms.retain(|_, (_, host, _)| *host != host_name(n));
            }
            Step::Place(vms) => {
                for (n, vm) in vms {
                    let host = inventory.vm(&vm_name(n)).unwrap().host.to_owned();
                    self.vms.insert(vm_name(n), (vm.spec.clone(), host, now));
                }
            }
            Step::Put(n, vm, host, _) => {
                self.vms.insert(vm_name(n), (vm.spec.clone(), host_name(host), now));
            }
            Step::Remove(n) => drop(self.vms.remove(&vm_name(n))),
            Step::Migrate(n, to) => self.vms.get_mut(&vm_name(n)).unwrap().1 = host_name(to),
            Step::Change(n, vm) => self.vms.get_mut(&vm_name(n)).unwrap().0 = vm.spec.clone(),
        }
    }

    fn check(&self, inventory: &Inventory) {
        let add = |sum: Totals, cores: u64, kb: u64| Totals {
            milli_cores: sum.milli_cores + cores,
            memory_kb: sum.memory_kb + kb,
            ..sum
        };
        let (mut all, mut open, mut used) = (Totals::default(), Totals::default(), 0);
        assert_eq!(inventory.hosts().count(), self.hosts.len());
        assert_eq!(inventory.cluster().residents(), self.vms.len());

        for (name, spec) in &self.hosts {
            let here = self.vms.iter().filter(|(_, vm)| vm.1 == *name);
            let mut here: Vec<_> = here.map(|(vm, (spec, _, since))| (vm.as_str(), spec, *since)).collect();
            here.sort_unstable_by_key(|vm| vm.0);
            let listed: Vec<_> = inventory.vms_of([name.as_str()]).collect();
            assert_eq!(listed.iter().map(|vm| (vm.name, &vm.spec, vm.since)).collect::<Vec<_>>(), here);

            let size = |spec: &VmSpec| (u64::from(spec.resources.cores.milli()), spec.resources.memory.kb());
            let sizes = here.iter().map(|vm| size(vm.1));
            let taken = sizes.fold(Totals::default(), |sum, (cores, kb)| add(sum, cores, kb));
            let free = (
                u64::from(spec.capacity.cores.milli()).saturating_sub(taken.milli_cores),
                spec.capacity.memory.kb().saturating_sub(taken.memory_kb),
            );
            let host = inventory.host(name).unwrap();
            assert_eq!(host.spec, spec);
            assert_eq!((host.vms as usize, host.taken), (here.len(), taken));
            assert_eq!((u64::from(host.free.cores.milli()), host.free.memory.kb()), free);
            all = add(all, taken.milli_cores, taken.memory_kb);
            used += u32::from(!here.is_empty());

            if spec.state == HostState::Open {
                open = add(open, free.0, free.1);
            }
        }

        let cluster = inventory.cluster();
        assert_eq!((cluster.allocated(), cluster.open(), cluster.used_hosts()), (all, open, used));
    }
}

proptest! {
    /// Moves, changes, other hosts and a restart leave each VM the time at which it came.
    #[test]
    fn an_inventory_knows_what_a_plain_list_of_hosts_and_vms_does(
        steps in prop::collection::vec(step(), 1..100), restart in 0..100usize,
    ) {
        let (mut inventory, mut model) = (Inventory::new(Policy::POWER), Model::default());
        for (nth, step) in steps.iter().enumerate() {
            let now = Instant::from_millis(nth as u64 * 1000);
            if take(&mut inventory, now, step).is_ok() {
                model.take(&inventory, now, step);
            }
            if nth == restart {
                let kept = inventory.snapshot();
                inventory = Inventory::new(Policy::BEST_FIT);
                inventory.replace(now, &kept).unwrap();
            }
            model.check(&inventory);
        }
    }
}

#[test]
fn a_snapshot_survives_as_json_and_implausible_sizes_do_not() {
    let mut inventory = inventory(&[("s1", "c1", 8)]);
    inventory.put(NOW, &vm("a", 6), "s1").unwrap();
    let snapshot = inventory.snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    let undated = serde_json::from_str::<Snapshot>(&text.replacen(",\"since\":0", "", 1));
    assert!(undated.unwrap_err().to_string().starts_with("missing field `since`"));
    let implausible = text.replacen("8000", "4000000000", 1);
    let why = serde_json::from_str::<Snapshot>(&implausible).unwrap_err().to_string();
    assert!(why.starts_with("4000000000 thousandths of a core: 0 to 65536000"), "{why}");
    let hosts = vec![NamedHost { name: "s1".into(), spec: host("c1", 8) }];
    assert_eq!(snapshot.hosts, hosts);
}
