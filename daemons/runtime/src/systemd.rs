//! What a daemon tells systemd.

use sd_notify::NotifyState;

/// Tells systemd, if it is there. A daemon without systemd runs on.
pub(crate) fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd was not told");
    }
}
