//! The rig: a plant behind kernel-format files, so that the real daemons run without hardware.
//!
//! [`Rig`] keeps one folder alive. Below `servers/<id>/` lies one machine per server, below `chassis/`
//! what the chassis manager sees: power supplies and slot controllers. The daemons write caps there, as
//! they would into the kernel; the rig tells the plant, lets it run in wall time, and shows what its
//! meters measure. `truth.json` holds what really happened; no daemon reads it.
//!
//! The folder belongs on a file system in memory (`/dev/shm`): one on disk flushes at every file that is
//! replaced, and then a daemon's write takes milliseconds. Twelve servers need 30 MB.
//!
//! Where it differs from a kernel:
//! - The entries of `sys/class` are real folders, not links into `sys/devices`.
//! - A senseless write is not refused with an error; the file soon shows the value in force again.
//! - A bandwidth period is a whole number of the plant's steps of 10 ms, and an ancestor's has no effect.
//! - `cgroup.procs`, governors and time windows are there to be read; they have no effect.
//! - `cgroup.kill` can be read, and a killed VM's cgroup stays, empty.
//! - One CPU is one core: there are no SMT siblings.
//! - `proc/stat` has the line of all CPUs, and no counter that moves beside it.
//! - A server's root has a file [`load`](load_file), which no kernel has: a number from 0 to 1 keeps all its
//!   cores busy for that share of their time while its VMs stand still, and `own` lets these go on.

mod actuators;
mod cpu_text;
mod error;
mod files;
mod meters;
mod tree;
mod truth;

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant as Clock;

use ballast_sim::plant::Plant;
use ballast_types::{Instant, ServerId, TripFraction, VmId};

pub use error::RigError;

use actuators::Actuators;
use files::Publisher;
use meters::Meters;

/// The hwmon name of every server's own power meter, a hot-swap controller at its input.
pub const METER_NAME: &str = "lm25066";
pub const METER_LABEL: &str = "pin";

/// Between two turns.
const TURN: Duration = Duration::from_millis(5);
/// Between two writes of `truth.json`.
const TRUTH: Duration = Duration::from_millis(200);

pub fn server_root(dir: &Path, server: &ServerId) -> PathBuf {
    dir.join("servers").join(server.as_str())
}

/// Where the load of the server with this root can be set: `own`, or a share of all cores' time.
pub fn load_file(server_root: &Path) -> PathBuf {
    server_root.join("load")
}

/// What [`load_file`] says when the server's VMs do their own work.
pub const OWN_LOAD: &str = "own";

/// The root of the chassis manager's machine in the rig at `dir`.
pub fn chassis_root(dir: &Path) -> PathBuf {
    dir.join("chassis")
}

/// The file with what really happened, in the rig at `dir`.
pub fn truth_file(dir: &Path) -> PathBuf {
    dir.join("truth.json")
}

/// A VM's cgroup, below `sys/fs/cgroup`.
pub fn vm_cgroup(vm: &VmId) -> String {
    format!("machine.slice/{vm}.scope")
}

/// The hwmon name of a power supply, as `driver@device`; `index` counts from 0.
pub fn supply_hwmon(index: usize) -> String {
    format!("pmbus@{}", supply_device(index))
}

/// A power supply's address on its bus.
fn supply_device(index: usize) -> String {
    format!("3-{:04x}", 0x58 + index)
}

pub fn slot_label(server: &ServerId) -> String {
    server.to_string()
}

/// A plant and the files that stand for it.
#[derive(Debug)]
pub struct Rig {
    dir: PathBuf,
    plant: Plant,
    publisher: Publisher,
    actuators: Actuators,
    meters: Meters,
    truth_due: Instant,
    /// The breaker that the plant's budget stands for.
    breaker: TripFraction,
}

impl Rig {
    /// Makes the tree for `plant` in `dir`, which must be empty or not there yet.
    /// This fails if the folder is in use, or a file cannot be made.
    pub fn create(dir: &Path, plant: Plant) -> Result<Self, RigError> {
        let publisher = Publisher::create(dir)?;
        tree::create(dir, &plant)?;
        let actuators = Actuators::watch(dir, &plant)?;
        let meters = Meters::new(dir, &plant);
        let mut rig = Self {
            dir: dir.to_owned(),
            plant,
            publisher,
            actuators,
            meters,
            truth_due: Instant::ZERO,
            breaker: TripFraction::default(),
        };
        rig.turn(Instant::ZERO)?;
        Ok(rig)
    }

    pub fn plant(&self) -> &Plant {
        &self.plant
    }

    /// The plant, to make something happen to it (such as the loss of a feed).
    pub fn plant_mut(&mut self) -> &mut Plant {
        &mut self.plant
    }

    /// One turn: obeys what was written, lets the plant run until `now`, shows what its meters show.
    pub fn turn(&mut self, now: Instant) -> Result<(), RigError> {
        self.actuators.obey(&mut self.plant, &self.publisher)?;
        let seconds = now.since(self.plant.now()).as_secs_f64();
        self.plant.advance(now);
        let share = self.plant.power().as_f64() / self.plant.spec().budget.as_f64();
        self.breaker.take(share, seconds);
        self.meters.show(&self.plant, &self.publisher)?;
        if now >= self.truth_due {
            self.truth_due = now + TRUTH;
            self.write_truth()?;
        }
        Ok(())
    }

    /// Runs in wall time until `stop` is set, then writes the final `truth.json`.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), RigError> {
        let (start, origin) = (Clock::now(), self.plant.now());
        let mut next = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            self.turn(origin + start.elapsed())?;
            // After a stall the missed turns are not made up for: the plant itself catches up.
            next = (next + TURN).max(start.elapsed());
            thread::sleep(next.saturating_sub(start.elapsed()));
        }
        self.write_truth()
    }

    fn write_truth(&self) -> Result<(), RigError> {
        self.publisher.replace(&truth_file(&self.dir), &truth::json(&self.plant, self.breaker.now())?)
    }
}
