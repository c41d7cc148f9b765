//! The daemons' clock.

use ballast_types::Instant;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
///
/// Every daemon of one machine reads the same clock, so their events can be put in order.
#[must_use]
pub fn now() -> Instant {
    // The call cannot fail for this clock on Linux; the origin is the safe answer: nothing is fresh.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Instant::ZERO, |time| {
        let nanos = time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs();
        Instant::from_nanos(nanos)
    })
}
