//! Hosts that are drained: what is planned, and what is under way.

use std::collections::BTreeMap;
use std::time::Duration;

use ballast_placement::drain::{DrainOrder, Fate, Round, Schedule, Site, emptiable, emptiest, plan, targets};
use ballast_placement::inventory::{HostSpec, NamedVm, VmSpec};
use ballast_placement::{
    ChassisId, Cluster, ExpectedEnd, Host, HostId, HostState, Inventory, LifetimeRule, Policy, Resources,
    Scheduler, Ties, Totals, VmKey, VmRequest,
};
use ballast_types::Instant;
use ballast_types::survival::{Curves, SurvivalCurve};
use proptest::prelude::*;

use crate::gb;

const FIRST_FIT: Policy = Policy { best_fit: 0, power: 0, ties: Ties::Id, ..Policy::POWER };
const NILAS: Policy = Policy { lifetimes: LifetimeRule::Nilas, ..Policy::POWER };
const ORDERS: [DrainOrder; 4] =
    [DrainOrder::Largest, DrainOrder::Arrival, DrainOrder::PerHost, DrainOrder::Global];

fn at(s: u64) -> Instant {
    Instant::from_millis(1000 * s)
}

/// Hosts of 8 cores with VMs of so many cores that end at so many seconds.
fn site(hosts: u32, vms: &[(u64, u32, u16, u64)]) -> Scheduler {
    site_by(FIRST_FIT, hosts, vms)
}

fn site_by(policy: Policy, hosts: u32, vms: &[(u64, u32, u16, u64)]) -> Scheduler {
    let host = |n| Host::new(ChassisId(n), gb(8, 32.0));
    let mut scheduler = policy.scheduler(Cluster::new(&(0..hosts).map(host).collect::<Vec<_>>()));
    for (vm, host, cores, ends_s) in vms {
        let end = Some(ExpectedEnd::At(at(*ends_s)));
        let request = VmRequest { end, ..VmRequest::new(VmKey(*vm), gb(*cores, 0.0)) };
        scheduler.put(at(*vm), &request, HostId(*host)).unwrap();
    }
    scheduler
}

/// Two hosts that are drained, and two others. VMs 1 to 3 are on host 0, 4 and 5 on host 1.
fn two() -> Scheduler {
    site(4, &[(1, 0, 2, 500), (2, 0, 2, 9000), (3, 0, 1, 7000), (4, 1, 4, 8000), (5, 1, 1, 250)])
}

const HOSTS: [HostId; 2] = [HostId(0), HostId(1)];

fn by(order: DrainOrder, limit: usize) -> Schedule<impl Fn(Resources) -> f64> {
    Schedule { order, limit, takes_s: |_| 100.0 }
}

#[test]
fn a_plan_says_who_goes_when_who_is_saved_and_when_each_host_is_free() {
    let site = two();
    let order = |order, limit| -> (Vec<(u64, f64)>, Vec<f64>) {
        let plan = plan(&site, at(100), &HOSTS, &by(order, limit));
        let moved = plan.moves.iter().filter_map(|it| match it.fate {
            Fate::Moved { starts_s, .. } => Some((it.vm.vm.0, starts_s)),
            Fate::Saved { .. } => None,
        });
        (moved.collect(), plan.hosts.iter().map(|host| host.1).collect())
    };

    // VM 5 ends after 150 s, VM 1 after 400 s.
    let global = (vec![(2, 0.0), (4, 100.0), (3, 200.0), (1, 300.0)], vec![400.0, 200.0]);
    assert_eq!(order(DrainOrder::Global, 1), global);
    let per_host = (vec![(2, 0.0), (3, 100.0), (1, 200.0), (4, 300.0)], vec![300.0, 400.0]);
    assert_eq!(order(DrainOrder::PerHost, 1), per_host);
    let arrival = (vec![(1, 0.0), (2, 100.0), (3, 200.0), (4, 300.0)], vec![300.0, 400.0]);
    assert_eq!(order(DrainOrder::Arrival, 1), arrival);
    // A host sends one at a time, whatever the limit.
    let two_at_once = (vec![(2, 0.0), (4, 0.0), (3, 100.0), (5, 100.0), (1, 200.0)], vec![300.0, 200.0]);
    assert_eq!(order(DrainOrder::Global, 9), two_at_once);
    // All at once host 2 has room for 8 cores: VM 1 goes to the next. Nothing is changed by asking.
    let mut site = site;
    let asked = [2, 4, 3, 1].map(VmKey);
    let to = targets(&mut site, at(100), &HOSTS, &asked);
    assert_eq!(to, [2, 2, 2, 3].map(|host| Some(HostId(host))));
    assert_eq!((site.holds().count(), site.cluster().state(HostId(0))), (0, HostState::Open));
    // Both have 3 cores free, host 1 has fewer VMs.
    assert_eq!(emptiest(site.cluster(), 1), [HostId(1)]);
    assert_eq!(emptiest(site.cluster(), 9).len(), 2);
}

