//! This machine, as the kernel shows it: CPUs and their clocks, RAPL, hwmon, cgroup v2.
//!
//! Everything hangs below a [`Root`]: `/` on a server, a folder in tests and on the rig. Only this
//! crate opens the kernel's files, and the kernel's raw integers stay inside it. It decides nothing:
//! it reads, it writes, and it tells when a reading cannot be trusted.
//!
//! A restriction is undone by putting back what was there. [`journal`] keeps that over a crash.

pub mod bandwidth;
pub mod binding;
pub mod cgroup;
mod cpu_time;
pub mod cpufreq;
pub mod discovery;
pub mod durable;
mod error;
mod freshness;
pub mod hwmon;
pub mod journal;
pub mod kubelet;
mod libvirt;
pub mod lists;
pub mod memory_limits;
pub mod meter;
pub mod panics;
pub mod probe;
pub mod rapl;
mod root;
pub mod sensor;
pub mod supplies;
pub mod systemd;
mod topology;
pub mod uclamp;
pub mod uevents;

#[cfg(test)]
mod testing;

pub use bandwidth::{Bandwidth, QuotaOriginal, Through};
pub use binding::{Binders, By, CpusetOriginal};
pub use cgroup::{Cgroup, ClampScale, CpuLimit, CpuMax, CpuUse, UsageMeter, memory_bytes};
pub use cpu_time::CpuTime;
pub use cpufreq::{Cpufreq, Driver, Floor};
pub use error::{HwError, Operation};
pub use hwmon::{CapSpec, HwmonCap, HwmonCapState, HwmonSensor, MatchSpec};
pub use journal::{Journal, JournalFolders, Opened, Originals};
#[cfg(feature = "testing")]
pub use libvirt::{Pins, pins};
pub use lists::CpuList;
pub use memory_limits::{MemoryFile, MemoryLimits, MemoryOriginal, MemoryPair};
pub use meter::PowerMeter;
pub use rapl::{RaplCap, RaplMeter, RaplSensor};
pub use root::{Root, WRITES, boot_id};
pub use sensor::{Sampled, Sensor, SensorError};
pub use supplies::{PmbusSupply, SupplyMeter, SupplySensor};
pub use topology::{Domain, Topology, online, possible};
