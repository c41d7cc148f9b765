//! What goes wrong around the agent.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use ballast_types::wire::{AgentState, Level};

use crate::guest::{Guest, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// Below the usual load's 270 W and above what its floor draws, 200 W.
const CAP_W: i64 = 225;
/// What another writer of `scaling_max_freq` asks for.
const ADMIN_KHZ: &str = "2000000";
/// The agent reads its caps back once a second.
const LOOKED_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn sensor_gone(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Cap, Some(225))?;
    let gone = Instant::now();
    guest.plant.set(|knobs| knobs.meter_gone = true);
    notes.put_ms("meter_gone_to_blind", guest.state(AgentState::Blind, gone)?);

    // Nothing rises while blind, and an alert is still obeyed.
    guest.throttle(Level::Emergency, Some(225))?;
    let blind = Instant::now();
    thread::sleep(Duration::from_secs(3));

    for sample in guest.plant.since(blind) {
        if guest.low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("raised without a reading: {:?}", sample.registers);
        }
    }

    let back = Instant::now();
    guest.plant.set(|knobs| knobs.meter_gone = false);
    guest.status_when("a reading", |status| status.report.power_w.is_some())?;
    notes.put_ms("meter_back_to_reading", back.elapsed());
    notes.put_ms("release", guest.release()?);

    Ok(())
}

pub(super) fn foreign(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let cpu = guest.low[0];
    let file = format!("/sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq");
    let write = format!("echo {ADMIN_KHZ} >{file}");

    // Once may be a slip: the cap is written again, and told. A write that the agent's own next one undoes before
    // it has looked is seen by nobody; so the admin goes on until there is an alarm.
    let says = |guest: &mut Guest, what: &str| -> anyhow::Result<bool> {
        Ok(guest.agent.status()?.alarms.iter().any(|alarm| alarm.message.contains(what)))
    };
    let mut writes = 0;
    let mut insist = |guest: &mut Guest, what: &str| -> anyhow::Result<()> {
        while !says(guest, what)? {
            writes += 1;
            if writes > 40 {
                bail!("after {writes} writes there is no alarm that says {what:?}");
            }
            guest.shell.run(&write)?;
            let wrote = Instant::now();

            while wrote.elapsed() < LOOKED_WITHIN && !says(guest, what)? {
                thread::sleep(Duration::from_millis(50));
            }
        }

        Ok(())
    };

    let wrote = Instant::now();
    insist(guest, "another program raises")?;
    notes.put_ms("write_to_alarm", wrote.elapsed());
    guest
        .plant
        .wait(&"the cap written again", Instant::now(), PATIENCE, |sample| sample.registers[cpu] >= FLOOR)?;

    // Who goes on means it: the agent gives up, and says so.
    insist(guest, "gives up")?;
    notes.put("writes_until_left", f64::from(writes));
    thread::sleep(Duration::from_secs(3));
    guest.agent.alert(Level::Watch, None)?;
    guest.status_when("no cap", |status| status.report.min_khz.is_none())?;
    let kept = guest.shell.run(&format!("cat {file}"))?;

    if kept.trim() != ADMIN_KHZ {
        bail!("the admin wrote {ADMIN_KHZ}, {file} is {kept}");
    }
    guest.shell.run(&format!("echo 2400000 >{file}")).map(drop)
}

