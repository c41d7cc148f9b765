//! A folder that looks like a machine, for tests.

use std::fs;

use tempfile::TempDir;

use crate::Root;

/// A temporary root; gone when dropped.
pub(crate) struct Tree {
    root: Root,
    _dir: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { root: Root::at(dir.path()), _dir: dir }
    }
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }
    pub(crate) fn write(&self, relative: &str, text: &str) {
        let path = self.root.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    pub(crate) fn read(&self, relative: &str) -> String {
        fs::read_to_string(self.root.path(relative)).unwrap()
    }
    pub(crate) fn remove(&self, relative: &str) {
        let path = self.root.path(relative);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// A policy of a continuous driver: 1.0 to 3.5 GHz, base 2.4 GHz.
    pub(crate) fn policy(&self, number: u16) {
        let dir = format!("sys/devices/system/cpu/cpufreq/policy{number}");
        for (file, text) in [
            ("scaling_driver", "intel_pstate"),
            ("cpuinfo_min_freq", "1000000"),
            ("cpuinfo_max_freq", "3500000"),
            ("base_frequency", "2400000"),
            ("scaling_max_freq", "3500000"),
        ] {
            self.write(&format!("{dir}/{file}"), &format!("{text}\n"));
        }
    }

    /// Files of one folder, each a name and a text.
    pub(crate) fn folder(&self, dir: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            self.write(&format!("{dir}/{file}"), &format!("{text}\n"));
        }
    }
}
