//! Per-core frequency caps through `scaling_max_freq`, the only file that caps and follows no governor.
//!
//! Traps that shape this module (Linux 6.12, `drivers/cpufreq/cpufreq.c`):
//! a value out of range is clamped silently, so every value is checked before it is written;
//! reading shows the least of all limits, not our request; the change is applied after the write
//! returns, so [`Cpufreq::read_back`] tells the truth some 10 to 50 ms later.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ballast_types::{Core, CoreId, KiloHertz, Ladder};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{numbered, optional, read_text, read_value, write_value};

/// "No user limit": `FREQ_QOS_MAX_DEFAULT_VALUE`. Unlike `cpuinfo_max_freq` it survives a later boost.
const NO_LIMIT_KHZ: u32 = 2_147_483_647;
/// Step of a driver without a table.
const STEP: KiloHertz = KiloHertz::from_mhz(100);
/// What a frequency file must hold.
const FREQUENCY: &str = "a whole number of kHz from 1 to 100000000";
/// A hundred gigahertz: beyond it the unit is wrong.
const MAX_KHZ: u32 = 100_000_000;

/// How low software may throttle a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Floor {
    /// The lowest p-state at or above half of the reference frequency.
    #[default]
    Half,
    /// The lowest p-state at or above this frequency.
    At(KiloHertz),
}

/// What was there before anything was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpufreqOriginals {
    /// `scaling_driver`; another driver has other limits, and has dropped ours.
    pub driver: String,
    /// `scaling_max_freq` per policy.
    pub max_khz: BTreeMap<CoreId, KiloHertz>,
}

/// Every cpufreq policy of this machine.
#[derive(Debug)]
pub struct Cpufreq {
    driver: String,
    policies: BTreeMap<CoreId, Policy>,
}

#[derive(Debug)]
struct Policy {
    max_file: PathBuf,
    ladder: Ladder,
    cpuinfo_max: KiloHertz,
    /// `scaling_max_freq` as it was before any cap of ours.
    original: KiloHertz,
    /// Whether a cap of ours is on it, or may be.
    touched: bool,
}

impl Cpufreq {
    /// Reads every policy and works out what it can be capped to. Changes nothing.
    ///
    /// A policy whose CPUs are all offline (EBUSY) is left out.
    ///
    /// # Errors
    /// If there is no policy, or a file of one is missing or garbage.
    pub fn discover(root: &Root, floor: Floor) -> Result<Self, HwError> {
        let dir = root.path("sys/devices/system/cpu/cpufreq");
        let mut policies = BTreeMap::new();
        let mut driver = None;
        for (number, path) in numbered(&dir, "policy")? {
            let id = u16::try_from(number).map_err(|_| {
                HwError::value(&path, Operation::Read, number, "a policy number up to 65535")
            })?;
            match Policy::read(root, &path, number, floor) {
                Ok((name, policy)) => {
                    driver.get_or_insert(name);
                    policies.insert(CoreId(id), policy);
                }
                Err(e) if e.is(&[Errno::EBUSY]) => warn!(%e, "policy is offline: left out"),
                Err(e) => return Err(e),
            }
        }
        let driver = driver.ok_or_else(|| {
            HwError::value(&dir, Operation::Read, "no policy", "at least one online policyN")
        })?;
        Ok(Self { driver, policies })
    }

    /// One core per policy, ascending by id.
    #[must_use]
    pub fn cores(&self) -> Vec<Core> {
        let core =
            |(id, policy): (&CoreId, &Policy)| Core { id: *id, ladder: policy.ladder.clone() };
        self.policies.iter().map(core).collect()
    }

    /// The name of the driver.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// What must be put back at the end.
    #[must_use]
    pub fn originals(&self) -> CpufreqOriginals {
        let max_khz = self.policies.iter().map(|(id, p)| (*id, p.original)).collect();
        CpufreqOriginals { driver: self.driver.clone(), max_khz }
    }

