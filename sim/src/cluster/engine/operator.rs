//! Who acts on a cluster while it runs.

use ballast_placement::{Cluster, Scheduler, VmKey};

use super::error::EngineError;

/// Drains, opens and resizes hosts, moves VMs, changes the policy.
pub trait Operator {
    /// When it has something to do next, whether or not anything else happens then.
    fn next_ms(&self) -> Option<u64>;

    /// A VM has ended: it is no longer in the cluster.
    fn ended(&mut self, at_ms: u64, vm: VmKey);

    /// Does what is due, once VMs have left and before others come; where `freed` says so, some have left at this instant.
    /// `phase` is to be called where one phase of the run ends and the next begins.
    fn act(
        &mut self,
        at_ms: u64,
        freed: bool,
        scheduler: &mut Scheduler,
        phase: &mut dyn FnMut(&Cluster),
    ) -> Result<(), EngineError>;
}

impl Operator for () {
    fn next_ms(&self) -> Option<u64> {
        None
    }

    fn ended(&mut self, _: u64, _: VmKey) {}

    fn act(
        &mut self,
        _: u64,
        _: bool,
        _: &mut Scheduler,
        _: &mut dyn FnMut(&Cluster),
    ) -> Result<(), EngineError> {
        Ok(())
    }
}
