//! What holds after any sequence of events.

use std::collections::BTreeSet;
use std::time::Duration;

use ballast_placement::rules::{Alpha, BestFit};
use ballast_placement::{
    Balance, ChassisId, Cluster, DeploymentId, DomainId, EXTRAS, ExpectedEnd, Extras, Host, HostId,
    HostState, LifetimeRule, MilliCores, PlacementError, Policy, Ranking, Resources, Scheduler, Tier, Ties,
    Totals, VmKey, VmRequest,
};
use ballast_types::{Instant, Utilisation, VmClass};
use proptest::prelude::*;

use crate::{NOW, fits, size};

/// Hosts of three sizes, one of them without memory.
fn hosts(count: u32) -> Vec<Host> {
    let sizes = [size(8000, 12_000_000), size(6000, 16_000_000), size(8000, 0)];
    let host = |n: u32| Host::new(ChassisId(n / 4), sizes[(n % 7 / 3) as usize]);
    (0..count).map(host).collect()
}

/// Some have GPUs, or disks, or give away more than they have; some stand in another room than their chassis's.
fn mixed(count: u32) -> Vec<Host> {
    let mix = |(n, host): (u32, Host)| other(&host, n);
    (0..).zip(hosts(count)).map(mix).collect()
}

const NILAS: Policy = Policy { lifetimes: LifetimeRule::Nilas, ..Policy::POWER };

fn other(host: &Host, n: u32) -> Host {
    let extras = Extras(if n % 5 == 1 { [2, 0, n % 2, 0] } else { [0; EXTRAS] });
    let room = if n.is_multiple_of(3) { size(12_000, 14_000_000) } else { host.room };
    Host {
        domain: DomainId(n % 3),
        capacity: Resources { extras, ..host.capacity },
        room: Resources { extras, ..room },
        max_vms: (n % 4 == 2).then_some(n % 6),
        ..*host
    }
}