#[test]
fn a_curve_says_how_long_a_vm_is_expected_to_live_on() {
    let mut curves = Curves::default();
    let curve = SurvivalCurve::from_hazards(&[0.2; ballast_types::survival::BINS]);
    let id = curves.intern(curve.clone());
    let hosts = [Host::new(ChassisId(0), gb(8, 32.0))];
    let cluster = Cluster::new(&hosts).with_curves(std::sync::Arc::new(curves));
    let mut scheduler = FIRST_FIT.scheduler(cluster);
    let vm = |n, end| VmRequest { end, ..VmRequest::new(VmKey(n), gb(1, 0.0)) };
    scheduler.put(at(0), &vm(1, Some(ExpectedEnd::Curve(id))), HostId(0)).unwrap();
    scheduler.put(at(0), &vm(2, None), HostId(0)).unwrap();
    scheduler.put(at(0), &vm(3, Some(ExpectedEnd::At(at(50)))), HostId(0)).unwrap();

    let left = |n| scheduler.guest(at(3600), &VmKey(n)).unwrap().remaining_s;
    assert!((left(1).unwrap() / curve.remaining_s(3600.0) - 1.0).abs() < 0.05, "{:?}", left(1));
    assert_eq!((left(2), left(3)), (None, Some(0.0)));
    // Of whom nothing is known goes first, who has outlived what was told last.
    let plan = plan(&scheduler, at(3600), &[HostId(0)], &by(DrainOrder::Global, 1));
    assert_eq!(plan.moves.iter().map(|it| it.vm.vm.0).collect::<Vec<_>>(), [2, 1, 3]);
    // That it should have ended says nothing of when it will: it is moved, as by a round.
    assert_eq!((plan.saved(), plan.hosts[0].1), (0, 300.0));
}

