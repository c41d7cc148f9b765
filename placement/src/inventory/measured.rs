//! What VMs were measured to use, and what is promised by that.

use std::collections::BTreeMap;
use std::sync::Arc;

use ballast_types::Instant;

use super::{Inventory, InventoryError, VmSpec};
use crate::fits::{CpuUse, Measured};
use crate::VmKey;

impl Inventory {
    /// Takes note of what was measured on a host, its VMs by name; of others there nothing is known any more. It counts
    /// until the next.
    ///
    /// # Errors
    /// Where the host is not known.
    pub fn measure(&mut self, now: Instant, host: &str, measured: Measured<String>) -> Result<(), InventoryError> {
        self.host_id(host)?;
        self.measured.insert(host.to_owned(), measured);
        self.tell_measured(now, Some(host));
        Ok(())
    }

    /// For which share of the time this host's VMs demand more than its cores, or would with one more; `None` where nothing
    /// is promised.
    ///
    /// # Errors
    /// Where the host is not known, or no host has what the VM asks for.
    pub fn cpu_risk(
        &self,
        now: Instant,
        host: &str,
        more: Option<&VmSpec>,
    ) -> Result<Option<f64>, InventoryError> {
        let host = self.host_id(host)?;
        let request = more.map(|spec| self.unplaced_request(now, "", spec)).transpose()?;
        self.scheduler.risk(request.as_ref(), host).map_err(|error| self.by_name("", &error))
    }

    /// Tells constraints what was last measured, on one host or on all: they may have been made anew.
    pub(super) fn tell_measured(&mut self, now: Instant, one: Option<&str>) {
        let known = |host: &String| self.hosts.contains_key(host.as_str());
        let mut measured = core::mem::take(&mut self.measured);
        measured.retain(|host, _| known(host));
        for (host, Measured { vms, closed }) in &measured {
            let Some(id) = self.find(host).filter(|_| one.is_none_or(|one| one == host)) else { continue };
            let by_key = |(vm, usage): (&String, &Arc<CpuUse>)| {
                Some((VmKey(self.vms.number(vm)?), Arc::clone(usage)))
            };
            let vms: BTreeMap<VmKey, Arc<CpuUse>> = vms.iter().filter_map(by_key).collect();
            // The host is there.
            let _ = self.scheduler.measure(now, id, &Measured { vms, closed: *closed });
        }
        self.measured = measured;
    }
}
