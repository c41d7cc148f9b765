//! What this daemon reads, for tests that bring bytes of their own.

use ballast_placement::inventory::Snapshot;
use ballast_placement::{Inventory, Policy};
use ballast_runtime::http::Refused;
use ballast_types::Instant;

use crate::ask::Question;
use crate::body;
use crate::vm_request::VmRequest;

pub use crate::kubernetes::testing::Extender;

/// Reads a body of `/v1/predict`; says how many VMs it asks about.
pub fn question(body: &[u8]) -> Result<usize, String> {
    Question::read(body).map(|question| question.vms.len()).map_err(|Refused(_, why)| why)
}

/// Reads a body of `/v1/score`, and asks for a place in `inventory`; says how many hosts can take the VM.
pub fn score(inventory: &Inventory, body: &[u8]) -> Result<usize, String> {
    let vm = body::read(body).map_err(|Refused(_, why)| why)?;
    let request = VmRequest::new(vm, None)?;
    let spec = request.predicted(None).vm.spec;
    let scores = inventory.score(Instant::ZERO, "vm", &spec, 10).map_err(|error| error.to_string())?;
    Ok(scores.fitting)
}

/// What a file of hosts says, as an inventory; `is_json` is told by its name.
pub fn hosts(text: &str, is_json: bool) -> Result<Inventory, String> {
    let hosts = crate::config::parse_hosts(text, is_json)?;
    let hosts = hosts.into_iter().map(|entry| entry.host).collect();
    inventory(&Snapshot { hosts, vms: vec![] })
}

fn inventory(snapshot: &Snapshot) -> Result<Inventory, String> {
    let mut inventory = Inventory::new(Policy::POWER);
    inventory.replace(Instant::ZERO, snapshot).map_err(|error| error.to_string())?;
    Ok(inventory)
}
