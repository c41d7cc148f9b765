//! How fast an alert reaches hardware.

use std::time::{Duration, Instant};

use anyhow::bail;
use ballast_types::wire::Level;

use crate::guest::Guest;
use crate::machine::CPUS;
use crate::plant::TOP;
use crate::report::Notes;

/// Alerts whose way is timed.
const ALERTS: usize = 100;
/// The figure to reach, from the alert to the last register.
const P99_WITHIN: Duration = Duration::from_millis(50);

/// Needs a quiet host: emulation on busy CPUs adds whatever it likes.
pub(super) fn alerts(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let began = Instant::now();
    let mut times = Vec::with_capacity(ALERTS);
    for n in 0..ALERTS {
        let registers = guest.plant.now()?.registers;
        if registers != [TOP; CPUS] {
            bail!("before alert {n} the registers are {registers:?}");
        }
        times.push(guest.throttle(Level::Emergency, Some(205))?);
        guest.release()?;
    }
    notes.put_spread("alert_to_floor", &mut times);
    guest.high_untouched(began)?;
    guest.within("p99", times[ALERTS * 99 / 100 - 1], P99_WITHIN)
}
