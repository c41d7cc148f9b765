//! Sets what VMs should get by what they use: CPU by the one owner of `cpu.max`, and memory where that is allowed, too.
//!
//! Nothing is set before what was there is in the journal.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use ballast_agent_core::{MemoryBounds, MemoryHold, MemoryLimiter, MemoryReading, MemoryWrite};
use ballast_hw::{Cgroup, HwError, Journal, MemoryFile, MemoryLimits, MemoryPair, Root};
use ballast_types::{Instant, VmId};

use super::Vms;
use crate::quota::Quotas;

/// Looks at memory for one at CPU.
const CPU_EVERY: u64 = 10;

/// What one VM should get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitTarget {
    pub(crate) millicores: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
}

/// Whether what a VM should get is in force; why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitsInForce {
    pub(crate) cpu: Option<Result<(), String>>,
    pub(crate) memory: Option<Result<(), String>>,
}

/// How often memory limits were held, by why.
pub(crate) type HeldCounts = BTreeMap<&'static str, u64>;

/// What sets limits.
pub(super) struct Limiting {
    pub(super) quotas: Arc<Quotas>,
    memory: Option<MemoryLimits>,
    limiters: BTreeMap<VmId, MemoryLimiter>,
    looks: u64,
    in_force: BTreeMap<VmId, LimitsInForce>,
    held: HeldCounts,
}

impl Vms {
    /// Memory limits of a previous instance that could not be put back yet are put back at the end.
    pub(crate) fn leave_memory(&mut self, memory: MemoryLimits) {
        self.leaving_memory = Some(memory);
    }

    /// From now on limits are set by [`Vms::limit`]: those of CPU through `quotas`, and those of memory if `with_memory`.
    pub(crate) fn limit_through(&mut self, quotas: Arc<Quotas>, with_memory: bool) {
        self.limiting = Some(Limiting {
            quotas,
            memory: self.leaving_memory.take_if(|_| with_memory),
            limiters: BTreeMap::new(),
            looks: 0,
            in_force: BTreeMap::new(),
            held: HeldCounts::new(),
        });
    }

    /// Sets no limit any more. What is set is put back with all the rest.
    pub(crate) fn stop_limiting(&mut self) {
        let memory = self.limiting.take().and_then(|limiting| limiting.memory);
        self.leaving_memory = memory.or_else(|| self.leaving_memory.take());
    }

    /// Puts back the memory limits; names what could not be.
    pub(super) fn restore_memory(&mut self) -> Vec<String> {
        self.stop_limiting();
        let failed = self.leaving_memory.as_mut().map(MemoryLimits::release_all).unwrap_or_default();
        failed.iter().map(ToString::to_string).collect()
    }

    /// Brings limits closer to what VMs should get; to be called twice a second. `false` once none is set any more.
    pub(crate) fn limit(&mut self, now: Instant, targets: &BTreeMap<VmId, LimitTarget>) -> bool {
        let Some(mut limiting) = self.limiting.take() else { return false };
        let is_dry = self.journal.as_ref().is_none_or(Journal::is_idle);
        limiting.in_force.retain(|vm, _| targets.contains_key(vm));
        if is_dry {
            let why = || Some(Err("dry run: nothing is set".to_owned()));
            for (vm, target) in targets {
                let it = limiting.in_force.entry(vm.clone()).or_default();
                it.cpu = target.millicores.and_then(|_| why());
                it.memory = target.memory_bytes.and_then(|_| why());
            }
        } else {
            if limiting.looks.is_multiple_of(CPU_EVERY) {
                self.limit_cpu(&mut limiting, targets);
            }
            self.limit_memory(&mut limiting, now, targets);
        }
        limiting.looks += 1;
        self.notes.limits_in_force(limiting.in_force.clone(), limiting.held.clone());
        self.limiting = Some(limiting);
        true
    }

