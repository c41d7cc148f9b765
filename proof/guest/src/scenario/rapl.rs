//! RAPL by the kernel's own driver: as the meter, and as the server's own limit.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;

use crate::guest::{Guest, PATIENCE};
use crate::plant::Sample;
use crate::rapl::REST_W;
use crate::report::Notes;

/// The zone of the one package.
const ZONE: &str = "/sys/class/powercap/intel-rapl:0";
/// What a reading may be off, and behind: of the draw.
const NEAR: f64 = 0.02;
/// Counters wrap every 5 s at this load.
const METERED: Duration = Duration::from_secs(12);
/// Half of the agent's `sample_ms`, since a late reading is near to the next: a plant that stands still for as long may count
/// no energy between two readings.
const STOOD_STILL: Duration = Duration::from_millis(50);
/// Below what the batch cores draw at their highest frequency, and above what their floor draws.
const CAP_W: f64 = 180.0;

/// Runs `test` on a machine that has RAPL; the agent looks for it as it starts.
fn with_rapl(
    guest: &mut Guest,
    replace: &[(&str, &str)],
    more: &str,
    test: impl FnOnce(&mut Guest) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    guest.shell.run("modprobe guest_rapl")?;
    guest.with_config(replace, more, |guest| {
        let result = test(guest);
        // Before the usual agent starts, which would find RAPL, too.
        guest.shell.run("systemctl stop ballast-agent; modprobe -r guest_rapl")?;
        result
    })
}

/// Counters of 32 bits that wrap, and the rest of the server as a fixed offset.
pub(super) fn meter(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let usual = "source = \"hwmon\"\nname = \"power_meter\"\n";
    let rapl = format!("source = \"rapl\"\noffset_w = {REST_W}\n");
    with_rapl(guest, &[(usual, &rapl)], "", |guest| {
        guest.fresh()?;
        let (mut wraps, mut last, mut readings, mut drawn) = (0, 0, vec![], vec![]);
        let began = Instant::now();
        let mut faults = guest.agent.status()?.power_faults;
        while began.elapsed() < METERED {
            let looked = Instant::now();
            let joules: u64 = guest.shell.run(&format!("cat {ZONE}/energy_uj"))?.trim().parse()?;
            wraps += u32::from(joules < last);
            last = joules;
            drawn.push(guest.plant.now()?.watts);
            let status = guest.agent.status()?;
            readings.push(status.report.power_w.context("no reading")?.as_f64());
            if status.power_faults > faults {
                // What the host did not let the plant count is rightly refused.
                let since = guest.plant.since(looked - Duration::from_secs(1));
                if !since.windows(2).any(|pair| pair[1].at - pair[0].at >= STOOD_STILL) {
                    bail!("a reading was refused after {wraps} wraps: {:?}", status.alarms);
                }
                faults = status.power_faults;
            }
            thread::sleep(Duration::from_millis(100));
        }

        // The plant counts when the host lets it: one window may miss what the next one has too much.
        let mean = |watts: &[f64]| watts.iter().sum::<f64>() / watts.len() as f64;
        let (read, truth) = (mean(&readings), mean(&drawn));
        notes.put("wraps", f64::from(wraps));
        notes.put("mean_w", read);
        notes.put("true_mean_w", truth);
        if wraps == 0 || (read - truth).abs() > NEAR * truth {
            bail!("{wraps} wraps, {read:.1} W read on average of {truth:.1} W");
        }
        let began = Instant::now();
        guest.agent.alert(Level::Cap, Some(225))?;
        let under = |sample: &Sample| sample.at > began && sample.watts <= 225.0;
        let met = guest.plant.wait(&"the draw under the cap", began, PATIENCE, under)?;
        notes.put_ms("alert_to_under_cap", met.at - began);
        guest.release().map(drop)
    })
}

/// The floor is not enough: both limits of the package are lowered, and put back by whoever comes after.
pub(super) fn limit(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let more = "[server_limit]\nby = \"rapl\"\nfloor_w = 100\nhold_ms = 500\n";
    with_rapl(guest, &[], more, |guest| {
        guest.fresh()?;
        let limits =
            format!("grep -H '' {ZONE}/constraint_*_power_limit_uw {ZONE}/*_window_us {ZONE}/enabled");
        let before = guest.shell.run(&limits)?;
        let journal = guest.shell.run("cat /run/ballast-agent/journal.json")?;
        if !journal.contains("package-0") {
            bail!("the journal holds no original of RAPL's: {journal}");
        }

        for killed in [false, true] {
            // The floor draws 239 W of this load.
            guest.load(1.0, 1.0);
            let from = Instant::now();
            guest.throttle(Level::Cap, Some(CAP_W as i64))?;
            let under = |sample: &Sample| sample.watts <= CAP_W * (1.0 + NEAR);
            let met = guest.plant.wait(&"under the cap by RAPL", from, PATIENCE, under)?;
            notes.put_ms("alert_to_under_cap", met.at - from);
            guest.status_when("the server's own limit", |status| status.report.server_limit)?;
            if guest.shell.run(&limits)? == before {
                bail!("RAPL's limits are as before, and the draw is {:.1} W", met.watts);
            }

            if killed {
                let pid = guest.agent_pid()?;
                guest.shell.run(&format!("kill -9 {pid}"))?;
                guest.status_when("an agent that answers again", |_| true)?;
            }
            guest.load(0.6, 1.0);
            guest.release()?;
            guest.status_when("no limit of its own", |status| !status.report.server_limit)?;
            let after = guest.shell.run(&limits)?;
            if after != before {
                bail!("killed: {killed}; RAPL's limits were\n{before}and are\n{after}");
            }
        }
        Ok(())
    })
}
