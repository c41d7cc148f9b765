//! Two days of what the guest's VMs used: without them an agent recommends no limit.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;
use ballast_agent::records::{Limits, Store};
use ballast_types::{MemoryUse, UsageBin, UsageRecord, VmId, VmStart};

/// Where the guest has them.
pub(crate) const FOLDER: &str = "usr/local/share/guest-usage";
const USED_MIB: u64 = 200;
const CORES: u16 = 2;
const BINS_PER_DAY: u32 = 288;

/// Writes the records of the two days before today, as an agent does.
pub(crate) fn write(folder: &Path) -> anyhow::Result<()> {
    let limits = Limits { days: 22, bytes: 64_000_000 };
    let mut store = Store::open(folder, limits).with_context(|| folder.display().to_string())?;
    let today = UsageBin::of(SystemTime::UNIX_EPOCH.elapsed()?.as_secs()).day();
    for day in today - 2..today {
        let mut records = vec![];
        for bin in (day * BINS_PER_DAY..(day + 1) * BINS_PER_DAY).map(UsageBin) {
            for vm in ["web-1", "batch-1"] {
                let mut record = UsageRecord::empty(VmId::new(vm)?, VmStart(1), bin, CORES);
                (0..300).for_each(|_| record.cpu.add(1000));
                let working_set_bytes = Some(USED_MIB << 20);
                record.memory = MemoryUse { working_set_bytes, ..MemoryUse::default() };
                records.push(record);
            }
        }
        store.append(&records)?;
    }
    Ok(())
}
