//! Single decisions, worked by hand.

use ballast_placement::rules::{Alpha, BestFit, Power};
use ballast_placement::{
    Ask, ChassisId, Cluster, DeploymentId, Event, Host, HostId, HostState, PlacementError, Policy, Ranking,
    Rule, Scheduler, Shortage, Tier, Ties, VmKey, VmRequest,
};
use ballast_types::{Instant, Utilisation, VmClass};

use crate::{NOW, fits, gb};

/// Two servers a chassis, 40 cores each.
fn cluster(hosts: u32) -> Cluster {
    let host = |n| Host::new(ChassisId(n / 2), gb(40, 160.0));
    Cluster::new(&(0..hosts).map(host).collect::<Vec<_>>())
}

fn vm(id: u64, cores: u16, class: VmClass, p95: f64) -> VmRequest {
    let p95 = Utilisation::from_ratio(p95).unwrap();
    VmRequest { class, p95, known: true, ..VmRequest::new(VmKey(id), gb(cores, 4.0)) }
}

/// A rule that likes what it is told to like.
#[derive(Debug)]
struct Likes(&'static [i64]);

impl Rule for Likes {
    fn name(&self) -> &'static str {
        "likes"
    }
    fn score(&self, _ask: &Ask<'_>, host: HostId) -> i64 {
        self.0[host.0 as usize]
    }
    fn explain(&self, _ask: &Ask<'_>, host: HostId) -> String {
        format!("as told of {host}")
    }
}

fn order(ranking: Ranking) -> Vec<u32> {
    let scheduler = Scheduler::new(cluster(4), fits(), ranking);
    let request = vm(1, 1, VmClass::UserFacing, 1.0);
    let scores = scheduler.score(NOW, &request, 4).unwrap();
    let order: Vec<u32> = scores.hosts.iter().map(|scored| scored.host.0).collect();
    assert_eq!(scheduler.choose(NOW, &request).unwrap().0, order[0]);
    order
}

#[test]
fn tiers_decide_one_after_the_other_and_weights_within_one() {
    let tied = || Tier::one(Likes(&[1, 5, 5, 5]));
    assert_eq!(order(Ranking::new(vec![tied(), Tier::one(Likes(&[9, 1, 3, 2]))], Ties::Id)), [2, 3, 1, 0]);
    // What ties on all goes to the lowest id.
    assert_eq!(order(Ranking::new(vec![tied()], Ties::Id)), [1, 2, 3, 0]);
    assert_eq!(order(Ranking::new(Vec::new(), Ties::Id)), [0, 1, 2, 3]);
    // Ranks 1 2 3 4 and 4 3 1 1: sums 5 5 4 5, and with thrice the weight on the first 7 9 10 13.
    let weighted = |first| {
        let rules: Vec<(u32, Box<dyn Rule>)> =
            vec![(first, Box::new(Likes(&[100, 7, 6, 5]))), (1, Box::new(Likes(&[0, 2, 9, 9])))];
        order(Ranking::new(vec![Tier::weighted(rules)], Ties::Id))
    };
    assert_eq!(weighted(1), [2, 0, 1, 3]);
    assert_eq!(weighted(3), [0, 1, 2, 3]);
}

#[test]
fn best_fit_looks_at_the_larger_free_share_and_then_at_the_id() {
    let cluster = cluster(4);
    let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
    let mut scheduler = Scheduler::new(cluster, fits(), ranking);
    let put = |s: &mut Scheduler, id, cores, memory, host| {
        s.put(NOW, &VmRequest::new(VmKey(id), gb(cores, memory)), HostId(host)).unwrap();
    };

    // Full by cores, but its memory is free; then less of both; then the same again.
    put(&mut scheduler, 1, 38, 1.0, 0);
    put(&mut scheduler, 2, 30, 100.0, 2);
    put(&mut scheduler, 3, 30, 100.0, 3);
    let request = VmRequest::new(VmKey(9), gb(2, 4.0));
    assert_eq!(scheduler.choose(NOW, &request), Ok(HostId(2)));
    let scores = scheduler.score(NOW, &request, 2).unwrap();
    assert_eq!(scores.hosts[0].verdicts[0].reason, "leaves 20.0 % of its cores, 35.0 % of its memory");

    assert_eq!((scores.hosts.len(), scores.fitting), (2, 4));
}