    /// Takes over what an earlier life of the agent had found, and tells which cores it left capped.
    ///
    /// A core counts as capped if it stands below its original, within its ladder. One that stands
    /// at or above its original was changed by somebody else since: the present value is kept.
    ///
    /// # Errors
    /// If a policy cannot be read.
    pub fn adopt(&mut self, saved: &CpufreqOriginals) -> Result<Vec<(CoreId, KiloHertz)>, HwError> {
        if saved.driver != self.driver {
            warn!(
                was = saved.driver,
                is = self.driver,
                "cpufreq driver changed: saved limits dropped"
            );
            return Ok(Vec::new());
        }
        let mut capped = Vec::new();
        for (id, policy) in &mut self.policies {
            let Some(&original) = saved.max_khz.get(id) else {
                continue;
            };
            let current = read_khz(&policy.max_file)?;
            if current >= original {
                policy.original = current;
                continue;
            }
            policy.original = original;
            // Lower than our lowest is a stronger limit of the kernel; ours may be hidden behind it.
            policy.touched = true;
            if (policy.ladder.floor()..=policy.ladder.max()).contains(&current) {
                capped.push((*id, current));
            }
        }
        Ok(capped)
    }

    /// Caps one core. Never raises it above what it was limited to before.
    ///
    /// # Errors
    /// If there is no such core, the frequency is outside its ladder, or the kernel refuses.
    pub fn set(&mut self, core: CoreId, khz: KiloHertz) -> Result<(), HwError> {
        let policy = self.policy_mut(core)?;
        let (low, high) = (policy.ladder.floor(), policy.ladder.max());
        if !(low..=high).contains(&khz) {
            let allowed = format!("{} to {high}", low.get());
            return Err(HwError::value(&policy.max_file, Operation::Write, khz, allowed));
        }
        policy.touched = true;
        write_value(&policy.max_file, khz.min(policy.original).get())
    }

    /// Takes our cap off one core; does nothing if there is none.
    ///
    /// Where nobody had limited it before, it is left without any user limit; otherwise the limit of
    /// before is put back.
    ///
    /// # Errors
    /// If there is no such core, or the kernel refuses.
    pub fn release(&mut self, core: CoreId) -> Result<(), HwError> {
        let policy = self.policy_mut(core)?;
        if policy.touched {
            policy.restore()?;
            policy.touched = false;
        }
        Ok(())
    }

    /// The limit in force: the least of ours and the kernel's own.
    ///
    /// # Errors
    /// If there is no such core, or its file is unreadable or garbage.
    pub fn read_back(&self, core: CoreId) -> Result<KiloHertz, HwError> {
        read_khz(&self.policy(core)?.max_file)
    }

    fn policy(&self, core: CoreId) -> Result<&Policy, HwError> {
        self.policies.get(&core).ok_or_else(|| unknown(core))
    }

    fn policy_mut(&mut self, core: CoreId) -> Result<&mut Policy, HwError> {
        self.policies.get_mut(&core).ok_or_else(|| unknown(core))
    }
}

fn unknown(core: CoreId) -> HwError {
    let path = PathBuf::from(format!("sys/devices/system/cpu/cpufreq/policy{core}"));
    HwError::value(&path, Operation::Read, core, "a policy that was found at start")
}

fn read_khz(path: &Path) -> Result<KiloHertz, HwError> {
    let khz: u32 = read_value(path, FREQUENCY)?;
    // `scaling_max_freq` may show the "no limit" value itself on some kernels.
    if khz == 0 || (khz > MAX_KHZ && khz != NO_LIMIT_KHZ) {
        return Err(HwError::value(path, Operation::Read, khz, FREQUENCY));
    }
    Ok(KiloHertz::new(khz))
}

