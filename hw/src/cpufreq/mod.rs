//! Frequency caps through `scaling_max_freq`, the only file that caps and follows no governor.
//!
//! What is capped is a clock [`Domain`](crate::Domain): one physical core with all its threads, or more where hardware
//! ties them together. It may have several policies (one per thread on Intel), and a policy may have
//! several CPUs.
//!
//! Traps that shape this module (Linux 6.12, `drivers/cpufreq/cpufreq.c`):
//! a value out of range is clamped silently, so every value is checked before it is written;
//! reading shows the least of all limits, not our request; the change is applied after the write
//! returns, so [`Cpufreq::read_back`] tells the truth some 10 to 50 ms later.

mod bare;
mod blind;
mod caps;
mod driver;
mod frequency;
mod hold;
mod kernel_limits;
mod ladder;
mod policy;
mod scan;
mod status;
#[cfg(test)]
mod tests;
mod watch;

pub use blind::put_back_blind;
pub use caps::{Cpufreq, CpufreqOriginals};
pub use driver::Driver;
pub use frequency::Floor;
pub use ladder::ReferenceSource;
pub use policy::PolicyFacts;
pub use scan::{Changed, Journalled, NewOriginals, Scan, ScanPlan, UnwantedCap};
pub use watch::{Judged, Lifted, MayRewrite, Readback, ReadbackPlan, RewriteDue, ScanFirst};
