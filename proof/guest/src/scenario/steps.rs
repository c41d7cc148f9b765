//! An agent alone under a cap between its floor and free, with batch work that uses its CPUs for real.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use ballast_types::wire::Level;

use crate::guest::{Guest, PATIENCE};
use crate::plant::Sample;
use crate::report::Notes;

/// The load draws 161 W, and 126 W at the floor.
const CAP_W: f64 = 145.0;
/// How long the draw is watched under it.
const WATCHED: Duration = Duration::from_secs(12);

/// Two loops in a VM's group have the batch cores busy.
pub(super) fn steps(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let group = "/sys/fs/cgroup/system.slice/guest-vms.service/batch-1";
    guest.fresh()?;
    // Half of two CPUs, so that two CPUs of the host have time for the rest.
    guest.shell.run(&format!(
        "echo 10000 10000 >{group}/cpu.max; \
         for n in 0 1; do systemd-run -q --unit=busy$n sh -c 'while :; do :; done'; \
         systemctl show -p MainPID --value busy$n >{group}/cgroup.procs; done"
    ))?;
    let result = hold(guest, notes);
    guest.shell.run(&format!("systemctl stop busy0 busy1; echo max 100000 >{group}/cpu.max"))?;
    result
}

fn hold(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.load(0.0, 0.5);
    // The agent learns how busy the VM is.
    thread::sleep(Duration::from_secs(5));
    let from = Instant::now();
    guest.agent.alert(Level::Cap, Some(CAP_W as i64))?;
    let under = |sample: &Sample| sample.watts <= CAP_W;
    let met = guest.plant.wait(&"the draw under the cap", from, PATIENCE, under)?;
    notes.put_ms("alert_to_under_cap", met.at - from);
    thread::sleep(WATCHED.saturating_sub(from.elapsed()));

    let settled = guest.plant.since(from + WATCHED / 3);
    let over = settled.iter().filter(|sample| sample.watts > CAP_W).count() as f64 / settled.len() as f64;
    let mean = settled.iter().map(|sample| sample.watts).sum::<f64>() / settled.len() as f64;
    notes.put("settled_mean_w", mean);
    notes.put("settled_over_cap", over);
    guest.high_untouched(from)?;
    if over > 0.1 || mean < 0.8 * CAP_W {
        bail!("under a cap of {CAP_W} W: {mean:.1} W, {over:.3} of the time above");
    }
    guest.release().map(drop)
}