impl Policy {
    fn read(root: &Root, dir: &Path, cpu: u32, floor: Floor) -> Result<(String, Self), HwError> {
        let driver = read_text(&dir.join("scaling_driver"))?.trim().to_owned();
        let cpuinfo_min = read_khz(&dir.join("cpuinfo_min_freq"))?;
        let max_path = dir.join("cpuinfo_max_freq");
        let cpuinfo_max = read_khz(&max_path)?;
        if cpuinfo_max < cpuinfo_min {
            let allowed = format!("at least cpuinfo_min_freq, {cpuinfo_min}");
            return Err(HwError::value(&max_path, Operation::Read, cpuinfo_max, allowed));
        }
        let mut table = read_table(&dir.join("scaling_available_frequencies"))?;
        table.retain(|khz| (cpuinfo_min..=cpuinfo_max).contains(khz));

        let cppc = root.path(&format!("sys/devices/system/cpu/cpu{cpu}/acpi_cppc/nominal_freq"));
        let nominal = || {
            let mhz = optional(read_value::<u32>(&cppc, "a whole number of MHz"))?;
            // Firmware that does not know says 0.
            Ok::<_, HwError>(mhz.filter(|mhz| *mhz > 0).map(KiloHertz::from_mhz))
        };
        let reference = match optional(read_khz(&dir.join("base_frequency")))? {
            Some(base) => Some(base),
            None => nominal()?,
        };
        let reference = reference.or_else(|| table.last().copied()).unwrap_or(cpuinfo_max);
        let reference = reference.clamp(cpuinfo_min, cpuinfo_max);

        // Below this amd-pstate saves hardly any power.
        let nonlinear = optional(read_khz(&dir.join("amd_pstate_lowest_nonlinear_freq")))?;
        let wanted = match floor {
            Floor::Half => KiloHertz::new(reference.get().div_ceil(2)),
            Floor::At(khz) => khz,
        };
        if wanted > reference {
            let allowed = format!("a floor of at most the reference frequency, {reference}");
            return Err(HwError::value(dir, Operation::Read, wanted, allowed));
        }
        let lowest = wanted.max(cpuinfo_min).max(nonlinear.unwrap_or_default()).min(reference);
        let ladder = ladder(&table, lowest, reference).ok_or_else(|| {
            HwError::value(dir, Operation::Read, reference, "a reference frequency above 0 kHz")
        })?;

        let max_file = dir.join("scaling_max_freq");
        let original = read_khz(&max_file)?;
        if original < cpuinfo_max {
            warn!(file = %max_file.display(), khz = original.get(), "already limited: kept as the original");
        }
        Ok((driver, Self { max_file, ladder, cpuinfo_max, original, touched: false }))
    }

    fn restore(&self) -> Result<(), HwError> {
        if self.original < self.cpuinfo_max {
            return write_value(&self.max_file, self.original.get());
        }
        match write_value(&self.max_file, NO_LIMIT_KHZ) {
            // Kernels without frequency QoS take nothing above the maximum.
            Err(e) if e.is(&[Errno::EINVAL, Errno::ERANGE]) => {
                write_value(&self.max_file, self.cpuinfo_max.get())
            }
            result => result,
        }
    }
}

/// The non-boost p-states of a table driver, ascending; empty if the driver has no table.
fn read_table(path: &Path) -> Result<Vec<KiloHertz>, HwError> {
    let Some(text) = optional(read_text(path))? else {
        return Ok(Vec::new());
    };
    let khz = |word: &str| {
        let khz = word.parse().ok().filter(|khz| (1..=MAX_KHZ).contains(khz));
        khz.map(KiloHertz::new)
            .ok_or_else(|| HwError::value(path, Operation::Read, word, FREQUENCY))
    };
    let mut table = text.split_whitespace().map(khz).collect::<Result<Vec<_>, _>>()?;
    table.sort_unstable();
    table.dedup();
    // acpi-cpufreq shows turbo as one more entry, 1 MHz above the highest real one.
    if let [.., below, top] = table[..]
        && top.get() - below.get() == 1000
    {
        table.pop();
    }
    Ok(table)
}