/// Algorithm 1, with figures that can be checked on paper.
#[test]
fn the_power_rule_is_the_papers() {
    let ranking = Ranking::new(vec![Tier::one(Power::new(Alpha::PAPER))], Ties::Id);
    let mut scheduler = Scheduler::new(cluster(4), fits(), ranking);
    let placed = [
        (vm(1, 20, VmClass::UserFacing, 0.5), 0),    // g_UF = 10 of 40
        (vm(2, 10, VmClass::NonUserFacing, 0.4), 0), // g_NUF = 4
        (vm(3, 30, VmClass::NonUserFacing, 0.8), 1), // g_NUF = 24
        (vm(4, 8, VmClass::UserFacing, 0.25), 3),    // g_UF = 2
    ];

    for (vm, host) in &placed {
        scheduler.put(NOW, vm, HostId(*host)).unwrap();
    }
    let cluster = scheduler.cluster();
    let (power, balance) = (Power::new(Alpha::PAPER), cluster.balance());
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-8, "{a} is not {b}");

    // Chassis 0: 1 − 38/80; chassis 1: 1 − 2/80.
    close(balance.chassis_score(HostId(0)), 0.525);
    close(balance.chassis_score(HostId(3)), 0.975);

    // Servers: ½(1 + (4 − 10)/40), ½(1 + 24/40), ½, ½(1 − 2/40).
    close(balance.server_score(HostId(0)), 0.425);
    close(balance.server_score(HostId(1)), 0.8);
    close(balance.server_score(HostId(2)), 0.5);
    close(balance.server_score(HostId(3)), 0.475);
    let best = |class| {
        let request = vm(9, 1, class, 1.0);
        let ask = Ask { now: NOW, vm: &request, cluster };
        let ids = cluster.ids().map(|host| (power.score(&ask, host), host.0));

        ids.max().unwrap().1
    };

    // User-facing: .8 × .975 + .2 × .5 beats .2 × .475; another one: .2 × .525.
    assert_eq!(best(VmClass::UserFacing), 2);
    assert_eq!(best(VmClass::NonUserFacing), 3);
    let request = vm(9, 1, VmClass::UserFacing, 1.0);
    let ask = Ask { now: NOW, vm: &request, cluster };

    // In 10⁻⁹ × 1000 × 2.
    assert_eq!(power.score(&ask, HostId(0)), 2 * (800 * 525_000_000 + 200 * 425_000_000));
    assert!(power.explain(&ask, HostId(0)).contains("chassis score 0.525"));
    assert_eq!(Alpha::new(1.1), None);
    assert_eq!(Alpha::new(f64::NAN), None);
}

