//! What daemons may change in a rig's tree, and whether it is as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Whether daemons may change a file of this name.
fn may_change(name: &str) -> bool {
    matches!(name, "scaling_max_freq" | "scaling_min_freq" | "cpuset.cpus" | "cpu.max" | "enabled")
        || (name.starts_with("constraint_") && name.ends_with("_power_limit_uw"))
        || (name.starts_with("power") && name.ends_with("_cap"))
}

/// Every file below `tree` that daemons may change, with its content.
pub(crate) fn changeable(tree: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && entry.file_name().to_str().is_some_and(may_change) {
                let text =
                    fs::read_to_string(entry.path()).with_context(|| entry.path().display().to_string())?;
                found.insert(entry.path(), text.trim().to_owned());
            }
        }
    }
    Ok(found)
}

/// The files that are not as they were, each with its two contents.
pub(crate) fn differences(
    before: &BTreeMap<PathBuf, String>,
    after: &BTreeMap<PathBuf, String>,
) -> Vec<String> {
    let mut all: Vec<&PathBuf> = before.keys().chain(after.keys()).collect();
    all.sort_unstable();
    all.dedup();

    all.into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| {
            let shown = |text: Option<&String>| text.map_or("absent".to_owned(), |text| format!("{text:?}"));
            format!("{}: {}, was {}", path.display(), shown(after.get(path)), shown(before.get(path)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_put_back_is_named() {
        let tree = tempfile::tempdir().unwrap();
        let policy = tree.path().join("cpufreq/policy0");
        fs::create_dir_all(&policy).unwrap();
        fs::write(policy.join("scaling_max_freq"), "2600000\n").unwrap();
        fs::write(policy.join("scaling_cur_freq"), "1\n").unwrap();
        let before = changeable(tree.path()).unwrap();
        fs::write(policy.join("scaling_cur_freq"), "2\n").unwrap();
        assert_eq!(differences(&before, &changeable(tree.path()).unwrap()), [""; 0]);
        fs::write(policy.join("scaling_max_freq"), "1300000\n").unwrap();
        fs::write(policy.join("power1_cap"), "1\n").unwrap();
        let found = differences(&before, &changeable(tree.path()).unwrap());
        assert!(found[0].ends_with("power1_cap: \"1\", was absent"), "{found:?}");
        assert!(found[1].ends_with("scaling_max_freq: \"1300000\", was \"2600000\""), "{found:?}");
    }
}
