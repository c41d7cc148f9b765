//! The control thread before all others, and its memory never on disk.
//!
//! The thread asks for itself: systemd's `CPUSchedulingPolicy=` would give the whole process the priority,
//! HTTP and recorder too. The unit only allows it, by `LimitRTPRIO=` and `LimitMEMLOCK=`; no capability is
//! needed. Priority 10 is above every normal thread, and below the kernel's own (50).
//!
//! Pages are locked as they are touched (`MCL_ONFAULT`): stacks that are never used cost nothing.

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// `SCHED_FIFO` priority of a control thread.
const PRIORITY: u8 = 10;

/// Takes this thread before all normal ones, and locks the memory of the process. What is refused is
/// logged, and goes without.
pub(crate) fn enter() {
    let flags = MlockAllFlags::MCL_CURRENT
        | MlockAllFlags::MCL_FUTURE
        | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    if let Err(error) = mlockall(flags) {
        tracing::warn!(%error, "memory is not locked: the host may swap it out (LimitMEMLOCK=infinity)");
    }
    let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority =
        ThreadPriority::from_posix(thread_priority::ScheduleParams { sched_priority: PRIORITY.into() });

    match set_thread_priority_and_policy(thread_native_id(), priority, fifo) {
        Ok(()) => tracing::info!(priority = PRIORITY, "the control thread is SCHED_FIFO"),
        Err(error) => {
            let error = match error {
                thread_priority::Error::OS(errno) => Errno::from_raw(errno).desc().to_owned(),
                other => format!("{other:?}"),
            };

            tracing::warn!(error, "no real-time priority: alerts wait for the scheduler (LimitRTPRIO=10)");
        }
    }
}
