//! The second step of a start: the hosts and VMs that a previous instance has written down.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::inventory::DurableInventory;
use crate::open::Opened;

/// The inventory as it was, and the thread that writes it down.
pub(crate) struct Adopted<'a> {
    pub(crate) opened: Opened<'a>,
    pub(crate) inventory: Arc<DurableInventory>,
    pub(crate) writer: JoinHandle<()>,
}

impl<'a> Opened<'a> {
    /// Takes over hosts and VMs of a previous instance.
    pub(crate) fn adopt(self) -> anyhow::Result<Adopted<'a>> {
        let (inventory, writer) = DurableInventory::open(&self.config.state_dir, self.config.policy)?;
        Ok(Adopted { opened: self, inventory, writer })
    }
}
