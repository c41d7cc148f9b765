use ballast_placement::drain::DrainOrder;
use ballast_placement::{
    Ask, ChassisId, Cluster, Event, Host, HostId, HostState, MemoryKb, MilliCores, Policy, Ranking, Reserve,
    Resources, Rule, Tier, Ties, Totals, VmKey, VmRequest,
};
use ballast_types::Instant;
use proptest::prelude::*;

use super::*;
use crate::cluster::tests::Lines;
use crate::cluster::{Arrivals, Reason};

const HEAD: &str = "vm_id,batch_id,arrival_s,cores,mem_gb,dur_hi_s,censored\n";
const BEST_FIT: Policy = Policy { ties: Ties::Id, ..Policy::BEST_FIT };
const FIRST_FIT: Policy = Policy { best_fit: 0, ..BEST_FIT };
const POWER: Policy = Policy { ties: Ties::Id, ..Policy::POWER };

fn read(rows: &str, repeat: u32) -> Recorded<'static> {
    let open = || Arrivals::new(std::io::Cursor::new(format!("{HEAD}{rows}")), "t.csv").unwrap();
    Recorded::new(open(), None, Copies::of(open(), None, repeat).unwrap()).unwrap()
}

/// Hosts of 4 cores and 16 GB, two a chassis.
fn cluster(hosts: u32) -> Cluster {
    let capacity = Resources::new(MilliCores::from_cores(4), MemoryKb::from_gb(16.0).unwrap());
    let host = |n| Host::new(ChassisId(n / 2), capacity);
    Cluster::new(&(0..hosts).map(host).collect::<Vec<_>>())
}

fn hosts(ids: &[u32]) -> Vec<HostId> {
    ids.iter().copied().map(HostId).collect()
}

/// Lines of `vm_id,host`, and what came of it.
fn play(rows: &str, scheduler: &mut Scheduler, plan: &Plan) -> (String, Outcome) {
    let mut lines = Lines::default();
    let outcome = replay(&mut read(rows, 1), scheduler, Batches::Split, plan, &mut lines);
    (lines.0.join(" "), outcome.unwrap())
}

#[test]
fn a_vm_that_is_moved_holds_room_on_both_hosts_until_it_is_there() {
    // VM 0 moves from 0 to 1 within 10 s + 1 s/GB × 2 GB, from 100 s on.
    let rows = "0,0,0,2,2,9000,0\n1,1,111,3,1,300,0\n2,2,112,2,1,300,0\n3,3,113,4,1,300,0\n";
    let plan = Plan {
        actions: vec![(100_000, Action::Drain(hosts(&[0]))), (112_500, Action::Open(hosts(&[0])))],
        ..Plan::default()
    };
    let mut scheduler = BEST_FIT.scheduler(cluster(2));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    // 0 drains, and half of 1 is held: no three cores. Then 2 finds what is left there; and 3 the host that was emptied.
    assert_eq!(lines, "0,0 1, 2,1 3,0");
    assert_eq!(scheduler.cluster().resident(VmKey(0)).unwrap().host, HostId(1));
    let held_core_h = 2.0 * 12.0 / 3600.0;
    let drained = Drained {
        hosts: 1,
        emptied: 1,
        longest_s: 12.0,
        moved: 1,
        left: 0,
        held_core_h,
        scheduled: 1,
        saved: 0,
    };
    assert_eq!(outcome.drained, drained);
    assert_eq!(scheduler.cluster().residents(), 3);
}

