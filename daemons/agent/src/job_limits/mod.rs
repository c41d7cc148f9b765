//! How much each VM should get, from the records: made anew at a start, and every five minutes by what was recorded.
//!
//! ```text
//!   records ──▶ recommendations ──▶ notes ──▶ GET /v1/limits
//! ```

mod choosing;
mod others;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ballast_types::wire::{LimitAdvice, Limits, LimitsMode, VmLimits};
use ballast_types::{UsageBin, UsageRecord, VmId};
use ballast_usage::limits::family::{Resource, Settings};
use ballast_usage::limits::job::JobLimit;
use ballast_usage::limits::record::{memory_share, oom_kills};
use ballast_usage::limits::{DAY, UseWindow};

use crate::config::JobLimitsConfig;
use choosing::{ChosenSettings, cpu_bounds, each_record, memory_bounds, samples};

/// A VM without a record for so many days is forgotten, and older records are not read: the longest memory of a
/// recommender is a week.
const DAYS: u32 = 14;
const MIB: f64 = 1_048_576.0;

/// The recommenders of one VM, whatever instance of it runs.
struct VmJob {
    cores: u16,
    newest: UsageBin,
    cpu: JobLimit,
    memory: Option<JobLimit>,
}

/// What is recommended for every VM on record.
pub(crate) struct Recommendations {
    config: JobLimitsConfig,
    folder: PathBuf,
    /// The server's; `None` where the kernel does not tell.
    memory_bytes: Option<u64>,
    settings: ChosenSettings,
    /// On which day, counted from 1970-01-01, that was chosen; `None` where it is not yet, or not to be.
    chosen_on: Option<u32>,
    /// `None` until the records were read.
    jobs: Option<BTreeMap<VmId, VmJob>>,
}

impl Recommendations {
    /// By the records in `folder`, which are read when the first come.
    pub(crate) fn new(config: JobLimitsConfig, folder: &Path, memory_bytes: Option<u64>) -> Self {
        let settings = choosing::usual(&config);
        Self { config, folder: folder.to_owned(), memory_bytes, settings, chosen_on: None, jobs: None }
    }

    /// Learns what was recorded, which is on disk already. Fails where the records cannot be read: then nothing is recommended,
    /// and it is tried again with the next records.
    pub(crate) fn take(&mut self, new: &[UsageRecord], unix_s: u64) -> io::Result<()> {
        if self.config.mode == LimitsMode::Off {
            return Ok(());
        }
        let now = UsageBin::of(unix_s);
        self.choose(now.day()).inspect_err(|_| self.jobs = None)?;

        let is_resized = |record: &UsageRecord| {
            let job = self.jobs.as_ref().and_then(|jobs| jobs.get(&record.vm));
            job.is_some_and(|job| job.cores != record.cores)
        };
        let is_known = self.jobs.is_some() && !new.iter().any(is_resized);
        let mut jobs = self.jobs.take().filter(|_| is_known).map_or_else(|| self.read(now), Ok)?;
        if is_known {
            new.iter().filter(|record| record.bin <= now).for_each(|record| self.observe(&mut jobs, record));
        }
        jobs.retain(|_, job| job.newest.day() + DAYS >= now.day());
        self.jobs = Some(jobs);
        Ok(())
    }

    /// Once a day, where it is to be chosen who serves.
    fn choose(&mut self, today: u32) -> io::Result<()> {
        let chooses = self.config.cpu_family.is_none() || self.config.memory_family.is_none();
        if !chooses || self.chosen_on == Some(today) {
            return Ok(());
        }
        let chosen = choosing::serving_best(&self.config, &self.folder, self.memory_bytes, today)?;
        if chosen != self.settings {
            let ChosenSettings { cpu, memory } = chosen;
            let [cpu, memory] = [cpu, memory].map(|it| format!("{} ({it})", it.family().name()));
            tracing::info!(cpu, memory, "these recommenders would have served best in the last week");
            self.jobs = None;
        }
        (self.settings, self.chosen_on) = (chosen, Some(today));
        Ok(())
    }

