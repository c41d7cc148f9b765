//! Empty hosts that are switched off while a trace is played.

use anyhow::bail;
use ballast_placement::{Cluster, HostId, Resident};
use ballast_sim::cluster::{PowerDown, PowerDownOptions, PowerDownOutcome, Probe, Reason, RequestedVm};
use clap::Args;

use super::tape::Tape;
use crate::common::numbers::positive;

/// Arguments about it.
#[derive(Args, Debug)]
pub(super) struct PowerDownArgs {
    /// Switch empty hosts off, but for N that stay on for VMs to come; say what that saves. It changes no placement
    #[arg(long, value_name = "N")]
    power_down_reserve: Option<u32>,
    /// How long a host takes to wake up
    #[arg(long, value_name = "S", default_value = "180", value_parser = wake_ms,
          requires = "power_down_reserve")]
    wake_s: u64,
    /// What an empty host draws that is on
    #[arg(long, value_name = "W", default_value_t = 112.0, value_parser = positive,
          requires = "power_down_reserve")]
    idle_w: f64,
    /// What a host draws that is off
    #[arg(long, value_name = "W", default_value_t = 8.0, value_parser = off_w,
          requires = "power_down_reserve")]
    off_w: f64,
}

impl PowerDownArgs {
    /// Who switches hosts off, if anybody does.
    pub(super) fn probe(&self) -> anyhow::Result<Option<PowerDown>> {
        let Self { power_down_reserve, wake_s: wake_ms, idle_w, off_w } = *self;
        if off_w > idle_w {
            bail!("--off-w {off_w}: at most the {idle_w} W of --idle-w are allowed");
        }
        let options = |reserve_hosts| PowerDownOptions { reserve_hosts, idle_w, off_w, wake_ms };
        Ok(power_down_reserve.map(|reserve_hosts| PowerDown::new(options(reserve_hosts))))
    }
}

pub(super) fn line(outcome: &PowerDownOutcome) -> String {
    let PowerDownOutcome { saved_w, off_host_ratio, wakes, waited_vms, longest_wait_s } = outcome;
    format!(
        "powering down saves {saved_w:.0} W: {:.2} % of the hosts are off, {wakes} were woken up; \
         {waited_vms} VMs waited for a host, {longest_wait_s} s at most",
        off_host_ratio * 100.0
    )
}

pub(super) struct Watchers {
    pub(super) tape: Tape,
    pub(super) power: Option<PowerDown>,
}

impl Probe for Watchers {
    fn pass(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) {
        self.power.iter_mut().for_each(|power| power.pass(cluster, from_ms, to_ms));
    }

    fn placed(&mut self, cluster: &Cluster, at_ms: u64, vm: &RequestedVm, host: HostId) {
        self.tape.placed(cluster, at_ms, vm, host);
        self.power.iter_mut().for_each(|power| power.placed(cluster, at_ms, vm, host));
    }

    fn failed(&mut self, vms: &[&RequestedVm], reason: Reason) {
        self.tape.failed(vms, reason);
    }

    fn ended(&mut self, cluster: &Cluster, at_ms: u64, resident: &Resident) {
        self.power.iter_mut().for_each(|power| power.ended(cluster, at_ms, resident));
    }
}

fn wake_ms(text: &str) -> Result<u64, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|s| (0.0..=86_400.0).contains(s));
    let ms = seconds.map(|s| (s * 1e3).round() as u64);
    ms.ok_or_else(|| "a number of seconds from 0 to 86400 is needed".to_owned())
}

fn off_w(text: &str) -> Result<f64, String> {
    let watts: Option<f64> = text.parse().ok().filter(|w| (0.0..=10_000.0).contains(w));
    watts.ok_or_else(|| "a number of watts from 0 to 10000 is needed".to_owned())
}