#[test]
fn a_host_is_drained_one_by_one_the_largest_first_and_who_finds_no_room_waits() {
    // Host 0 has VMs of 1, 2 and 1 cores; host 1 is full until 1000 s.
    let rows = "0,0,0,1,0,9000,0\n1,0,0,2,0,9000,0\n2,0,0,1,0,500,0\n3,0,0,4,0,1000,0\n4,0,1030,1,0,300,0\n";
    let plan = Plan {
        actions: vec![(100_000, Action::Drain(hosts(&[0, 0])))],
        moving: Moving { base_ms: 20_000, per_gb_ms: 0 },
        ..Plan::default()
    };
    let mut scheduler = FIRST_FIT.scheduler(cluster(2));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    assert_eq!(lines, "0,0 1,0 2,0 3,1 4,1");
    // 2 ended where it was; 1 came over from 1000 s to 1020 s; 0 is on its way.
    let drained = outcome.drained;
    assert_eq!((drained.hosts, drained.emptied, drained.moved, drained.left), (1, 0, 1, 1));
    assert_eq!(scheduler.cluster().resident(VmKey(1)).unwrap().host, HostId(1));
    assert_eq!(scheduler.cluster().resident(VmKey(0)).unwrap().host, HostId(0));
    assert_eq!(scheduler.cluster().state(HostId(0)), HostState::Draining);
}

#[test]
fn a_vm_that_ends_on_its_way_leaves_both_hosts_and_one_that_arrives_on_a_drained_host_goes_on() {
    let rows = "0,0,0,2,0,400,0\n1,1,0,2,0,9000,0\n2,2,900,1,0,300,0\n";
    let plan = Plan {
        actions: vec![
            (350_000, Action::Drain(hosts(&[0]))),
            // 1 is on its way to host 1 by then.
            (450_000, Action::Drain(hosts(&[1]))),
        ],
        moving: Moving { base_ms: 100_000, per_gb_ms: 0 },
        ..Plan::default()
    };

    let mut scheduler = FIRST_FIT.scheduler(cluster(3));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    assert_eq!(lines, "0,0 1,0 2,2");
    let drained = outcome.drained;

    // The last of equals goes first: 1, and then again from host 1 at 450 s; 0 ended while it waited.
    assert_eq!((drained.hosts, drained.emptied, drained.moved, drained.left), (2, 2, 2, 0));
    assert_eq!(scheduler.cluster().resident(VmKey(1)).unwrap().host, HostId(2));
    let rows = "0,0,0,2,0,400,0\n1,1,401,4,0,300,0\n2,1,402,4,0,300,0\n";
    let plan = Plan { actions: vec![(350_000, Action::Drain(hosts(&[0])))], ..plan };
    let mut scheduler = FIRST_FIT.scheduler(cluster(2));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    assert_eq!(lines, "0,0 1,1 2,");
    let held_core_h = 2.0 * 50.0 / 3600.0;
    let drained = Drained {
        hosts: 1,
        emptied: 1,
        longest_s: 50.0,
        moved: 0,
        left: 0,
        held_core_h,
        scheduled: 1,
        saved: 0,
    };
    assert_eq!(outcome.drained, drained);
}

#[test]
fn the_emptiest_host_is_emptied_and_opens_again() {
    // 1 goes to host 2, as host 0 has no room; at 500 s host 1 takes others again.
    let rows = "0,0,0,3,0,9000,0\n1,1,0,2,0,9000,0\n2,2,500,4,0,300,0\n";
    let plan = Plan { actions: vec![(100_000, Action::Defragment(1))], ..Plan::default() };
    let mut scheduler = FIRST_FIT.scheduler(cluster(3));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    assert_eq!(lines, "0,0 1,1 2,1");
    let Drained { hosts, emptied, longest_s, moved, .. } = outcome.drained;
    // Host 2 has nobody: it is not among the emptiest.
    assert_eq!((hosts, emptied, longest_s, moved), (1, 1, 10.0, 1));
    assert_eq!(scheduler.cluster().resident(VmKey(1)).unwrap().host, HostId(2));
}