#[test]
fn cordon_drain_and_anti_affinity_refuse_with_their_reasons() {
    let cluster = cluster(4);
    let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
    let mut scheduler = Scheduler::new(cluster, fits(), ranking);
    let spread = |id| VmRequest {
        deployment: Some(DeploymentId(7)),
        spread: true,
        ..VmRequest::new(VmKey(id), gb(1, 1.0))
    };

    scheduler.set_state(HostId(0), HostState::Cordoned).unwrap();
    scheduler.set_state(HostId(1), HostState::Draining).unwrap();
    assert_eq!(scheduler.place(NOW, &spread(1)), Ok(HostId(2)));
    assert_eq!(scheduler.place(NOW, &spread(2)), Ok(HostId(3)));
    assert_eq!(scheduler.place(NOW, &spread(3)), Err(PlacementError::NoHost { vm: VmKey(3) }));
    let refused = scheduler.score(NOW, &spread(3), 1).unwrap().refused;
    assert_eq!(refused, [("capacity", 0), ("open", 2), ("anti-affinity", 2)]);
    let why = |host| scheduler.refusals(NOW, &spread(3), HostId(host)).unwrap();
    assert_eq!(why(1), [("open", "draining".to_owned())]);
    assert_eq!(why(2), [("anti-affinity", "1 of its deployment are here".to_owned())]);

    // Another deployment may go there; and a VM that has moved frees its host.
    assert_eq!(scheduler.place(NOW, &VmRequest::new(VmKey(4), gb(1, 1.0))), Ok(HostId(2)));
    scheduler.set_state(HostId(0), HostState::Open).unwrap();
    scheduler.migrate(NOW, VmKey(1), HostId(0)).unwrap();
    assert_eq!(scheduler.place(NOW, &spread(3)), Ok(HostId(2)));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let cluster = cluster(2);
    let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
    let mut scheduler = Scheduler::new(cluster, fits(), ranking);
    let small = VmRequest::new(VmKey(1), gb(30, 8.0));
    scheduler.place(NOW, &small).unwrap();
    let texts = [
        (scheduler.place(NOW, &small).map(drop), "VM 1 is already placed, on host 0"),
        (
            scheduler.place(NOW, &VmRequest::new(VmKey(2), gb(41, 8.0))).map(drop),
            "VM 2 asks for 41 cores, 8 GB: the largest host has 40 cores, 160 GB",
        ),
        (scheduler.place(NOW, &VmRequest::new(VmKey(2), gb(0, 8.0))).map(drop), "VM 2 asks for no cores"),
        (
            scheduler.put(NOW, &VmRequest::new(VmKey(2), gb(11, 8.0)), HostId(0)),
            "VM 2 asks for 11 cores, 8 GB: host 0 has 10 cores, 152 GB left",
        ),
        (
            scheduler.put(NOW, &VmRequest::new(VmKey(2), gb(1, 8.0)), HostId(2)),
            "host 2: there are 2 hosts, counted from 0",
        ),
        (scheduler.remove(NOW, VmKey(3)).map(drop), "VM 3 is not placed"),
        (scheduler.migrate(NOW, VmKey(3), HostId(0)), "VM 3 is not placed"),
        (scheduler.migrate(NOW, VmKey(1), HostId(9)), "host 9: there are 2 hosts, counted from 0"),
        (
            scheduler.change(NOW, &VmRequest { resources: gb(50, 8.0), ..small }),
            "VM 1 asks for 50 cores, 8 GB: the largest host has 40 cores, 160 GB",
        ),
    ];

    for (result, text) in texts {
        assert_eq!(result.unwrap_err().to_string(), text);
    }
    assert_eq!(scheduler.cluster().residents(), 1);
    assert_eq!(scheduler.cluster().free(HostId(0)), gb(10, 152.0));

    // A move to where it is changes nothing either.
    scheduler.migrate(NOW, VmKey(1), HostId(0)).unwrap();
    assert_eq!(scheduler.cluster().vms(HostId(0)), 1);
}

/// A rule that asks to be woken an hour after every placement.
#[derive(Debug, Default)]
struct Sleeper(Option<Instant>);

impl Rule for Sleeper {
    fn name(&self) -> &'static str {
        "sleeper"
    }
    fn score(&self, _ask: &Ask<'_>, _host: HostId) -> i64 {
        0
    }
    fn explain(&self, _ask: &Ask<'_>, _host: HostId) -> String {
        String::new()
    }
    fn handle_event(&mut self, now: Instant, _cluster: &Cluster, event: &Event<'_>) {
        match event {
            Event::Placed { .. } => self.0 = Some(now + core::time::Duration::from_secs(3600)),
            Event::Deadline => self.0 = None,
            _ => {}
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.0
    }
}

