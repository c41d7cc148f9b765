//! RAPL by the kernel's own driver: as the meter, as what `predictive` acts on, as the server's own limit.

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
/// The same for the load of `predictive`: 161 W, and 126 W at the floor.
const FITS_W: f64 = 145.0;
/// How long `predictive` is watched under it.
const SETTLED: Duration = Duration::from_secs(12);

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

/// The default policy with all that it needs: RAPL, the server's meter, and CPU use, which is real here.
pub(super) fn predictive(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let group = "/sys/fs/cgroup/system.slice/guest-vms.service/batch-1";
    with_rapl(guest, &[], "", |guest| {
        guest.fresh()?;
        // Half of two CPUs, so that two CPUs of the host have time for the rest.
        guest.shell.run(&format!(
            "echo 10000 10000 >{group}/cpu.max; \
             for n in 0 1; do systemd-run -q --unit=busy$n sh -c 'while :; do :; done'; \
             systemctl show -p MainPID --value busy$n >{group}/cgroup.procs; done"
        ))?;
        let result = fits(guest, notes);
        guest.shell.run(&format!("systemctl stop busy0 busy1; echo max 100000 >{group}/cpu.max"))?;
        result
    })
}

fn fits(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.load(0.0, 0.5);
    let trusted = |status: &ballast_types::wire::AgentStatus| status.policy_effective == "predictive";
    guest.status_when("the policy predictive in force", trusted)?;
    thread::sleep(Duration::from_secs(5));
    let from = Instant::now();
    guest.agent.alert(Level::Cap, Some(FITS_W as i64))?;
    let under = |sample: &Sample| sample.watts <= FITS_W;
    let met = guest.plant.wait(&"the draw under the cap", from, PATIENCE, under)?;
    notes.put_ms("alert_to_under_cap", met.at - from);
    let (mut asked, mut predicted) = (0, 0);
    while from.elapsed() < SETTLED {
        let status = guest.agent.status()?;
        asked += 1;
        predicted += u32::from(trusted(&status));
        if let Some(recovery) = status.recovery {
            notes.put("error_w", recovery.error_w.as_f64());
            notes.put("margin_w", recovery.margin_w.as_f64());
        }
        thread::sleep(Duration::from_millis(100));
    }

    let settled = guest.plant.since(from + SETTLED / 3);
    let over = settled.iter().filter(|sample| sample.watts > FITS_W).count() as f64 / settled.len() as f64;
    let mean = settled.iter().map(|sample| sample.watts).sum::<f64>() / settled.len() as f64;
    let share = f64::from(predicted) / f64::from(asked);
    notes.put("settled_mean_w", mean);
    notes.put("settled_over_cap", over);
    notes.put("in_force", share);
    guest.high_untouched(from)?;

    // On a host that is late for windows of 50 ms the policy steps aside, as it should.
    let (least, most_over) = if guest.judge { (0.9, 0.01) } else { (0.0, 0.1) };
    if share < least || over > most_over || mean < 0.8 * FITS_W {
        bail!("under a cap of {FITS_W} W: {mean:.1} W, {over:.3} of the time above, in force {share:.2}");
    }
    guest.release().map(drop)
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
