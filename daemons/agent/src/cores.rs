//! The cores' caps, and the thread that looks after them.
//!
//! ```text
//!   control ── set, release ──▶ caps ◀── readback, rewrites, scan ── watch: what was written, 25 ms later;
//!   thread                                                            ▲   all that is capped, once a second;
//!                          uevents: a CPU went or came ───────────────┘   which CPUs there are, when notified,
//!                                                                         and every 30 s
//! ```
//! An alert is written by the control thread alone, one write a policy, and waits for one write of the
//! watch at most: files are read without holding the caps, and written one policy at a time. The order of
//! the watch's steps is held by the types of [`ballast_hw::cpufreq`].

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use ballast_agent_core::Input;
use ballast_hw::cpufreq::{Changed, Judged};
use ballast_hw::uevents::CpuEvents;
use ballast_hw::{Cpufreq, HwError, Root};
use ballast_types::{CoreId, Instant, KiloHertz};

use super::message::Message;
use super::vms::Vms;
use ballast_runtime::clock;
use ballast_runtime::lock;
use ballast_runtime::threads::{self, supervise};

/// From a write until the kernel has applied it.
const SETTLE: Duration = Duration::from_millis(25);
/// Between two readbacks of caps, and between two scans while a policy does not take values.
const READBACK: Duration = Duration::from_secs(1);
/// Between two scans for CPUs that went or came, of which nobody told.
const SCAN: Duration = Duration::from_secs(30);
/// Between two writes of the watch: a lock goes to nobody in particular, and the control thread must have it.
const BREATH: Duration = Duration::from_micros(100);
/// The machine slept, if the clocks moved apart by more.
const SLEPT: Duration = Duration::from_millis(100);

/// The cores' caps.
pub(super) struct Cores {
    caps: Arc<Mutex<Cpufreq>>,
    watch: Thread,
}

impl Cores {
    /// Looks after caps until this is dropped; listens for CPUs until the process ends.
    pub(super) fn start(
        cpufreq: Cpufreq,
        root: &Root,
        vms: Arc<Mutex<Vms>>,
        messages: Sender<Message>,
    ) -> io::Result<Self> {
        let caps = Arc::new(Mutex::new(cpufreq));
        let notified = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            caps: Arc::downgrade(&caps),
            root: root.clone(),
            vms,
            messages,
            notified: Arc::clone(&notified),
            slept: clock::suspended(),
            readback_at: clock::now() + READBACK,
            scan_at: clock::now() + SCAN,
        };

        let watch = supervise("cores", watch, Watch::run)?;
        let watch = watch.thread().clone();

        if root.is_machine() {
            match CpuEvents::open() {
                Ok(mut events) => listen(move || events.wait(), notified, watch.clone())?,
                Err(error) => tracing::warn!(
                    %error,
                    "the kernel's uevents cannot be heard: CPUs that go or come are noticed within {SCAN:?}"
                ),
            }
        }

        Ok(Self { caps, watch })
    }

    /// Caps one core, or (`None`) releases it.
    pub(super) fn set(&self, core: CoreId, khz: Option<KiloHertz>) -> Result<(), HwError> {
        let Some(khz) = khz else { return self.lock().release(core) };
        let done = self.lock().set(core, khz);
        self.watch.unpark();
        done
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cpufreq> {
        lock(&self.caps)
    }
}

/// Has the watch scan whenever `event` returns.
fn listen(
    mut event: impl FnMut() -> io::Result<()> + Send + 'static,
    notified: Arc<AtomicBool>,
    watch: Thread,
) -> io::Result<()> {
    let work = move |(): &mut ()| loop {
        let heard = event();
        // What was not heard may have been a CPU: all are looked at.
        notified.store(true, Ordering::Release);
        watch.unpark();
        if let Err(error) = heard {
            threads::note("uevents", &error);
            thread::sleep(SCAN);
        }
    };
    supervise("uevents", (), work).map(drop)
}

struct Watch {
    caps: Weak<Mutex<Cpufreq>>,
    root: Root,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
    /// CPUs went or came since the last scan.
    notified: Arc<AtomicBool>,
    /// How long the machine had slept by the last turn.
    slept: Duration,
    readback_at: Instant,
    scan_at: Instant,
}

impl Watch {
    fn run(&mut self) {
        while let Some(caps) = self.caps.upgrade() {
            let capped = lock(&caps).capped();
            drop(caps);
            let until_scan = self.scan_at - clock::now();
            let until_readback = if capped { self.readback_at - clock::now() } else { SCAN };
            thread::park_timeout(until_scan.min(until_readback));
            thread::sleep(SETTLE);
            if let Some(caps) = self.caps.upgrade() {
                self.turn(&caps);
            }
        }
    }

