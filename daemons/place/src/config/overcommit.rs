//! `[overcommit]`.

use ballast_runtime::config::allowed::{choice, flag, number_as};
use ballast_runtime::config::reader::Section;

/// How a VM's use is taken together with others'. What there is must be right for VMs that are measured one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// [`Estimator::Convolution`], and hosts are allowed what was measured to keep the target.
    Auto,
    /// The distribution of the sum of independent VMs, at its word.
    Convolution,
}

/// What is promised of the CPU of hosts whose VMs have more cores than they.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OvercommitConfig {
    /// VMs demand more than their host has for at most so many millionths of the time.
    pub target_ppm: u32,
    pub estimator: Estimator,
    /// Whether hosts' VMs share two pools of cores by class (`[pools]` of their agents).
    pub pools: bool,
}

impl OvercommitConfig {
    /// As a share of time.
    pub fn target(&self) -> f64 {
        f64::from(self.target_ppm) / 1e6
    }

    pub(super) fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let help = "What is promised of the CPU of hosts whose VMs have more cores than they.";
        let mut section = root.section("overcommit", help);
        let help = "VMs demand more than their host's cores for at most this share of the time: a host \
                    that would break this takes no VM. Without it nothing is promised.";
        let ppm = |share: f64| Some((share * 1e6).round() as u32);
        let share = number_as("a share of time", 0.0001..=0.5, ppm, |ppm| f64::from(*ppm) / 1e6);
        let target_ppm = section.key("target", help).optional(share);
        let words = [("auto", Estimator::Auto), ("convolution", Estimator::Convolution)];
        let help = "How VMs' use is added up: \"convolution\" takes them for independent; \"auto\" is that, \
                    and allows hosts each day what was measured to keep the target over the last seven.";
        let estimator = section.key("estimator", help).or(Estimator::Auto, choice(words));
        let help = "Whether the hosts' agents have VMs share two pools of cores by class (`[pools]`): then \
                    the promise is one to the user-facing VMs, about their pool.";
        let pools = section.key("pools", help).or(false, flag());
        section.finish();
        target_ppm.map(|target_ppm| Self { target_ppm, estimator, pools })
    }
}
