//! The first step of a start: what there is, on this machine and on disk. Nothing is changed yet.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use ballast_agent_core::{Actuator, Memory};
use ballast_hw::{self as hw, Bandwidth, Binders, Cpufreq, Floor, Journal, MemoryLimits, Root};
use ballast_runtime::state;
use ballast_runtime::tls::Tls;
use ballast_types::BootId;

use crate::config::{AgentConfig, ConfigFile as _};
use crate::dry;

/// The machine, and what a previous instance has left on disk.
pub(crate) struct Opened<'a> {
    pub(crate) config: &'a AgentConfig,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) root: Root,
    pub(crate) boot_id: BootId,
    pub(crate) journal: Journal,
    /// What the journal holds of a previous instance.
    pub(crate) previous: hw::Opened,
    pub(crate) memory_path: PathBuf,
    pub(crate) memory: Memory,
    pub(crate) cpufreq: Cpufreq,
    /// Whether there are p-states to lower at all.
    pub(crate) has_pstates: bool,
    pub(crate) binders: Binders,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) memory_limits: MemoryLimits,
    /// Why nothing may be written on this machine, if nothing may.
    pub(crate) dry: Option<String>,
}

impl<'a> Opened<'a> {
    /// Takes the journal's folders for this process, and finds the cores. Fails when another agent has one,
    /// certificates or state cannot be read, or there is nothing to throttle.
    pub(crate) fn open(config: &'a AgentConfig) -> anyhow::Result<Self> {
        let place = &config.daemon;
        let tls = place.certificates(&config.role())?;
        let root = Root::at(&place.root);
        let boot_id = hw::boot_id(&root)?;
        let (journal, previous) = Journal::open(&config.journal_folders(), &boot_id)?;
        let memory_path = place.state_dir.join("memory.json");
        let memory = state::read(&memory_path)?.unwrap_or_default();

        let cpufreq = match Cpufreq::is_there(&root)? {
            true => Some(Cpufreq::discover(&root, Floor::Half)?),
            false => None,
        };
        let has_pstates = cpufreq.is_some();
        let dry = dry::reason(config, &root, cpufreq.as_ref().map(Cpufreq::driver));
        let clamp_scale = match (&cpufreq, config.throttle.actuator) {
            (Some(cpufreq), Actuator::Uclamp) if dry.is_none() => Some(hw::uclamp::ready(&root, cpufreq)?),
            _ => None,
        };
        let cpufreq = match cpufreq {
            Some(cpufreq) => cpufreq.with_offline()?,
            None if dry.is_some() || config.throttle.actuator == Actuator::CpuMax => Cpufreq::none(&root)?,
            None => bail!(
                "there is no policy in {}, so that no core has p-states to lower: load a cpufreq driver, or \
                 set throttle.actuator = \"cpu-max\" (bandwidth of VMs), or dry_run = true",
                root.path("sys/devices/system/cpu/cpufreq").display()
            ),
        };

        let mut binders = Binders::new(&root, config.groups.by.clone());
        let through = binders.through()?;
        let memory_limits = MemoryLimits::new(&root, through.clone());
        let bandwidth = match clamp_scale {
            Some(scale) => Bandwidth::clamps(&root, scale),
            None => Bandwidth::new(&root, config.throttle.quota_period).through(through),
        };

        Ok(Self {
            config,
            tls,
            root,
            boot_id,
            journal,
            previous,
            memory_path,
            memory,
            cpufreq,
            has_pstates,
            binders,
            bandwidth,
            memory_limits,
            dry,
        })
    }
}