#[test]
fn both_hosts_hold_the_room_of_a_vm_on_its_way_until_it_is_there() {
    let mut site = two();
    let mut round = Round::new(DrainOrder::Global, Some(2));
    round.drain(at(100), &HOSTS, true, &mut site);
    let started = round.turn(at(100), &mut site).started;
    assert_eq!(started.iter().map(|it| it.0.0).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(site.cluster().held(HostId(2)), 2);
    assert_eq!(site.cluster().vms(HostId(0)), 3);
    assert!(round.turn(at(101), &mut site).started.is_empty());

    // VM 5 ends while it waits, VM 4 on its way: its room is free again.
    for vm in [VmKey(5), VmKey(4)] {
        site.remove(at(150), vm).unwrap();
        round.ended(&vm);
    }
    assert_eq!(site.cluster().held(HostId(2)), 1);
    assert!(round.done(at(200), &VmKey(2), &mut site).is_some());
    assert!(round.done(at(200), &VmKey(2), &mut site).is_none());
    let turn = round.turn(at(200), &mut site);
    assert_eq!(turn.emptied, [(HostId(1), at(100))]);
    assert_eq!(site.cluster().state(HostId(1)), HostState::Open);
    assert_eq!(turn.started[0].0, VmKey(3));

    // A move that fails is tried again after all others.
    assert!(round.failed(at(210), &VmKey(3), &mut site));
    assert_eq!(round.turn(at(210), &mut site).started[0].0, VmKey(1));
    round.done(at(310), &VmKey(1), &mut site);
    assert_eq!(round.turn(at(310), &mut site).started[0].0, VmKey(3));
    round.done(at(410), &VmKey(3), &mut site);
    assert_eq!(round.turn(at(410), &mut site).emptied.len(), 1);
    let counts = round.counts();
    assert_eq!((counts.scheduled, counts.moved, counts.saved, counts.ended_moving), (5, 3, 1, 1));
    assert!(round.is_over());
}

#[test]
fn who_finds_no_room_waits_and_the_next_one_that_does_goes() {
    // Host 2 has room for one core.
    let mut site = site(3, &[(1, 0, 4, 9000), (2, 0, 1, 8000), (3, 1, 8, 9000), (4, 2, 7, 9000)]);
    let mut round = Round::new(DrainOrder::Global, Some(3));
    round.drain(at(100), &[HostId(0)], true, &mut site);
    assert_eq!(round.turn(at(100), &mut site).started[0].0, VmKey(2));
    round.done(at(200), &VmKey(2), &mut site);
    assert!(round.turn(at(200), &mut site).started.is_empty());
    site.remove(at(300), VmKey(3)).unwrap();
    let started = round.turn(at(300), &mut site).started;
    assert_eq!((started[0].0, started[0].1.to), (VmKey(1), HostId(1)));
}

#[test]
fn what_others_do_meanwhile_is_taken_note_of() {
    let mut site = site(5, &[(1, 0, 2, 900), (2, 0, 2, 9000), (3, 1, 1, 700), (4, 1, 4, 8000)]);
    let mut round = Round::new(DrainOrder::Global, Some(2));
    round.drain(at(100), &HOSTS, false, &mut site);
    round.turn(at(100), &mut site);
    assert!(!round.reconcile(at(100), &mut site));

    // VM 2 was put where it was to go, VM 4 elsewhere; VM 1 too, before its turn.
    let to = round.on_the_way(&VmKey(2)).unwrap().to;
    site.migrate(at(110), VmKey(2), to).unwrap();
    site.migrate(at(110), VmKey(4), HostId(3)).unwrap();
    site.migrate(at(110), VmKey(1), HostId(4)).unwrap();
    assert!(round.reconcile(at(120), &mut site));
    let counts = round.counts();
    assert_eq!((counts.moved, counts.withdrawn, round.waiting()), (1, 2, 1));
    assert_eq!(site.holds().count(), 0);

    // The host that VM 3 goes to goes away; then its own host opens.
    round.turn(at(130), &mut site);
    let to = round.on_the_way(&VmKey(3)).unwrap().to;
    site.cancel_move(at(140), VmKey(3));
    assert!(!round.reconcile(at(140), &mut site), "its room is held anew");
    assert_eq!(site.on_the_way(VmKey(3)), Some(to));
    site.cancel_move(at(150), VmKey(3));
    for n in 0..20 {
        let _ = site.put(at(150), &VmRequest::new(VmKey(100 + n), gb(1, 0.0)), to);
    }
    assert!(round.reconcile(at(150), &mut site));
    assert_eq!((round.moves().count(), round.waiting()), (0, 1));
    Scheduler::set_state(&mut site, HostId(1), HostState::Open).unwrap();
    assert!(round.reconcile(at(160), &mut site));
    assert_eq!((round.waiting(), round.counts().withdrawn), (0, 3));
}

#[test]
fn a_round_by_names_goes_on_after_it_was_written_down() {
    let mut inventory = Inventory::new(Policy::POWER);
    for name in ["a", "b", "c"] {
        inventory.set_host(at(0), name, &HostSpec::new("c1", gb(8, 32.0))).unwrap();
    }
    for (name, host, life_s) in [("x", "a", 9000), ("y", "a", 8000), ("z", "b", 100)] {
        let spec = VmSpec { lifetime: Some(Duration::from_secs(life_s)), ..VmSpec::new(gb(2, 0.0)) };
        inventory.put(at(0), &NamedVm { name: name.into(), spec }, host).unwrap();
    }
    assert_eq!(inventory.emptiest(1), ["b"]);

    let mut round = Round::new(DrainOrder::Global, Some(1));
    round.drain(at(10), &["a".to_owned()], true, &mut inventory);
    assert_eq!(inventory.host("a").unwrap().spec.state, HostState::Draining);
    let (vm, its) = round.turn(at(10), &mut inventory).started.remove(0);
    assert_eq!((vm.as_str(), inventory.target(&vm)), ("x", Some(its.to.clone())));

    // A new start knows hosts and VMs, and nothing that was held.
    let text = serde_json::to_string(&round).unwrap();
    let mut again: Round<String, String> = serde_json::from_str(&text).unwrap();
    assert_eq!(again, round);
    let mut fresh = Inventory::new(Policy::POWER);
    fresh.replace(at(20), &inventory.snapshot()).unwrap();
    assert_eq!(fresh.target(&vm), None);
    again.reconcile(at(20), &mut fresh);
    assert_eq!(fresh.target(&vm), Some(its.to.clone()));
    assert!(again.done(at(30), &vm, &mut fresh).is_some());
    assert_eq!(fresh.vm("x").unwrap().host, its.to);
    again.cancel(at(30), &mut fresh);
    assert_eq!(fresh.host("a").unwrap().spec.state, HostState::Open);
    assert!(again.is_over());
}

#[derive(Clone, Debug)]
enum Step {
    Drain(Vec<u32>, bool),
    Turn,
    Done(usize),
    Failed(usize),
    End(usize),
    Migrate(usize, u32),
    Place(u16, u64),
    Open(u32),
    Targets(u32),
    Reconcile,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (prop::collection::vec(0..6u32, 1..3), any::<bool>()).prop_map(|(h, r)| Step::Drain(h, r)),
        6 => Just(Step::Turn),
        5 => (0..9usize).prop_map(Step::Done),
        1 => (0..9usize).prop_map(Step::Failed),
        3 => (0..40usize).prop_map(Step::End),
        2 => (0..40usize, 0..6u32).prop_map(|(n, host)| Step::Migrate(n, host)),
        3 => (1..5u16, 0..9000u64).prop_map(|(cores, life)| Step::Place(cores, life)),
        1 => (0..6u32).prop_map(Step::Open),
        1 => (0..6u32).prop_map(Step::Targets),
        1 => Just(Step::Reconcile),
    ]
}