    fn limit_cpu(&mut self, limiting: &mut Limiting, targets: &BTreeMap<VmId, LimitTarget>) {
        let quotas = Arc::clone(&limiting.quotas);
        let due = targets.iter().filter_map(|(vm, target)| Some((vm.clone(), target.millicores?)));
        let mut due: BTreeMap<VmId, u32> = due.collect();
        let mut failed: BTreeMap<VmId, String> = BTreeMap::new();
        for vm in due.keys() {
            let cores = self.specs.all().get(vm).map(|spec| spec.cores);
            let known = match self.vm_path(vm).zip(cores) {
                Some((path, cores)) => quotas.with(|bandwidth| bandwidth.know(vm, &path, cores)),
                None => continue,
            };
            failed.extend(known.err().map(|error| (vm.clone(), error.to_string())));
        }
        due.retain(|vm, _| self.vm_path(vm).is_some() && !failed.contains_key(vm));

        // Nothing is written before this succeeds.
        let journalled = self.settle_in(&quotas).map_err(|error| error.to_string());
        for (vm, millicores) in &due {
            let set = |()| quotas.with(|bandwidth| bandwidth.recommend(vm, Some(*millicores)));
            let done = journalled.clone().and_then(|journalled| set(journalled).map_err(|e| e.to_string()));
            failed.extend(done.err().map(|why| (vm.clone(), why)));
        }
        for vm in quotas.with(|bandwidth| bandwidth.recommended()) {
            if !due.contains_key(&vm)
                && let Err(error) = quotas.with(|bandwidth| bandwidth.recommend(&vm, None))
            {
                tracing::warn!(%vm, %error, "the CPU limit of a VM could not be put back: it is tried again");
            }
        }
        for vm in targets.keys() {
            let state = limiting.in_force.entry(vm.clone()).or_default();
            state.cpu = match failed.remove(vm) {
                Some(why) => Some(Err(why)),
                None => due.contains_key(vm).then_some(Ok(())),
            };
        }
    }

    /// The group of a VM that may be changed.
    fn vm_path(&self, vm: &VmId) -> Option<String> {
        let path = self.specs.cgroup(vm)?;
        Cgroup::check_vm(&self.root, &path).is_ok().then_some(path)
    }

    fn limit_memory(&mut self, limiting: &mut Limiting, now: Instant, targets: &BTreeMap<VmId, LimitTarget>) {
        let Some(memory) = &mut limiting.memory else { return };
        // One that is not on record any more keeps its limit for as long as it is there.
        for vm in memory.vms().into_iter().filter(|vm| self.vm_path(vm).is_none()) {
            if let Err(error) = memory.forget(&vm) {
                tracing::warn!(%vm, %error, "a VM's memory limit could not be put back: it is tried again");
            }
            limiting.limiters.remove(&vm);
        }
        let known = memory.vms();
        let due = targets
            .iter()
            .filter(|(vm, it)| it.memory_bytes.is_some() || known.contains(vm))
            .filter_map(|(vm, it)| Some((vm, *it, self.vm_path(vm)?)));
        let due: Vec<_> = due.map(|(vm, it, path)| (vm, it, memory.know(vm, &path), path)).collect();

        // Nothing is written before this succeeds.
        let journalled = self.journal_memory(memory).map_err(|error| error.to_string());
        for (vm, target, known, path) in due {
            let limiter = limiting.limiters.entry(vm.clone()).or_default();
            let before = limiter.hold();
            let stepped = known.and_then(|()| match &journalled {
                Ok(()) => step(memory, limiter, now, vm, &self.root, (&path, target.memory_bytes)),
                Err(_) => Ok(()),
            });
            let failed = stepped.err().map(|error| error.to_string()).or_else(|| journalled.clone().err());

            let hold = limiter.hold();
            let state = limiting.in_force.entry(vm.clone()).or_default();
            if let Some(hold) = hold.filter(|_| hold != before) {
                *limiting.held.entry(hold.name()).or_default() += 1;
                tracing::info!(%vm, why = hold.why(), "the memory limit that is recommended is not in force");
            }
            if let Some(error) = failed.as_ref().filter(|error| state.memory != Some(Err((*error).clone()))) {
                *limiting.held.entry("refused").or_default() += 1;
                tracing::warn!(%vm, error, "the memory limit of a VM could not be set: it is tried again");
            }
            let why = failed.or_else(|| hold.map(MemoryHold::why).map(str::to_owned));
            state.memory = target.memory_bytes.map(|_| why.map_or(Ok(()), Err));
        }
    }

