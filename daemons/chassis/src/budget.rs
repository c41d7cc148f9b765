//! The operator's budget: set for as long as he says, and taken back when that time is over.
//!
//! The controller keeps the lower budget in its ledger; it knows no wall clock. So its end is kept here, in
//! a file beside the ledger: seconds since 1970 survive a restart and a reboot. The end counts only with the
//! budget that it names, so a file that is older than the ledger ends nothing. A clock that is set back puts
//! the end off, which is the safe side.

use ballast_runtime::threads;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ballast_chassis_core::{Input, Ledger};
use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use super::message::Message;
use ballast_runtime::{lock, state};

/// Between two looks at whether the time is over.
const LOOK: Duration = Duration::from_secs(1);

/// When a lower budget ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    budget_w: Watts,
    /// In seconds since 1970.
    until_unix_s: u64,
}

/// What is on disk: the newest end, and that of the budget which was in force when it was ordered. The
/// ledger is written after this file, so that a crash in between leaves the earlier budget in force.
#[derive(Debug, Serialize, Deserialize)]
struct Ends {
    #[serde(flatten)]
    newest: End,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<End>,
}

impl Ends {
    /// The end of this budget, if it has one here.
    fn of(&self, budget: Option<Watts>) -> Option<End> {
        self.all().find(|end| Some(end.budget_w) == budget)
    }

    fn all(&self) -> impl Iterator<Item = End> {
        [Some(self.newest), self.before].into_iter().flatten()
    }
}

/// Why a budget was not ordered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unordered {
    /// Its end, or that it has none, could not be written down.
    #[error("the end of the budget could not be written down, nothing was changed: {0}")]
    Disk(#[from] io::Error),
    #[error("stopping")]
    Stopping,
}

/// Where budgets are ordered, one at a time.
pub(super) struct BudgetOrders {
    messages: Sender<Message>,
    /// `None` in a dry run, which leaves its folder alone.
    path: Option<PathBuf>,
    /// Held for an order, and as long as the disk takes for it.
    order: Mutex<()>,
    /// Held for a moment: who asks for it must not wait for the disk.
    end: Mutex<Option<End>>,
}

impl BudgetOrders {
    /// Takes over the end of the ledger's budget, if it has one.
    pub(super) fn open(
        folder: &Path,
        ledger: &Ledger,
        messages: Sender<Message>,
        dry: bool,
    ) -> io::Result<Self> {
        let path = folder.join("budget-end.json");
        let end = state::read::<Ends>(&path)?.and_then(|ends| ends.of(ledger.budget_w));
        let path = (!dry).then_some(path);
        Ok(Self { messages, path, order: Mutex::default(), end: Mutex::new(end) })
    }

    /// Orders a lower budget, until then or until somebody takes it back.
    ///
    /// The end is on disk before the order goes out: a crash in between leaves no budget without its end.
    /// Fails when the end cannot be written, or the daemon stops; then nothing was changed.
    pub(super) fn lower(&self, budget: Watts, until: Option<u64>) -> Result<(), Unordered> {
        let _one = lock(&self.order);
        let new = until.map(|until_unix_s| End { budget_w: budget, until_unix_s });
        if let Some(path) = &self.path {
            match new {
                Some(newest) => {
                    let before = lock(&self.end).filter(|end| end.budget_w != budget);
                    state::write(path, &Ends { newest, before })?;
                }
                None => forget(path, budget)?,
            }
        }
        self.send(Some(budget))?;
        *lock(&self.end) = new;
        Ok(())
    }

    /// Orders the configured budget. The file stays: it names a budget that the ledger no longer holds.
    pub(super) fn reset(&self) -> Result<(), Unordered> {
        let _one = lock(&self.order);
        self.send(None)?;
        *lock(&self.end) = None;
        Ok(())
    }

    /// When the configured budget comes back, in seconds since 1970.
    pub(super) fn until(&self) -> Option<u64> {
        lock(&self.end).map(|end| end.until_unix_s)
    }

    /// Takes the lower budget back once its time is over; `false` when nobody is there to hear it.
    fn end_if_over(&self, now_unix_s: u64) -> bool {
        let _one = lock(&self.order);
        let over = lock(&self.end).take_if(|end| end.until_unix_s <= now_unix_s);
        let Some(over) = over else { return true };
        let was = over.budget_w.as_f64();
        tracing::info!(was, "the lower budget's time is over: the configured budget is back");
        self.send(None).is_ok()
    }

    /// Watches the time, on a thread of its own.
    pub(super) fn watch(self: Arc<Self>) -> io::Result<()> {
        threads::every("budget-end", LOOK, move || self.end_if_over(unix_s()))
    }

    fn send(&self, budget: Option<Watts>) -> Result<(), Unordered> {
        let order = Message::Input(Input::Budget(budget));
        self.messages.send(order).map_err(|_| Unordered::Stopping)
    }
}

