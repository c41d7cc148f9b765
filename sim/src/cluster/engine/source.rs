//! Where VMs come from.

use ballast_placement::VmRequest;

use super::error::EngineError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestedVm {
    pub request: VmRequest,
    /// How long it lives; `None` where it never leaves.
    pub lifetime_ms: Option<u64>,
    /// Where it stands in its source: the line of a file, the number in a list.
    pub index: u64,
}

/// VMs in the order of time. What a source holds does not grow with how many it yields.
pub trait Source {
    fn name(&self) -> &str;

    /// Puts the VMs that are asked for next into `group`, in place of what it holds, and says at which instant, in
    /// milliseconds: never earlier than the one before. `None` is the end. With no VM at all only time goes on.
    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError>;
}
