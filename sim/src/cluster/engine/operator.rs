//! Who acts on a cluster while it runs.

use ballast_placement::{Cluster, Scheduler, VmKey};

use super::error::EngineError;

/// Drains, opens and resizes hosts, moves VMs, changes the policy. By itself it does nothing.
pub trait Operator {
    /// When it has something to do next, whether or not anything else happens then.
    fn next_ms(&self) -> Option<u64> {
        None
    }

    /// A VM has ended: it is no longer in the cluster.
    fn ended(&mut self, _at_ms: u64, _vm: VmKey) {}

    /// Does what is due, once VMs have left and before others come; where `freed` says so, some have left at this instant.
    /// `phase` is to be called where one phase of the run ends and the next begins.
    fn act(
        &mut self,
        _at_ms: u64,
        _freed: bool,
        _scheduler: &mut Scheduler,
        _phase: &mut dyn FnMut(&Cluster),
    ) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Operator for () {}