#[test]
fn one_list_of_the_longest_lived_first_saves_the_moves_of_others() {
    // Hosts 0 and 1 have three VMs each; every move takes 200 s, two at once.
    let rows = "0,0,0,1,0,450,0\n1,0,0,1,0,9000,0\n2,0,0,2,0,600,0\n3,1,0,2,0,8000,0\n4,1,0,1,0,480,0\n\
                5,1,0,1,0,7000,0\n6,2,5000,1,0,300,0\n";
    let play = |order, limit| {
        let moving = Moving { base_ms: 200_000, per_gb_ms: 0 };
        let actions = vec![(100_000, Action::Drain(hosts(&[0, 1])))];
        let plan = Plan { actions, moving, drains: Drains { order, limit, below: None } };
        let mut scheduler = FIRST_FIT.scheduler(cluster(4));
        let mut source = read(rows, 1).with_lifetimes(LifetimeSource::Oracle);
        let mut lines = Lines::default();
        let drained = replay(&mut source, &mut scheduler, Batches::Split, &plan, &mut lines).unwrap().drained;
        assert_eq!((drained.hosts, drained.emptied, drained.scheduled, drained.left), (2, 2, 6, 0));
        (drained.moved, drained.saved, drained.longest_s)
    };
    // 1 and 3 from 100 s on, 5 and 2 from 300 s on, 0 and 4 have ended by 500 s.
    assert_eq!(play(DrainOrder::Global, Some(2)), (4, 2, 400.0));
    assert_eq!(play(DrainOrder::PerHost, Some(2)), (4, 2, 400.0));
    // With one at a time all of host 0 goes first: 1, 2, and then 3 and 5.
    assert_eq!(play(DrainOrder::PerHost, Some(1)), (4, 2, 800.0));
    assert_eq!(play(DrainOrder::Global, Some(1)), (3, 3, 600.0));
    // 0 and 3, then 1 and 4, which ends on its way at 480 s, then 5 and 2.
    assert_eq!(play(DrainOrder::Arrival, Some(2)), (4, 0, 580.0));
}

#[test]
fn hosts_are_drained_by_themselves_when_too_few_are_empty() {
    // Two of four hosts have VMs; those of host 1 leave at 400 s. From 600 s on all four are in use.
    let rows = "0,0,0,3,0,9000,0\n1,0,0,2,0,9000,0\n2,1,100,4,0,300,0\n3,2,600,1,0,300,0\n4,3,1000,1,0,9,0\n";
    let play = |empty_share| {
        let below = Some(Below { empty_share, hosts: 1 });
        let plan = Plan { drains: Drains { below, ..Drains::default() }, ..Plan::default() };
        let mut scheduler = FIRST_FIT.scheduler(cluster(4));
        play(rows, &mut scheduler, &plan).1.drained
    };
    let none = play(0.25);
    assert_eq!((none.hosts, none.moved), (0, 0));
    let some = play(0.75);
    assert!(some.hosts > 0 && some.hosts == some.emptied && some.moved > 0, "{some:?}");
}

#[test]
fn a_host_that_is_resized_keeps_its_vms() {
    let rows = "0,0,0,3,0,9000,0\n1,1,200,1,0,300,0\n2,2,400,5,0,300,0\n";
    let size = |cores| Resources::new(MilliCores::from_cores(cores), MemoryKb::ZERO);
    let resize = |at_ms, cores| (at_ms, Action::Resize(hosts(&[0]), size(cores)));
    let plan = Plan { actions: vec![resize(100_000, 2), resize(300_000, 8)], ..Plan::default() };
    let mut scheduler = FIRST_FIT.scheduler(cluster(1));
    let (lines, outcome) = play(rows, &mut scheduler, &plan);
    assert_eq!((lines.as_str(), outcome.placed), ("0,0 1, 2,0", 2));
    let unknown = Plan { actions: vec![(0, Action::Resize(hosts(&[1]), size(2)))], ..Plan::default() };
    let mut lines = Lines::default();
    let refused = replay(&mut read(rows, 1), &mut scheduler, Batches::Split, &unknown, &mut lines);
    assert!(refused.unwrap_err().to_string().ends_with("host 1: there are 1 hosts, counted from 0"));
}

