//! Exclusive access to this server for a measurement while no agent runs: its cores' caps, its meter, and the
//! journal.
//!
//! The originals are on disk before the first cap, as an agent's are: whatever ends the measurement, the
//! caps are put back by it, or by `ballast-agent release`, or by the next start of the agent.

use anyhow::{Context as _, bail};
use ballast_hw::{
    Cpufreq, Domain, Floor, Journal, JournalFolders, Opened, Originals, PowerMeter, Root, boot_id,
};
use ballast_types::{Core, Ladder};

use super::{dry, sampler};
use crate::config::AgentConfig;
use ballast_runtime::redfish::Bmcs;

/// Exclusive access to a server. The server is restored when this is dropped, a panic included.
#[derive(Debug)]
pub struct Exclusive {
    cpufreq: Cpufreq,
    journal: Option<Journal>,
    pub meter: PowerMeter,
    _bmcs: Bmcs,
    /// The journal's folders that were not there before.
    created: JournalFolders,
}

impl Exclusive {
    /// Takes the server that `config` is of; `None` while an agent runs there. Fails when the agent might not
    /// act here either (`dry_run`, a virtual machine, an unknown driver), there is nothing to cap or to
    /// measure with, somebody else has limited the cores, or an agent that has ended left restrictions
    /// behind. Nothing was changed then.
    pub fn take(config: &AgentConfig) -> anyhow::Result<Option<Self>> {
        let (root, folders) = (Root::at(&config.daemon.root), config.journal_folders());
        let created = folders.missing();
        let (journal, opened) = match Journal::open(&folders, &boot_id(&root)?) {
            Err(error) if error.is_locked() => return Ok(None),
            opened => opened?,
        };

        Self::journalled(config, &root, journal, &opened, created.clone())
            .map(Some)
            .inspect_err(|_| created.remove_unused())
    }

    fn journalled(
        config: &AgentConfig,
        root: &Root,
        mut journal: Journal,
        opened: &Opened,
        created: JournalFolders,
    ) -> anyhow::Result<Self> {
        if matches!(opened, Opened::Adopted(_) | Opened::Damaged(_) | Opened::Held(_)) {
            bail!(
                "{}: an agent that has ended left restrictions: put them back first, with ballast-agent \
                 release",
                journal.folder().display()
            );
        }

        let cpufreq = Cpufreq::discover(root, Floor::Half)?;
        let driver = cpufreq.driver();

        if let Some(why) = dry::reason(config, root, Some(driver)) {
            bail!("nothing may be written here: {why}");
        }
        if !driver.is_known() {
            bail!("the cpufreq driver {:?} is not one of those known", driver.name());
        }
        for core in cpufreq.cores() {
            let (limit, top) = (cpufreq.read_back(core.id)?, core.ladder.max());
            if limit < top {
                bail!("core {} is limited to {limit} by somebody else; it could do {top}", core.id);
            }
        }

        let mut bmcs = Bmcs::new(&config.redfish);
        let meter = sampler::meter(&config.meter, root, &mut bmcs)?;
        let originals = Originals { cpufreq: Some(cpufreq.originals()), ..Originals::default() };
        journal.begin(&originals)?;

        Ok(Self { cpufreq, journal: Some(journal), meter, _bmcs: bmcs, created })
    }

    /// What can be capped.
    pub fn cores(&self) -> Vec<Core> {
        self.cpufreq.cores()
    }

    /// The same with their CPUs.
    pub fn domains(&self) -> &[Domain] {
        self.cpufreq.domains()
    }

    /// The driver that caps them.
    pub fn driver(&self) -> &str {
        self.cpufreq.driver().name()
    }

    /// Caps every core at the p-state that `step` picks of its ladder; at the highest it is not capped.
    pub fn cap(&mut self, step: impl Fn(&Ladder) -> usize) -> anyhow::Result<()> {
        for Core { id, ladder } in self.cpufreq.cores() {
            let at = step(&ladder);
            if at >= ladder.top() {
                self.cpufreq.release(id)?;
            } else {
                self.cpufreq.set(id, ladder.khz(at))?;
            }
        }
        Ok(())
    }

    /// Puts everything back. Fails when something could not be; the journal stays then, and the message says
    /// what to do.
    pub fn restore(mut self) -> anyhow::Result<()> {
        self.put_back()
    }

    fn put_back(&mut self) -> anyhow::Result<()> {
        let Some(journal) = self.journal.take() else { return Ok(()) };
        let left = self.cpufreq.release_all();
        if !left.is_empty() {
            bail!("not put back: {}; ballast-agent release tries again", left.join("; "));
        }
        journal.finish().context("the journal")?;
        self.created.remove_unused();
        Ok(())
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        // Only after an error or a panic is there anything left.
        if let Err(error) = self.put_back() {
            tracing::error!("{error:#}");
        }
    }
}
