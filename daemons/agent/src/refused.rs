//! What the controller hears of an action that the kernel or systemd refuses.

use ballast_agent_core::ActuatorError;
use ballast_hw::HwError;

/// Logs the reason, and says whether it is worth another try.
pub(super) fn refused(error: &HwError) -> ActuatorError {
    tracing::warn!(%error, "an action was refused");
    if error.is_transient() { ActuatorError::Transient } else { ActuatorError::Permanent }
}
