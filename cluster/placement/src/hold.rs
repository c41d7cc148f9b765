//! Room that is held on a host for a VM on its way there.

use ballast_types::Instant;

use crate::{HostId, VmRequest};

/// Room on a host for a VM that is still elsewhere, and takes its room there too. It counts in all sums as if the VM were
/// there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// What is to come.
    pub vm: VmRequest,
    /// Where the room is.
    pub host: HostId,
    /// The room is held from then on.
    pub since: Instant,
}
