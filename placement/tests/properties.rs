//! What holds after any sequence of events.

use ballast_placement::rules::{Alpha, BestFit, Power};
use ballast_placement::{
    Ask, ChassisId, Cluster, DeploymentId, Event, Host, HostId, HostState, PlacementError, Policy, Purpose,
    Ranking, Resources, Rule, Scheduler, Tier, Ties, VmKey, VmRequest,
};
use ballast_types::{Instant, Utilisation, VmClass};
use proptest::prelude::*;

use crate::{NOW, fits, size};

/// Hosts of three sizes, one of them without memory.
fn hosts(count: u32) -> Vec<Host> {
    let sizes = [size(8000, 12_000_000), size(6000, 16_000_000), size(8000, 0)];
    let host = |n: u32| Host { chassis: ChassisId(n / 4), capacity: sizes[(n % 7 / 3) as usize] };
    (0..count).map(host).collect()
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
    },
    Remove(usize),
    Migrate(usize, u32),
    Resize(usize, u64),
    Repredict(usize, u16),
    State(u32, bool),
    /// VMs of one deployment, so many.
    Deploy(u64, u64, bool),
    Move(usize),
    Reserve(u64, u64),
    Release(usize),
    /// The clock comes here.
    Wake(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Some are as busy as others, so that hosts tie.
    let p95 = prop_oneof![0..=10_000u16, (0..9u16).prop_map(|n| n * 1249)];
    prop_oneof![
        6 => (1..9u64, 0..17u64, 0..4u64, any::<bool>(), any::<bool>(), p95).prop_map(
            |(c, m, deployment, spread, class, p95)| {
                Step::Place { cores: c * 500, kb: m * 500_000, deployment, spread, class, p95 }
            }
        ),
        2 => (0..64usize).prop_map(Step::Remove),
        1 => (0..64usize, 0..14u32).prop_map(|(vm, to)| Step::Migrate(vm, to)),
        1 => (0..64usize, 1..9u64).prop_map(|(vm, c)| Step::Resize(vm, c * 500)),
        1 => (0..64usize, 0..=10_000u16).prop_map(|(vm, p95)| Step::Repredict(vm, p95)),
        1 => (0..14u32, any::<bool>()).prop_map(|(host, open)| Step::State(host, open)),
        2 => (1..9u64, 2..30u64, any::<bool>()).prop_map(|(c, n, spread)| Step::Deploy(c * 500, n, spread)),
        2 => (0..64usize).prop_map(Step::Move),
        1 => (1..9u64, 0..120u64).prop_map(|(c, until)| Step::Reserve(c * 500, until)),
        1 => (0..8usize).prop_map(Step::Release),
        1 => (0..120u64).prop_map(Step::Wake),
    ]
}

fn alpha() -> impl Strategy<Value = Alpha> {
    (0..=4u8).prop_map(|quarters| Alpha::new(f64::from(quarters) / 4.0).unwrap())
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
    let Step::Place { cores, kb, deployment, spread, class, p95 } = *step else { return None };
    Some(VmRequest {
        deployment: Some(DeploymentId(deployment)),
        spread,
        // Nothing is known of some.
        known: p95 % 5 > 0,
        class: if class { VmClass::UserFacing } else { VmClass::NonUserFacing },
        p95: utilisation(p95),
        ..VmRequest::new(VmKey(id), size(cores, kb))
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
                let resources = size(cores, before.resources.memory.kb());
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
                let held = scheduler.holds().any(|(_, hold)| hold.purpose == Purpose::Move(vm));
                if let Ok(to) = scheduler.start_move(NOW, vm) {
                    assert_ne!(scheduler.cluster().resident(vm).unwrap().host, to);
                    if held {
                        scheduler.migrate(NOW, vm, to).unwrap();
                    }
                }
            }
        }
        Step::Reserve(cores, until) => {
            let vm = VmRequest::new(VmKey(u64::MAX), size(cores, 500_000));
            let _ = scheduler.reserve(NOW, &vm, "maintenance", Instant::from_millis(until));
        }
        Step::Release(n) => {
            let reserved = scheduler.holds().filter(|(_, hold)| hold.until.is_some()).nth(n);
            if let Some(id) = reserved.map(|(id, _)| id) {
                scheduler.release(NOW, id).unwrap();
            }
        }
        Step::Wake(ms) => {
            let now = Instant::from_millis(ms);
            scheduler.handle_timeout(now);
            assert!(scheduler.poll_timeout().is_none_or(|due| due > now));
        }
        Step::State(host, open) => {
            let state = if open { HostState::Open } else { HostState::Cordoned };
            scheduler.set_state(HostId(host), state).unwrap();
        }
    }
}