fn ladder(table: &[KiloHertz], lowest: KiloHertz, reference: KiloHertz) -> Option<Ladder> {
    let steps: Vec<_> =
        table.iter().copied().filter(|khz| (lowest..=reference).contains(khz)).collect();
    if !steps.is_empty() {
        return Ladder::new(&steps).ok();
    }
    // The first supported step at or above the lowest: steps are counted down from the reference.
    let steps_down = (reference.get() - lowest.get()) / STEP.get();
    let floor = KiloHertz::new(reference.get() - steps_down * STEP.get());
    Ladder::stepped(floor, reference, STEP).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const P0: &str = "sys/devices/system/cpu/cpufreq/policy0";
    const MAX: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq";

    fn mhz(n: u32) -> KiloHertz {
        KiloHertz::from_mhz(n)
    }
    fn tree() -> Tree {
        let tree = Tree::new();
        tree.policy(0);
        tree
    }
    fn found(tree: &Tree) -> Cpufreq {
        Cpufreq::discover(tree.root(), Floor::Half).unwrap()
    }

    #[test]
    fn the_ladder_follows_what_the_driver_offers() {
        // (files beside the policy's own, floor, steps, top), in MHz
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], u32, usize, u32);
        let cases: &[Case<'_>] = &[
            (&[], &[], 1200, 13, 2400),
            (&[("cpuinfo_min_freq", "1500000")], &[], 1500, 10, 2400),
            (&[("base_frequency", "2500000")], &[], 1300, 13, 2500),
            (&[], &["base_frequency"], 1800, 18, 3500),
            (&[("base_frequency", "9900000")], &[], 1800, 18, 3500),
            (&[("amd_pstate_lowest_nonlinear_freq", "1700000")], &[], 1700, 8, 2400),
            // EPYC under acpi-cpufreq: three p-states.
            (
                &[
                    ("scaling_available_frequencies", "2400000 1900000 1500000 "),
                    ("cpuinfo_min_freq", "1500000"),
                ],
                &["base_frequency"],
                1500,
                3,
                2400,
            ),
            // Turbo as one entry 1 MHz above.
            (
                &[("scaling_available_frequencies", "2401000 2400000 1800000 1200000 1000000")],
                &["base_frequency"],
                1200,
                3,
                2400,
            ),
        ];
        for (files, removed, floor, len, top) in cases {
            let tree = tree();
            tree.folder(P0, files);
            for file in *removed {
                tree.remove(&format!("{P0}/{file}"));
            }
            let ladder = found(&tree).cores().remove(0).ladder;
            assert_eq!(
                (ladder.floor(), ladder.len(), ladder.max()),
                (mhz(*floor), *len, mhz(*top)),
                "{files:?}"
            );
        }
    }

    #[test]
    fn nominal_frequency_stands_in_for_a_missing_base() {
        let tree = tree();
        tree.remove(&format!("{P0}/base_frequency"));
        let file = "sys/devices/system/cpu/cpu0/acpi_cppc/nominal_freq";
        tree.write(file, "2000\n");
        assert_eq!(found(&tree).cores()[0].ladder.max(), mhz(2000));
        tree.write(file, "0\n");
        assert_eq!(found(&tree).cores()[0].ladder.max(), mhz(3500));
    }

    #[test]
    fn a_chosen_floor_is_kept_or_refused() {
        let tree = tree();
        let ladder =
            |floor| Cpufreq::discover(tree.root(), floor).map(|c| c.cores().remove(0).ladder);
        assert_eq!(ladder(Floor::At(mhz(1650))).unwrap().floor(), mhz(1700));
        assert_eq!(ladder(Floor::At(mhz(100))).unwrap().floor(), mhz(1000));
        assert!(ladder(Floor::At(mhz(2500))).is_err());
    }

    #[test]
    fn every_file_missing_or_garbage_is_an_error_that_names_it() {
        for file in ["scaling_driver", "cpuinfo_min_freq", "cpuinfo_max_freq", "scaling_max_freq"] {
            let tree = tree();
            tree.remove(&format!("{P0}/{file}"));
            let e = Cpufreq::discover(tree.root(), Floor::Half).unwrap_err();
            assert!(e.to_string().contains(file), "{e}");
        }
        for file in [
            "cpuinfo_min_freq",
            "cpuinfo_max_freq",
            "scaling_max_freq",
            "base_frequency",
            "scaling_available_frequencies",
        ] {
            for bad in ["<unknown>", "-5", "0", "1e6", "99999999999", "2.4"] {
                let tree = tree();
                tree.write(&format!("{P0}/{file}"), bad);
                let e = Cpufreq::discover(tree.root(), Floor::Half).unwrap_err();
                assert!(e.to_string().contains(file) && e.to_string().contains("allowed"), "{e}");
            }
        }
        let tree = Tree::new();
        assert!(Cpufreq::discover(tree.root(), Floor::Half).is_err());
        tree.write("sys/devices/system/cpu/cpufreq/boost", "1\n");
        assert!(Cpufreq::discover(tree.root(), Floor::Half).is_err());
    }

    #[test]
    fn a_cap_outside_the_ladder_never_reaches_the_kernel() {
        let tree = tree();
        let mut cpufreq = found(&tree);
        for bad in [
            KiloHertz::new(0),
            KiloHertz::new(2400),
            mhz(1199),
            mhz(2401),
            KiloHertz::new(u32::MAX),
        ] {
            assert!(cpufreq.set(CoreId(0), bad).is_err(), "{bad}");
        }
        assert!(cpufreq.set(CoreId(7), mhz(1200)).is_err());
        assert_eq!(tree.read(MAX), "3500000\n");
        cpufreq.set(CoreId(0), mhz(1200)).unwrap();
        assert_eq!(tree.read(MAX), "1200000\n");
        assert_eq!(cpufreq.read_back(CoreId(0)).unwrap(), mhz(1200));
    }

    #[test]
    fn a_release_puts_back_what_was_there() {
        for (before, written) in
            [("3500000", "2147483647\n"), ("2147483647", "2147483647\n"), ("2000000", "2000000\n")]
        {
            let tree = tree();
            tree.write(MAX, before);
            let mut cpufreq = found(&tree);
            cpufreq.set(CoreId(0), mhz(1300)).unwrap();
            cpufreq.release(CoreId(0)).unwrap();
            assert_eq!(tree.read(MAX), written, "{before}");
        }
    }

    #[test]
    fn a_core_that_we_did_not_cap_is_left_to_others() {
        let tree = tree();
        let mut cpufreq = found(&tree);
        tree.write(MAX, "1800000\n");
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), "1800000\n");
        // Once released, it is theirs again.
        cpufreq.set(CoreId(0), mhz(1300)).unwrap();
        cpufreq.release(CoreId(0)).unwrap();
        tree.write(MAX, "1800000\n");
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), "1800000\n");
    }

    #[test]
    fn a_cap_never_lifts_a_limit_of_somebody_else() {
        let tree = tree();
        tree.write(MAX, "1500000");
        let mut cpufreq = found(&tree);
        cpufreq.set(CoreId(0), mhz(2400)).unwrap();
        assert_eq!(tree.read(MAX), "1500000\n");
    }

    #[test]
    fn a_restart_adopts_caps_and_never_takes_one_for_the_original() {
        // (value found, listed as capped, value after release)
        for (now, capped, after) in [
            ("1200000", Some(1200), "2147483647\n"),
            ("2400000", Some(2400), "2147483647\n"),
            ("3500000", None, "3500000"),
            ("1000000", None, "2147483647\n"),
        ] {
            let tree = tree();
            let saved = found(&tree).originals();
            tree.write(MAX, now);
            let mut cpufreq = found(&tree);
            let expected: Vec<_> = capped.map(|m| (CoreId(0), mhz(m))).into_iter().collect();
            assert_eq!(cpufreq.adopt(&saved).unwrap(), expected, "{now}");
            cpufreq.release(CoreId(0)).unwrap();
            assert_eq!(tree.read(MAX), after, "{now}");
        }
    }

    #[test]
    fn another_driver_or_a_foreign_raise_is_not_adopted() {
        let tree = tree();
        tree.write(MAX, "2000000");
        let saved = found(&tree).originals();
        tree.write(MAX, "2400000");
        let mut cpufreq = found(&tree);
        assert!(cpufreq.adopt(&saved).unwrap().is_empty());
        assert_eq!(cpufreq.originals().max_khz[&CoreId(0)], mhz(2400));

        let other = CpufreqOriginals { driver: "acpi-cpufreq".into(), ..saved };
        tree.write(MAX, "1200000");
        assert!(found(&tree).adopt(&other).unwrap().is_empty());
    }
}
