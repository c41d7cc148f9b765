//! Whether what can be written does what it says. Everything is put back at once.
//!
//! The journal is written first, as an agent's is: if this process is killed in between, the next agent
//! puts back what it left. Its lock keeps a running agent and this test apart.

use core::time::Duration;
use std::fs;
use std::path::PathBuf;
use std::thread;

use ballast_types::{CoreId, KiloHertz};
use serde::Serialize;

use super::rapl;
use crate::error::{HwError, Operation};
use crate::journal::{Journal, JournalFolders, Opened, Originals};
use crate::root::{boot_id, read_text, read_value, write_value};
use crate::{CpuMax, Cpufreq, Floor, Root};

/// A frequency limit is applied after the write has returned: within this time.
const APPLIED: Duration = Duration::from_millis(50);
/// And not asked for longer than this on a busy machine.
const TRIES: u32 = 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// `pstate`, `server_limit` or `cpu_max`: the function that needs it.
    pub function: &'static str,
    /// What was written, and where.
    pub what: String,
    /// Why it did not do what it says; `None` if it did.
    pub error: Option<String>,
}

/// Lowers every core's limit by a step, rewrites every RAPL limit with its own value, limits the bandwidth of
/// an empty cgroup made for it; reads each back, and puts it back. Fails if an agent runs, or one has left
/// restrictions behind (nothing was written then); or if what was written could not be put back (the journal
/// stays, and the next agent tries again).
pub fn write_trial(root: &Root, folders: &JournalFolders) -> Result<Vec<Written>, HwError> {
    let made = folders.missing();
    let (mut journal, opened) = Journal::open(folders, &boot_id(root)?)?;
    if matches!(opened, Opened::Adopted(_) | Opened::Damaged(_) | Opened::Held(_)) {
        let allowed = "no restrictions of an agent that has ended: put them back first, with \
                       ballast-agent release, or start the agent";
        return Err(HwError::value(journal.folder(), Operation::Write, Journal::FILE, allowed));
    }

    let mut results = Vec::new();

    if let Ok(cpufreq) = Cpufreq::discover(root, Floor::Half) {
        let originals = Originals { cpufreq: Some(cpufreq.originals()), ..Originals::default() };
        journal.begin(&originals)?;
        results.extend(cores(cpufreq)?);
    }

    results.extend(server_limits(root));
    results.push(bandwidth(root));
    journal.finish()?;
    made.remove_unused();

    Ok(results)
}

/// Releases what it holds, whatever happens.
struct Capped {
    cpufreq: Cpufreq,
    cores: Vec<CoreId>,
}

impl Capped {
    fn release(&mut self) -> Result<(), HwError> {
        let cores = std::mem::take(&mut self.cores);
        let results: Vec<_> = cores.iter().map(|core| self.cpufreq.release(*core)).collect();
        results.into_iter().collect()
    }
}

impl Drop for Capped {
    fn drop(&mut self) {
        // Only in a panic is there anything left; there is nobody to tell.
        let _ = self.release();
    }
}

/// All cores at once: a step lower, wait, look, release.
fn cores(cpufreq: Cpufreq) -> Result<Vec<Written>, HwError> {
    let all = cpufreq.cores();
    let mut capped = Capped { cpufreq, cores: all.iter().map(|core| core.id).collect() };
    let mut tested = Vec::new();

    for core in &all {
        let before = capped.cpufreq.read_back(core.id);
        let below = before.as_ref().map(|khz| core.ladder.at_or_below(*khz).saturating_sub(1));
        let result = match (before.as_ref(), below) {
            (Ok(before), Ok(below)) if core.ladder.khz(below) < *before => {
                let target = core.ladder.khz(below);
                capped.cpufreq.set(core.id, target).map(|()| (*before, target))
            }
            (Ok(before), _) => Ok((*before, *before)),
            (Err(_), _) => before.map(|khz| (khz, khz)),
        };

        tested.push((core.id, result));
    }

    let seen: Vec<_> = (tested.iter())
        .map(|(core, result)| match result {
            Ok((before, target)) if before == target => {
                Some("already as low as it goes: nothing was written".to_owned())
            }
            Ok((_, target)) => reaches(&capped.cpufreq, *core, |khz| khz <= *target)
                .map(|khz| format!("{target} was written, {khz} is in force")),
            Err(error) => Some(error.to_string()),
        })
        .collect();
    capped.release()?;
    let written = tested.into_iter().zip(seen).map(|((core, result), seen)| {
        let back = result.as_ref().ok().and_then(|(before, _)| {
            reaches(&capped.cpufreq, core, |khz| khz >= *before)
                .map(|khz| format!("{before} was put back, {khz} is in force"))
        });

        let to = result.map_or_else(|_| "a lower limit".to_owned(), |(_, khz)| khz.to_string());
        Written { function: "pstate", what: format!("core {core}: {to}"), error: seen.or(back) }
    });

    Ok(written.collect())
}

/// Waits until the limit in force is as wanted; gives what it is otherwise.
fn reaches(cpufreq: &Cpufreq, core: CoreId, wanted: impl Fn(KiloHertz) -> bool) -> Option<String> {
    let mut is = String::new();
    for _ in 0..TRIES {
        match cpufreq.read_back(core) {
            Ok(khz) if wanted(khz) => return None,
            Ok(khz) => is = khz.to_string(),
            Err(error) => is = error.to_string(),
        }
        thread::sleep(APPLIED / 5);
    }
    Some(is)
}