/// The power rule as a test can look at it: a fresh one, told of the VMs that are there.
fn fresh(cluster: &Cluster, held: &[(VmRequest, HostId)]) -> Power {
    let mut power = Power::new(cluster, Alpha::PAPER);
    for resident in cluster.all() {
        let event = Event::Placed { vm: &resident.vm, host: resident.host };
        power.handle_event(NOW, cluster, &event);
    }
    for (vm, host) in held {
        power.handle_event(NOW, cluster, &Event::Held { vm, host: *host });
    }
    power
}

proptest! {
    #[test]
    fn the_search_finds_what_a_full_scan_finds(
        steps in prop::collection::vec(step(), 1..120), seed in prop::option::of(any::<u64>()),
        best_fit in 0..5u32, power in 0..5u32, alpha in alpha(), count in 14..80u32
    ) {
        let ties = seed.map_or(Ties::Id, Ties::Hash);
        let policy = Policy { ties, best_fit, power, alpha, ..Policy::POWER };
        let mut scheduler = policy.scheduler(Cluster::new(&hosts(count)));
        let mut vms = Vec::new();
        for (id, step) in steps.iter().enumerate() {
            if let Some(vm) = asked(id as u64, step) {
                let chosen = scheduler.choose(NOW, &vm).ok();
                let scores = scheduler.score(NOW, &vm, 1).unwrap();
                prop_assert_eq!(scores.hosts.first().map(|s| s.host), chosen);
                if ties == Ties::Id && best_fit > 0 && power == 0 {
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
        let all = hosts(14);
        let cluster = Cluster::new(&all);
        let rules: Vec<(u32, Box<dyn Rule>)> = vec![
            (1, Box::new(BestFit::new(&cluster, Ties::Id))),
            (1, Box::new(Power::new(&cluster, Alpha::PAPER))),
        ];

        let ranking = Ranking::new(vec![Tier::weighted(rules)], Ties::Id);
        let mut scheduler = Scheduler::new(cluster, fits(), ranking);
        let mut vms = Vec::new();
        let probe = VmRequest::new(VmKey(u64::MAX), size(500, 0));

        for (id, step) in steps.iter().enumerate() {
            take(&mut scheduler, &mut vms, id as u64, step);
            let cluster = scheduler.cluster();
            prop_assert_eq!(cluster.residents(), vms.len());
            vms.sort_unstable();
            let held: Vec<_> = scheduler.holds().map(|(_, hold)| (hold.vm, hold.host)).collect();
            let listed = cluster.ids().flat_map(|host| cluster.residents_of(host));
            let mut listed: Vec<_> = listed.map(|it| (it.vm.id, Some(it))).collect();
            listed.sort_unstable_by_key(|(vm, _)| *vm);
            let by_name: Vec<_> = vms.iter().map(|vm| (*vm, cluster.resident(*vm).copied())).collect();
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
                let mut sizes = here.iter().map(|r| r.vm.resources).chain(holds);
                let taken = sizes.try_fold(Resources::ZERO, Resources::checked_add);
                prop_assert_eq!(cluster.free(host).checked_add(taken.unwrap()),
                    Some(all[host.0 as usize].capacity));
                prop_assert_eq!(cluster.vms(host) as usize, here.len());
                allocated += u64::from(taken.unwrap().cores.milli());
                used += u32::from(is_used);

                if cluster.state(host) == HostState::Open {
                    open += u64::from(cluster.free(host).cores.milli());
                }
            }

            prop_assert_eq!(cluster.allocated().milli_cores, allocated);
            prop_assert_eq!(cluster.open().milli_cores, open);
            prop_assert_eq!(cluster.used_hosts(), used);

            // What the rule kept by events is what a fresh one sums up.
            let ask = Ask { now: NOW, vm: &probe, cluster };
            let kept = scheduler.ranking().tiers()[0].rules().nth(1).unwrap().1;
            let fresh = fresh(cluster, &held);

            for host in cluster.ids() {
                prop_assert_eq!(kept.score(&ask, host), fresh.score(&ask, host));
            }
        }

        for vm in vms {
            scheduler.remove(NOW, vm).unwrap();
        }
        scheduler.handle_timeout(Instant::from_millis(120));
        prop_assert_eq!(scheduler.holds().count(), 0, "who has ended is not on its way");
        prop_assert_eq!(&fresh(scheduler.cluster(), &[]), &Power::new(&Cluster::new(&all), Alpha::PAPER));
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
