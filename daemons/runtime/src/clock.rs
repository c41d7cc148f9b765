//! The daemons' clock.

use std::io;
use std::thread;
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

pub fn since(then: Instant) -> Duration {
    let now = now();
    now - then.min(now)
}

/// How long this machine has been suspended since boot, to a few microseconds.
pub fn suspended() -> Duration {
    let awake = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    Duration::from_nanos(now().as_nanos()).saturating_sub(awake)
}

/// Calls `turn` once a `period` on a thread of its own, until it gives `false`. Turns that a slow one left
/// no time for are not made up for.
pub fn every(
    name: &str,
    period: Duration,
    mut turn: impl FnMut() -> bool + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(move || {
        let mut next = now();
        while turn() {
            let now = now();
            next = (next + period).max(now);
            thread::sleep(next - now);
        }
    })?;
    Ok(())
}
