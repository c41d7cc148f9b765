//! The power that the guest's p-states draw, and the meter that shows it.
//!
//! A thread reads the p-state registers 250 times a second, works out the draw by the server power model,
//! and stores it in the guest's RAM, where the ACPI power meter looks. What it saw is kept, so that a test
//! can ask afterwards when something happened.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ballast_types::PowerModel;

use crate::bmc::Bmc;
use crate::machine::{CPUS, METER_AT, Registers};
use crate::rapl::Rapl;

/// The table of p-states in `recipe/ssdt.asl`, in MHz; register value 1 is the first.
pub(crate) const MHZ: [u32; 9] = [2400, 2200, 2000, 1800, 1600, 1400, 1200, 1000, 800];
/// The register value of the lowest p-state at or above half of the highest: the floor of throttling.
pub(crate) const FLOOR: u8 = 7;
/// The register value of the highest p-state.
pub(crate) const TOP: u8 = 1;

const PERIOD: Duration = Duration::from_millis(4);
/// The supply's meter refreshes this often.
const SUPPLY_REFRESH: Duration = Duration::from_millis(50);
/// What the chassis draws beyond the guest, in watts.
pub(crate) const SHARED_W: f64 = 20.0;
/// The regulator behind a hardware cap, in seconds.
const CAP_TAU_S: f64 = 0.25;
/// What `power1_cap` says while nobody caps, in milliwatts: its maximum in `recipe/ssdt.asl`.
const NO_CAP_MW: u32 = 400_000;

const DRAW: u64 = METER_AT;
const CAP: u64 = METER_AT + 4;
const INTERVAL: u64 = METER_AT + 8;
const GONE: u64 = METER_AT + 12;

/// Where whoever runs on a CPU writes its number, a byte for each CPU.
const RUNS: u64 = METER_AT + 0x200;
/// Nobody of these.
pub(crate) const IDLE: u8 = 0;

/// One turn of the plant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) registers: [u8; CPUS],
    /// Who ran on every CPU, as `recipe/guest-work` has told: [`IDLE`], or its own number.
    pub(crate) runs: [u8; CPUS],
    pub(crate) watts: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    pub(crate) load: [f64; CPUS],
    /// Instead of that, each CPU is busy while a process in the guest says that it runs there.
    pub(crate) is_told: bool,
    /// Whether the meter answers "unknown".
    pub(crate) meter_gone: bool,
    /// A CPU whose register is set to the highest p-state once, as a reset of the core does.
    pub(crate) reset: Option<usize>,
}

#[derive(Debug)]
struct Shared {
    knobs: Knobs,
    observed: Vec<Sample>,
    /// Why the plant has stopped, if it has.
    failed: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Plant {
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The root of the chassis manager's machine: one power supply.
    pub(crate) chassis_root: PathBuf,
}

impl Plant {
    pub(crate) fn start(
        registers: Registers,
        ram: File,
        bmc: Arc<Bmc>,
        chassis_root: PathBuf,
    ) -> anyhow::Result<Self> {
        let store = |at, value: u32| ram.write_all_at(&value.to_le_bytes(), at);
        store(CAP, NO_CAP_MW)?;
        store(INTERVAL, 1000)?;
        let rapl = Rapl::start(&ram)?;
        let supply = supply(&chassis_root)?;
        let knobs = Knobs { load: [0.5; CPUS], is_told: false, meter_gone: false, reset: None };
        let shared = Arc::new(Mutex::new(Shared { knobs, observed: Vec::new(), failed: None }));
        let stop = Arc::new(AtomicBool::new(false));
        let (inside, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let thread = thread::Builder::new().name("plant".into()).spawn(move || {
            let mut turn = Turn { registers, ram, bmc, rapl, supply, physics: Physics::default() };
            if let Err(e) = turn.run(&inside, &stopped) {
                lock(&inside).failed = Some(format!("{e:#}"));
            }
        })?;

        Ok(Self { shared, stop, thread: Some(thread), chassis_root })
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Knobs)) {
        change(&mut lock(&self.shared).knobs);
    }

    pub(crate) fn now(&self) -> anyhow::Result<Sample> {
        let shared = lock(&self.shared);
        if let Some(why) = &shared.failed {
            anyhow::bail!("the plant has stopped: {why}");
        }
        shared.observed.last().copied().ok_or_else(|| anyhow::anyhow!("the plant has not begun"))
    }

    /// Everything since `from`, oldest first.
    pub(crate) fn since(&self, from: Instant) -> Vec<Sample> {
        let shared = lock(&self.shared);
        let first = shared.observed.partition_point(|sample| sample.at < from);
        shared.observed[first..].to_vec()
    }