    /// Journals what is on the groups: before it is on disk nothing is written.
    fn journal_memory(&mut self, memory: &MemoryLimits) -> Result<(), HwError> {
        let now = memory.originals();
        if now == self.originals.memory {
            return Ok(());
        }
        let before = mem::replace(&mut self.originals.memory, now);
        let written = self.journal.as_mut().map_or(Ok(()), |journal| journal.begin(&self.originals));
        written.inspect_err(|_| self.originals.memory = before)
    }
}

/// One look at a VM's group, and what is to be written by it.
fn step(
    memory: &mut MemoryLimits,
    limiter: &mut MemoryLimiter,
    now: Instant,
    vm: &VmId,
    root: &Root,
    (path, target): (&str, Option<u64>),
) -> Result<(), HwError> {
    let Some((in_force, original)) = memory.read(vm)? else { return Ok(()) };
    let reading = read(&Cgroup::at(root, path)?);
    for write in limiter.step(now, target, bounds(in_force), bounds(original), reading) {
        let (file, bytes) = match write {
            MemoryWrite::High(bytes) => (MemoryFile::High, bytes),
            MemoryWrite::Max(bytes) => (MemoryFile::Max, bytes),
        };
        memory.write(vm, file, bytes)?;
        tracing::debug!(%vm, ?file, bytes, "memory limit");
    }
    Ok(())
}

const fn bounds(pair: MemoryPair) -> MemoryBounds {
    MemoryBounds { high: pair.of(MemoryFile::High), max: pair.of(MemoryFile::Max) }
}

