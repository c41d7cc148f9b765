//! The promise about CPU, on hosts whose VMs have twice the cores.

use std::sync::Arc;

use ballast_types::VmClass;
use proptest::prelude::*;

use super::*;
use crate::measured::{CpuUse, Measured};
use crate::{
    ChassisId, Host, HostId, MemoryKb, MilliCores, Policy, Resources, Scheduler, TenantId, VmKey, VmRequest,
};

const NOW: Instant = Instant::ZERO;
const HOST: HostId = HostId(0);

/// One host of eight cores that has room for sixteen, under a promise of 1 %.
fn scheduler() -> Scheduler {
    let mut host = Host::new(ChassisId(0), size(8));
    host.room = size(16);
    Policy { cpu_target_ppm: Some(10_000), ..Policy::POWER }.scheduler(Cluster::new(&[host]))
}

fn size(cores: u16) -> Resources {
    Resources::new(MilliCores::from_cores(cores), MemoryKb::ZERO)
}

fn vm(id: u64, tenant: u64) -> VmRequest {
    VmRequest { tenant: Some(TenantId(tenant)), ..VmRequest::new(VmKey(id), size(2)) }
}

/// A VM of two cores that uses these for so many seconds each.
fn usage(uses: &[(f64, u64)]) -> Arc<CpuUse> {
    Arc::new(CpuUse::new(2.0, uses).unwrap())
}

fn measure(
    scheduler: &mut Scheduler,
    vms: impl IntoIterator<Item = (u64, Arc<CpuUse>)>,
    closed: Option<f64>,
) {
    let vms = vms.into_iter().map(|(id, usage)| (VmKey(id), usage)).collect();
    scheduler.measure(NOW, HOST, &Measured { vms, closed, allowed: None }).unwrap();
}

fn risk(scheduler: &Scheduler) -> f64 {
    scheduler.risk(None, HOST).unwrap().unwrap()
}

#[test]
fn vms_that_were_not_measured_count_with_all_their_cores() {
    let mut scheduler = scheduler();
    for id in 0..4 {
        scheduler.place(NOW, &vm(id, 0)).unwrap();
    }
    assert!(scheduler.place(NOW, &vm(4, 0)).is_err());
    let why = scheduler.refusals(NOW, &vm(4, 0), HOST).unwrap();
    let [("cpu-promise", why)] = &why[..] else { panic!("{why:?}") };
    assert!(why.contains("more than its 8 cores for 100.00 % of the time, 1 % is allowed"), "{why}");
    assert!(why.contains("taken for all its cores, of those there 4 were not measured"), "{why}");

    // A tenth of a core each, and rarely all: the newcomer alone is taken for two cores.
    let calm = usage(&[(0.1, 9900), (2.0, 100)]);
    measure(&mut scheduler, (0..4).map(|id| (id, Arc::clone(&calm))), None);
    for id in 4..6 {
        scheduler.place(NOW, &vm(id, 0)).unwrap();
    }
    assert!(scheduler.place(NOW, &vm(6, 0)).is_err());

    // With five of its tenant it is taken for them, and another tenant's is not.
    measure(&mut scheduler, (0..6).map(|id| (id, Arc::clone(&calm))), None);
    assert!(scheduler.place(NOW, &vm(6, 0)).is_ok());
    scheduler.remove(NOW, VmKey(6)).unwrap();
    let said = |tenant| scheduler.explain(NOW, &vm(6, tenant), HOST).unwrap().pop().unwrap().reason;
    assert!(said(0).contains("taken for its subscription's others"), "{}", said(0));
    assert!(said(1).contains("taken for all its cores"), "{}", said(1));

    // What is too old counts no more: nobody comes, and those that are there stay.
    measure(&mut scheduler, [], None);
    assert!(scheduler.place(NOW, &vm(8, 0)).is_err());
    assert_eq!((risk(&scheduler), scheduler.cluster().vms(HOST)), (1.0, 6));
}

#[test]
fn in_pools_only_user_facing_vms_are_promised_their_pool() {
    let mut host = Host::new(ChassisId(0), size(8));
    host.room = size(32);
    let policy = Policy { cpu_target_ppm: Some(10_000), cpu_pools: true, ..Policy::POWER };
    let mut scheduler = policy.scheduler(Cluster::new(&[host]));
    let of = |id, class| VmRequest { class, ..vm(id, 0) };
    let (web, batch) = (|id| of(id, VmClass::UserFacing), |id| of(id, VmClass::NonUserFacing));

    // Batch alone is promised nothing, however much there is.
    for id in 0..8 {
        scheduler.place(NOW, &batch(id)).unwrap();
    }
    assert_eq!(risk(&scheduler), 0.0);

    // One of two cores among sixteen others has a pool of 0.9 cores, and is taken for two.
    let why = scheduler.refusals(NOW, &web(8), HOST).unwrap();
    let [("cpu-promise", why)] = &why[..] else { panic!("{why:?}") };
    assert!(
        why.contains("user-facing VMs would demand more than their pool of 0.9 cores for 100.00 %"),
        "{why}"
    );

    // Six that use a quarter of a core each fit a pool of 8 × 12 / 28 cores, and twice as much does not.
    for (used, fits) in [(0.25, true), (1.0, false)] {
        let calm = usage(&[(used, 1)]);
        let mut scheduler = policy.scheduler(Cluster::new(&[host]));
        measure(&mut scheduler, (8..14).map(|id| (id, Arc::clone(&calm))), None);
        let all = (0..8).map(batch).chain((8..14).map(web));
        for vm in all {
            // Those that are there already stay.
            scheduler.observe(NOW, &vm, HOST).unwrap();
        }
        measure(&mut scheduler, (8..14).map(|id| (id, Arc::clone(&calm))), None);
        assert_eq!(risk(&scheduler) < 0.01, fits, "{used}: {}", risk(&scheduler));
    }
}

