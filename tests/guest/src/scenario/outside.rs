//! Caps that hardware holds, set from inside the guest.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::lab::Lab;
use crate::plant::Sample;
use crate::report::Notes;

const CAP_W: f64 = 180.0;
/// A hardware cap settles within this.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn caps(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    let cap = "/sys/class/hwmon/hwmon*/device/power1_cap";
    let before = lab.shell.run(&format!("cat {cap}"))?;
    held(lab, notes, "power1_cap", &format!("echo 180000000 >$(echo {cap})"))?;
    lab.shell.run(&format!("echo {} >$(echo {cap})", before.trim()))?;
    free(lab)?;

    let said = lab.shell.run("ipmitool dcmi power reading")?;
    let watts = reading(&said).with_context(|| said.clone())?;
    let draw = lab.plant.now()?.watts;
    if (watts - draw).abs() > 0.02 * draw {
        bail!("DCMI says {watts} W, the draw is {draw:.1} W");
    }
    // By raw commands: ipmitool's own misread the limit's completion code on /dev/ipmi0.
    let set = "ipmitool raw 0x2c 0x04 0xdc 0 0 0 0x11 180 0 0xe8 3 0 0 0 0 1 0 && \
        ipmitool raw 0x2c 0x05 0xdc 1 0 0";
    held(lab, notes, "dcmi", set)?;
    lab.shell.run("ipmitool raw 0x2c 0x05 0xdc 0 0 0")?;
    free(lab)
}

/// Sets a cap and times how long the draw takes to obey.
fn held(lab: &mut Lab, notes: &mut Notes, name: &str, set: &str) -> anyhow::Result<()> {
    lab.shell.run(set)?;
    let from = Instant::now();
    let under = |sample: &Sample| sample.watts <= CAP_W * 1.01;
    let sample = lab.plant.wait(&format!("{name} obeyed"), from, SETTLES_WITHIN, under)?;
    notes.put_ms(&format!("{name}_to_under_cap"), sample.at.duration_since(from));
    Ok(())
}

fn free(lab: &Lab) -> anyhow::Result<()> {
    let over = |sample: &Sample| sample.watts > CAP_W * 1.3;
    lab.plant.wait(&"the cap is off", Instant::now(), SETTLES_WITHIN, over).map(drop)
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
