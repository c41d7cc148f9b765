//! The cores' caps, and the thread that looks after them.
//!
//! ```text
//!   hand ── set, release ──▶ caps ◀── looked, loosen, tighten ── watch: what was written, 25 ms later; all
//!                                     that is capped, once a second; which CPUs there are, every 30 s
//! ```
//! An alert is written by the control thread alone, one write a policy, and waits for no look: files are
//! read without holding the caps.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use ballast_agent_core::Input;
use ballast_hw::cpufreq::Scan;
use ballast_hw::{Cpufreq, HwError, Root};
use ballast_types::{CoreId, Instant, KiloHertz};

use super::Letter;
use super::vms::Vms;
use crate::clock;
use crate::lock;

/// From a write until the kernel has applied it.
const SETTLE: Duration = Duration::from_millis(25);
/// Between two looks at caps, and between two scans while a policy does not take values.
const LOOK: Duration = Duration::from_secs(1);
/// Between two scans for CPUs that went or came.
const SCAN: Duration = Duration::from_secs(30);
/// The machine slept, if the clocks moved apart by more.
const SLEPT: Duration = Duration::from_millis(100);

/// The cores' caps.
pub(super) struct Cores {
    caps: Arc<Mutex<Cpufreq>>,
    watch: Thread,
}

impl Cores {
    /// Looks after caps until this is dropped.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(
        cpufreq: Cpufreq,
        root: &Root,
        vms: Arc<Mutex<Vms>>,
        letters: Sender<Letter>,
    ) -> io::Result<Self> {
        let caps = Arc::new(Mutex::new(cpufreq));
        let watch = Watch {
            caps: Arc::downgrade(&caps),
            root: root.clone(),
            vms,
            letters,
            slept: clock::suspended(),
            look_at: clock::now() + LOOK,
            scan_at: clock::now() + SCAN,
        };
        let watch = thread::Builder::new().name("cores".into()).spawn(move || watch.run())?;
        Ok(Self { caps, watch: watch.thread().clone() })
    }

    /// Caps one core, or (`None`) releases it.
    pub(super) fn set(&self, core: CoreId, khz: Option<KiloHertz>) -> Result<(), HwError> {
        let Some(khz) = khz else { return self.lock().release(core) };
        let done = self.lock().set(core, khz);
        self.watch.unpark();
        done
    }

    /// All of them.
    pub(super) fn lock(&self) -> MutexGuard<'_, Cpufreq> {
        lock(&self.caps)
    }
}

struct Watch {
    caps: Weak<Mutex<Cpufreq>>,
    root: Root,
    vms: Arc<Mutex<Vms>>,
    letters: Sender<Letter>,
    /// How long the machine had slept by the last turn.
    slept: Duration,
    look_at: Instant,
    scan_at: Instant,
}

impl Watch {
    fn run(mut self) {
        while let Some(caps) = self.caps.upgrade() {
            let capped = lock(&caps).capped();
            drop(caps);
            let until_scan = self.scan_at - clock::now();
            let until_look = if capped { self.look_at - clock::now() } else { SCAN };
            thread::park_timeout(until_scan.min(until_look));
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
            tracing::info!(?slept, "the machine slept: every cap is written anew");
            self.slept = slept;
            lock(caps).resumed();
        }
        let all = clock::now() >= self.look_at;
        if all {
            self.look_at = clock::now() + LOOK;
        }
        let look = lock(caps).to_look(all);
        let look = look.read();
        let unsure = lock(caps).looked(look);
        if resumed || unsure || clock::now() >= self.scan_at {
            self.scan(caps);
        }
        let loosened = lock(caps).loosen();
        if loosened {
            thread::sleep(SETTLE);
            lock(caps).tighten();
        }
    }

    fn scan(&mut self, caps: &Mutex<Cpufreq>) {
        self.scan_at = clock::now() + SCAN;
        let scan = match Scan::read(&self.root) {
            Ok(scan) => scan,
            Err(error) => return tracing::warn!(%error, "CPUs"),
        };
        let (changed, domains, originals) = {
            let mut caps = lock(caps);
            let changed = caps.rescan(&scan);
            (changed, caps.domains().to_vec(), caps.originals())
        };
        if changed.unsettled {
            self.scan_at = clock::now() + LOOK;
        }
        if changed.originals
            && let Err(error) = lock(&self.vms).journal_cores(originals)
        {
            tracing::error!(%error, "cores not journalled");
        }
        if changed.cpus {
            // Sent under the lock, so that no older set comes after a newer one.
            let mut vms = lock(&self.vms);
            if let Some(set) = vms.hotplug(&domains) {
                // Fails only when the control thread has ended.
                let _ = self.letters.send(Letter::Input(Input::Vms(set)));
            }
        }
    }
}
