//! The second step of a start: the hosts and VMs that a previous instance has written down.

use std::sync::Arc;
use std::thread::JoinHandle;

use ballast_runtime::events::Events;
use ballast_runtime::state::DiskFaults;

use crate::inventory::DurableInventory;
use crate::lifetime_history::HistoryOptions;
use crate::open::Opened;

/// The inventory as it was, and the thread that writes it down.
pub(crate) struct Adopted<'a> {
    pub(crate) opened: Opened<'a>,
    pub(crate) inventory: Arc<DurableInventory>,
    pub(crate) writer: JoinHandle<()>,
    pub(crate) events: Events,
    /// What the disk does not take.
    pub(crate) faults: DiskFaults,
}

impl<'a> Opened<'a> {
    /// Takes over hosts and VMs of a previous instance.
    pub(crate) fn adopt(self) -> anyhow::Result<Adopted<'a>> {
        let events = Events::default();
        let faults = DiskFaults::new(events.clone());
        let history = self.config.predict.history_bytes_max;
        let history = history.map(|bytes_max| HistoryOptions { bytes_max, faults: faults.clone() });
        let config = self.config;
        let admission = config.admission.as_ref();
        let (inventory, writer) =
            DurableInventory::open(&config.state_dir, config.policy, history, admission)?;
        Ok(Adopted { opened: self, inventory, writer, events, faults })
    }
}