pub(super) fn hotplug(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    guest.throttle(Level::Emergency, Some(205))?;
    let cpu = guest.low[1];
    let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    guest.shell.run(&format!("echo 0 >{online}"))?;

    // The others are still commanded.
    guest.agent.alert(Level::Watch, None)?;
    let from = Instant::now();
    let other = guest.low[0];
    let up = |sample: &Sample| sample.registers[other] == TOP;
    guest.plant.wait(&"the core that is online is released", from, PATIENCE, up)?;
    guest.agent.alert(Level::Emergency, Some(205))?;

    // A core that was off begins anew.
    guest.plant.set(|knobs| knobs.reset = Some(cpu));
    let off = Instant::now();
    let reset = |sample: &Sample| sample.at > off && sample.registers[cpu] == TOP;
    guest.plant.wait(&"the core's register is reset", off, PATIENCE, reset)?;
    let back = Instant::now();
    guest.shell.run(&format!("echo 1 >{online}"))?;
    let down = |sample: &Sample| sample.at > back && sample.registers[cpu] >= FLOOR;
    let capped = guest.plant.wait(&"the core that came back is capped", back, PATIENCE, down)?;
    notes.put_ms("online_to_capped", capped.at - back);
    notes.put_ms("release", guest.release()?);

    guest.status_when("the core in its VM", |status| status.report.low_cores == 2).map(drop)
}

pub(super) fn silent(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let lease = Duration::from_secs(2);

    // The right to exceed the fallback ends with the lease.
    (guest.agent.lease, guest.agent.fallback_w) = (lease, 230);
    let heard = Instant::now();
    guest.agent.status()?;
    guest.agent.alert(Level::Watch, None)?;
    let under = |sample: &Sample| sample.at > heard && sample.watts <= 230.0;
    let met = guest.plant.wait(&"the draw under the fallback", heard, PATIENCE, under)?;
    notes.put_ms("silence_to_under_fallback", met.at - heard);
    guest.status_when("a cap of 230 W", |status| {
        status.report.cap_w.is_some_and(|cap| cap.milli() == 230_000)
    })?;

    // A cap below the fallback is lifted to it, two leases later, and no further.
    let lower = Instant::now();
    guest.agent.alert(Level::Cap, Some(205))?;
    guest.status_when("the cap back at 230 W", |status| {
        status.report.cap_w.is_some_and(|cap| cap.milli() == 230_000)
    })?;
    let rose = lower.elapsed();
    notes.put_ms("silence_to_cap_at_fallback", rose);

    if rose < lease {
        bail!("the cap rose after {rose:?}, before the lease of {lease:?} ended");
    }
    guest.agent.lease = Duration::from_secs(60);
    guest.agent.fallback_w = 400;

    guest.release().map(drop)
}

/// The server's BMC as the agent's meter: slow, in whole watts, a new value every second.
pub(super) fn dcmi_meter(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    let usual = "source = \"hwmon\"\nname = \"power_meter\"\nsample_ms = 100\nlag_ms = 50";
    let dcmi = "source = \"dcmi\"\nsample_ms = 500\nstale_ms = 4000\nlag_ms = 1000";
    guest.with_config(&[(usual, dcmi)], "", |guest| by_bmc(guest, notes))
}

fn by_bmc(guest: &mut Guest, notes: &mut Notes) -> anyhow::Result<()> {
    guest.fresh()?;
    let draw = guest.plant.now()?.watts;
    let near = |watts: f64| (watts - draw).abs() < 0.02 * draw;
    let status = guest.status_when("the draw by DCMI", |status| {
        status.report.power_w.is_some_and(|watts| near(watts.as_f64()))
    })?;

    if !status.sensors.iter().any(|sensor| sensor.sensor == "dcmi") {
        bail!("the meter is not the BMC: {:?}", status.sensors);
    }
    let began = Instant::now();
    guest.agent.alert(Level::Cap, Some(CAP_W))?;
    let under = |sample: &Sample| sample.at > began && sample.watts <= CAP_W as f64;
    let met = guest.plant.wait(&"the draw under the cap", began, PATIENCE, under)?;
    notes.put_ms("alert_to_under_cap", met.at - began);
    guest.status_when("a reading under the cap", |status| {
        status.report.power_w.is_some_and(|watts| watts.as_f64() <= CAP_W as f64)
    })?;
    notes.put_ms("alert_to_reading_under_cap", began.elapsed());
    notes.put_ms("release", guest.release()?);

    Ok(())
}
