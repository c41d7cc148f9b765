//! Caps that hardware holds, set from inside the guest.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_types::wire::Level;

use crate::guest::{Guest, PATIENCE};
use crate::plant::Sample;
use crate::report::Notes;

const CAP_W: f64 = 180.0;
/// A hardware cap settles within this.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn caps(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let cap = "/sys/class/hwmon/hwmon*/device/power1_cap";
    let before = guest.shell.run(&format!("cat {cap}"))?;
    held(guest, notes, "power1_cap", &format!("echo 180000000 >$(echo {cap})"))?;
    guest.shell.run(&format!("echo {} >$(echo {cap})", before.trim()))?;
    free(guest)?;

    let said = guest.shell.run("ipmitool dcmi power reading")?;
    let watts = reading(&said).with_context(|| said.clone())?;
    let draw = guest.plant.now()?.watts;

    if (watts - draw).abs() > 0.02 * draw {
        bail!("DCMI says {watts} W, the draw is {draw:.1} W");
    }

    // By raw commands: ipmitool's own misread the limit's completion code on /dev/ipmi0.
    let set = "ipmitool raw 0x2c 0x04 0xdc 0 0 0 0x11 180 0 0xe8 3 0 0 0 0 1 0 && \
        ipmitool raw 0x2c 0x05 0xdc 1 0 0";
    held(guest, notes, "dcmi", set)?;
    guest.shell.run("ipmitool raw 0x2c 0x05 0xdc 0 0 0")?;

    free(guest)
}

/// The agent's own last resort: the floor is not enough, so it caps by hardware, and takes that off again.
pub(super) fn own_limit(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    for by in ["power1-cap", "dcmi"] {
        let more = format!("[server_limit]\nby = {by:?}\nfloor_w = 150\nhold_ms = 500\n");
        guest.with_config(&[], &more, |guest| shed(guest, notes, by)).context(by)?;
        guest.fresh()?;
        let off = guest.shell.try_run("ipmitool raw 0x2c 0x03 0xdc 0 0", PATIENCE)?;
        if off.code == 0 {
            bail!("{by}: the BMC's limit is still active: {}", off.text);
        }
    }
    Ok(())
}

fn shed(guest: &mut Guest, notes: &mut Notes, by: &str) -> anyhow::Result<()> {
    guest.fresh()?;
    let caps = "cat /sys/class/hwmon/hwmon*/device/power1_cap";
    let before = guest.shell.run(caps)?;

    // The floor draws 239 W of this load.
    guest.load(1.0, 1.0);
    let from = Instant::now();
    guest.throttle(Level::Cap, Some(CAP_W as i64))?;

    // Hardware nears its cap from above, and holds it to the watt.
    let under = |sample: &Sample| sample.watts <= CAP_W * 1.01;
    let sample = guest.plant.wait(&"under the cap by hardware", from, PATIENCE, under)?;
    notes.put_ms(&format!("{by}_alert_to_under_cap"), sample.at - from);
    guest.status_when("the server's own limit", |status| status.report.server_limit)?;
    guest.load(0.6, 1.0);
    guest.release()?;
    guest.status_when("no limit of its own", |status| !status.report.server_limit)?;
    let after = guest.shell.run(caps)?;

    if before != after {
        bail!("power1_cap was {before}, is {after}");
    }
    free(guest)
}

/// Sets a cap and times how long the draw takes to obey.
fn held(guest: &mut Guest, notes: &mut Notes, name: &str, set: &str) -> anyhow::Result<()> {
    guest.shell.run(set)?;
    let from = Instant::now();
    let under = |sample: &Sample| sample.watts <= CAP_W * 1.01;
    let sample = guest.plant.wait(&format!("{name} obeyed"), from, SETTLES_WITHIN, under)?;
    notes.put_ms(&format!("{name}_to_under_cap"), sample.at.duration_since(from));
    Ok(())
}

fn free(guest: &Guest) -> anyhow::Result<()> {
    let over = |sample: &Sample| sample.watts > CAP_W * 1.3;
    guest.plant.wait(&"the cap is off", Instant::now(), SETTLES_WITHIN, over).map(drop)
}

/// `Instantaneous power reading: 217 Watts`.
fn reading(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("Instantaneous power reading"))?;
    line.split_whitespace().rev().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reading_is_found_in_what_ipmitool_says() {
        let text = "\n    Instantaneous power reading:                   217 Watts\n    Minimum: 1 Watts\n";
        assert_eq!(super::reading(text), Some(217.0));
        assert_eq!(super::reading("Error"), None);
    }
}