    fn turn(&mut self, caps: &Mutex<Cpufreq>) {
        let slept = clock::suspended();
        let resumed = slept > self.slept + SLEPT;
        if resumed {
            tracing::info!(slept_s = slept.as_secs(), "the machine slept: every cap is written again");
            self.slept = slept;
            lock(caps).resumed();
        }

        let all = clock::now() >= self.readback_at;
        if all {
            self.readback_at = clock::now() + READBACK;
        }
        let plan = lock(caps).plan_readback(all);
        let readback = plan.read();
        let judged = lock(caps).apply_readback(readback);
        let notified = self.notified.swap(false, Ordering::Acquire);
        let scan = resumed || notified || clock::now() >= self.scan_at;

        let may_rewrite = match judged {
            Judged::Unsure(scan_first) => scan_first.tried(&self.scan(caps)),
            Judged::Clear(may_rewrite) => {
                // What failed is in the log, and tried again at the next scan.
                let _ = scan.then(|| self.scan(caps));
                may_rewrite
            }
        };

        let due = lock(caps).plan_rewrites(may_rewrite);
        let mut lifted = Vec::with_capacity(due.len());

        for cap in due {
            lifted.push(lock(caps).lift(cap));
            thread::sleep(BREATH);
        }
        if !lifted.is_empty() {
            thread::sleep(SETTLE);
        }
        for cap in lifted {
            lock(caps).rewrite(cap);
            thread::sleep(BREATH);
        }
    }

    fn scan(&mut self, caps: &Mutex<Cpufreq>) -> Result<(), HwError> {
        self.scan_at = clock::now() + SCAN;
        let plan = lock(caps).plan_scan();
        let scan = plan.read(&self.root).inspect_err(|error| {
            tracing::warn!(%error, "which CPUs are online cannot be read: it is tried again within {SCAN:?}");
        })?;

        let (changed, domains) = {
            let mut caps = lock(caps);
            let changed = caps.apply_scan(scan);
            (changed, caps.domains().to_vec())
        };

        let Changed { cpus, unsettled, new_originals, unwanted } = changed;
        let mut again = unsettled;

        if let Some(new) = new_originals {
            match new.journal(|originals| lock(&self.vms).journal_cores(originals)) {
                Ok(journalled) => lock(caps).allow_new_caps(journalled),
                Err(error) => {
                    tracing::error!(
                        %error,
                        "the journal cannot be written: cores that came online are not capped until it can"
                    );
                    again = true;
                }
            }
        }

        if again {
            self.scan_at = clock::now() + READBACK;
        }
        for cap in unwanted {
            lock(caps).release_unwanted(cap);
            thread::sleep(BREATH);
        }

        if cpus {
            // Sent under the lock, so that no older set comes after a newer one.
            let mut vms = lock(&self.vms);
            if let Some(set) = vms.hotplug(&domains) {
                // Fails only when the control thread has ended.
                let _ = self.messages.send(Message::Input(Input::Vms(set)));
            }
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::mpsc::{self, Receiver};

    use ballast_agent_core::ControlledVm;
    use ballast_hw::{Binders, By, Floor, Journal, JournalFolders, Originals};
    use ballast_types::BootId;

    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};
    use crate::vms::VmSources;

    const WAIT: Duration = Duration::from_secs(60);
    const CAP: KiloHertz = KiloHertz::from_mhz(1200);

    /// A server of three cores, of which core 2 is offline at first.
    struct Server {
        folder: tempfile::TempDir,
        caps: Arc<Mutex<Cpufreq>>,
        watch: Watch,
        inbox: Receiver<Message>,
    }

    fn policy(folder: &tempfile::TempDir, cpu: u16) {
        let dir = folder.path().join(format!("sys/devices/system/cpu/cpufreq/policy{cpu}"));
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("scaling_driver", "intel_pstate"),
            ("cpuinfo_min_freq", "1000000"),
            ("cpuinfo_max_freq", "2400000"),
            ("base_frequency", "2400000"),
            ("scaling_max_freq", "2400000"),
        ] {
            fs::write(dir.join(file), format!("{text}\n")).unwrap();
        }
    }