#[test]
fn a_policy_changes_when_it_should_and_every_phase_counts_its_own() {
    let rows = "0,0,0,1,0,9000,0\n1,1,0,4,0,500,0\n2,2,0,3,0,9000,0\n3,3,600,1,0,300,0\n4,4,1000,1,0,900,0\n\
                5,5,1000,9,0,9,0\n";
    let rows = rows.replace("5,5,1000,9", "5,5,1000,4");
    let plan = Plan { actions: vec![(600_000, Action::Policy(FIRST_FIT))], ..Plan::default() };
    let mut scheduler = BEST_FIT.scheduler(cluster(3));
    let (lines, outcome) = play(&rows, &mut scheduler, &plan);
    // Best fit takes host 0 for 2, since it leaves nothing there; at 600 s all is empty but host 0.
    assert_eq!(lines, "0,0 1,1 2,0 3,1 4,1 5,2");
    let [first, second] = &*outcome.phases else { panic!("{outcome:?}") };
    assert_eq!((first.from_ms, first.placed, first.failed), (0, 3, 0));
    assert_eq!((second.from_ms, second.placed, second.failed), (600_000, 3, 0));
    // Of 600 s × 3 hosts host 2 is empty for 600, host 1 for 100.
    assert!((first.empty_host_ratio - 700.0 / 1800.0).abs() < 1e-12, "{first:?}");
    // Of 400 s × 3 hosts host 2 for 400, host 1 for 100.
    assert!((second.empty_host_ratio - 500.0 / 1200.0).abs() < 1e-12, "{second:?}");
    assert!((outcome.empty_host_ratio - 1200.0 / 3000.0).abs() < 1e-12, "{outcome:?}");
    assert_eq!(first.packing_density, 1.0);
}

#[test]
fn a_reserve_refuses_new_deployments_and_lets_those_that_run_scale_out() {
    // Half of 8 cores is kept. Batch 0 comes whole; 1 does not, for it asks for 3 + 2; 0 scales out; 2 is new.
    let rows = "0,0,0,2,0,9000,0\n1,1,0,3,0,300,0\n2,0,0,2,0,9000,0\n3,1,0,2,0,300,0\n4,0,60,4,0,900,0\n\
                5,2,60,1,0,300,0\n6,0,9500,1,0,300,0\n7,3,9500,3,0,300,0\n8,3,9560,1,0,300,0\n\
                9,4,9560,1,0,300,0\n";
    let mut scheduler = FIRST_FIT.scheduler(cluster(2));
    scheduler.add_admission(Box::new(Reserve::new(0.5).unwrap()));
    let (lines, outcome) = play(rows, &mut scheduler, &Plan::default());
    // At 9500 s nothing of batch 0 runs any more: it is new, and there is room.
    assert_eq!(lines, "0,0 1, 2,0 3, 4,1 5, 6,0 7,0 8,1 9,");
    assert_eq!(outcome.failures.into_iter().collect::<Vec<_>>(), [(Reason::Admission, 4)]);
    // Atomic batches ask as well, and copies are deployments of their own.
    let mut scheduler = FIRST_FIT.scheduler(cluster(2));
    scheduler.add_admission(Box::new(Reserve::new(0.5).unwrap()));
    let mut rows = read("0,0,0,2,0,9000,0\n1,0,0,1,0,300,0\n", 2);
    let plan = Plan::default();
    let outcome = replay(&mut rows, &mut scheduler, Batches::Atomic, &plan, &mut Lines::default()).unwrap();
    assert_eq!((outcome.placed, outcome.failures[&Reason::Admission]), (2, 2));
}

/// Wants to be woken every 100 s, and counts.
#[derive(Debug)]
struct Clock {
    next: Instant,
    woken: std::sync::Arc<std::sync::Mutex<Vec<u64>>>,
}

