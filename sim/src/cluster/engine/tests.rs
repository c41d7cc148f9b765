use ballast_placement::{ChassisId, Cluster, Host, MemoryKb, MilliCores, Policy};

use super::*;

/// One VM a second for ever, each with its life.
struct Steady {
    next: u64,
    lifetimes_s: &'static [u64],
}

impl Source for Steady {
    fn name(&self) -> &str {
        "steady"
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        let lifetime_s = self.lifetimes_s[self.next as usize % self.lifetimes_s.len()];
        let size = Resources::new(MilliCores::from_cores(1), MemoryKb::ZERO);
        let request = VmRequest::new(VmKey(self.next), size);
        group.clear();
        group.push(RequestedVm { request, lifetime_ms: Some(1000 * lifetime_s), index: self.next });
        self.next += 1;
        Ok(Some(1000 * self.next))
    }
}

#[test]
fn what_is_held_is_that_of_the_vms_that_live() {
    let capacity = Resources::new(MilliCores::from_cores(40), MemoryKb::ZERO);
    let hosts = vec![Host::new(ChassisId(0), capacity); 20];
    let mut scheduler = Policy::BEST_FIT.scheduler(Cluster::new(&hosts));
    let mut nobody = ();
    let mut engine = Engine::new(&mut scheduler, &mut nobody, &mut [], Batches::Split);
    let mut source = Steady { next: 0, lifetimes_s: &[300, 900, 10, 300, 600] };
    let mut group = Vec::new();

    // Every fifth of five VMs lives on average for 422 s: so many are there, however many have come.
    let mut most = 0;
    while source.next < 20_000 {
        let at_ms = source.next_group(&mut group).unwrap().unwrap();
        engine.advance(at_ms).unwrap();
        engine.decide(at_ms, &group).unwrap();
        assert_eq!(engine.leaving.len(), engine.scheduler.cluster().residents());
        most = most.max(engine.leaving.len());
    }
    assert_eq!((group.len(), most), (1, 422));
}