fn read(group: &Cgroup) -> MemoryReading {
    let (memory, counters) = (group.memory(), group.counters(None));
    let counter = |name: &str| counters.named().find(|(known, _)| *known == name)?.1;
    MemoryReading {
        used: memory.used_bytes,
        working_set: memory.working_set_bytes,
        high_events: group.high_events(),
        oom_kills: counter("oom_kills"),
        full_stall_ms: counter("memory_full_pressure_ms"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use ballast_hw::{Bandwidth, Binders, By, Domain, JournalFolders, Originals, Through};
    use ballast_types::wire::VmSpec;
    use ballast_types::{BootId, CoreId, OnExtreme, VmClass};

    use super::super::VmSources;
    use super::*;
    use crate::config::GroupsConfig;

    const PATH: &str = "machine.slice/b.scope";
    const MIB: u64 = 1 << 20;

    fn id() -> VmId {
        VmId::new("b").unwrap()
    }

    fn file(root: &Path, name: &str) -> std::path::PathBuf {
        root.join("sys/fs/cgroup").join(PATH).join(name)
    }

    fn text(root: &Path, name: &str) -> String {
        fs::read_to_string(file(root, name)).unwrap().trim().to_owned()
    }

    /// A server with one user-facing VM that uses 300 MiB.
    fn server(root: &Path) -> Vms {
        fs::create_dir_all(file(root, "")).unwrap();
        fs::create_dir_all(root.join("sys/fs/cgroup")).unwrap();
        fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "cpu cpuset memory").unwrap();
        for (name, text) in [
            ("cpuset.cpus", "0-3"),
            ("cpuset.cpus.effective", "0-3"),
            ("cpu.max", "max 100000"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.current", "314572800"),
            ("memory.stat", "inactive_file 0\n"),
            ("memory.events", "high 0\noom_kill 0\n"),
            ("memory.pressure", "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
        ] {
            fs::write(file(root, name), text).unwrap();
        }
        let cores: Vec<_> = (0..4).map(|id| Domain::from(CoreId(id))).collect();
        let folders = JournalFolders::of(&root.join("state"));
        let (journal, _) = Journal::open(&folders, &BootId::new("boot").unwrap()).unwrap();
        let cgroup = Some(PATH.to_owned());
        let class = Some(VmClass::UserFacing);
        let on_extreme = OnExtreme::None;
        let spec =
            VmSpec { class, throttle_order: 0, cores: 2, cgroup, on_extreme, tenant: None, pinned: false };
        let (vms, changes_path) = ([(id(), spec)].into(), root.join("state/vms.json"));
        let sources =
            VmSources { vms, groups: GroupsConfig::default(), pods: None, changes_path, auto_path: None };
        let hw = Root::at(root);
        let binders = Binders::new(&hw, By::Cgroup);
        let (mut vms, _) =
            Vms::start(&hw, &cores, sources, binders, journal, Originals::default(), None).unwrap();
        vms.leave_memory(MemoryLimits::new(&hw, Through::Files { even_units: false }));
        vms.limit_through(Quotas::new(Bandwidth::new(&hw, Duration::from_millis(100))), true);
        vms
    }

    fn run(vms: &mut Vms, from_s: u64, seconds: u64, target: LimitTarget) {
        let targets = [(id(), target)].into();
        for second in from_s..from_s + seconds {
            assert!(vms.limit(Instant::from_millis(second * 1000), &targets));
        }
    }

    const TARGET: LimitTarget = LimitTarget { millicores: Some(500), memory_bytes: Some(512 * MIB) };

    #[test]
    fn limits_are_set_after_they_are_journalled_and_put_back_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let mut vms = server(root);
        run(&mut vms, 0, 20, TARGET);
        let limited = ["cpu.max", "memory.high", "memory.max"].map(|name| text(root, name));
        assert_eq!(limited, ["50000 100000", "536870912", "536870912"]);
        let journal = fs::read_to_string(root.join("state/journal.json")).unwrap();
        assert!(journal.contains("max 100000") && journal.contains("\"high_bytes\": null"), "{journal}");

        // A kill raises it with the next look.
        fs::write(file(root, "memory.events"), "high 0\noom_kill 1\n").unwrap();
        run(&mut vms, 20, 1, TARGET);
        assert_eq!(text(root, "memory.max"), (615 * MIB).to_string());

        vms.stop_limiting();
        assert!(!vms.limit(Instant::from_millis(30_000), &BTreeMap::new()));
        assert_eq!(vms.restore_memory(), Vec::<String>::new());
        assert_eq!((text(root, "memory.high"), text(root, "memory.max")), ("max".into(), "max".into()));
    }

    #[test]
    fn nothing_is_written_that_cannot_be_journalled_and_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let mut vms = server(root);
        let journal = root.join("state/journal.json");
        fs::remove_file(&journal).unwrap();
        fs::create_dir_all(journal.join("x")).unwrap();
        run(&mut vms, 0, 30, TARGET);
        let files = ["cpu.max", "memory.high", "memory.max"].map(|name| text(root, name));
        assert_eq!(files, ["max 100000", "max", "max"]);
        let state = vms.limiting.as_ref().unwrap().in_force[&id()].clone();
        assert!(state.cpu.unwrap().is_err() && state.memory.unwrap().is_err());
    }

    #[test]
    fn without_pressure_files_and_below_its_use_memory_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let mut vms = server(root);
        let below = LimitTarget { memory_bytes: Some(310 * MIB), ..LimitTarget::default() };
        run(&mut vms, 0, 30, below);
        fs::remove_file(file(root, "memory.pressure")).unwrap();
        run(&mut vms, 30, 30, TARGET);
        assert_eq!((text(root, "memory.high"), text(root, "memory.max")), ("max".into(), "max".into()));
        let limiting = vms.limiting.as_ref().unwrap();
        assert_eq!(limiting.held, BTreeMap::from([("below_use", 1), ("unreadable", 1)]));
        let why = limiting.in_force[&id()].memory.clone().unwrap().unwrap_err();
        assert!(why.contains("memory.pressure"), "{why}");

        // A group that is gone ends nothing.
        fs::remove_dir_all(file(root, "")).unwrap();
        run(&mut vms, 60, 3, TARGET);
        assert!(vms.restore_memory().is_empty());
    }
}
