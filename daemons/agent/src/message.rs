//! What arrives at the agent's control thread.

use ballast_agent_core::Input;
use ballast_types::wire::{Alert, Refusal, Report};
use tokio::sync::oneshot;

/// What arrives at the control thread.
pub(crate) enum Message {
    /// An alert of the chassis, and who waits for its answer.
    Alert(Alert, oneshot::Sender<Result<Report, Refusal>>),
    Input(Input),
    Stop,
}