impl Rule for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }
    fn score(&self, _: &Ask<'_>, _: HostId) -> i64 {
        0
    }
    fn explain(&self, _: &Ask<'_>, _: HostId) -> String {
        String::new()
    }
    fn handle_event(&mut self, now: Instant, _: &Cluster, event: &Event<'_>) {
        if matches!(event, Event::Deadline) {
            self.woken.lock().unwrap().push(now.as_millis());
            self.next = now + core::time::Duration::from_secs(100);
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next)
    }
}

#[test]
fn rules_are_woken_when_they_ask_for_it() {
    let woken = std::sync::Arc::default();
    let clock = Clock { next: Instant::from_millis(150_000), woken: std::sync::Arc::clone(&woken) };
    let ranking = Ranking::new(vec![Tier::one(clock)], Ties::Id);
    let mut scheduler = Scheduler::new(cluster(1), Vec::new(), ranking);
    play("0,0,10,1,0,300,0\n1,0,400,1,0,300,0\n", &mut scheduler, &Plan::default());
    assert_eq!(*woken.lock().unwrap(), [150_000, 250_000, 350_000]);
}

#[test]
fn what_cannot_be_done_is_named_before_anything_is_and_what_comes_too_late_at_the_end() {
    for (action, decided, text) in [
        (
            (300_001, Action::Policy(POWER)),
            2,
            "300.001 s after the first arrival: the last VM comes after 300 s, and nothing is played after \
             it",
        ),
        (
            (1000, Action::Drain(hosts(&[0, 2]))),
            0,
            "1 s after the first arrival: host 2: there are 2 hosts, counted from 0",
        ),
    ] {
        let (mut scheduler, mut lines) = (BEST_FIT.scheduler(cluster(2)), Lines::default());
        let mut rows = read("0,0,100,1,0,300,0\n1,0,400,1,0,300,0\n", 1);
        let plan = Plan { actions: vec![action], ..Plan::default() };
        let error = replay(&mut rows, &mut scheduler, Batches::Split, &plan, &mut lines);
        assert_eq!(error.unwrap_err().to_string(), text);
        assert_eq!(lines.0.len(), decided);
    }
}

/// Arrival, cores, GB, lifetime in units of 100 s.
type TraceVm = (u64, u64, u64, u64);

fn trace(vms: &[TraceVm]) -> Recorded<'static> {
    let row = |(id, (at, cores, gb, life)): (usize, &TraceVm)| {
        format!("{id},{},{},{cores},{gb},{},0\n", id / 3, 100 * at, 100 * life)
    };
    read(&vms.iter().enumerate().map(row).collect::<String>(), 1)
}

fn action() -> impl Strategy<Value = Action> {
    let some = || prop::collection::vec(0..6u32, 1..4).prop_map(|ids| hosts(&ids));
    prop_oneof![
        4 => some().prop_map(Action::Drain),
        2 => some().prop_map(Action::Open),
        1 => prop::sample::select(vec![BEST_FIT, FIRST_FIT, POWER]).prop_map(Action::Policy),
    ]
}

fn drains() -> impl Strategy<Value = Drains> {
    let orders = vec![DrainOrder::Largest, DrainOrder::Arrival, DrainOrder::PerHost, DrainOrder::Global];
    let below = prop::option::of((0.0..1.0, 1..4u32));
    (prop::sample::select(orders), prop::option::of(1..4u32), below).prop_map(|(order, limit, below)| {
        let below = below.map(|(empty_share, hosts)| Below { empty_share, hosts });
        Drains { order, limit, below }
    })
}

