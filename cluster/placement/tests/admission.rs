//! Who is taken on, and what a change of policy keeps.

use ballast_placement::{
    Admission, AdmissionRequest, ChassisId, Cluster, DeploymentId, Event, Host, HostId, HostState, Policy,
    Reserve, Scheduler, Ties, Totals, VmKey, VmRequest,
};
use ballast_types::Instant;

use crate::{NOW, gb};

fn vm(id: u64, cores: u16, memory: f64) -> VmRequest {
    VmRequest::new(VmKey(id), gb(cores, memory))
}

/// Two hosts of 10 cores and 40 GB.
fn scheduler(policy: Policy) -> Scheduler {
    let host = Host::new(ChassisId(0), gb(10, 40.0));
    policy.scheduler(Cluster::new(&[host, host]))
}

#[test]
fn a_reserve_is_kept_from_new_deployments_and_given_to_those_that_run() {
    let mut scheduler = scheduler(Policy { ties: Ties::Id, ..Policy::POWER });
    scheduler.add_admission(Box::new(Reserve::new(0.25).unwrap()));
    let new = |s: &Scheduler, vms: &[VmRequest]| {
        s.admit(NOW, &AdmissionRequest::Deployment(vms)).map_err(|refused| refused.to_string())
    };

    // 15 of 20 cores and 60 of 80 GB may go: together, not each.
    assert_eq!(new(&scheduler, &[vm(1, 10, 30.0), vm(2, 5, 30.0)]), Ok(()));
    assert_eq!(
        new(&scheduler, &[vm(1, 10, 1.0), vm(2, 6, 1.0)]),
        Err("reserve: 16 cores requested, 20 free, of which 5 are kept".to_owned())
    );

    assert_eq!(
        new(&scheduler, &[vm(1, 1, 40.0), vm(2, 1, 20.5)]),
        Err("reserve: 60.5 GB requested, 80 free, of which 20 are kept".to_owned())
    );

    scheduler.place(NOW, &vm(1, 8, 8.0)).unwrap();
    assert!(new(&scheduler, &[vm(2, 7, 1.0)]).is_ok() && new(&scheduler, &[vm(2, 8, 1.0)]).is_err());

    // What is cordoned is not free.
    scheduler.set_state(HostId(1), HostState::Cordoned).unwrap();
    assert!(new(&scheduler, &[vm(2, 1, 1.0)]).is_err());
    let more = [vm(2, 10, 1.0)];
    assert_eq!(scheduler.admit(NOW, &AdmissionRequest::ScaleOut(DeploymentId(7), &more)), Ok(()));
}

#[test]
fn nothing_is_kept_at_0_and_everything_at_1() {
    let one = [vm(1, 1, 0.0)];
    for (share, admitted) in [(0.0, true), (1.0, false)] {
        let mut scheduler = scheduler(Policy { ties: Ties::Id, ..Policy::POWER });
        scheduler.add_admission(Box::new(Reserve::new(share).unwrap()));
        assert_eq!(scheduler.admit(NOW, &AdmissionRequest::Deployment(&one)).is_ok(), admitted);
    }

    // Not more than there is, whatever is kept; and a small share is kept, too.
    let scheduler = scheduler(Policy { ties: Ties::Id, ..Policy::POWER });
    let all = scheduler.cluster().open();
    let more = Totals { memory_kb: all.memory_kb + 1, ..all };
    for (share, requested, holds) in [(0.0, all, true), (0.0, more, false), (1e-4, all, false)] {
        let reserve = Reserve::new(share).unwrap();
        let told = reserve.holds(scheduler.cluster(), requested, Totals::default());
        assert_eq!(told.is_ok(), holds, "{share}: {told:?}");
    }
    for bad in [f64::NAN, -0.1, 1.1] {
        assert_eq!(Reserve::new(bad), None, "{bad}");
    }
}

/// Refuses all but the first VM, and wants to be woken.
#[derive(Debug, Default)]
struct One {
    placed: u32,
    woken: bool,
}

impl Admission for One {
    fn name(&self) -> &'static str {
        "one"
    }
    fn decide(&self, _: &Cluster, wanted: &AdmissionRequest<'_>, _: Instant) -> Result<(), String> {
        let all = self.placed as usize + wanted.vms().len();
        if all > 1 { Err(format!("{all} VMs")) } else { Ok(()) }
    }
    fn handle_event(&mut self, _: Instant, _: &Cluster, event: &Event<'_>) {
        match event {
            Event::Placed { .. } => self.placed += 1,
            Event::Ended { .. } => self.placed -= 1,
            Event::Deadline => self.woken = true,
            _ => {}
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        (!self.woken).then_some(Instant::from_millis(5))
    }
}

#[test]
fn admissions_learn_of_all_that_happens_and_the_first_that_refuses_is_named() {
    let mut scheduler = scheduler(Policy { ties: Ties::Id, ..Policy::POWER });
    scheduler.place(NOW, &vm(1, 1, 1.0)).unwrap();
    // It learns of who is there.
    scheduler.add_admission(Box::new(One::default()));
    scheduler.add_admission(Box::new(Reserve::new(1.0).unwrap()));
    let request = [vm(2, 1, 1.0)];
    let refused = |s: &Scheduler| s.admit(NOW, &AdmissionRequest::Deployment(&request)).unwrap_err().by;
    assert_eq!(refused(&scheduler), "one");
    scheduler.remove(NOW, VmKey(1)).unwrap();
    assert_eq!(refused(&scheduler), "reserve");
    assert_eq!(scheduler.poll_timeout(), Some(Instant::from_millis(5)));
    scheduler.handle_timeout(Instant::from_millis(5));
    assert_eq!(scheduler.poll_timeout(), None);
}

#[test]
fn a_new_policy_goes_on_with_the_vms_that_are_there() {
    let first_fit = Policy { ties: Ties::Id, ..Policy::FIRST_FIT };
    let mut scheduler = scheduler(first_fit);
    scheduler.add_admission(Box::new(One::default()));
    let spread = |id| VmRequest { deployment: Some(DeploymentId(3)), spread: true, ..vm(id, 1, 1.0) };
    scheduler.put(NOW, &spread(1), HostId(0)).unwrap();
    scheduler.put(NOW, &vm(2, 5, 20.0), HostId(1)).unwrap();
    assert_eq!(scheduler.choose(NOW, &vm(3, 1, 1.0)), Ok(HostId(0)));
    let best_fit = Policy { best_fit: 1, ..first_fit };
    let (fits, ranking) = best_fit.rules(scheduler.cluster());
    scheduler.set_policy(fits, ranking);

    // The fuller host now; the constraint knows who of the deployment is where; and the admission has counted on.
    assert_eq!(scheduler.choose(NOW, &vm(3, 1, 1.0)), Ok(HostId(1)));
    assert_eq!(scheduler.choose(NOW, &spread(3)), Ok(HostId(1)));
    scheduler.remove(NOW, VmKey(2)).unwrap();
    assert_eq!(scheduler.choose(NOW, &vm(3, 1, 1.0)), Ok(HostId(0)));
    assert_eq!(scheduler.choose(NOW, &spread(3)), Ok(HostId(1)));
    assert_eq!(
        scheduler.admit(NOW, &AdmissionRequest::Deployment(&[vm(3, 1, 1.0)])).unwrap_err().why,
        "2 VMs"
    );
}
