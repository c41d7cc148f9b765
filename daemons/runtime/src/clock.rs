//! The daemons' clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballast_types::Instant;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
///
/// Every daemon of one machine reads the same clock, so their events can be put in order.
pub fn now() -> Instant {
    // The call cannot fail for this clock on Linux; the origin is the safe answer: nothing is fresh.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Instant::ZERO, |time| {
        let nanos = time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs();
        Instant::from_nanos(nanos)
    })
}

/// Milliseconds since 1970, as clocks on the wall show it; 0 before that.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// When it was so many milliseconds since boot, by clocks on the wall as they are set now.
pub fn unix_ms_at(boot_ms: u64) -> u64 {
    unix_ms().saturating_sub(now().as_millis().saturating_sub(boot_ms))
}

/// The time since 1970, as clocks on the wall show it: it means the same after a restart of the machine. It goes back
/// where somebody sets the clock.
pub fn unix_now() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::ZERO + since
}

pub fn since(then: Instant) -> Duration {
    let now = now();
    now - then.min(now)
}

/// How long this machine has been suspended since boot, to a few microseconds.
pub fn suspended() -> Duration {
    let awake = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    Duration::from_nanos(now().as_nanos()).saturating_sub(awake)
}
