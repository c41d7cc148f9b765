//! Room that is held on a host for a VM that moves there.

use ballast_types::Instant;

use crate::{HostId, VmRequest};

/// Room on a host for a VM that still runs on another host and uses room there, too. All sums count it as if the VM ran
/// here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// The VM that moves.
    pub vm: VmRequest,
    /// The host with the room.
    pub host: HostId,
    /// When the room was held.
    pub since: Instant,
}