#[test]
fn rules_are_woken_when_they_ask_for_it() {
    let ranking = Ranking::new(vec![Tier::one(Sleeper::default())], Ties::Id);
    let mut scheduler = Scheduler::new(cluster(1), fits(), ranking);
    assert_eq!(scheduler.poll_timeout(), None);
    scheduler.place(NOW, &vm(1, 1, VmClass::UserFacing, 1.0)).unwrap();
    let due = scheduler.poll_timeout().unwrap();
    assert_eq!(due, Instant::from_millis(3_600_000));
    scheduler.handle_timeout(due);
    assert_eq!(scheduler.poll_timeout(), None);
}

#[test]
fn of_a_vm_of_which_nothing_is_known_the_power_rule_says_nothing() {
    let policies = [Policy::POWER, Policy::BEST_FIT].map(|policy| Policy { best_fit: 1, ..policy });
    let [power, best_fit] = policies.map(|policy| {
        let mut scheduler = policy.scheduler(cluster(12));
        let vms = (0..90).map(|id| VmRequest::new(VmKey(id), gb(1 + (id * 7 % 5) as u16, 4.0)));
        vms.map(|vm| scheduler.place(NOW, &vm).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(power, best_fit);

    // One that is known goes to the idle chassis; one that is not, though it counts alike, to the fullest host.
    let mut scheduler = Policy { best_fit: 1, power: 2, ..Policy::POWER }.scheduler(cluster(4));
    scheduler.put(NOW, &vm(1, 20, VmClass::UserFacing, 1.0), HostId(0)).unwrap();
    let known = vm(2, 1, VmClass::UserFacing, 1.0);
    assert!(scheduler.choose(NOW, &known).unwrap().0 > 1);
    let unknown = VmRequest { known: false, ..known };
    assert_eq!(scheduler.choose(NOW, &unknown), Ok(HostId(0)));
    let why = &scheduler.score(NOW, &unknown, 1).unwrap().hosts[0].verdicts[1];
    assert_eq!((why.score, &*why.reason), (0, "neither class nor P95 is known: all hosts alike"));
}

#[test]
fn a_shortage_is_of_what_is_scarce_and_fragmentation_only_where_pieces_would_do() {
    let short = |taken: &[(u16, f64)], asked: &[(u16, f64)]| {
        let mut scheduler = Policy::BEST_FIT.scheduler(cluster(taken.len() as u32));
        for (id, (cores, memory)) in taken.iter().enumerate() {
            let vm = VmRequest::new(VmKey(id as u64), gb(*cores, *memory));
            scheduler.put(NOW, &vm, HostId(id as u32)).unwrap();
        }
        let asked: Vec<_> = asked.iter().map(|(cores, memory)| gb(*cores, *memory)).collect();
        scheduler.cluster().shortage(&asked)
    };
    // 2 + 2 cores are free.
    let two = [(38, 10.0), (38, 10.0)];
    assert_eq!(short(&two, &[(5, 1.0)]), Shortage::Cores);
    assert_eq!(short(&two, &[(3, 1.0)]), Shortage::Fragmentation);
    assert_eq!(short(&two, &[(2, 1.0), (3, 1.0)]), Shortage::Cores);
    assert_eq!(short(&[(4, 150.0), (4, 150.0)], &[(1, 21.0)]), Shortage::Memory);

    // Every host has the memory, and none has the cores; and the other way round.
    assert_eq!(short(&[(37, 130.0); 20], &[(4, 1.0)]), Shortage::Fragmentation);
    assert_eq!(short(&[(30, 80.0); 3], &[(2, 100.0)]), Shortage::Fragmentation);

    // Three cores of 8,000 are a full cluster, although two of them would do.
    let full: Vec<_> = (0..200).map(|host| if host < 3 { (39, 10.0) } else { (40, 10.0) }).collect();
    assert_eq!(short(&full, &[(2, 1.0)]), Shortage::Cores);

    // 14 cores are free where all memory is taken: nobody can have them.
    let stranded = [(26, 160.0), (40, 90.0), (40, 90.0)];
    assert_eq!(short(&stranded, &[(1, 2.0)]), Shortage::Cores);
    assert_eq!(short(&[(40, 20.0), (10, 160.0), (10, 160.0)], &[(1, 2.0)]), Shortage::Memory);
}
