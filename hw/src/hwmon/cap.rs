//! A power cap in hwmon: `powerN_cap` in microwatts, within `powerN_cap_min` and `powerN_cap_max` where
//! these are told.
//!
//! Two kinds are in use. A server's slot has a hot-swap controller that the chassis reaches and the server's
//! own software does not: `powerN_label` names the slot. A server's own `acpi_power_meter` caps by its
//! firmware, on few makes (its channels have `power1_average`, in `device/`).
//!
//! Source: Documentation/hwmon/sysfs-interface.rst, `Documentation/hwmon/acpi_power_meter.rst`.

use std::path::PathBuf;

use ballast_types::{Cap, CapError, Watts};
use serde::{Deserialize, Serialize};

use super::{Device, MatchSpec, devices};
use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::{optional, read_value, write_value};

const CAP: &str = "a whole number of microwatts";
/// A controller rounds to its own steps: a read-back may differ by one watt.
const ROUNDING_UW: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSpec {
    /// The slot with this label, whatever its driver.
    Slot(String),
    Device(MatchSpec),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HwmonCapState {
    pub cap_uw: u64,
}

impl HwmonCapState {
    /// The cap as it holds: 0 is none.
    fn in_force(self) -> u64 {
        if self.cap_uw == 0 { u64::MAX } else { self.cap_uw }
    }
}

/// A `powerN_cap`. It is looked for before every change, because hwmon devices renumber; a reading first tries
/// where it was last: a manager of a large chassis would search all devices for every one of them.
#[derive(Clone, Debug)]
pub struct HwmonCap {
    root: Root,
    spec: CapSpec,
    last: Option<CapFile>,
}

#[derive(Clone, Debug)]
struct CapFile {
    device: Device,
    stem: String,
}

struct RangedCap {
    cap_file: CapFile,
    min_uw: u64,
    max_uw: u64,
}

impl CapSpec {
    fn means(&self, device: &Device, label: Option<&String>) -> bool {
        match self {
            Self::Slot(slot) => label == Some(slot),
            Self::Device(spec) => {
                device.is(&spec.name) && (spec.label.is_none() || label == spec.label.as_ref())
            }
        }
    }
}

impl CapFile {
    fn file(&self, suffix: &str) -> PathBuf {
        self.device.dir.join(format!("{}_{suffix}", self.stem))
    }

    fn is_still(&self, spec: &CapSpec) -> bool {
        let label = || self.device.label(&self.stem).ok();
        self.device.still().is_ok() && label().is_some_and(|l| spec.means(&self.device, l.as_ref()))
    }
}

impl HwmonCap {
    pub fn new(root: &Root, spec: CapSpec) -> Self {
        Self { root: root.clone(), spec, last: None }
    }

    /// What it may be set to. Fails if there is none, or more than one, or its range is unreadable or
    /// garbage.
    pub fn range(&self) -> Result<(Watts, Watts), HwError> {
        let found = self.find()?;
        let watts = |uw: u64| Watts::from_milli(i64::try_from(uw / 1000).unwrap_or(i64::MAX));
        Ok((watts(found.min_uw), watts(found.max_uw)))
    }

    fn search(&self) -> Result<CapFile, HwError> {
        let mut found = Vec::new();
        for device in devices(&self.root)? {
            for channel in device.channels("power")? {
                let is_meant = self.spec.means(&device, channel.label.as_ref());
                let cap_file = CapFile { device: device.clone(), stem: channel.stem };
                if is_meant && cap_file.file("cap").exists() {
                    found.push(cap_file);
                }
            }
        }

        found.pop().filter(|_| found.is_empty()).ok_or_else(|| {
            let wanted = match &self.spec {
                CapSpec::Slot(label) => label.clone(),
                CapSpec::Device(spec) => {
                    format!("{} {}", spec.name, spec.label.as_deref().unwrap_or_default())
                }
            };

            let allowed = "exactly one device or powerN_label of that name with a powerN_cap";
            HwError::value(&self.root.path("sys/class/hwmon"), Operation::Read, wanted, allowed)
        })
    }

    fn find(&self) -> Result<RangedCap, HwError> {
        let cap_file = self.search()?;
        let bound = |end| optional(read_value(&cap_file.file(end), CAP));
        let min_uw = bound("cap_min")?.unwrap_or(0).max(ROUNDING_UW);
        let max_uw = bound("cap_max")?.unwrap_or(u64::MAX);
        if max_uw <= min_uw {
            let allowed = format!("more than the lowest cap, {min_uw} uW");
            return Err(HwError::value(&cap_file.file("cap_max"), Operation::Read, max_uw, allowed));
        }
        Ok(RangedCap { cap_file, min_uw, max_uw })
    }
}

impl RangedCap {
    fn write(&self, uw: u64) -> Result<(), HwError> {
        let file = self.cap_file.file("cap");
        write_value(&file, uw)?;
        let is: u64 = read_value(&file, CAP)?;
        if is.abs_diff(uw) > ROUNDING_UW {
            let allowed = format!("{uw} uW, as written");
            return Err(HwError::value(&file, Operation::Verify, is, allowed));
        }
        Ok(())
    }
}

impl Cap for HwmonCap {
    type State = HwmonCapState;

    fn read(&mut self) -> Result<HwmonCapState, CapError> {
        let last = self.last.take().filter(|cap_file| cap_file.is_still(&self.spec));
        let cap_file = last.map_or_else(|| Ok(self.find()?.cap_file), Ok::<_, HwError>)?;
        let cap_uw = read_value(&cap_file.file("cap"), CAP)?;
        self.last = Some(cap_file);
        Ok(HwmonCapState { cap_uw })
    }

    fn set(&mut self, watts: Watts, original: &HwmonCapState) -> Result<(), CapError> {
        let found = self.find()?;
        let mut uw = u64::try_from(watts.milli()).ok().map(|mw| mw.saturating_mul(1000));
        if matches!(self.spec, CapSpec::Device(_)) {
            // The last resort of a server: the lowest cap there is does better than none. A chassis must
            // know what it gets.
            uw = uw.filter(|uw| *uw > 0).map(|uw| uw.clamp(found.min_uw, found.max_uw));
        }
        let Some(uw) = uw.filter(|uw| (found.min_uw..=found.max_uw).contains(uw)) else {
            let allowed = format!("{} to {} uW", found.min_uw, found.max_uw);
            let file = found.cap_file.file("cap");
            return Err(HwError::value(&file, Operation::Write, watts, allowed).into());
        };
        Ok(found.write(uw.min(original.in_force()))?)
    }

    fn put_back(&mut self, original: &HwmonCapState) -> Result<(), CapError> {
        Ok(self.find()?.write(original.cap_uw)?)
    }

    fn is_on(now: &HwmonCapState, original: &HwmonCapState) -> bool {
        now.in_force().saturating_add(ROUNDING_UW) < original.in_force()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/class/hwmon/hwmon5";
    const CAP_FILE: &str = "sys/class/hwmon/hwmon5/power1_cap";

    fn tree() -> Tree {
        let tree = Tree::new();
        tree.folder(
            DIR,
            &[
                ("name", "adm1275"),
                ("power1_label", "s3"),
                ("power1_input", "200000000"),
                ("power1_cap", "400000000"),
                ("power1_cap_min", "150000000"),
                ("power1_cap_max", "400000000"),
            ],
        );
        tree
    }
    fn slot(tree: &Tree, label: &str) -> HwmonCap {
        HwmonCap::new(tree.root(), CapSpec::Slot(label.into()))
    }

    #[test]
    fn a_cap_is_set_seen_and_put_back() {
        let tree = tree();
        let mut slot = slot(&tree, "s3");
        let original = slot.read().unwrap();
        for (watts, text, on) in
            [(180, "180000000\n", true), (400, "400000000\n", false), (150, "150000000\n", true)]
        {
            slot.set(Watts::from_whole(watts), &original).unwrap();
            assert_eq!(tree.read(CAP_FILE), text);
            assert_eq!(HwmonCap::is_on(&slot.read().unwrap(), &original), on);
            // Its number is another one by now.
            slot.put_back(&original).unwrap();
            assert_eq!(tree.read(CAP_FILE), "400000000\n");
        }
        assert_eq!(slot.range().unwrap(), (Watts::from_whole(150), Watts::from_whole(400)));
    }

    #[test]
    fn a_lower_cap_of_somebody_else_is_neither_raised_nor_lifted() {
        let tree = tree();
        tree.write(CAP_FILE, "170000000\n");
        let mut slot = slot(&tree, "s3");
        let original = slot.read().unwrap();
        slot.set(Watts::from_whole(180), &original).unwrap();
        assert_eq!(tree.read(CAP_FILE), "170000000\n");
        slot.put_back(&original).unwrap();
        assert_eq!(tree.read(CAP_FILE), "170000000\n");
    }

    #[test]
    fn no_cap_at_all_is_one_that_is_set_and_put_back() {
        let tree = tree();
        tree.write(CAP_FILE, "0\n");
        let mut slot = slot(&tree, "s3");
        let original = slot.read().unwrap();
        assert!(!HwmonCap::is_on(&original, &original));
        slot.set(Watts::from_whole(180), &original).unwrap();
        assert_eq!(tree.read(CAP_FILE), "180000000\n");
        assert!(HwmonCap::is_on(&slot.read().unwrap(), &original));
        slot.put_back(&original).unwrap();
        assert_eq!(tree.read(CAP_FILE), "0\n");
        // Somebody took a cap away: none is on.
        let capped = HwmonCapState { cap_uw: 400_000_000 };
        assert!(!HwmonCap::is_on(&slot.read().unwrap(), &capped));
    }

    #[test]
    fn a_cap_outside_the_range_never_reaches_the_slot() {
        let tree = tree();
        let mut slot = slot(&tree, "s3");
        let original = slot.read().unwrap();
        for bad in [0, -180, 149, 401] {
            assert!(slot.set(Watts::from_whole(bad), &original).is_err(), "{bad}");
        }
        assert_eq!(tree.read(CAP_FILE), "400000000\n");
    }

    /// One row: a server's own meter, in one of two layouts, with or without a range.
    #[test]
    fn a_servers_own_meter_is_found_in_both_layouts() {
        for (dir, more) in [
            ("sys/class/hwmon/hwmon1/device", &[("power1_cap_min", "90000000")][..]),
            ("sys/class/hwmon/hwmon1", &[]),
        ] {
            let tree = tree();
            let files = [("name", "power_meter"), ("power1_average", "1"), ("power1_cap", "500000000")];
            tree.folder(dir, &files);
            tree.folder(dir, more);
            let spec = MatchSpec { name: "power_meter".into(), label: None };
            let mut cap = HwmonCap::new(tree.root(), CapSpec::Device(spec));
            let original = cap.read().unwrap();
            cap.set(Watts::from_whole(180), &original).unwrap();
            assert_eq!(tree.read(&format!("{dir}/power1_cap")), "180000000\n");

            if !more.is_empty() {
                cap.set(Watts::from_whole(60), &original).unwrap();
                assert_eq!(tree.read(&format!("{dir}/power1_cap")), "90000000\n");
            }

            assert!(cap.set(Watts::ZERO, &original).is_err());
            cap.put_back(&original).unwrap();
            assert_eq!(tree.read(&format!("{dir}/power1_cap")), "500000000\n");
        }
    }

    #[test]
    fn a_cap_that_moved_to_another_device_is_found_again() {
        let tree = tree();
        let mut slot = slot(&tree, "s3");
        slot.read().unwrap();
        let six = "sys/class/hwmon/hwmon6";
        let files = [("name", "adm1275"), ("power1_input", "1"), ("power1_cap", "250000000")];
        tree.folder(six, &files);
        tree.write(&format!("{six}/power1_label"), "s3\n");
        tree.write(&format!("{DIR}/power1_label"), "s4\n");
        assert_eq!(slot.read().unwrap().cap_uw, 250_000_000);
        tree.write(&format!("{six}/name"), "another\n");
        assert_eq!(slot.read().unwrap().cap_uw, 250_000_000, "a slot's driver may be any");
        tree.remove(&format!("{six}/power1_cap"));
        assert!(slot.read().is_err());
    }

    #[test]
    fn a_cap_that_does_not_take_is_an_error() {
        let tree = tree();
        let mut slot = slot(&tree, "s3");
        let original = slot.read().unwrap();
        tree.remove(CAP_FILE);
        std::os::unix::fs::symlink("/dev/null", tree.root().path(CAP_FILE)).unwrap();
        let error = slot.set(Watts::from_whole(180), &original).unwrap_err();
        assert!(error.reason.contains("power1_cap"), "{error}");
        assert!(slot.put_back(&original).is_err());
        tree.remove(CAP_FILE);
        assert!(slot.put_back(&original).unwrap_err().reason.contains("exactly one"));
    }

    #[test]
    fn slots_that_are_missing_duplicated_or_garbage_are_refused() {
        let tree = tree();
        assert!(slot(&tree, "s4").read().is_err());
        for (file, bad) in [
            ("power1_cap_max", "x"),
            ("power1_cap_max", "0"),
            ("power1_cap_min", "-1"),
            ("power1_cap", "unknown"),
        ] {
            let tree = self::tree();
            tree.write(&format!("{DIR}/{file}"), bad);
            assert!(slot(&tree, "s3").read().unwrap_err().reason.contains(file));
        }

        tree.folder(
            "sys/class/hwmon/hwmon6",
            &[("name", "x"), ("power1_label", "s3"), ("power1_input", "1"), ("power1_cap", "1")],
        );

        assert!(slot(&tree, "s3").read().is_err());
        assert!(slot(&Tree::new(), "s3").read().is_err());
    }
}
