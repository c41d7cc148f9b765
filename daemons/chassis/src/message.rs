//! What arrives at the manager's control thread.

use ballast_chassis_core::Input;

/// What arrives at the control thread.
pub(crate) enum Message {
    Input(Input),
    Stop,
}