    impl Server {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            [0, 1].iter().for_each(|cpu| policy(&folder, *cpu));
            let cpu = folder.path().join("sys/devices/system/cpu");
            fs::write(cpu.join("online"), "0-1\n").unwrap();
            fs::write(cpu.join("present"), "0-2\n").unwrap();
            let root = Root::at(folder.path());
            let cpufreq = Cpufreq::discover(&root, Floor::Half).unwrap().with_offline().unwrap();
            let folders = JournalFolders::of(&folder.path().join("state"));
            let (journal, _) = Journal::open(&folders, &BootId::new("boot").unwrap()).unwrap();
            let config = "server = \"s\"\nchassis = \"c\"\n[meter]\noffset_w = 0\n[[vm]]\n\
                          id = \"batch\"\nclass = \"non-user-facing\"\ncores = 1\n";
            let AgentConfig { vms, groups, .. } = AgentConfig::parse("agent.toml", config).unwrap();
            let changes_path = folder.path().join("state/vms.json");
            let sources = VmSources { vms, groups, pods: None, changes_path, auto_path: None };
            let originals = Originals { cpufreq: Some(cpufreq.originals()), ..Originals::default() };
            let binders = Binders::new(&root, By::Cgroup);
            let domains = cpufreq.domains().to_vec();
            let (vms, _) = Vms::start(&root, &domains, sources, binders, journal, originals, None).unwrap();
            let caps = Arc::new(Mutex::new(cpufreq));
            let (messages, inbox) = mpsc::channel();
            let watch = Watch {
                caps: Arc::downgrade(&caps),
                root,
                vms: Arc::new(Mutex::new(vms)),
                messages,
                notified: Arc::default(),
                slept: clock::suspended(),
                readback_at: clock::now() + WAIT,
                scan_at: clock::now() + WAIT,
            };

            Self { folder, caps, watch, inbox }
        }
        /// CPU 2 comes.
        fn comes(&self) {
            policy(&self.folder, 2);
            let online = self.folder.path().join("sys/devices/system/cpu/online");
            fs::write(online, "0-2\n").unwrap();
        }
        fn turn(&mut self) {
            self.watch.turn(&self.caps);
        }
        fn shows(&self, cpu: u16) -> String {
            let dir = self.folder.path().join("sys/devices/system/cpu/cpufreq");
            let file = dir.join(format!("policy{cpu}/scaling_max_freq"));
            fs::read_to_string(file).unwrap_or_default().trim().to_owned()
        }
        fn journal(&self) -> PathBuf {
            self.folder.path().join("state/journal.json")
        }
        fn set(&self) -> Option<Vec<ControlledVm>> {
            match self.inbox.try_recv() {
                Ok(Message::Input(Input::Vms(set))) => Some(set),
                _ => None,
            }
        }
    }

    #[test]
    fn a_cpu_of_which_the_kernel_tells_is_capped_and_given_to_vms_at_once() {
        let mut server = Server::new();
        lock(&server.caps).set(CoreId(2), CAP).unwrap();
        server.comes();
        server.turn();
        assert_eq!(server.shows(2), "2400000", "the kernel has not notified");
        assert!(server.set().is_none());
        let (events, heard) = mpsc::channel();
        let event = move || heard.recv().map_err(io::Error::other);

        // Parked, as the watch is.
        let (woken, wakes) = mpsc::channel();
        let parked = thread::spawn(move || {
            thread::park();
            woken.send(()).unwrap();
        });

        listen(event, Arc::clone(&server.watch.notified), parked.thread().clone()).unwrap();
        events.send(()).unwrap();
        wakes.recv_timeout(WAIT).unwrap();
        parked.join().unwrap();
        server.turn();
        assert_eq!(server.shows(2), "1200000");
        assert!(fs::read_to_string(server.journal()).unwrap().contains("\"2\""));

        // The batch VM has the highest core there is.
        assert_eq!(server.set().expect("CPUs came")[0].cores, [CoreId(2)]);
    }

    #[test]
    fn what_came_is_not_capped_while_its_original_is_not_on_disk() {
        let mut server = Server::new();
        lock(&server.caps).set(CoreId(2), CAP).unwrap();
        server.comes();
        // A journal that cannot be written.
        fs::remove_file(server.journal()).unwrap();
        fs::create_dir_all(server.journal().join("full")).unwrap();
        server.watch.notified.store(true, Ordering::Release);
        server.turn();
        lock(&server.caps).set(CoreId(2), CAP).unwrap();
        server.turn();
        assert_eq!(server.shows(2), "2400000");
        fs::remove_dir_all(server.journal()).unwrap();
        server.watch.notified.store(true, Ordering::Release);
        server.turn();
        assert_eq!(server.shows(2), "1200000");
        assert!(lock(&server.caps).release_all().is_empty());
        assert_eq!(server.shows(2), "2147483647");
    }
}
