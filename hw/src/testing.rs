//! A folder that looks like a machine, for tests; and what a folder cannot do: errors of the kernel, and
//! values that it changes.
//!
//! Faults are kept per thread and by path, and every test has a folder of its own, so tests do not see
//! each other's. They reach all that goes through `root::read_text` and `root::write_value`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use tempfile::TempDir;

use crate::Root;
use crate::error::Operation;

/// What a kernel does with a write that a folder would just store.
#[derive(Clone)]
enum Write {
    Fails(Errno),
    /// Takes it, and shows this instead.
    Shows(String),
    /// Takes it, and shows what it showed before.
    Ignored,
}

#[derive(Default)]
struct Kernel {
    reads: HashMap<PathBuf, Errno>,
    writes: HashMap<PathBuf, Write>,
    /// Every write that was not refused, in order.
    log: Vec<(PathBuf, String)>,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
}

/// Called before a file is read.
pub(crate) fn on_read(path: &Path) -> io::Result<()> {
    KERNEL.with_borrow(|kernel| kernel.reads.get(path).map_or(Ok(()), |e| Err((*e).into())))
}

/// Called before a file is written; true if it is not to be written any more.
pub(crate) fn on_write(path: &Path, value: &str) -> io::Result<bool> {
    let fault = KERNEL.with_borrow(|kernel| kernel.writes.get(path).cloned());
    if let Some(Write::Fails(errno)) = fault {
        return Err(errno.into());
    }
    if path.exists() {
        KERNEL.with_borrow_mut(|kernel| kernel.log.push((path.to_owned(), value.to_owned())));
    }
    if let Some(Write::Shows(text)) = &fault {
        fs::write(path, format!("{text}\n"))?;
    }
    Ok(fault.is_some())
}

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
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            .unwrap();
    }

    pub(crate) fn link(&self, target: &str, relative: &str) {
        let path = self.root.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// From now on every read or write of this file ends with this error.
    pub(crate) fn fail(&self, relative: &str, operation: Operation, errno: Errno) {
        let path = self.root.path(relative);
        KERNEL.with_borrow_mut(|kernel| match operation {
            Operation::Write => drop(kernel.writes.insert(path, Write::Fails(errno))),
            _ => drop(kernel.reads.insert(path, errno)),
        });
    }
    /// From now on this file shows `text` whatever is written.
    pub(crate) fn shows(&self, relative: &str, text: &str) {
        self.on_write(relative, Write::Shows(text.into()));
    }
    /// From now on writes of this file succeed and change nothing.
    pub(crate) fn ignores(&self, relative: &str) {
        self.on_write(relative, Write::Ignored);
    }
    fn on_write(&self, relative: &str, what: Write) {
        KERNEL.with_borrow_mut(|kernel| kernel.writes.insert(self.root.path(relative), what));
    }
    /// Takes every fault off a file.
    pub(crate) fn heal(&self, relative: &str) {
        let path = self.root.path(relative);
        KERNEL.with_borrow_mut(|kernel| {
            kernel.reads.remove(&path);
            kernel.writes.remove(&path);
        });
    }
    /// What was written below this folder since the last call, in order: relative path and value.
    pub(crate) fn written(&self) -> Vec<(String, String)> {
        let log = KERNEL.with_borrow_mut(|kernel| std::mem::take(&mut kernel.log));
        let base = self.root.path("");
        let own = |(path, value): (PathBuf, String)| {
            Some((path.strip_prefix(&base).ok()?.display().to_string(), value))
        };
        log.into_iter().filter_map(own).collect()
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

/// A `/proc/self/status` of a process that runs as `uid`, with its capabilities.
pub(crate) fn status(uid: u32, capabilities: u64) -> String {
    format!(
        "Name:\tballast\nState:\tR (running)\nTgid:\t7\nPid:\t7\nPPid:\t1\nTracerPid:\t0\n\
         Uid:\t1000\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t\nThreads:\t1\n\
         SigQ:\t0/100\nSigPnd:\t0\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\nCapInh:\t0\n\
         CapPrm:\t0\nCapEff:\t{capabilities:016x}\n"
    )
}

/// A `/proc/self/limits` with these soft limits of locked memory and of the real-time priority.
pub(crate) fn limits(locked: &str, realtime: &str) -> String {
    let line = |name: &str, value: &str, unit: &str| format!("{name:<26}{value:<21}{value:<21}{unit}\n");
    let mut text = line("Limit", "Soft", "Units");
    for (name, unit) in [
        ("cpu time", "seconds"),
        ("file size", "bytes"),
        ("data size", "bytes"),
        ("stack size", "bytes"),
        ("core file size", "bytes"),
        ("resident set", "bytes"),
        ("processes", "processes"),
        ("open files", "files"),
        ("locked memory", "bytes"),
        ("address space", "bytes"),
        ("file locks", "locks"),
        ("pending signals", "signals"),
        ("msgqueue size", "bytes"),
        ("nice priority", ""),
        ("realtime priority", ""),
        ("realtime timeout", "us"),
    ] {
        let value = match name {
            "locked memory" => locked,
            "realtime priority" => realtime,
            _ => "unlimited",
        };
        text += &line(&format!("Max {name}"), value, unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::{read_text, write_value};

    #[test]
    fn faults_are_those_of_a_kernel_and_end_when_healed() {
        let tree = Tree::new();
        tree.write("f", "1\n");
        let path = tree.root().path("f");
        tree.fail("f", Operation::Read, Errno::EBUSY);
        tree.fail("f", Operation::Write, Errno::EROFS);
        assert!(read_text(&path).unwrap_err().is(&[Errno::EBUSY]));
        assert!(write_value(&path, 2).unwrap_err().is(&[Errno::EROFS]));
        tree.heal("f");
        tree.ignores("f");
        write_value(&path, 3).unwrap();
        assert_eq!(read_text(&path).unwrap(), "1\n");
        tree.shows("f", "5");
        write_value(&path, 4).unwrap();
        assert_eq!(read_text(&path).unwrap(), "5\n");
        tree.heal("f");
        write_value(&path, 6).unwrap();
        assert_eq!(read_text(&path).unwrap(), "6\n");
        let log = ["3", "4", "6"].map(|value| ("f".to_owned(), value.to_owned()));
        assert_eq!(tree.written(), log);
        assert!(tree.written().is_empty());
    }
}