    /// Waits until a sample at or after `from` meets a condition; gives that sample.
    pub(crate) fn wait(
        &self,
        what: &dyn fmt::Display,
        from: Instant,
        within: Duration,
        condition: impl Fn(&Sample) -> bool,
    ) -> anyhow::Result<Sample> {
        loop {
            let newest = self.now()?;
            if let Some(sample) = self.since(from).into_iter().find(|sample| condition(sample)) {
                return Ok(sample);
            }
            if from.elapsed() > within {
                anyhow::bail!(
                    "{what}: not within {} ms; registers {:?}, {:.1} W",
                    within.as_millis(),
                    newest.registers,
                    newest.watts
                );
            }

            thread::sleep(PERIOD);
        }
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the plant has been seen by whoever asked it for a sample.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the power supply that the chassis manager reads; gives the file of its input power.
fn supply(root: &Path) -> anyhow::Result<PathBuf> {
    let dir = root.join("sys/class/hwmon/hwmon0");
    fs::create_dir_all(&dir)?;
    for (file, text) in [("name", "pmbus\n"), ("power1_label", "pin\n")] {
        fs::write(dir.join(file), text)?;
    }
    fs::create_dir_all(root.join("proc/sys/kernel/random"))?;
    let boot = "proc/sys/kernel/random/boot_id";
    fs::copy(Path::new("/").join(boot), root.join(boot))?;
    Ok(dir.join("power1_input"))
}

/// What a register's p-state is of the highest frequency.
pub(crate) fn share(register: u8) -> f64 {
    let index = usize::from(register.max(TOP) - TOP).min(MHZ.len() - 1);
    f64::from(MHZ[index]) / f64::from(MHZ[0])
}

/// The thread's own.
struct Turn {
    registers: Registers,
    ram: File,
    bmc: Arc<Bmc>,
    rapl: Rapl,
    supply: PathBuf,
    physics: Physics,
}

impl Turn {
    fn run(&mut self, shared: &Mutex<Shared>, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut last = Instant::now();
        let mut supply_due = last;
        while !stop.load(Ordering::Relaxed) {
            let reset = lock(shared).knobs.reset.take();
            if let Some(cpu) = reset {
                self.registers.write(cpu, TOP)?;
            }
            let registers = self.registers.read()?;
            let at = Instant::now();
            let mut knobs = lock(shared).knobs.clone();
            let mut runs = [IDLE; CPUS];
            self.ram.read_exact_at(&mut runs, RUNS)?;
            if knobs.is_told {
                knobs.load = runs.map(|who| f64::from(u8::from(who != IDLE)));
            }
            let by_meter = f64::from(self.load(CAP)?) / 1000.0;
            let by_bmc = self.bmc.limit_w().unwrap_or(f64::INFINITY);
            let cap = by_meter.min(by_bmc).min(Rapl::cap_w(&self.ram)?);
            let watts = self.physics.step(&registers, &knobs.load, cap, at - last);
            self.rapl.count(&self.ram, watts, at - last)?;
            last = at;
            let shown = self.physics.shown(watts);
            self.store(DRAW, (shown * 1000.0) as u32)?;
            self.store(GONE, knobs.meter_gone.into())?;
            self.bmc.show(shown);

            if at >= supply_due {
                supply_due = at + SUPPLY_REFRESH;
                let fresh = self.supply.with_extension("new");
                fs::write(&fresh, format!("{}\n", ((shown + SHARED_W) * 1e6) as u64))?;
                fs::rename(&fresh, &self.supply)?;
            }

            lock(shared).observed.push(Sample { at, registers, runs, watts });
            thread::sleep(PERIOD.saturating_sub(at.elapsed()));
        }

        Ok(())
    }

    fn store(&self, at: u64, value: u32) -> std::io::Result<()> {
        self.ram.write_all_at(&value.to_le_bytes(), at)
    }

    fn load(&self, at: u64) -> std::io::Result<u32> {
        let mut bytes = [0; 4];
        self.ram.read_exact_at(&mut bytes, at)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// The paper's server with four cores.
#[derive(Debug, Default)]
struct Physics {
    /// What the hardware cap takes off the draw, in watts.
    held: f64,
    /// Steps of the meter's noise.
    noise: u32,
}

impl Physics {
    /// The draw `dt` later, in watts.
    fn step(&mut self, registers: &[u8; CPUS], load: &[f64; CPUS], cap_w: f64, dt: Duration) -> f64 {
        let model = PowerModel::PAPER;
        let shares = registers.map(share);

        let floor = model.static_w(shares.iter().sum::<f64>() / CPUS as f64);
        let busy = shares.iter().zip(load).map(|(share, load)| load * model.scale(*share));
        let uncapped = floor + model.dynamic_w() * busy.sum::<f64>() / CPUS as f64;
        let excess = (uncapped - cap_w).clamp(0.0, uncapped - floor);
        self.held += (excess - self.held) * -(-dt.as_secs_f64() / CAP_TAU_S).exp_m1();
        self.held = self.held.clamp(0.0, uncapped - floor);

        uncapped - self.held
    }

    /// What a meter makes of it: off by up to 0.2 %, so that it never looks frozen.
    fn shown(&mut self, watts: f64) -> f64 {
        self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        watts * (1.0 + 0.002 * (f64::from(self.noise) / f64::from(u32::MAX) * 2.0 - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_draw_is_that_of_the_power_model() {
        for (registers, load, watts) in [
            ([TOP; 4], [1.0; 4], 310.0),
            ([TOP; 4], [0.0; 4], 112.0),
            ([FLOOR; 4], [1.0; 4], 169.0),
            ([FLOOR; 4], [0.0; 4], 111.0),
            // Before the driver's first write hardware runs at its highest.
            ([0; 4], [1.0; 4], 310.0),
        ] {
            let draw = Physics::default().step(&registers, &load, 400.0, LONG);
            assert!((draw - watts).abs() < 0.01, "{registers:?} {load:?}: {draw}");
        }
    }

    #[test]
    fn a_hardware_cap_is_obeyed_with_a_lag_and_down_to_idle_only() {
        let mut physics = Physics::default();
        let mut draw = |cap, ms| physics.step(&[TOP; 4], &[1.0; 4], cap, Duration::from_millis(ms));
        assert!(draw(200.0, 10) > 300.0);
        assert!((draw(200.0, 5000) - 200.0).abs() < 0.1);
        assert!((draw(50.0, 5000) - 112.0).abs() < 0.1);
        assert!((draw(400.0, 5000) - 310.0).abs() < 0.1);
    }
}