#[test]
fn a_vm_that_is_larger_than_an_empty_host_is_a_risk() {
    let scheduler = scheduler();
    let large = VmRequest::new(VmKey(0), size(9));
    assert_eq!(scheduler.risk(Some(&large), HOST).unwrap(), Some(1.0));
    assert!(scheduler.choose(NOW, &large).is_err());
    assert!(scheduler.choose(NOW, &VmRequest::new(VmKey(0), size(8))).is_ok());
}

#[test]
fn a_closed_host_takes_nobody_even_where_there_is_no_risk() {
    let mut scheduler = scheduler();
    measure(&mut scheduler, [], Some(0.03));
    let why = scheduler.refusals(NOW, &vm(0, 0), HOST).unwrap();
    assert!(why[0].1.contains("all its cores for 3.00 % of the time, twice in a row"), "{why:?}");
    assert!(scheduler.place(NOW, &vm(0, 0)).is_err());
    measure(&mut scheduler, [], None);
    assert!(scheduler.place(NOW, &vm(0, 0)).is_ok());
}

#[test]
fn what_is_allowed_may_be_another_risk_than_what_is_promised() {
    let mut scheduler = scheduler();
    let half = usage(&[(0.1, 9950), (2.0, 50)]);
    for id in 0..4 {
        scheduler.place(NOW, &vm(id, 0)).unwrap();
    }
    let mut refused = |allowed| {
        let vms = (0..4).map(|id| (VmKey(id), Arc::clone(&half))).collect();
        scheduler.measure(NOW, HOST, &Measured { vms, closed: None, allowed }).unwrap();
        scheduler.refusals(NOW, &vm(4, 0), HOST).unwrap().pop().map(|(_, why)| why)
    };
    assert_eq!(refused(None), None);
    let why = refused(Some(1e-7)).unwrap();
    assert!(
        why.contains("0.00001 % is allowed: hosts of which that was said were measured to keep 1 %"),
        "{why}"
    );
    assert_eq!(refused(Some(0.02)), None);
}

#[test]
fn what_cannot_be_is_not_measured() {
    for (cores, uses) in [
        (2.0, &[][..]),
        (2.0, &[(1.0, 0)]),
        (0.0, &[(1.0, 1)]),
        (2.0, &[(f64::NAN, 1)]),
        (2.0, &[(-1.0, 1)]),
        (2.0, &[(f64::INFINITY, 1)]),
    ] {
        assert_eq!(CpuUse::new(cores, uses), None, "{uses:?}");
    }
}

proptest! {
    /// However VMs come, go and are measured: the host stands as if it had been made anew with those that are there.
    #[test]
    fn the_load_is_that_of_the_vms_that_are_there(
        steps in proptest::collection::vec((0..8u64, 0..3u8, 0..20u32), 1..40),
    ) {
        let mut scheduler = scheduler();
        let mut known: BTreeMap<u64, Arc<CpuUse>> = BTreeMap::new();
        for (id, what, tenths) in steps {
            let there = scheduler.cluster().resident(VmKey(id)).is_some();
            match (what, there) {
                (0, false) => {
                    scheduler.observe(NOW, &vm(id, id % 2), HOST).unwrap();
                }
                (1, true) => {
                    scheduler.remove(NOW, VmKey(id)).unwrap();
                    known.remove(&id);
                }
                (2, true) => {
                    known.insert(id, usage(&[(f64::from(tenths) / 10.0, 9), (0.0, 90)]));
                    measure(&mut scheduler, known.clone(), None);
                }
                _ => {}
            }
        }
        let mut fresh = self::scheduler();
        for resident in scheduler.cluster().all() {
            fresh.observe(NOW, &resident.vm, HOST).unwrap();
        }
        measure(&mut fresh, known.clone(), None);
        measure(&mut scheduler, known, None);
        prop_assert!((risk(&fresh) - risk(&scheduler)).abs() < 1e-5);
        prop_assert!(risk(&scheduler) <= 1.0);
    }
}
