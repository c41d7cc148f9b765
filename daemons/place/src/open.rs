//! The first step of a start: certificates, the state folder and the addresses. Nothing is changed yet.

use std::sync::Arc;

use anyhow::Context as _;
use ballast_hw::durable::{self, Lock};
use ballast_runtime::Listening;
use ballast_runtime::state;
use ballast_runtime::tls::Tls;
use tokio::runtime::{Builder, Runtime};

use crate::config::{ConfigFile as _, PlaceConfig};

/// The state folder, which is this process's alone, and the addresses.
pub(crate) struct Opened<'a> {
    pub(crate) config: &'a PlaceConfig,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) listening: Listening,
    pub(crate) runtime: Runtime,
    /// Held until the process ends.
    pub(crate) lock: Lock,
}

impl<'a> Opened<'a> {
    /// Takes the state folder for this process, and binds the addresses. Fails when another daemon has the
    /// folder, certificates cannot be read, or an address is taken.
    pub(crate) fn open(config: &'a PlaceConfig) -> anyhow::Result<Self> {
        let tls = config.tls.as_ref().map(|tls| Tls::open(tls, Some(&config.role()))).transpose();
        let tls = tls.map_err(anyhow::Error::msg)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        durable::folder(&config.state_dir)
            .with_context(|| format!("state_dir {}", config.state_dir.display()))?;
        let lock = state::lock(&config.state_dir)?;
        let listening = Listening::open(&runtime, &config.listen, tls.as_ref())?;

        Ok(Self { config, tls, listening, runtime, lock })
    }
}
