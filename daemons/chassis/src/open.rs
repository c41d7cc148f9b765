//! The first step of a start: what there is on disk. Nothing is changed yet.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use ballast_chassis_core::Ledger;
use ballast_hw::Root;
use ballast_hw::durable::Lock;
use ballast_runtime::state;
use ballast_runtime::tls::Tls;

use crate::config::{ChassisConfig, ConfigFile as _};

/// The state of a previous instance, which is this process's alone.
pub(crate) struct Opened<'a> {
    pub(crate) config: &'a ChassisConfig,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) root: Root,
    /// Held until the process ends.
    pub(crate) lock: Lock,
    pub(crate) ledger_path: PathBuf,
    pub(crate) ledger: Ledger,
}

impl<'a> Opened<'a> {
    /// Takes the state folder for this process, and reads the ledger. Fails when another manager has the
    /// folder, or certificates or ledger cannot be read.
    pub(crate) fn open(config: &'a ChassisConfig) -> anyhow::Result<Self> {
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        let state_dir = &config.daemon.state_dir;
        let tls = config.daemon.certificates(&config.role())?;
        fs::create_dir_all(state_dir).with_context(|| format!("state_dir {}", state_dir.display()))?;
        let lock = state::lock(state_dir)?;
        let ledger_path = state_dir.join("ledger.json");
        let ledger = state::read(&ledger_path)?.unwrap_or_default();

        Ok(Self { config, tls, root: Root::at(&config.daemon.root), lock, ledger_path, ledger })
    }
}
