//! What goes wrong around the agent.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use ballast_types::wire::{AgentState, Level};

use crate::lab::{Lab, PATIENCE};
use crate::plant::{FLOOR, Sample, TOP};
use crate::report::Notes;

/// What another writer of `scaling_max_freq` asks for.
const ADMIN_KHZ: &str = "2000000";

pub(super) fn sensor_gone(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Cap, Some(225))?;
    let gone = Instant::now();
    lab.plant.set(|knobs| knobs.meter_gone = true);
    notes.put_ms("meter_gone_to_blind", lab.state(AgentState::Blind, gone)?);
    // Nothing rises while blind, and an alert is still obeyed.
    lab.throttle(Level::Emergency, Some(225))?;
    let blind = Instant::now();
    thread::sleep(Duration::from_secs(3));
    for sample in lab.plant.since(blind) {
        if lab.low.iter().any(|cpu| sample.registers[*cpu] < FLOOR) {
            bail!("raised without a reading: {:?}", sample.registers);
        }
    }
    let back = Instant::now();
    lab.plant.set(|knobs| knobs.meter_gone = false);
    lab.status_when("a reading", |status| status.report.power_w.is_some())?;
    notes.put_ms("meter_back_to_reading", back.elapsed());
    notes.put_ms("release", lab.release()?);
    Ok(())
}

pub(super) fn foreign(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let cpu = lab.low[0];
    let file = format!("/sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq");
    let write = format!("echo {ADMIN_KHZ} >{file}");
    // Once may be a slip: the cap is written again, and told.
    let wrote = Instant::now();
    lab.shell.run(&write)?;
    let told = |alarm: &String| alarm.contains("somebody else");
    lab.status_when("an alarm about another writer", |status| status.alarms.iter().any(told))?;
    notes.put_ms("write_to_alarm", wrote.elapsed());
    lab.plant.wait(&"the cap written again", Instant::now(), PATIENCE, |sample| {
        sample.registers[cpu] >= FLOOR
    })?;
    // Who goes on means it: left as it is, and still told.
    let left = |alarm: &String| alarm.contains("left as it is");
    let mut writes = 1;
    while !lab.agent.status()?.alarms.iter().any(left) {
        writes += 1;
        if writes > 40 {
            bail!("after {writes} writes the agent still fights");
        }
        lab.shell.run(&write)?;
        thread::sleep(Duration::from_secs(1));
    }
    notes.put("writes_until_left", f64::from(writes));
    thread::sleep(Duration::from_secs(3));
    lab.agent.alert(Level::Watch, None)?;
    lab.status_when("no cap", |status| status.report.min_khz.is_none())?;
    let kept = lab.shell.run(&format!("cat {file}"))?;
    if kept.trim() != ADMIN_KHZ {
        bail!("the admin wrote {ADMIN_KHZ}, {file} is {kept}");
    }
    lab.shell.run(&format!("echo 2400000 >{file}")).map(drop)
}

pub(super) fn hotplug(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    lab.throttle(Level::Emergency, Some(205))?;
    let cpu = lab.low[1];
    let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    lab.shell.run(&format!("echo 0 >{online}"))?;
    // The others are still commanded.
    lab.agent.alert(Level::Watch, None)?;
    let from = Instant::now();
    let other = lab.low[0];
    let up = |sample: &Sample| sample.registers[other] == TOP;
    lab.plant.wait(&"the core that is online is released", from, PATIENCE, up)?;
    lab.agent.alert(Level::Emergency, Some(205))?;
    // A core that was off begins anew.
    lab.plant.set(|knobs| knobs.reset = Some(cpu));
    let off = Instant::now();
    let reset = |sample: &Sample| sample.at > off && sample.registers[cpu] == TOP;
    lab.plant.wait(&"the core's register is reset", off, PATIENCE, reset)?;
    let back = Instant::now();
    lab.shell.run(&format!("echo 1 >{online}"))?;
    let down = |sample: &Sample| sample.at > back && sample.registers[cpu] >= FLOOR;
    let capped = lab.plant.wait(&"the core that came back is capped", back, PATIENCE, down)?;
    notes.put_ms("online_to_capped", capped.at - back);
    notes.put_ms("release", lab.release()?);
    lab.status_when("the core in its VM", |status| status.report.low_cores == 2).map(drop)
}

pub(super) fn silent(lab: &mut Lab, notes: &mut Notes) -> anyhow::Result<()> {
    lab.fresh()?;
    let lease = Duration::from_secs(2);
    // The right to exceed the fallback ends with the lease.
    (lab.agent.lease, lab.agent.fallback_w) = (lease, 230);
    let heard = Instant::now();
    lab.agent.status()?;
    lab.agent.alert(Level::Watch, None)?;
    let under = |sample: &Sample| sample.at > heard && sample.watts <= 230.0;
    let met = lab.plant.wait(&"the draw under the fallback", heard, PATIENCE, under)?;
    notes.put_ms("silence_to_under_fallback", met.at - heard);
    lab.status_when("a cap of 230 W", |status| {
        status.report.cap_w.is_some_and(|cap| cap.milli() == 230_000)
    })?;
    // A cap below the fallback is lifted to it, two leases later, and no further.
    let lower = Instant::now();
    lab.agent.alert(Level::Cap, Some(205))?;
    lab.status_when("the cap back at 230 W", |status| {
        status.report.cap_w.is_some_and(|cap| cap.milli() == 230_000)
    })?;
    let rose = lower.elapsed();
    notes.put_ms("silence_to_cap_at_fallback", rose);
    if rose < lease {
        bail!("the cap rose after {rose:?}, before the lease of {lease:?} ended");
    }
    lab.agent.lease = Duration::from_secs(60);
    lab.agent.fallback_w = 400;
    lab.release().map(drop)
}