    /// The recommenders as if they had been there all the time. What lies in the future was written by a clock that was wrong.
    fn read(&self, now: UsageBin) -> io::Result<BTreeMap<VmId, VmJob>> {
        let mut jobs = BTreeMap::new();
        each_record(&self.folder, now.day().saturating_sub(DAYS)..now.day() + 1, |record| {
            if record.bin > now {
                return;
            }
            if jobs.get(&record.vm).is_some_and(|job: &VmJob| job.cores != record.cores) {
                // What it used as a VM of another size says nothing of this one.
                jobs.remove(&record.vm);
            }
            self.observe(&mut jobs, record);
        })?;
        Ok(jobs)
    }

    fn observe(&self, jobs: &mut BTreeMap<VmId, VmJob>, record: &UsageRecord) {
        if record.cores == 0 {
            return;
        }
        let job = jobs.entry(record.vm.clone()).or_insert_with(|| self.job(record.cores));
        job.newest = job.newest.max(record.bin);

        let number = u64::from(record.bin.0);
        let samples = |resource| samples(resource, record, self.memory_bytes);
        job.cpu.observe(&UseWindow { number, samples: &samples(Resource::Cpu) });

        let Some((memory, most)) = job.memory.as_mut().zip(self.memory_bytes) else { return };
        memory.observe(&UseWindow { number, samples: &samples(Resource::Memory) });
        if oom_kills(record) > 0 {
            memory.handle_oom(number, memory_share(record, most).unwrap_or(0.0));
        }
    }

    fn job(&self, cores: u16) -> VmJob {
        let cpu = JobLimit::new(self.settings.cpu, cpu_bounds(&self.config, cores));
        let memory = |most| JobLimit::new(self.settings.memory, memory_bounds(&self.config, most));
        VmJob { cores, newest: UsageBin::default(), cpu, memory: self.memory_bytes.map(memory) }
    }

    /// A share of the server's memory.
    fn mib(&self, limit: f32) -> Option<u64> {
        Some((f64::from(limit) * self.memory_bytes? as f64 / MIB).ceil() as u64)
    }

    /// What `GET /v1/limits` tells, where these are the tenants of VMs.
    pub(crate) fn answer(&self, tenants: &BTreeMap<VmId, String>) -> Limits {
        let of_vm = |(vm, job): (&VmId, &VmJob)| {
            let limits = VmLimits {
                cores: job.cores,
                cpu_limit_cores: job.cpu.limit().map(|limit| in_cores(limit, job.cores)),
                cpu: advice(self.settings.cpu, Some(&job.cpu)),
                memory_limit_mib: job.memory.as_ref().and_then(|memory| self.mib(memory.limit()?)),
                memory: advice(self.settings.memory, job.memory.as_ref()),
            };
            (vm.clone(), limits)
        };
        let mut vms = self.jobs.iter().flatten().map(of_vm).collect();
        self.by_others(&mut vms, tenants);
        Limits { mode: self.config.mode, vms }
    }
}

/// A share of so many cores, in whole millicores and no less.
fn in_cores(limit: f32, cores: u16) -> f64 {
    (f64::from(limit) * f64::from(cores) * 1000.0).ceil() / 1000.0
}

