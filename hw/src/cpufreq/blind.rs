//! Limits put back by number and name alone, where the machine cannot be read well enough for more.

use std::path::{Path, PathBuf};

use ballast_types::KiloHertz;

use super::caps::CpufreqOriginals;
use super::frequency::{DIR, NO_LIMIT_KHZ, read_khz};
use super::policy::{GONE, driver, write_back};
use crate::Root;
use crate::error::HwError;
use crate::root::numbered;

/// Writes back what was `saved`, or takes every limit off where that is not known; tells what could not be
/// written. A file that cannot be read is written all the same; one policy never stands in the way of others.
pub fn put_back_blind(root: &Root, saved: Option<&CpufreqOriginals>) -> Vec<String> {
    let dir = root.path(DIR);
    let policies: Vec<(PathBuf, KiloHertz)> = match saved {
        Some(saved) => {
            let path = |id| dir.join(format!("policy{id}"));
            let has_another = |path: &Path| driver(path).is_ok_and(|driver| driver.name() != saved.driver);
            let all = saved.max_khz.iter().map(|(id, khz)| (path(id), *khz));
            // Another driver has dropped our caps.
            all.filter(|(path, _)| !has_another(path)).collect()
        }
        None => match numbered(&dir, "policy") {
            Ok(found) => found.into_iter().map(|(_, path)| (path, KiloHertz::new(NO_LIMIT_KHZ))).collect(),
            Err(error) => return vec![error.to_string()],
        },
    };
    let there = policies.into_iter().filter(|(path, _)| path.exists());
    there.filter_map(|(path, khz)| Some(put_back(&path, khz).err()?.to_string())).collect()
}

fn put_back(dir: &Path, khz: KiloHertz) -> Result<(), HwError> {
    let file = dir.join("scaling_max_freq");
    let max = read_khz(&dir.join("cpuinfo_max_freq"));
    let whole = max.as_ref().map_or(khz, |max| khz.min(*max));
    let now = read_khz(&file);
    if now.as_ref().is_ok_and(|now| *now >= whole) {
        // Nobody has limited it, or somebody has raised it since.
        return Ok(());
    }
    let offline = |mut e: HwError| {
        if e.is(&GONE) {
            e.allowed = "an online CPU".into();
        }
        e
    };
    write_back(&file, khz.get(), max.ok()).map_err(offline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Operation;
    use crate::testing::Tree;
    use ballast_types::CoreId;
    use nix::errno::Errno;

    fn tree() -> Tree {
        let tree = Tree::new();
        for (n, max) in [(0, "1200000"), (1, "garbage"), (2, "1200000"), (3, "2000000")] {
            let dir = format!("sys/devices/system/cpu/cpufreq/policy{n}");
            let driver = if n == 2 { "other" } else { "intel_pstate" };
            let files =
                [("scaling_driver", driver), ("scaling_max_freq", max), ("cpuinfo_max_freq", "3500000")];
            tree.folder(&dir, &files);
        }
        tree
    }
    fn limits(tree: &Tree) -> Vec<String> {
        (0..4).map(|n| tree.read(&file(n)).trim().to_owned()).collect()
    }
    fn file(n: u16) -> String {
        format!("sys/devices/system/cpu/cpufreq/policy{n}/scaling_max_freq")
    }

    #[test]
    fn what_was_saved_is_written_past_what_cannot_be_read_and_nothing_is_lowered() {
        let tree = tree();
        let saved = [(0, 3000), (1, 2400), (2, 3000), (3, 1800), (9, 3000)];
        let max_khz = saved.map(|(id, mhz)| (CoreId(id), KiloHertz::from_mhz(mhz))).into();
        let saved = CpufreqOriginals { driver: "intel_pstate".into(), max_khz };
        assert!(put_back_blind(tree.root(), Some(&saved)).is_empty());
        assert_eq!(limits(&tree), ["3000000", "2400000", "1200000", "2000000"]);
    }

    #[test]
    fn what_is_not_known_is_taken_off_and_what_refuses_is_named() {
        let tree = tree();
        tree.fail(&file(0), Operation::Write, Errno::EPERM);
        let failed = put_back_blind(tree.root(), None);
        assert!(matches!(&failed[..], [one] if one.contains("policy0")), "{failed:?}");
        let none = NO_LIMIT_KHZ.to_string();
        assert_eq!(limits(&tree), ["1200000", &none, &none, &none]);
    }
}
