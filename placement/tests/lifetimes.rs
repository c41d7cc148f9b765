//! Rules that look at when VMs end.

use std::time::Duration;

use ballast_placement::{
    ChassisId, Cluster, ExpectedEnd, Host, HostId, LifetimeRule, Policy, Scheduler, Ties, VmKey, VmRequest,
};
use ballast_types::Instant;

use crate::{NOW, gb};

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

fn vm(id: u64, cores: u16, lives_s: Option<u64>) -> VmRequest {
    let end = lives_s.map(|s| ExpectedEnd::At(NOW + Duration::from_secs(s)));
    VmRequest { end, ..VmRequest::new(VmKey(id), gb(cores, 0.0)) }
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
    assert_eq!(reason(1), "the host is expected to be free in 10.0 h; this VM lives 40 min");
    assert_eq!(reason(4), "the host is empty; this VM lives 40 min");
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
fn la_binary_keeps_long_and_short_apart() {
    let there = [(2, Some(HOUR)), (4, Some(5 * HOUR)), (8, Some(90 * MINUTE))];
    let chosen = |lives_s| chosen(LifetimeRule::LaBinary, &there, lives_s);
    assert_eq!(chosen(Some(HOUR)), 2);
    assert_eq!(chosen(Some(2 * HOUR)), 1);
    assert_eq!(chosen(None), 2);
    // The other class before an empty host.
    assert_eq!(self::chosen(LifetimeRule::LaBinary, &there[..1], Some(9 * HOUR)), 0);
    assert_eq!(self::chosen(LifetimeRule::LaBinary, &[(10, Some(HOUR))], Some(9 * HOUR)), 1);
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
