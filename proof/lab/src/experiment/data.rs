//! The recorded data that experiments read, where it is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ballast_sim::trace::Trace;
use indicatif::ProgressBar;

use ballast_cli::common::columns::ColumnArgs;
use ballast_cli::common::table;

/// The folder of all data: `$BALLAST_DATA`, or what stands beside the project.
pub(super) fn folder() -> PathBuf {
    std::env::var_os("BALLAST_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from)
}

/// The sets that are named, each once; all of them where none is.
pub(super) fn chosen(named: &[String], all: &[&str]) -> Vec<String> {
    let mut sets: Vec<String> = Vec::new();
    for name in named {
        if !sets.contains(name) {
            sets.push(name.clone());
        }
    }
    if sets.is_empty() { all.iter().map(|name| (*name).to_owned()).collect() } else { sets }
}

pub(super) fn trace(path: &Path) -> anyhow::Result<Trace> {
    ColumnArgs::default().read(path)
}

/// VMs that were measured for two months.
pub(super) struct Bitbrains {
    pub(super) first: Trace,
    pub(super) second: Trace,
    /// CPUs and GB of every VM, as the first month has them.
    pub(super) sizes: BTreeMap<String, (f64, f64)>,
}

impl Bitbrains {
    /// Reads them; `None` where they are not there.
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        let folder = folder().join("bitbrains_rnd");
        if !folder.is_dir() {
            return Ok(None);
        }
        Ok(Some(Self {
            first: trace(&folder.join("cpu_pct_2013-7.csv.zst"))?,
            second: trace(&folder.join("cpu_pct_2013-8.csv.zst"))?,
            sizes: sizes(&folder.join("vm_meta.csv"))?,
        }))
    }
}

fn sizes(path: &Path) -> anyhow::Result<BTreeMap<String, (f64, f64)>> {
    let mut table = table::named(path, table::open(path, &ProgressBar::hidden()))?;
    let [vm, cores, memory] = ["vm", "cores", "mem_mb"].map(|name| table.column(name));
    let (vm, cores, memory) = (vm?, cores?, memory?);
    let mut sizes = BTreeMap::new();
    while table.advance()? {
        let size = (table.number(cores, "cores")?, table.number(memory, "MB")? / 1024.0);
        sizes.entry(table.text(vm).into_owned()).or_insert(size);
    }
    Ok(sizes)
}

pub(super) struct GoogleJob {
    pub(super) name: String,
    /// CPU and memory, shares of what it was given, every five minutes.
    pub(super) used: Vec<[f32; 2]>,
}

/// Google's jobs of 2011 by their names; `None` where they are not there.
pub(super) fn google_jobs() -> anyhow::Result<Option<Vec<GoogleJob>>> {
    let path = folder().join("gcd2011_vms/GCD_VMs.tar.gz");
    if !path.exists() {
        return Ok(None);
    }
    packed_jobs(&path).with_context(|| path.display().to_string()).map(Some)
}

/// One file for each job; in each line CPU and memory, in percent.
fn packed_jobs(path: &Path) -> anyhow::Result<Vec<GoogleJob>> {
    let packed = flate2::read::GzDecoder::new(BufReader::new(File::open(path)?));
    let mut jobs = Vec::new();
    for entry in tar::Archive::new(packed).entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path()?.display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).with_context(|| name.clone())?;

        let share = |word: Option<&str>| {
            let percent = word.and_then(|word| word.parse::<f32>().ok()).filter(|share| share.is_finite());
            percent.map(|percent| (percent / 100.0).clamp(0.0, 1.0))
        };
        let read = |(n, line): (usize, &str)| {
            let mut words = line.split_whitespace();
            let (cpu, memory) = (share(words.next()), share(words.next()));
            let both = cpu.zip(memory).map(|(cpu, memory)| [cpu, memory]);
            both.with_context(|| {
                format!("{name}, line {}: {line:?}: CPU and memory in percent are needed", n + 1)
            })
        };
        let used = text.lines().enumerate().map(read).collect::<anyhow::Result<_>>()?;
        jobs.push(GoogleJob { name, used });
    }

    // The order of the archive is that of the disk that it came from.
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(jobs)
}