#[derive(Clone, Debug)]
enum Step {
    Place {
        cores: u64,
        kb: u64,
        deployment: u64,
        spread: bool,
        class: bool,
        p95: u16,
        /// GPUs, disks, and how unevenly it may be spread.
        extras: (u32, u32, u8),
    },
    Remove(usize),
    Migrate(usize, u32),
    Resize(usize, u64),
    Repredict(usize, u16),
    State(u32, bool),
    AddHost(u32),
    RemoveHost(u32),
    ChangeHost(u32, u32),
    /// VMs of one deployment, so many.
    Deploy(u64, u64, bool),
    Move(usize),
    CancelMove(usize),
    /// The clock comes here.
    Wake(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Some are as busy as others, so that hosts tie.
    let p95 = prop_oneof![0..=10_000u16, (0..9u16).prop_map(|n| n * 1249)];
    let extras = prop_oneof![3 => Just((0, 0, 0)), 1 => (0..3u32, 0..2u32, 0..3u8)];
    prop_oneof![
        6 => (1..9u64, 0..17u64, 0..4u64, any::<bool>(), any::<bool>(), p95, extras).prop_map(
            |(c, m, deployment, spread, class, p95, extras)| {
                Step::Place { cores: c * 500, kb: m * 500_000, deployment, spread, class, p95, extras }
            }
        ),
        2 => (0..64usize).prop_map(Step::Remove),
        1 => (0..64usize, 0..14u32).prop_map(|(vm, to)| Step::Migrate(vm, to)),
        1 => (0..64usize, 1..9u64).prop_map(|(vm, c)| Step::Resize(vm, c * 500)),
        1 => (0..64usize, 0..=10_000u16).prop_map(|(vm, p95)| Step::Repredict(vm, p95)),
        1 => (0..14u32, any::<bool>()).prop_map(|(host, open)| Step::State(host, open)),
        1 => (0..40u32).prop_map(Step::AddHost),
        1 => (0..14u32).prop_map(Step::RemoveHost),
        1 => (0..14u32, 0..40u32).prop_map(|(host, n)| Step::ChangeHost(host, n)),
        2 => (1..9u64, 2..30u64, any::<bool>()).prop_map(|(c, n, spread)| Step::Deploy(c * 500, n, spread)),
        2 => (0..64usize).prop_map(Step::Move),
        1 => (0..8usize).prop_map(Step::CancelMove),
        1 => (0..120u64).prop_map(Step::Wake),
    ]
}

fn alpha() -> impl Strategy<Value = Alpha> {
    (0..=4u8).prop_map(|quarters| Alpha::new(f64::from(quarters) / 4.0).unwrap())
}

fn lifetimes() -> impl Strategy<Value = LifetimeRule> {
    use LifetimeRule::{ExpectedExit, Nilas, None};
    prop_oneof![Just(None), Just(Nilas), Just(ExpectedExit)]
}

fn utilisation(ten_thousandths: u16) -> Utilisation {
    Utilisation::from_ratio(f64::from(ten_thousandths) / 1e4).unwrap()
}

/// The best fit by looking at every host: shares compared as fractions.
fn scan(scheduler: &Scheduler, vm: &VmRequest) -> Option<HostId> {
    let cluster = scheduler.cluster();
    let left = |host: &HostId| {
        let free = cluster.free(*host).checked_sub(vm.resources).unwrap();
        let capacity = cluster.host(*host).capacity;
        let (cores, memory) = (capacity.cores.milli().max(1), capacity.memory.kb().max(1));
        let by_cores = u128::from(free.cores.milli()) * u128::from(memory);
        let by_memory = u128::from(free.memory.kb()) * u128::from(cores);
        (by_cores.max(by_memory), u128::from(cores) * u128::from(memory))
    };
    let fitting = cluster.ids().filter(|h| scheduler.refusals(NOW, vm, *h).unwrap().is_empty());
    fitting.min_by(|a, b| {
        let ((a_up, a_down), (b_up, b_down)) = (left(a), left(b));
        (a_up * b_down).cmp(&(b_up * a_down)).then(a.cmp(b))
    })
}

/// What a step asks to place.
fn asked(id: u64, step: &Step) -> Option<VmRequest> {
    let Step::Place { cores, kb, deployment, spread, class, p95, extras } = *step else { return None };
    let (gpus, disks, domain_skew) = extras;
    let resources = Resources { extras: Extras([gpus, 0, disks, 0]), ..size(cores, kb) };
    Some(VmRequest {
        domain_skew,
        deployment: Some(DeploymentId(deployment)),
        spread,
        // Nothing is known of some.
        known: p95 % 5 > 0,
        class: if class { VmClass::UserFacing } else { VmClass::NonUserFacing },
        p95: utilisation(p95),
        // From nothing to twelve days, nobody knows of some; some end together.
        end: (p95 % 7 > 0).then(|| ExpectedEnd::At(NOW + Duration::from_secs(u64::from(p95 / 9) * 900))),
        ..VmRequest::new(VmKey(id), resources)
    })
}

/// All that a scheduler keeps, as text. A map of the standard library has no order of its own.
fn state(scheduler: &Scheduler) -> Vec<String> {
    let mut lines: Vec<String> = format!("{scheduler:#?}").lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Takes a step, at the millisecond of its number; the VMs that are placed stay in `vms`.
fn take(scheduler: &mut Scheduler, vms: &mut Vec<VmKey>, id: u64, step: &Step) {
    let known = |n: usize| vms.get(n % vms.len().max(1)).copied();
    let of = |s: &Scheduler, vm| s.cluster().resident(vm).unwrap().vm;
    match *step {
        Step::Place { .. } => {
            let vm = asked(id, step).unwrap();
            if scheduler.place(Instant::from_millis(id), &vm).is_ok() {
                vms.push(vm.id);
            }
        }
        Step::Remove(n) => {
            if let Some(vm) = known(n) {
                scheduler.remove(NOW, vm).unwrap();
                vms.retain(|other| *other != vm);
            }
        }

        // A move or a change may find no room: nothing has changed then.
        Step::Migrate(n, to) => {
            if let Some(vm) = known(n) {
                let _ = scheduler.migrate(NOW, vm, HostId(to));
            }
        }
        Step::Resize(n, cores) => {
            if let Some(vm) = known(n) {
                let before = of(scheduler, vm);
                let cores = MilliCores::from_milli(cores).unwrap();
                let resources = Resources { cores, ..before.resources };
                let _ = scheduler.change(NOW, &VmRequest { resources, ..before });
            }
        }
        Step::Repredict(n, p95) => {
            if let Some(vm) = known(n) {
                let after = VmRequest { p95: utilisation(p95), ..of(scheduler, vm) };
                scheduler.change(NOW, &after).unwrap();
            }
        }
        Step::Deploy(cores, count, spread) => {
            let (deployment, at) = (Some(DeploymentId(id)), Instant::from_millis(id));
            let vm = |n| VmRequest {
                deployment,
                spread,
                known: true,
                ..VmRequest::new(VmKey(1000 * (n + 1) + id), size(cores, 500_000))
            };
            let all: Vec<_> = (0..count).map(vm).collect();
            let before = state(scheduler);
            match scheduler.place_all(at, &all) {
                Ok(_) => vms.extend(all.iter().map(|vm| vm.id)),
                Err(_) => assert_eq!(state(scheduler), before, "it leaves a trace"),
            }
        }
        Step::Move(n) => {
            if let Some(vm) = known(n) {
                let held = scheduler.holds().any(|hold| hold.vm.id == vm);
                if let Ok(to) = scheduler.start_move(NOW, vm) {
                    assert_ne!(scheduler.cluster().resident(vm).unwrap().host, to);
                    if held {
                        scheduler.migrate(NOW, vm, to).unwrap();
                    }
                }
            }
        }
        Step::CancelMove(n) => {
            if let Some(vm) = known(n) {
                scheduler.cancel_move(NOW, vm);
                assert_eq!(scheduler.on_the_way(vm), None);
            }
        }
        Step::Wake(ms) => {
            let now = Instant::from_millis(ms);
            scheduler.handle_timeout(now);
            assert!(scheduler.poll_timeout().is_none_or(|due| due > now));
        }
        Step::State(host, open) => {
            let state = if open { HostState::Open } else { HostState::Cordoned };
            let _ = scheduler.set_state(HostId(host), state);
        }
        Step::AddHost(n) => {
            let before = scheduler.cluster().len();
            scheduler.add_host(NOW, &other(&hosts(40)[n as usize], n), HostState::Open);
            assert_eq!(scheduler.cluster().len(), before + 1);
        }
        Step::RemoveHost(host) => {
            let guests = scheduler.cluster().contains(HostId(host)).then(|| {
                let cluster = scheduler.cluster();
                cluster.vms(HostId(host)) + cluster.held(HostId(host))
            });
            let gone = scheduler.remove_host(NOW, HostId(host)).is_ok();
            assert_eq!(gone, guests == Some(0));
            assert_eq!(scheduler.cluster().contains(HostId(host)), guests.is_some() && !gone);
        }
        Step::ChangeHost(host, n) => {
            let _ = scheduler.change_host(NOW, HostId(host), &other(&hosts(40)[n as usize], n));
        }
    }
}

/// The sums of load, of the VMs that are there and those that are to come.
fn fresh(cluster: &Cluster, held: &[(VmRequest, HostId)]) -> Vec<(f64, f64)> {
    let mut balance = Balance::new(cluster);
    cluster.all().iter().for_each(|it| balance.add(&it.vm, it.host));
    held.iter().for_each(|(vm, host)| balance.add(vm, *host));
    scores(cluster, &balance)
}

fn scores(cluster: &Cluster, balance: &Balance) -> Vec<(f64, f64)> {
    cluster.ids().map(|host| (balance.server_score(host), balance.chassis_score(host))).collect()
}

proptest! {
    #[test]
    fn the_search_finds_what_a_full_scan_finds(
        steps in prop::collection::vec(step(), 1..120), seed in prop::option::of(any::<u64>()),
        best_fit in 0..5u32, power in 0..5u32, alpha in alpha(), count in 14..80u32, alike in any::<bool>(),
        lifetimes in lifetimes()
    ) {
        let ties = seed.map_or(Ties::Id, Ties::Hash);
        let policy = Policy { lifetimes, ties, best_fit, power, alpha, ..Policy::POWER };
        let all = if alike { hosts(count) } else { mixed(count) };
        let mut scheduler = policy.scheduler(Cluster::new(&all));
        let mut vms = Vec::new();
        for (id, step) in steps.iter().enumerate() {
            if alike && matches!(step, Step::AddHost(_) | Step::ChangeHost(..)) {
                continue;
            }
            if let Some(vm) = asked(id as u64, step) {
                let chosen = scheduler.choose(NOW, &vm).ok();
                let scores = scheduler.score(NOW, &vm, 1).ok();
                prop_assert_eq!(scores.and_then(|it| it.hosts.first().map(|it| it.host)), chosen);
                let is_best_fit = best_fit > 0 && power == 0 && lifetimes == LifetimeRule::None;
                if alike && ties == Ties::Id && is_best_fit {
                    prop_assert_eq!(chosen, scan(&scheduler, &vm));
                }
            }
            take(&mut scheduler, &mut vms, id as u64, step);
        }
    }

    #[test]
    fn sums_are_those_of_the_vms_that_are_there_and_nothing_is_left_of_the_others(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut scheduler = NILAS.scheduler(Cluster::new(&mixed(14)));
        let mut vms = Vec::new();

        for (id, step) in steps.iter().enumerate() {
            take(&mut scheduler, &mut vms, id as u64, step);
            let cluster = scheduler.cluster();
            prop_assert_eq!(cluster.residents(), vms.len());
            vms.sort_unstable();
            let held: Vec<_> = scheduler.holds().map(|hold| (hold.vm, hold.host)).collect();
            let listed = cluster.ids().flat_map(|host| cluster.residents_of(host));
            let mut listed: Vec<_> = listed.map(|it| (it.vm.id, Some(it))).collect();
            listed.sort_unstable_by_key(|(vm, _)| *vm);
            let by_name: Vec<_> = vms.iter().map(|vm| (*vm, cluster.resident(*vm))).collect();
            prop_assert_eq!(&listed, &by_name);
            // Whatever became of a VM, it came when it came.
            prop_assert!(cluster.all().iter().all(|it| it.since == Instant::from_millis(it.vm.id.0 % 1000)));
            let (mut allocated, mut used, mut open) = (0, 0, 0);

            for host in cluster.ids() {
                let here = cluster.residents_of(host);
                prop_assert!(here.iter().all(|it| it.host == host));
                let holds = held.iter().filter(|(_, at)| *at == host).map(|(vm, _)| vm.resources);
                prop_assert_eq!(cluster.held(host) as usize, holds.clone().count());
                let is_used = cluster.held(host) > 0 || !here.is_empty();
                let sizes = here.iter().map(|r| r.vm.resources).chain(holds);
                let taken = sizes.fold(Totals::default(), |sum, size| sum + size);
                let (room, free) = (cluster.host(host).room, cluster.free(host));
                prop_assert_eq!(cluster.taken(host), taken);
                prop_assert_eq!(u64::from(free.cores.milli()),
                    u64::from(room.cores.milli()).saturating_sub(taken.milli_cores));
                prop_assert_eq!(u64::from(free.extras.0[0]),
                    u64::from(room.extras.0[0]).saturating_sub(taken.extras[0]));
                prop_assert_eq!(cluster.vms(host) as usize, here.len());
                allocated += taken.milli_cores;
                used += u32::from(is_used);

                if cluster.state(host) == HostState::Open {
                    open += u64::from(cluster.free(host).cores.milli());
                }
            }

            prop_assert_eq!(cluster.allocated().milli_cores, allocated);
            prop_assert_eq!(cluster.open().milli_cores, open);
            prop_assert_eq!(cluster.used_hosts(), used);

            prop_assert_eq!(scores(cluster, cluster.balance()), fresh(cluster, &held));
            let domains = cluster.ids().filter(|host| cluster.state(*host) == HostState::Open);
            let domains: BTreeSet<_> = domains.map(|host| cluster.host(host).domain).collect();
            prop_assert_eq!(cluster.open_domains(), domains.len());

            // What was kept by events is what somebody finds who comes now. Of who has gone nothing is left.
            let (fits, ranking) = NILAS.rules(cluster);
            let again = Scheduler::new(cluster.clone(), fits, ranking);
            let probe = |size| VmRequest::new(VmKey(u64::MAX), size);
            for probe in [probe(size(500, 0)), VmRequest { known: true, ..probe(size(2000, 500_000)) }] {
                let (kept, fresh) = (scheduler.score(NOW, &probe, 99), again.score(NOW, &probe, 99));
                prop_assert_eq!(kept, fresh);
                prop_assert_eq!(scheduler.choose(NOW, &probe), again.choose(NOW, &probe));
            }
        }

        for vm in vms {
            scheduler.remove(NOW, vm).unwrap();
        }
        scheduler.handle_timeout(Instant::from_millis(120));
        prop_assert_eq!(scheduler.holds().count(), 0, "who has ended is not on its way");
        let cluster = scheduler.cluster();
        prop_assert_eq!(scores(cluster, cluster.balance()), scores(cluster, &Balance::new(cluster)));
        prop_assert_eq!(scheduler.cluster().allocated().memory_kb, 0);
    }

    #[test]
    fn a_deployment_goes_whole_or_not_at_all(
        vms in prop::collection::vec((1..9u64, 0..17u64), 1..40)
    ) {
        let cluster = Cluster::new(&hosts(14));
        let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
        let mut scheduler = Scheduler::new(cluster, fits(), ranking);
        let request = |(id, (c, m)): (usize, &(u64, u64))| {
            VmRequest::new(VmKey(id as u64), size(c * 500, m * 500_000))
        };
        let requests: Vec<_> = vms.iter().enumerate().map(request).collect();

        match scheduler.place_all(NOW, &requests) {
            Ok(hosts) => {
                for (vm, host) in requests.iter().zip(hosts) {
                    prop_assert_eq!(scheduler.cluster().resident(vm.id).unwrap().host, host);
                }
            }
            Err(error) => {
                prop_assert!(matches!(error, PlacementError::NoHost { .. }), "{}", error);
                prop_assert_eq!(scheduler.cluster().residents(), 0);
                prop_assert_eq!(scheduler.cluster().used_hosts(), 0);
            }
        }
    }
}