fn advice(settings: Settings, limit: Option<&JobLimit>) -> LimitAdvice {
    let (family, settings) = (settings.family().name().to_owned(), settings.to_string());
    let Some(limit) = limit else {
        let why = Some("how much memory the server has is not known: /proc/meminfo does not tell".to_owned());
        return LimitAdvice { family, settings, why, ..LimitAdvice::default() };
    };

    let score = Some(limit.score()).filter(|score| score.job_days() > 0);
    let why = limit.limit().is_none().then(|| match limit.windows() {
        0 => "no record tells what the VM used".to_owned(),
        windows => format!("too little history: {:.1} h of 24 h", windows as f64 / 12.0),
    });
    LimitAdvice {
        family,
        settings,
        history_days: limit.windows() as f64 / DAY as f64,
        slack: score.map(|score| score.slack()),
        overruns: score.map(|score| score.overruns()),
        changes_per_day: score.map(|score| score.changes_per_job_day()),
        applied: false,
        why,
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::{Counters, MemoryUse, VmStart};

    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};
    use crate::records::{Limits as DiskLimits, Store};

    const DAY_0: u32 = 20_778;
    const BINS: u32 = DAY as u32;

    fn config(more: &str) -> JobLimitsConfig {
        let text = format!("server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n[limits]\n{more}");
        AgentConfig::parse("agent.toml", &text).unwrap().job_limits
    }

    fn record(vm: &str, bin: u32, cores: u16, mc: u32) -> UsageRecord {
        let bin = UsageBin(DAY_0 * BINS + bin);
        let mut record = UsageRecord::empty(VmId::new(vm).unwrap(), VmStart(1), bin, cores);
        (0..300).for_each(|second| record.cpu.add(mc + second % 7));
        record.memory = MemoryUse { working_set_bytes: Some(u64::from(mc) << 20), ..MemoryUse::default() };
        record
    }

    fn limits(recommendations: &Recommendations, vm: &str) -> (Option<f64>, Option<u64>) {
        let answer = recommendations.answer(&BTreeMap::new());
        let vm = &answer.vms[&VmId::new(vm).unwrap()];
        (vm.cpu_limit_cores, vm.memory_limit_mib)
    }

    #[test]
    fn a_restart_recommends_what_was_recommended_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), DiskLimits { days: 30, bytes: 1 << 30 }).unwrap();
        let new = || Recommendations::new(config("mode = \"recommend\"\n"), folder.path(), Some(8 << 30));
        let mut running = new();
        for bin in 0..2 * BINS {
            let busy = if bin % BINS < 100 { 900 } else { 300 };
            let mut records = [record("v", bin, 4, busy), record("w", bin, 2, 500)];
            if bin == BINS + 7 {
                records[1].counters = Counters([Some(1), None, None, None, None, None]);
            }
            store.append(&records).unwrap();
            let unix_s = records[0].bin.start_s() + 300;
            running.take(&records, unix_s).unwrap();
            assert_eq!(limits(&running, "v").0.is_some(), bin + 1 >= BINS, "{bin}");
        }

        let mut anew = new();
        anew.take(&[], u64::from(DAY_0 + 2) * 86_400).unwrap();
        assert_eq!(anew.answer(&BTreeMap::new()), running.answer(&BTreeMap::new()));
        let (cores, mib) = limits(&anew, "v");
        assert!((0.9..2.0).contains(&cores.unwrap()), "{cores:?}");
        assert!((900..1400).contains(&mib.unwrap()), "{mib:?}");
        assert!(limits(&anew, "w").1.unwrap() >= 600, "the kill raised it");

        // Of another size it is another VM; nobody knows it yet.
        let resized = record("v", 2 * BINS, 8, 300);
        store.append(std::slice::from_ref(&resized)).unwrap();
        anew.take(&[resized], u64::from(DAY_0 + 2) * 86_400 + 300).unwrap();
        let answer = anew.answer(&BTreeMap::new());
        let v = &answer.vms[&VmId::new("v").unwrap()];
        assert_eq!(v.cpu.why.as_deref(), Some("too little history: 0.1 h of 24 h"));
        assert_eq!((v.cores, v.cpu_limit_cores, v.memory_limit_mib), (8, None, None));
    }

    #[test]
    fn who_serves_is_chosen_once_a_day_by_the_days_before_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), DiskLimits { days: 30, bytes: 1 << 30 }).unwrap();
        let text = "mode = \"recommend\"\ncpu_family = \"auto\"\nmemory_family = \"auto\"\n";
        let new = || Recommendations::new(config(text), folder.path(), Some(8 << 30));
        let of = |it: &Recommendations| it.answer(&BTreeMap::new()).vms[&VmId::new("v").unwrap()].clone();
        // An hour of work each day, at another hour each day: nobody can know when.
        let busy = |bin: u32| if bin % BINS / 12 == bin / BINS * 7 % 24 { 2000 } else { 300 };

        let mut running = new();
        let mut told = vec![];
        for day in 0..10 {
            let records: Vec<_> =
                (day * BINS..(day + 1) * BINS).map(|bin| record("v", bin, 4, busy(bin))).collect();
            store.append(&records).unwrap();
            running.take(&records, u64::from(DAY_0 + day + 1) * 86_400 - 1).unwrap();
            told.push((of(&running).cpu.settings, of(&running).memory.settings));
        }
        let usual = choosing::usual(&config(text));
        let usual = (usual.cpu.to_string(), usual.memory.to_string());
        assert_eq!(told[7], usual, "a week was not judged yet");
        assert_ne!(told[9].0, usual.0);

        let mut anew = new();
        anew.take(&[], u64::from(DAY_0 + 10) * 86_400 - 1).unwrap();
        assert_eq!(anew.answer(&BTreeMap::new()), running.answer(&BTreeMap::new()));
        // Where too few windows can be judged, it is again what is usual.
        let mut strict = Recommendations::new(
            config(&format!("{text}overruns = 0.00001\n")),
            folder.path(),
            Some(8 << 30),
        );
        strict.take(&[], u64::from(DAY_0 + 10) * 86_400 - 1).unwrap();
        assert_eq!(of(&strict).cpu.settings, usual.0);
    }

    #[test]
    fn a_new_vm_gets_the_highest_limit_of_its_tenants_others() {
        let folder = tempfile::tempdir().unwrap();
        let text = "mode = \"recommend\"\ncpu_family = \"peak\"\nmemory_family = \"peak\"\nmax_cores = 3\n";
        let mut it = Recommendations::new(config(text), folder.path(), Some(8 << 30));
        for bin in 0..BINS + 1 {
            let mut records =
                vec![record("a", bin, 4, 500), record("b", bin, 2, 900), record("c", bin, 4, 3000)];
            if bin == BINS {
                records.extend([record("new", bin, 8, 10), record("other", bin, 8, 10)]);
            }
            it.take(&records, records[0].bin.start_s()).unwrap();
        }
        let of = |vms: &[(&str, &str)]| {
            let tenants = vms.iter().map(|(vm, of)| (VmId::new(vm).unwrap(), (*of).to_owned()));
            it.answer(&tenants.collect()).vms
        };
        let (new, other) = (VmId::new("new").unwrap(), VmId::new("other").unwrap());
        let shop = [("a", "shop"), ("b", "shop"), ("c", "bank"), ("new", "shop"), ("other", "bank")];
        let vms = of(&shop);
        let b = &vms[&VmId::new("b").unwrap()];
        // b's share is the higher one, of 8 cores; but nobody gets more than three.
        assert!(b.cpu_limit_cores.unwrap() / 2.0 * 8.0 > 3.0);
        assert_eq!((vms[&new].cpu_limit_cores, vms[&new].memory_limit_mib), (Some(3.0), b.memory_limit_mib));
        assert_eq!(vms[&new].cpu.settings, "the highest of 2 others of tenant \"shop\"");
        assert_eq!(vms[&new].cpu.why, None);
        assert_eq!(
            (vms[&other].cpu_limit_cores, vms[&other].memory_limit_mib),
            (None, None),
            "one is too few"
        );
        let alone = of(&[("a", "shop"), ("b", "bank"), ("new", "shop")]);
        assert!(alone[&new].cpu.why.is_some() && alone[&new].cpu_limit_cores.is_none());
    }

    #[test]
    fn what_the_user_allows_is_kept_and_what_is_not_known_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let text = "mode = \"recommend\"\nmin_cores = 1.5\nmax_memory_mib = 400\nmargin_percent = 100\n";
        let mut some = Recommendations::new(config(text), folder.path(), Some(8 << 30));
        let mut none = Recommendations::new(config(text), folder.path(), None);
        for bin in 0..2 * BINS {
            let records = [record("v", bin, 4, 500)];
            some.take(&records, records[0].bin.start_s()).unwrap();
            none.take(&records, records[0].bin.start_s()).unwrap();
        }
        assert_eq!(limits(&some, "v"), (Some(1.5), Some(400)));
        let why = &none.answer(&BTreeMap::new()).vms[&VmId::new("v").unwrap()].memory.why;
        assert!(why.as_ref().unwrap().contains("/proc/meminfo"), "{why:?}");

        let off = Recommendations::new(config(""), folder.path(), None);
        assert_eq!(off.answer(&BTreeMap::new()), Limits::default());
    }
}
