//! Ties a process to its parent, so that nothing is left running whatever happens to that one.

use anyhow::{Context, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// Asks the kernel for a SIGTERM when process `parent`, which started us, ends.
pub(crate) fn tie(parent: i32) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGTERM).context("prctl(PR_SET_PDEATHSIG)")?;
    // It may have ended before that call.
    if getppid().as_raw() != parent {
        bail!("the parent process {parent} has ended");
    }
    Ok(())
}
