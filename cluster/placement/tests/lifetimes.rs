//! Rules that look at when VMs end.

use std::sync::Arc;
use std::time::Duration;

use ballast_placement::{
    ChassisId, Cluster, ExpectedEnd, Host, HostId, LifetimeRule, Policy, Scheduler, Ties, VmKey, VmRequest,
};
use ballast_types::Instant;
use ballast_types::survival::{BINS, CurveId, Curves, SurvivalCurve};
use proptest::prelude::*;

use crate::{NOW, gb};

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

fn vm(id: u64, cores: u16, lives_s: Option<u64>) -> VmRequest {
    let end = lives_s.map(|s| ExpectedEnd::At(NOW + Duration::from_secs(s)));
    VmRequest { end, ..VmRequest::new(VmKey(id), gb(cores, 0.0)) }
}

#[test]
fn what_was_wrong_for_most_vms_decides_nothing_until_it_comes_true_again() {
    let there = [(8, Some(HOUR)), (2, Some(10 * HOUR)), (4, Some(12 * HOUR)), (9, Some(MINUTE))];
    for rule in [LifetimeRule::Nilas, LifetimeRule::ExpectedExit] {
        let mut scheduler = scheduler(rule, &there);
        let asked = vm(99, 1, Some(9 * HOUR));
        let told = scheduler.choose(NOW, &asked).unwrap();
        let day = |scheduler: &mut Scheduler, said_s: u64| {
            for id in 1000..4000 {
                scheduler.put(NOW, &vm(id, 1, Some(said_s)), HostId(4)).unwrap();
                scheduler.remove(NOW + Duration::from_secs(24 * HOUR), VmKey(id)).unwrap();
            }
        };

        for said_s in [0, 1_000_000 * HOUR] {
            day(&mut scheduler, said_s);
            assert_eq!(scheduler.choose(NOW, &asked).unwrap().0, 3, "{rule:?} {said_s}: best fit");
            let scores = scheduler.score(NOW, &asked, 1).unwrap();
            let reason = &scores.hosts[0].verdicts[0].reason;
            assert!(reason.contains("far from when they were expected to"), "{reason}");
            (0..2).for_each(|_| day(&mut scheduler, 24 * HOUR));
            assert_eq!(scheduler.choose(NOW, &asked).unwrap(), told, "{rule:?} {said_s}");
        }
    }
}

/// Hosts of ten cores with one VM each, and one without.
fn scheduler(lifetimes: LifetimeRule, there: &[(u16, Option<u64>)]) -> Scheduler {
    let policy = Policy { lifetimes, ties: Ties::Id, ..Policy::BEST_FIT };
    let host = Host::new(ChassisId(0), gb(10, 0.0));
    let mut scheduler = policy.scheduler(Cluster::new(&vec![host; there.len() + 1]));
    for (id, (cores, lives_s)) in (0..).zip(there) {
        scheduler.put(NOW, &vm(id, *cores, *lives_s), HostId(id as u32)).unwrap();
    }
    scheduler
}

fn chosen(lifetimes: LifetimeRule, there: &[(u16, Option<u64>)], lives_s: Option<u64>) -> u32 {
    scheduler(lifetimes, there).choose(NOW, &vm(99, 1, lives_s)).unwrap().0
}

#[test]
fn nilas_takes_the_host_that_the_vm_outlives_least_and_of_these_the_fullest() {
    let there = [(8, Some(HOUR)), (2, Some(10 * HOUR)), (4, Some(12 * HOUR)), (9, Some(MINUTE))];
    let chosen = |lives_s| chosen(LifetimeRule::Nilas, &there, lives_s);
    // Those that outlive it are alike: best fit.
    assert_eq!(chosen(Some(9 * HOUR)), 2);
    // 0 and 3 are outlived by less than half an hour, too.
    assert_eq!(chosen(Some(20 * MINUTE)), 3);
    // 12 h is outlived by 13 h, 10 h by 15, which is one class; the others are outlived by a day.
    assert_eq!(chosen(Some(25 * HOUR)), 2, "no used host is worse than an empty one");
    assert_eq!(chosen(None), 3, "nobody knows: best fit");

    // An empty host is outlived by all of the VM's life.
    assert_eq!(self::chosen(LifetimeRule::Nilas, &[(10, Some(HOUR))], Some(HOUR)), 1);
    let reason = |host: usize| {
        let scores =
            scheduler(LifetimeRule::Nilas, &there).score(NOW, &vm(99, 1, Some(40 * MINUTE)), 9).unwrap();
        let host = scores.hosts.into_iter().find(|it| it.host.0 as usize == host).unwrap();
        host.verdicts[0].reason.clone()
    };
    assert_eq!(
        reason(1),
        "the host is expected to be free in 10.0 h; this VM lives 40 min; leaves 70.0 % of its cores, \
         0.0 % of its memory"
    );
    assert!(reason(4).starts_with("the host is empty; this VM lives 40 min; leaves 90.0 %"), "{}", reason(4));
}

