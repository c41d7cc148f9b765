//! The out-of-band cap of one server: its slot's hot-swap controller, which the chassis reaches and the
//! server's own software does not.
//!
//! hwmon: `powerN_label` names the slot, `powerN_cap` is the cap in microwatts within `powerN_cap_min`
//! and `powerN_cap_max`. The highest cap means "none".

use std::path::PathBuf;

use ballast_types::Watts;

use crate::Root;
use crate::error::{HwError, Operation};
use crate::hwmon::devices;
use crate::root::{optional, read_value, write_value};

const CAP: &str = "a whole number of microwatts";
/// A controller rounds to its own steps: a read-back may differ by one watt.
const ROUNDING_UW: u64 = 1_000_000;

/// The cap of one slot.
#[derive(Clone, Debug)]
pub struct SlotCap {
    file: PathBuf,
    min_uw: u64,
    max_uw: u64,
}

impl SlotCap {
    /// Finds the slot with this label. Changes nothing.
    ///
    /// # Errors
    /// If there is none, or more than one, or its range is unreadable or garbage.
    pub fn find(root: &Root, label: &str) -> Result<Self, HwError> {
        let mut found = Vec::new();
        for device in devices(root)? {
            for channel in device.channels("power")? {
                let file = device.dir.join(format!("{}_cap", channel.stem));
                if channel.label.as_deref() == Some(label) && file.exists() {
                    found.push((device.clone(), channel.stem, file));
                }
            }
        }
        let Some((device, stem, file)) = found.pop().filter(|_| found.is_empty()) else {
            let allowed = "exactly one powerN_label of a slot with a powerN_cap";
            return Err(HwError::value(
                &root.path("sys/class/hwmon"),
                Operation::Read,
                label,
                allowed,
            ));
        };
        let bound = |end| device.dir.join(format!("{stem}_cap_{end}"));
        let min_uw = optional(read_value(&bound("min"), CAP))?.unwrap_or(0);
        let max_uw: u64 = read_value(&bound("max"), CAP)?;
        if max_uw <= min_uw {
            let allowed = format!("more than the lowest cap, {min_uw} uW");
            return Err(HwError::value(&bound("max"), Operation::Read, max_uw, allowed));
        }
        Ok(Self { file, min_uw, max_uw })
    }

    /// Caps the server, and reads the cap back.
    ///
    /// # Errors
    /// If the cap is outside the slot's range, is refused, or does not take.
    pub fn set(&self, watts: Watts) -> Result<(), HwError> {
        let uw = u64::try_from(watts.milli()).ok().map(|mw| mw.saturating_mul(1000));
        match uw.filter(|uw| (self.min_uw..=self.max_uw).contains(uw)) {
            Some(uw) => self.write(uw),
            None => {
                let allowed = format!("{} to {} uW", self.min_uw, self.max_uw);
                Err(HwError::value(&self.file, Operation::Write, watts, allowed))
            }
        }
    }

    /// Takes the cap off.
    ///
    /// # Errors
    /// If that is refused, or does not take.
    pub fn release(&self) -> Result<(), HwError> {
        self.write(self.max_uw)
    }

    /// The cap in force; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn cap(&self) -> Result<Option<Watts>, HwError> {
        let uw: u64 = read_value(&self.file, CAP)?;
        let milli = i64::try_from(uw / 1000).unwrap_or(i64::MAX);
        Ok((uw.saturating_add(ROUNDING_UW) < self.max_uw).then_some(Watts::from_milli(milli)))
    }

    fn write(&self, uw: u64) -> Result<(), HwError> {
        write_value(&self.file, uw)?;
        let is: u64 = read_value(&self.file, CAP)?;
        if is.abs_diff(uw) > ROUNDING_UW {
            let allowed = format!("{uw} uW, as written");
            return Err(HwError::value(&self.file, Operation::Verify, is, allowed));
        }
        Ok(())
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

    #[test]
    fn a_cap_is_set_seen_and_released() {
        let tree = tree();
        let slot = SlotCap::find(tree.root(), "s3").unwrap();
        assert!(slot.cap().unwrap().is_none());
        slot.set(Watts::from_whole(180)).unwrap();
        assert_eq!(tree.read(CAP_FILE), "180000000\n");
        assert_eq!(slot.cap().unwrap(), Some(Watts::from_whole(180)));
        slot.release().unwrap();
        assert_eq!(tree.read(CAP_FILE), "400000000\n");
        assert!(slot.cap().unwrap().is_none());
    }

    #[test]
    fn a_cap_outside_the_range_never_reaches_the_slot() {
        let tree = tree();
        let slot = SlotCap::find(tree.root(), "s3").unwrap();
        for bad in [0, -180, 149, 401] {
            assert!(slot.set(Watts::from_whole(bad)).is_err(), "{bad}");
        }
        assert_eq!(tree.read(CAP_FILE), "400000000\n");
    }

    #[test]
    fn a_cap_that_does_not_take_is_an_error() {
        let tree = tree();
        let slot = SlotCap::find(tree.root(), "s3").unwrap();
        tree.remove(CAP_FILE);
        std::os::unix::fs::symlink("/dev/null", tree.root().path(CAP_FILE)).unwrap();
        assert!(slot.set(Watts::from_whole(180)).unwrap_err().to_string().contains("power1_cap"));
        tree.remove(CAP_FILE);
        assert!(slot.release().unwrap_err().is_missing());
    }

    #[test]
    fn slots_that_are_missing_doubled_or_garbage_are_refused() {
        let tree = tree();
        assert!(SlotCap::find(tree.root(), "s4").is_err());
        for (file, bad) in
            [("power1_cap_max", "x"), ("power1_cap_max", "0"), ("power1_cap_min", "-1")]
        {
            let tree = self::tree();
            tree.write(&format!("{DIR}/{file}"), bad);
            assert!(SlotCap::find(tree.root(), "s3").unwrap_err().to_string().contains(file));
        }
        tree.folder(
            "sys/class/hwmon/hwmon6",
            &[("name", "x"), ("power1_label", "s3"), ("power1_input", "1"), ("power1_cap", "1")],
        );
        assert!(SlotCap::find(tree.root(), "s3").is_err());
        assert!(SlotCap::find(Tree::new().root(), "s3").is_err());
    }
}