/// Every limit of every package again, with its own value: what the firmware has locked refuses even that.
fn server_limits(root: &Root) -> Vec<Written> {
    let mut written = Vec::new();
    for zone in rapl::zones(root).iter().filter(|zone| zone.name.starts_with("package-")) {
        for (n, constraint) in zone.constraints.iter().enumerate() {
            let Some(limit) = constraint.limit_uw.filter(|limit| *limit > 0) else { continue };
            let file = format!("{}/constraint_{n}_power_limit_uw", zone.folder);
            let path = root.path(&format!("sys/class/powercap/{file}"));
            let again = write_value(&path, limit)
                .and_then(|()| read_value::<u64>(&path, "a whole number of microwatts"));
            let error = match again {
                Ok(now) if now == limit => None,
                Ok(now) => Some(format!("{limit} uW was written, {now} uW is in force")),
                Err(error) => Some(format!("{error} (locked by the firmware?)")),
            };

            let what = format!("{} {}: {limit} uW again", zone.name, constraint.name);
            written.push(Written { function: "server_limit", what, error });
        }
    }

    written
}

/// A group of our own; gone when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // An empty group can be removed; there is nobody to tell if not.
        let _ = fs::remove_dir(&self.0);
    }
}

fn bandwidth(root: &Root) -> Written {
    let name = format!("ballast-check-{}", std::process::id());
    let dir = root.path(&format!("sys/fs/cgroup/{name}"));
    let half = "10000 20000";
    let try_it = || {
        let allowed = "a cgroup version 2 hierarchy where groups may be made";
        fs::create_dir(&dir).map_err(|e| HwError::io(&dir, Operation::Write, allowed, e))?;
        let scratch = Scratch(dir.clone());
        let file = scratch.0.join("cpu.max");
        write_value(&file, half)?;
        let is = read_text(&file)?;
        let fits = is.trim().parse::<CpuMax>().ok() == half.parse().ok();
        Ok::<_, HwError>((!fits).then(|| format!("{half:?} was written, {:?} is shown", is.trim())))
    };
    let error = try_it().unwrap_or_else(|error| Some(error.to_string()));
    Written { function: "cpu_max", what: format!("{name}/cpu.max: {half}"), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use nix::errno::Errno;

    const MAX: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq";
    const LIMIT: &str = "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw";

    fn tree() -> Tree {
        let tree = Tree::new();
        tree.write("proc/sys/kernel/random/boot_id", "boot-1\n");
        tree.policy(0);
        tree.folder(
            "sys/class/powercap/intel-rapl:0",
            &[
                ("name", "package-0"),
                ("constraint_0_name", "long_term"),
                ("constraint_0_power_limit_uw", "165000000"),
            ],
        );
        tree
    }
    fn run(tree: &Tree) -> (tempfile::TempDir, Result<Vec<Written>, HwError>) {
        let dir = tempfile::tempdir().unwrap();
        let result = write_trial(tree.root(), &JournalFolders::of(&dir.path().join("state")));
        (dir, result)
    }

    #[test]
    fn everything_is_written_read_back_and_put_back() {
        let tree = tree();
        let (dir, results) = run(&tree);
        let results = results.unwrap();
        let ok = |function| {
            let mut of = results.iter().filter(|written| written.function == function);
            of.all(|written| written.error.is_none())
        };
        assert!(ok("pstate") && ok("server_limit"), "{results:?}");
        assert!(!ok("cpu_max"), "a folder has no cpu.max");
        let log: Vec<_> = tree.written();
        let log: Vec<_> = log.iter().map(|(path, value)| (&path[..], &value[..])).collect();
        assert_eq!(log, [(MAX, "2300000"), (MAX, "2147483647"), (LIMIT, "165000000")]);
        assert!(!dir.path().join("state").exists(), "nothing is left behind");
    }

    #[test]
    fn what_does_not_take_is_told() {
        let tree = tree();
        tree.ignores(MAX);
        tree.fail(LIMIT, Operation::Write, Errno::ENODATA);
        let results = run(&tree).1.unwrap();
        let errors: Vec<_> = results.iter().filter_map(|w| Some((w.function, w.error.clone()?))).collect();
        assert_eq!(errors.len(), 3, "{results:?}");
        assert!(errors[0].1.contains("is in force"), "{errors:?}");
        assert!(errors[1].1.contains("locked"), "{errors:?}");
    }

    #[test]
    fn a_running_agent_or_what_one_left_keeps_it_out() {
        let tree = tree();
        let dir = tempfile::tempdir().unwrap();
        let folders = JournalFolders::of(dir.path());
        let boot = boot_id(tree.root()).unwrap();
        let (mut journal, _) = Journal::open(&folders, &boot).unwrap();
        assert!(write_trial(tree.root(), &folders).unwrap_err().to_string().contains("no other agent"));
        journal.begin(&Originals::default()).unwrap();
        drop(journal);
        let error = write_trial(tree.root(), &folders).unwrap_err().to_string();
        assert!(error.contains("release"), "{error}");
        assert_eq!(tree.written(), []);
        assert!(dir.path().join("journal.json").exists());
    }

    #[test]
    fn a_panic_in_between_puts_back_too() {
        let tree = tree();
        let caught = std::panic::catch_unwind(|| {
            let mut cpufreq = Cpufreq::discover(tree.root(), Floor::Half).unwrap();
            cpufreq.set(CoreId(0), KiloHertz::from_mhz(1300)).unwrap();
            let _capped = Capped { cpufreq, cores: vec![CoreId(0)] };
            panic!("in between");
        });
        assert!(caught.is_err());
        assert_eq!(tree.read(MAX), "2147483647\n");
    }
}