#[test]
fn what_is_predicted_anew_moves_a_hosts_exit() {
    let mut scheduler = scheduler(LifetimeRule::Nilas, &[(2, Some(HOUR)), (2, Some(HOUR))]);
    let long = vm(99, 1, Some(30 * HOUR));
    assert_eq!(scheduler.choose(NOW, &long), Ok(HostId(0)));
    scheduler.change(NOW, &vm(1, 2, Some(40 * HOUR))).unwrap();
    assert_eq!(scheduler.choose(NOW, &long), Ok(HostId(1)));
    scheduler.remove(NOW, VmKey(1)).unwrap();
    assert_eq!(scheduler.choose(NOW, &long), Ok(HostId(0)));

    // Who has outlived its time is as good as gone.
    let later = NOW + Duration::from_secs(2 * HOUR);
    let vm = VmRequest { end: Some(ExpectedEnd::At(later + Duration::from_secs(MINUTE))), ..long };
    assert_eq!(scheduler.choose(later, &vm), Ok(HostId(0)), "one with a VM before an empty one");
    let worst = VmRequest { end: Some(ExpectedEnd::At(Instant::from_nanos(u64::MAX))), ..long };
    assert_eq!(scheduler.choose(later, &worst), Ok(HostId(0)));
    let over = VmRequest { end: Some(ExpectedEnd::At(NOW)), ..long };
    assert_eq!(scheduler.choose(later, &over), Ok(HostId(0)));
}

#[test]
fn expected_exit_weighs_extra_time_against_what_is_left_and_against_a_long_umbrella() {
    let chosen = |there: &[(u16, Option<u64>)], lives_s| chosen(LifetimeRule::ExpectedExit, there, lives_s);
    // Nothing is longer busy on either; the second keeps 20 % less.
    assert_eq!(chosen(&[(4, Some(10 * HOUR)), (6, Some(10 * HOUR))], Some(HOUR)), 1);
    // Two hours more outweigh that.
    assert_eq!(chosen(&[(4, Some(10 * HOUR)), (6, Some(8 * HOUR))], Some(10 * HOUR)), 0);
    // A host that is busy for long is kept for those that live long.
    assert_eq!(chosen(&[(4, Some(1000 * HOUR)), (4, Some(2 * HOUR))], Some(HOUR)), 1);
    // An empty host costs all of its life.
    assert_eq!(chosen(&[(1, Some(MINUTE))], Some(HOUR)), 0);
    assert_eq!(chosen(&[(4, Some(HOUR)), (6, Some(MINUTE))], None), 1, "nobody knows: best fit");
}

/// VMs that live a quarter of an hour, and VMs of which half live for a quarter of an hour and half for ever.
fn curves() -> Arc<Curves> {
    let ends_at = |last: f64| {
        SurvivalCurve::from_hazards(&std::array::from_fn::<_, BINS, _>(|bin| match bin {
            20 => last,
            _ => 0.0,
        }))
    };
    let mut curves = Curves::default();
    for last in [1.0, 0.5, 0.05] {
        curves.intern(ends_at(last));
    }
    Arc::new(curves)
}

const SHORT: CurveId = CurveId::new(0);
const MIXED: CurveId = CurveId::new(1);

fn curved(lifetimes: LifetimeRule, hosts: usize) -> Scheduler {
    let policy = Policy { lifetimes, ties: Ties::Id, ..Policy::BEST_FIT };
    let host = Host::new(ChassisId(0), gb(10, 0.0));
    policy.scheduler(Cluster::new(&vec![host; hosts]).with_curves(curves()))
}

fn with(id: u64, cores: u16, curve: CurveId) -> VmRequest {
    VmRequest { end: Some(ExpectedEnd::Curve(curve)), ..vm(id, cores, None) }
}

#[test]
fn a_vm_that_has_outlived_the_short_ones_counts_as_a_long_one() {
    for lifetimes in [LifetimeRule::Nilas, LifetimeRule::ExpectedExit] {
        let mut scheduler = curved(lifetimes, 3);
        // One that half lives for ever beside one that ends within the hour.
        scheduler.put(NOW, &with(1, 4, MIXED), HostId(0)).unwrap();
        scheduler.put(NOW, &with(2, 5, SHORT), HostId(1)).unwrap();
        let short = with(9, 1, SHORT);
        let long = VmRequest { end: Some(ExpectedEnd::At(NOW + Duration::from_secs(200 * HOUR))), ..short };
        assert_eq!(scheduler.choose(NOW, &long), Ok(HostId(0)), "{lifetimes:?}");
        assert_eq!(scheduler.choose(NOW, &short), Ok(HostId(1)), "{lifetimes:?}");

        // Two hours later, were the short one still there, nobody could say how long: it has outlived its curve.
        let later = NOW + Duration::from_secs(2 * HOUR);
        let mut wakes = 0;
        while let Some(due) = scheduler.poll_timeout().filter(|due| *due <= later) {
            scheduler.handle_timeout(due);
            wakes += 1;
        }
        assert!((5..300).contains(&wakes), "{lifetimes:?}: {wakes}");
        let scores = scheduler.score(later, &short, 3).unwrap();
        let of = |host: u32| &scores.hosts.iter().find(|it| it.host.0 == host).unwrap().verdicts[0].reason;
        assert!(of(0).contains("14.0 days"), "{lifetimes:?}: {}", of(0));
    }
}