proptest! {
    #[test]
    fn no_round_overcommits_and_one_that_is_cancelled_leaves_nothing(
        order in prop::sample::select(&ORDERS[..]),
        policy in prop::sample::select(vec![FIRST_FIT, Policy::POWER, NILAS]),
        limit in prop::option::of(1..4u32),
        cordoned in 0..6u32,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let vms = [(1, 0, 2, 900), (2, 0, 3, 90), (3, 1, 4, 5000), (4, 2, 1, 70), (5, 3, 5, 999)];
        let mut site = site_by(policy, 6, &vms);
        Scheduler::set_state(&mut site, HostId(cordoned), HostState::Cordoned).unwrap();
        let mut round: Round<VmKey, HostId> = Round::new(order, limit);
        let mut before: BTreeMap<HostId, HostState> = BTreeMap::new();
        let mut next = 10;

        for (n, step) in (1..).zip(steps) {
            let now = at(100 * n);
            let on_the_way: Vec<VmKey> = round.moves().map(|it| *it.0).collect();
            let all: Vec<VmKey> = site.cluster().all().iter().map(|it| it.vm.id).collect();
            let one_of = |list: &[VmKey], n: usize| (!list.is_empty()).then(|| list[n % list.len()]);
            match step {
                Step::Drain(hosts, reopens) => {
                    let hosts: Vec<HostId> = hosts.into_iter().map(HostId).collect();
                    for host in hosts.iter().filter(|host| !round.contains(*host)) {
                        before.insert(*host, site.cluster().state(*host));
                    }
                    round.drain(now, &hosts, reopens, &mut site);
                }
                Step::Turn => {
                    for (_, its) in round.turn(now, &mut site).started {
                        prop_assert_ne!(its.from, its.to);
                        prop_assert_eq!(site.cluster().state(its.to), HostState::Open);
                    }
                }
                Step::Done(n) => {
                    if let Some(vm) = one_of(&on_the_way, n) {
                        round.reconcile(now, &mut site);
                        let to = round.on_the_way(&vm).map(|its| its.to);
                        let done = round.done(now, &vm, &mut site);
                        prop_assert_eq!(done.map(|its| its.to), to);
                    }
                }
                Step::Failed(n) => {
                    if let Some(vm) = one_of(&on_the_way, n) {
                        round.failed(now, &vm, &mut site);
                    }
                }
                Step::End(n) => {
                    if let Some(vm) = one_of(&all, n) {
                        site.remove(now, vm).unwrap();
                        round.ended(&vm);
                    }
                }
                Step::Migrate(n, host) => {
                    if let Some(vm) = one_of(&all, n) {
                        let _ = site.migrate(now, vm, HostId(host));
                    }
                }
                Step::Place(cores, life_s) => {
                    next += 1;
                    let end = Some(ExpectedEnd::At(at(100 * n + life_s)));
                    let vm = VmRequest { end, ..VmRequest::new(VmKey(next), gb(cores, 0.0)) };
                    let _ = site.place(now, &vm);
                }
                Step::Open(host) => round.open(now, &[HostId(host)], &mut site),
                Step::Targets(host) => {
                    let look = |site: &Scheduler| {
                        let cluster = site.cluster();
                        let host = |host| (cluster.taken(host), cluster.held(host), cluster.state(host));
                        let holds: Vec<_> = site.holds().copied().collect();
                        (cluster.ids().map(host).collect::<Vec<_>>(), holds)
                    };
                    let as_before = look(&site);
                    let vms: Vec<VmKey> = site.guests(now, &HostId(host)).iter().map(|it| it.vm).collect();
                    targets(&mut site, now, &[HostId(host)], &vms);
                    prop_assert_eq!(look(&site), as_before.clone());
                    let all: Vec<HostId> = (host..6).map(HostId).collect();
                    let good = emptiable(&mut site, now, &all);
                    prop_assert_eq!(look(&site), as_before);
                    // Whoever drains those, and nothing else, empties them.
                    let vms: Vec<VmKey> =
                        good.iter().flat_map(|host| site.guests(now, host)).map(|it| it.vm).collect();
                    let room = targets(&mut site, now, &good, &vms);
                    prop_assert!(room.iter().all(Option::is_some), "{:?}: {:?}", good, room);
                }
                Step::Reconcile => {
                    round.reconcile(now, &mut site);
                }
            }

            // What is there and what is held fits, on every host.
            let cluster = site.cluster();
            for host in cluster.ids() {
                let there = cluster.residents_of(host).into_iter().map(|it| it.vm.resources);
                let held = site.holds().filter(|it| it.host == host).map(|it| it.vm.resources);
                let taken = there.chain(held).fold(Totals::default(), |sum, size| sum + size);
                prop_assert_eq!(taken, cluster.taken(host));
                prop_assert!(!taken.exceed(cluster.host(host).room));
            }

            let counts = round.counts();
            let left = (round.waiting() + round.moves().count()) as u64;
            let ended = counts.moved + counts.saved + counts.ended_moving + counts.withdrawn;
            prop_assert_eq!(counts.scheduled, ended + left, "{:?}", counts);
            prop_assert!(limit.is_none_or(|limit| round.moves().count() <= limit as usize));
        }

        let now = at(100_000);
        round.reconcile(now, &mut site);
        prop_assert_eq!(site.holds().count(), round.moves().count());
        let left: Vec<HostId> = round.hosts().copied().collect();
        round.cancel(now, &mut site);
        prop_assert!(round.is_over() && round.waiting() == 0);
        prop_assert_eq!(site.holds().count(), 0);
        for host in left {
            prop_assert_eq!(site.cluster().state(host), before[&host]);
        }

        // Rules that were made anew say the same.
        let end = Some(ExpectedEnd::At(at(101_000)));
        let vm = VmRequest { end, ..VmRequest::new(VmKey(1_000_000), gb(1, 0.0)) };
        let scores = site.score(now, &vm, 6);
        let (fits, ranking) = policy.rules(site.cluster());
        site.set_policy(fits, ranking);
        prop_assert_eq!(site.score(now, &vm, 6), scores);
    }
}