/// Seconds since 1970, by the wall clock.
pub(super) fn unix_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Takes the end of `budget` out of the file. Those of other budgets stay: one may still be in force.
fn forget(path: &Path, budget: Watts) -> io::Result<()> {
    let Some(ends) = state::read::<Ends>(path)? else { return Ok(()) };
    if ends.of(Some(budget)).is_none() {
        return Ok(());
    }
    if let Some(newest) = ends.all().find(|end| end.budget_w != budget) {
        return state::write(path, &Ends { newest, before: None });
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    const LOWER: Watts = Watts::from_whole(2300);

    /// After a start with this budget in the ledger.
    fn start(folder: &Path, budget_w: Option<Watts>) -> (BudgetOrders, Receiver<Message>) {
        let (messages, inbox) = mpsc::channel();
        let ledger = Ledger { budget_w, ..Ledger::default() };
        (BudgetOrders::open(folder, &ledger, messages, false).unwrap(), inbox)
    }
    fn ordered(inbox: &Receiver<Message>) -> Vec<Option<Watts>> {
        let budget = |message| match message {
            Message::Input(Input::Budget(budget)) => budget,
            _ => panic!("no budget"),
        };
        inbox.try_iter().map(budget).collect()
    }

    #[test]
    fn a_budget_ends_when_its_time_is_over_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, inbox) = start(folder.path(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        assert_eq!(ordered(&inbox), [Some(LOWER)]);
        assert!(orders.end_if_over(999));
        assert_eq!((ordered(&inbox), orders.until()), (vec![], Some(1000)));
        assert!(orders.end_if_over(1000));
        assert!(orders.end_if_over(1001));
        assert_eq!((ordered(&inbox), orders.until()), (vec![None], None), "once");
    }

    #[test]
    fn the_end_survives_a_restart_with_its_budget_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, _inbox) = start(folder.path(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        assert_eq!(start(folder.path(), Some(LOWER)).0.until(), Some(1000));
        for other in [None, Some(Watts::from_whole(2200))] {
            assert_eq!(start(folder.path(), other).0.until(), None, "{other:?}");
        }
        // It was over while no manager ran.
        let (orders, inbox) = start(folder.path(), Some(LOWER));
        orders.end_if_over(5000);
        assert_eq!(ordered(&inbox), [None]);
        // The crash after that, before the ledger was written: it is over again.
        let (orders, inbox) = start(folder.path(), Some(LOWER));
        orders.end_if_over(5000);
        assert_eq!(ordered(&inbox), [None]);
    }

    #[test]
    fn a_budget_without_an_end_keeps_none_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, inbox) = start(folder.path(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        orders.lower(LOWER, None).unwrap();
        orders.end_if_over(5000);
        assert_eq!((ordered(&inbox), orders.until()), (vec![Some(LOWER); 2], None));
        assert_eq!(start(folder.path(), Some(LOWER)).0.until(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        orders.reset().unwrap();
        orders.end_if_over(5000);
        assert_eq!((ordered(&inbox), orders.until()), (vec![Some(LOWER), None], None));
    }

    #[test]
    fn a_crash_before_the_ledger_is_written_leaves_no_budget_without_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let until = |ledger| start(folder.path(), Some(ledger)).0.until();
        let (lower, higher) = (Watts::from_whole(2200), Watts::from_whole(2400));
        let (orders, _inbox) = start(folder.path(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        orders.lower(lower, Some(2000)).unwrap();
        assert_eq!((until(LOWER), until(lower), until(higher)), (Some(1000), Some(2000), None));
        orders.lower(higher, None).unwrap();
        assert_eq!((until(lower), until(higher)), (Some(2000), None));
        orders.lower(lower, None).unwrap();
        assert_eq!((until(LOWER), until(lower)), (Some(1000), None), "it has no end any more");
    }

    #[test]
    fn what_an_earlier_version_wrote_down_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let old = r#"{"budget_w": 2300.0, "until_unix_s": 1000}"#;
        std::fs::write(folder.path().join("budget-end.json"), old).unwrap();
        assert_eq!(start(folder.path(), Some(LOWER)).0.until(), Some(1000));
    }

    #[test]
    fn nobody_who_asks_for_the_end_waits_for_a_disk_that_stalls() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, _inbox) = start(folder.path(), None);
        orders.lower(LOWER, Some(1000)).unwrap();
        // As an order does that is being written down.
        let _stalled = lock(&orders.order);
        assert_eq!(orders.until(), Some(1000));
    }

    #[test]
    fn an_end_that_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, inbox) = start(&folder.path().join("gone"), None);
        let why = orders.lower(LOWER, Some(1000)).unwrap_err().to_string();
        assert!(why.contains("nothing was changed"), "{why}");
        assert_eq!((ordered(&inbox), orders.until()), (vec![], None));
        orders.lower(LOWER, None).unwrap();
        assert_eq!(ordered(&inbox), [Some(LOWER)]);
    }

    #[test]
    fn a_dry_run_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (messages, _inbox) = mpsc::channel();
        let orders = BudgetOrders::open(folder.path(), &Ledger::default(), messages, true).unwrap();
        orders.lower(LOWER, Some(1000)).unwrap();
        assert_eq!(orders.until(), Some(1000));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
