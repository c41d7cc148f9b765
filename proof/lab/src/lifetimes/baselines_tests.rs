//! Rules of papers that no daemon offers.

use core::time::Duration;

use ballast_placement::{
    ChassisId, Cluster, ExpectedEnd, Host, HostId, MemoryKb, MilliCores, Policy, Resources, Rule, Scheduler,
    Ties, VmKey, VmRequest,
};
use ballast_types::Instant;

use super::la_binary::LaBinary;
use super::lava::{Lava, LavaReading};
use super::trial::before_best_fit;

const HOUR: u64 = 3600;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn cores(cores: u16) -> Resources {
    Resources::new(MilliCores::from_cores(cores), MemoryKb::default())
}

fn vm(id: u64, asked: u16, lives_s: Option<u64>) -> VmRequest {
    let end = lives_s.map(|s| ExpectedEnd::At(NOW + Duration::from_secs(s)));
    VmRequest { end, ..VmRequest::new(VmKey(id), cores(asked)) }
}

/// Hosts of ten cores with one VM each, and one without.
fn scheduler(rule: impl Fn(&Cluster) -> Box<dyn Rule>, placed: &[(u16, u64)]) -> Scheduler {
    let cluster = Cluster::new(&vec![Host::new(ChassisId(0), cores(10)); placed.len() + 1]);
    let (fits, _) = Policy::BEST_FIT.rules(&cluster);
    let ranking = before_best_fit(&cluster, rule(&cluster), Ties::Id);
    let mut scheduler = Scheduler::new(cluster, fits, ranking);
    for (id, (cores, lives_s)) in (0..).zip(placed) {
        scheduler.put(NOW, &vm(id, *cores, Some(*lives_s)), HostId(id as u32)).unwrap();
    }
    scheduler
}

#[test]
fn la_binary_keeps_long_and_short_apart() {
    let placed = [(2, HOUR), (4, 5 * HOUR), (8, HOUR + HOUR / 2)];
    assert_eq!(la_binary_host(&placed, Some(HOUR)), 2);
    assert_eq!(la_binary_host(&placed, Some(2 * HOUR)), 1);
    assert_eq!(la_binary_host(&placed, None), 2);
    // The other class before an empty host.
    assert_eq!(la_binary_host(&placed[..1], Some(9 * HOUR)), 0);
    assert_eq!(la_binary_host(&[(10, HOUR)], Some(9 * HOUR)), 1);
}

fn la_binary_host(placed: &[(u16, u64)], lives_s: Option<u64>) -> u32 {
    let scheduler = scheduler(|cluster| Box::new(LaBinary::new(cluster, Ties::Id)), placed);
    scheduler.choose(NOW, &vm(99, 1, lives_s)).unwrap().0
}

fn host_at(scheduler: &Scheduler, at: Instant, cores: u16, lives_s: u64) -> u32 {
    let end = Some(ExpectedEnd::At(at + Duration::from_secs(lives_s)));
    scheduler.choose(at, &VmRequest { end, ..vm(99, cores, None) }).unwrap().0
}

/// Why host 3 has its score for a short VM.
fn reason_of_host_3(scheduler: &Scheduler, at: Instant) -> String {
    let scores = scheduler.score(at, &vm(99, 1, Some(HOUR / 2)), 9).unwrap();
    scores.hosts.iter().find(|score| score.host.0 == 3).unwrap().verdicts[0].reason.to_string()
}

#[test]
fn lava_fills_recycled_hosts_with_shorter_lives() {
    // Open: 0 up to an hour, 1 up to ten, 2 up to a hundred. 3 has been full with long lives, and 4 with longer ones.
    let full = [(2, HOUR / 2), (5, 5 * HOUR), (2, 50 * HOUR), (10, 50 * HOUR), (10, 500 * HOUR)];
    let mut scheduler =
        scheduler(|cluster| Box::new(Lava::new(cluster, Ties::Id, LavaReading::ClosestFirst)), &full);
    for (id, host) in [(3, 3), (4, 4)] {
        let less = vm(id, 9, Some(full[host].1));
        scheduler.change(NOW, &less).unwrap();
    }
    assert_eq!(host_at(&scheduler, NOW, 1, 3 * HOUR), 3, "recycled, and the class closest above");
    assert_eq!(host_at(&scheduler, NOW, 2, 3 * HOUR), 1, "open, of its class");
    assert_eq!(host_at(&scheduler, NOW, 2, 40 * HOUR), 2);
    assert_eq!(host_at(&scheduler, NOW, 8, 500 * HOUR), 0, "any with VMs before an empty one");
    assert_eq!(host_at(&scheduler, NOW, 9, HOUR / 2), 5);

    // A short one on the recycled host, and then the long one has gone: the host now is of the short one's class.
    let short = vm(50, 1, Some(5 * HOUR));
    scheduler.put(NOW, &short, HostId(3)).unwrap();
    scheduler.remove(NOW, VmKey(3)).unwrap();
    let reason = reason_of_host_3(&scheduler, NOW);
    assert!(reason.starts_with("its class goes up to 10 h, and it takes VMs of shorter lives"), "{reason}");
    // Once it outlives that by a tenth, it is of the next class again.
    let later = NOW + Duration::from_secs(11 * HOUR);
    assert!(scheduler.poll_timeout().is_some_and(|due| due <= later));
    scheduler.handle_timeout(later);
    let reason = reason_of_host_3(&scheduler, later);
    assert!(reason.starts_with("its class goes up to 100 h"), "{reason}");
}
