//! What capping did to one VM, as far as it can be told from outside: how long, and how hard.
//!
//! Source: the paper's Section V, "Metrics to measure impact".

use serde::{Deserialize, Serialize};

use crate::{Instant, KiloHertz, VmId, Watts};

/// How long and how hard a VM was capped. Counted by the agent's own orders, since the VM joined its
/// set; a restart of the agent starts anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct VmImpact {
    /// Core-milliseconds in which its cores were capped.
    pub throttled_core_ms: u64,
    /// Core-milliseconds lost by that: the integral of `1 − f / f_max` over its cores.
    pub lost_core_ms: u64,
    /// Core-milliseconds in which its cores were at their floor.
    pub floor_core_ms: u64,
    /// How often it went from no capped core to some.
    pub throttled_periods: u64,
    /// The longest such period, the present one included.
    pub longest_throttled_ms: u64,
    /// The lowest frequency that any of its cores was capped to; `null` if none ever was.
    pub lowest_khz: Option<KiloHertz>,
    /// Core-milliseconds under the server's own hardware limit, which hits every core.
    pub limited_core_ms: u64,
}

/// One VM that the agent has killed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmKill {
    /// The VM that this is about.
    pub vm: VmId,
    /// When it was decided, from boot.
    pub at_ns: Instant,
    /// The draw that made it necessary.
    pub power_w: Watts,
    /// The cap at that time.
    pub cap_w: Watts,
}