#[test]
fn new_curves_change_what_is_known_of_those_that_are_there() {
    let mut scheduler = curved(LifetimeRule::Nilas, 2);
    scheduler.put(NOW, &with(1, 4, MIXED), HostId(0)).unwrap();
    let policy = Policy { lifetimes: LifetimeRule::Nilas, ..Policy::BEST_FIT };
    let shorter = |resident: &ballast_placement::Resident| {
        assert_eq!((resident.vm.id, resident.since), (VmKey(1), NOW));
        Some(ExpectedEnd::Curve(SHORT))
    };
    scheduler.set_curves(curves(), shorter, |cluster| policy.rules(cluster));
    assert_eq!(scheduler.cluster().resident(VmKey(1)).unwrap().vm.end, Some(ExpectedEnd::Curve(SHORT)));
    let reason = &scheduler.score(NOW, &with(9, 1, SHORT), 1).unwrap().hosts[0].verdicts[0].reason;
    assert!(reason.contains("free in 19 min"), "{reason}");
}

/// One thing that happens to a cluster.
#[derive(Clone, Debug)]
enum LifetimeStep {
    Place { cores: u16, kb: u32, end: (u8, u32) },
    Remove(usize),
    Advance { seconds: u32 },
}

fn lives() -> impl Strategy<Value = Vec<LifetimeStep>> {
    let place = (1..5u16, 0..9_000_000u32, (0..6u8, 0..2_000_000u32))
        .prop_map(|(cores, kb, end)| LifetimeStep::Place { cores, kb, end });
    let remove = (0..99usize).prop_map(LifetimeStep::Remove);
    let pass = (0..90_000u32).prop_map(|seconds| LifetimeStep::Advance { seconds });
    proptest::collection::vec(prop_oneof![5 => place, 2 => remove, 2 => pass], 1..60)
}

proptest! {
    /// What is searched in order is what a scan of all hosts finds, whatever is known of the ends of VMs.
    #[test]
    fn a_search_by_lifetimes_finds_what_a_scan_finds(
        steps in lives(),
        lifetimes in prop_oneof![
            Just(LifetimeRule::Nilas), Just(LifetimeRule::ExpectedExit),
        ],
        has_curves: bool,
        power in 0..2u32,
    ) {
        let policy = Policy { lifetimes, power, ..Policy::BEST_FIT };
        let host = |n: u16| Host::new(ChassisId(u32::from(n) / 3), gb(8 + 4 * (n % 2), 16.0));
        let cluster = Cluster::new(&(0..7).map(host).collect::<Vec<_>>());
        let cluster = if has_curves { cluster.with_curves(curves()) } else { cluster };
        let mut scheduler = policy.scheduler(cluster);
        let (mut now, mut there) = (NOW, Vec::new());
        for (id, step) in (0..).zip(steps) {
            match step {
                LifetimeStep::Place { cores, kb, end: (kind, after_s) } => {
                    let end = match kind {
                        0 => None,
                        1..=3 if has_curves => Some(ExpectedEnd::Curve(CurveId::new(u32::from(kind) - 1))),
                        _ => Some(ExpectedEnd::At(now + Duration::from_secs(u64::from(after_s)))),
                    };
                    let asked = VmRequest { end, ..vm(id, cores, None) };
                    let asked = VmRequest {
                        resources: gb(cores, f64::from(kb) / 1e6),
                        ..asked
                    };
                    let scanned = scheduler.score(now, &asked, 1).unwrap().hosts.first().map(|it| it.host);
                    prop_assert_eq!(scheduler.choose(now, &asked).ok(), scanned, "{:?}", asked);
                    if scheduler.place(now, &asked).is_ok() {
                        there.push(asked.id);
                    }
                }
                LifetimeStep::Remove(n) if !there.is_empty() => {
                    scheduler.remove(now, there.swap_remove(n % there.len())).unwrap();
                }
                LifetimeStep::Remove(_) => {}
                LifetimeStep::Advance { seconds } => {
                    let until = now + Duration::from_secs(u64::from(seconds));
                    while let Some(due) = scheduler.poll_timeout().filter(|due| *due <= until) {
                        now = now.max(due);
                        scheduler.handle_timeout(now);
                    }
                    now = until;
                }
            }
        }
    }
}