/// Sums are those of the VMs that are there, held ones with them; no host has more than it holds.
fn check(run: &Engine<'_, '_, Operations<'_>>) -> Result<(), TestCaseError> {
    let cluster = run.scheduler.cluster();
    let vms: Vec<_> = cluster.all().iter().map(|there| (there.vm.resources, there.host)).collect();
    let held: Vec<_> = run.scheduler.holds().map(|hold| (hold.vm.resources, hold.host)).collect();
    prop_assert_eq!(held.len() as u64, run.operator.moves.under_way());
    let all = vms.into_iter().chain(held);
    prop_assert_eq!(cluster.allocated(), all.clone().fold(Totals::default(), |sum, (size, _)| sum + size));
    for host in cluster.ids() {
        let mut here = all.clone().filter(|(_, at)| *at == host).map(|(size, _)| size);
        let taken = here.try_fold(Resources::ZERO, Resources::checked_add);
        prop_assert_eq!(cluster.free(host).checked_add(taken.unwrap()), Some(cluster.host(host).capacity));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_drained_moved_and_changed_nothing_is_left_when_all_have_ended(
        mut vms in prop::collection::vec((0..60u64, 1..5u64, 0..9u64, 1..40u64), 1..60),
        actions in prop::collection::vec((0..60u64, action()), 0..8),
        base_s in 0..900u64,
        reserve in prop::sample::select(vec![0.0, 0.3]),
        drains in drains(),
    ) {
        vms.sort_by_key(|vm| vm.0);
        let mut source = trace(&vms);
        let first = vms.iter().map(|vm| vm.0).min().unwrap();
        let last = vms.iter().map(|vm| vm.0).max().unwrap();
        let inside = actions.into_iter().map(|(at, action)| (100_000 * at.min(last - first), action));
        let moving = Moving { base_ms: 1000 * base_s, per_gb_ms: 1000 };
        let plan = Plan { actions: inside.collect(), moving, drains };
        let mut scheduler = POWER.scheduler(cluster(6));

        if reserve > 0.0 {
            scheduler.add_admission(Box::new(Reserve::new(reserve).unwrap()));
        }
        let first_ms = source.first_ms();
        let (mut score, mut lines) = (Score::new(first_ms), Lines::default());
        let mut operations = Operations::new(&plan, first_ms, scheduler.cluster()).unwrap();
        let probes: &mut [&mut dyn Probe] = &mut [&mut score, &mut lines];
        let mut run = Engine::new(&mut scheduler, &mut operations, probes, Batches::Split);
        let last_ms = run.play(&mut source).unwrap().unwrap();
        check(&run)?;

        while let Some(at_ms) = run.next_ms() {
            run.advance(at_ms).unwrap();
            check(&run)?;
        }

        let drained = operations.finish(last_ms).unwrap();
        let outcome = score.finish(scheduler.cluster(), drained);
        prop_assert_eq!(outcome.placed + outcome.failed, vms.len() as u64);
        prop_assert_eq!(lines.0.len(), vms.len());
        prop_assert_eq!(outcome.drained.left, 0);

        // What is drained when all have ended is empty.
        let cluster = scheduler.cluster();
        prop_assert_eq!(cluster.residents(), 0);
        prop_assert_eq!(cluster.allocated(), Totals::default());
        prop_assert_eq!((cluster.used_hosts(), cluster.used_capacity()), (0, Totals::default()));

        // No rule remembers anything: the power rule scores all hosts alike.
        let (_, ranking) = POWER.rules(cluster);
        let vm = VmRequest::new(VmKey(0), Resources::ZERO);
        let ask = Ask { now: Instant::ZERO, vm: &vm, cluster };
        let score = |ranking: &Ranking, host| -> Vec<i64> {
            let rules = ranking.tiers().iter().flat_map(Tier::rules);
            rules.filter(|(_, rule)| rule.name() == "power").map(|(_, rule)| rule.score(&ask, host)).collect()
        };

        for host in cluster.ids() {
            let kept = score(scheduler.ranking(), host);
            prop_assert!(kept.is_empty() || kept == score(&ranking, host));
        }
    }
}
