//! What VMs were measured to use, and what is promised by that.

use std::collections::BTreeMap;
use std::sync::Arc;

use ballast_types::Instant;

use super::{Inventory, InventoryError, VmSpec};
use crate::measured::{CpuUse, Measured};
use crate::{HostId, VmKey};

impl Inventory {
    /// Takes note of what was measured on a host, its VMs by name; of others there nothing is known any more. It counts
    /// until the next.
    ///
    /// # Errors
    /// Where the host is not known.
    pub fn measure(
        &mut self,
        now: Instant,
        host: &str,
        measured: Measured<String>,
    ) -> Result<(), InventoryError> {
        let id = self.host_id(host)?;
        self.tell_measured_on(now, id, &measured);
        self.measured.insert(host.to_owned(), measured);
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

    /// Tells constraints that were made anew what was last measured.
    pub(super) fn tell_measured(&mut self, now: Instant) {
        let mut measured = core::mem::take(&mut self.measured);
        measured.retain(|host, measured| {
            let id = self.find(host);
            id.inspect(|id| self.tell_measured_on(now, *id, measured)).is_some()
        });
        self.measured = measured;
    }

    fn tell_measured_on(&mut self, now: Instant, host: HostId, measured: &Measured<String>) {
        let by_key =
            |(vm, usage): (&String, &Arc<CpuUse>)| Some((VmKey(self.vms.number(vm)?), Arc::clone(usage)));
        let vms: BTreeMap<VmKey, Arc<CpuUse>> = measured.vms.iter().filter_map(by_key).collect();
        let measured = Measured { vms, closed: measured.closed, allowed: measured.allowed };
        // The host is there.
        let _ = self.scheduler.measure(now, host, &measured);
    }
}
