//! What of a running agent follows its configuration: which VMs there are, of which class, and where they are found.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use anyhow::anyhow;
use ballast_agent_core::Input;
use ballast_runtime::config::DaemonConfig;
use ballast_runtime::lock;
use ballast_runtime::reload::Reload;

use crate::config::{AgentConfig, GroupsConfig};
use crate::message::Message;
use crate::vms::Vms;

/// What follows the configuration.
pub(crate) struct AgentReload {
    pub(crate) vms: Arc<Mutex<Vms>>,
    pub(crate) messages: Sender<Message>,
}

impl Reload for AgentReload {
    type Config = AgentConfig;
    const FOLLOWED: &'static [&'static str] = &["vm", "discover"];

    fn reload(&mut self, old: &AgentConfig, new: AgentConfig) -> anyhow::Result<(AgentConfig, Vec<String>)> {
        let AgentConfig { vms, groups, daemon, .. } = new;
        let in_force = AgentConfig {
            vms,
            groups: GroupsConfig { discover: groups.discover, ..old.groups.clone() },
            daemon: DaemonConfig { log_level: daemon.log_level, ..old.daemon.clone() },
            ..old.clone()
        };

        // Sent under the lock, so that no older set comes after a newer one.
        let mut vms = lock(&self.vms);
        let set = vms.reload(in_force.vms.clone(), in_force.groups.discover.clone())?;
        let sent = self.messages.send(Message::Input(Input::Vms(set)));
        sent.map_err(|_| anyhow!("the agent stops"))?;

        Ok((in_force, vec![]))
    }
}
