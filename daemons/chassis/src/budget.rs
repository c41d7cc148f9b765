//! The operator's budget: set for as long as he says, and taken back when that time is over.
//!
//! The controller keeps the lower budget in its ledger; it knows no wall clock. So its end is kept here, in
//! a file beside the ledger: seconds since 1970 survive a restart and a reboot. The end counts only with the
//! budget that it names, so a file that is older than the ledger ends nothing.
//!
//! A manager that took the order itself goes by the time since boot, which nobody sets; when the wall clock is set, it
//! writes the end down anew. Of an end that it found on disk it knows the wall clock's time alone.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_chassis_core::{Input, Ledger};
use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

use super::message::Message;
use crate::config::ChassisConfig;
use ballast_runtime::threads;
use ballast_runtime::{clock, lock, state};

/// Between two looks at whether the time is over.
const LOOK: Duration = Duration::from_secs(1);
/// The two clocks differ by more than that: the wall clock was set.
const CLOCK_SET_S: u64 = 5;

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

/// An end in memory.
#[derive(Clone, Copy, Debug)]
struct Pending {
    end: End,
    /// By the clock that nobody sets; `None` for one that was found on disk.
    over_at: Option<Instant>,
}

/// Now, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Now {
    unix_s: u64,
    since_boot: Instant,
}

impl Now {
    fn read() -> Self {
        Self { unix_s: unix_s(), since_boot: clock::now() }
    }
}

impl Pending {
    fn is_over(&self, now: Now) -> bool {
        self.over_at.map_or(self.end.until_unix_s <= now.unix_s, |at| at <= now.since_boot)
    }

    /// The end as the wall clock will show it, if that has been set meanwhile.
    fn moved(&self, now: Now) -> Option<End> {
        let left = (self.over_at? - now.since_boot).as_secs();
        let until_unix_s = now.unix_s.saturating_add(left);
        let moved = until_unix_s.abs_diff(self.end.until_unix_s) > CLOCK_SET_S;
        moved.then_some(End { until_unix_s, ..self.end })
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
    end: Mutex<Option<Pending>>,
    bounds: Mutex<BudgetBounds>,
}

/// What may be ordered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BudgetBounds {
    /// The configured budget: the most.
    pub(super) max: Watts,
    /// What the servers draw idle: a budget must be above that.
    pub(super) idle: Watts,
}

impl BudgetBounds {
    /// By this configuration.
    pub(super) fn of(config: &ChassisConfig) -> Self {
        let idle = config.servers.iter().map(|server| server.idle).sum();
        Self { max: config.params.budget, idle }
    }
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
        let end = end.map(|end| Pending { end, over_at: None });
        let path = (!dry).then_some(path);
        Ok(Self { messages, path, order: Mutex::default(), end: Mutex::new(end), bounds: Mutex::default() })
    }

    /// Sets what may be ordered.
    pub(super) fn follow(&self, bounds: BudgetBounds) {
        *lock(&self.bounds) = bounds;
        // A lower budget that is none any more has no end.
        lock(&self.end).take_if(|pending| pending.end.budget_w >= bounds.max);
    }

    /// What may be ordered.
    pub(super) fn bounds(&self) -> BudgetBounds {
        *lock(&self.bounds)
    }

    /// Orders a lower budget, for so long or until somebody takes it back.
    ///
    /// The end is on disk before the order goes out: a crash in between leaves no budget without its end.
    /// Fails when the end cannot be written, or the daemon stops; then nothing was changed.
    pub(super) fn lower(&self, budget: Watts, lasts: Option<Duration>) -> Result<(), Unordered> {
        self.lower_at(Now::read(), budget, lasts)
    }

    fn lower_at(&self, now: Now, budget: Watts, lasts: Option<Duration>) -> Result<(), Unordered> {
        let _one = lock(&self.order);
        let new = lasts.map(|lasts| Pending {
            end: End { budget_w: budget, until_unix_s: now.unix_s.saturating_add(lasts.as_secs()) },
            over_at: Some(now.since_boot + lasts),
        });
        if let Some(path) = &self.path {
            match new {
                Some(newest) => {
                    let before = lock(&self.end).map(|it| it.end).filter(|end| end.budget_w != budget);
                    state::write(path, &Ends { newest: newest.end, before })?;
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
        lock(&self.end).map(|it| it.end.until_unix_s)
    }

    /// Takes the lower budget back once its time is over; `false` when nobody is there to hear it.
    fn end_if_over(&self, now: Now) -> bool {
        let _one = lock(&self.order);
        let over = lock(&self.end).take_if(|it| it.is_over(now));
        let Some(over) = over else {
            self.follow_the_clock(now);
            return true;
        };
        let was = over.end.budget_w.as_f64();
        tracing::info!(was, "the lower budget's time is over: the configured budget is back");
        self.send(None).is_ok()
    }

    /// Writes the end down anew after the wall clock was set; what the disk refuses is tried again at the next look.
    fn follow_the_clock(&self, now: Now) {
        let Some(pending) = *lock(&self.end) else { return };
        let Some(newest) = pending.moved(now) else { return };
        let written =
            self.path.as_ref().map_or(Ok(()), |path| state::write(path, &Ends { newest, before: None }));
        match written {
            Ok(()) => {
                tracing::info!("the wall clock was set: the lower budget's end is written down anew");
                *lock(&self.end) = Some(Pending { end: newest, ..pending });
            }
            Err(error) => tracing::debug!(%error, "the lower budget's end is not written down anew"),
        }
    }

    /// Watches the time, on a thread of its own.
    pub(super) fn watch(self: Arc<Self>) -> io::Result<()> {
        threads::every("budget-end", LOOK, move || self.end_if_over(Now::read()))
    }

    fn send(&self, budget: Option<Watts>) -> Result<(), Unordered> {
        let order = Message::Input(Input::Budget(budget));
        self.messages.send(order).map_err(|_| Unordered::Stopping)
    }
}

/// Seconds since 1970, by the wall clock.
pub(super) fn unix_s() -> u64 {
    clock::unix_ms() / 1000
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
    /// Both clocks, which nobody has set: the host booted at 500.
    fn at(unix_s: u64) -> Now {
        Now { unix_s, since_boot: Instant::from_millis(1000 * (unix_s - 500)) }
    }
    /// Orders a budget at 700, until then.
    fn order(orders: &BudgetOrders, budget: Watts, until: Option<u64>) -> Result<(), Unordered> {
        orders.lower_at(at(700), budget, until.map(|until| Duration::from_secs(until - 700)))
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
        order(&orders, LOWER, Some(1000)).unwrap();
        assert_eq!(ordered(&inbox), [Some(LOWER)]);
        assert!(orders.end_if_over(at(999)));
        assert_eq!((ordered(&inbox), orders.until()), (vec![], Some(1000)));
        assert!(orders.end_if_over(at(1000)));
        assert!(orders.end_if_over(at(1001)));
        assert_eq!((ordered(&inbox), orders.until()), (vec![None], None), "once");
    }

    #[test]
    fn a_step_of_the_clock_by_a_day_neither_ends_a_budget_early_nor_keeps_it_longer() {
        const DAY: u64 = 86_400;
        for step in [DAY.cast_signed(), -DAY.cast_signed()] {
            let folder = tempfile::tempdir().unwrap();
            let (orders, inbox) = start(folder.path(), None);
            let now = |unix_s: u64| Now { unix_s: unix_s + 2 * DAY, ..at(unix_s) };
            let stepped = |unix_s: u64| {
                let now = now(unix_s);
                Now { unix_s: now.unix_s.strict_add_signed(step), ..now }
            };
            orders.lower_at(now(700), LOWER, Some(Duration::from_secs(300))).unwrap();
            assert_eq!(ordered(&inbox), [Some(LOWER)]);

            orders.end_if_over(stepped(999));
            assert_eq!(ordered(&inbox), [], "{step}");
            // It is shown, and found by the next manager, as the clock goes now.
            assert_eq!(orders.until(), Some(stepped(1000).unix_s), "{step}");
            let (next, of_next) = start(folder.path(), Some(LOWER));
            next.end_if_over(stepped(999));
            assert_eq!(ordered(&of_next), [], "{step}");
            next.end_if_over(stepped(1000));
            assert_eq!(ordered(&of_next), [None], "{step}");

            orders.end_if_over(stepped(1000));
            assert_eq!(ordered(&inbox), [None], "{step}");
        }
    }

    #[test]
    fn the_end_survives_a_restart_with_its_budget_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, _inbox) = start(folder.path(), None);
        order(&orders, LOWER, Some(1000)).unwrap();
        assert_eq!(start(folder.path(), Some(LOWER)).0.until(), Some(1000));
        for other in [None, Some(Watts::from_whole(2200))] {
            assert_eq!(start(folder.path(), other).0.until(), None, "{other:?}");
        }
        // It was over while no manager ran.
        let (orders, inbox) = start(folder.path(), Some(LOWER));
        orders.end_if_over(at(5000));
        assert_eq!(ordered(&inbox), [None]);
        // The crash after that, before the ledger was written: it is over again.
        let (orders, inbox) = start(folder.path(), Some(LOWER));
        orders.end_if_over(at(5000));
        assert_eq!(ordered(&inbox), [None]);
    }

    #[test]
    fn a_budget_without_an_end_keeps_none_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, inbox) = start(folder.path(), None);
        order(&orders, LOWER, Some(1000)).unwrap();
        order(&orders, LOWER, None).unwrap();
        orders.end_if_over(at(5000));
        assert_eq!((ordered(&inbox), orders.until()), (vec![Some(LOWER); 2], None));
        assert_eq!(start(folder.path(), Some(LOWER)).0.until(), None);
        order(&orders, LOWER, Some(1000)).unwrap();
        orders.reset().unwrap();
        orders.end_if_over(at(5000));
        assert_eq!((ordered(&inbox), orders.until()), (vec![Some(LOWER), None], None));
    }

    #[test]
    fn a_crash_before_the_ledger_is_written_leaves_no_budget_without_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let until = |ledger| start(folder.path(), Some(ledger)).0.until();
        let (lower, higher) = (Watts::from_whole(2200), Watts::from_whole(2400));
        let (orders, _inbox) = start(folder.path(), None);
        order(&orders, LOWER, Some(1000)).unwrap();
        order(&orders, lower, Some(2000)).unwrap();
        assert_eq!((until(LOWER), until(lower), until(higher)), (Some(1000), Some(2000), None));
        order(&orders, higher, None).unwrap();
        assert_eq!((until(lower), until(higher)), (Some(2000), None));
        order(&orders, lower, None).unwrap();
        assert_eq!((until(LOWER), until(lower)), (Some(1000), None), "it has no end any more");
    }

    #[test]
    fn nobody_who_asks_for_the_end_waits_for_a_disk_that_stalls() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, _inbox) = start(folder.path(), None);
        order(&orders, LOWER, Some(1000)).unwrap();
        // As an order does that is being written down.
        let _stalled = lock(&orders.order);
        assert_eq!(orders.until(), Some(1000));
    }

    #[test]
    fn an_end_that_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (orders, inbox) = start(&folder.path().join("gone"), None);
        let why = order(&orders, LOWER, Some(1000)).unwrap_err().to_string();
        assert!(why.contains("nothing was changed"), "{why}");
        assert_eq!((ordered(&inbox), orders.until()), (vec![], None));
        order(&orders, LOWER, None).unwrap();
        assert_eq!(ordered(&inbox), [Some(LOWER)]);
    }

    #[test]
    fn a_dry_run_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (messages, _inbox) = mpsc::channel();
        let orders = BudgetOrders::open(folder.path(), &Ledger::default(), messages, true).unwrap();
        order(&orders, LOWER, Some(1000)).unwrap();
        assert_eq!(orders.until(), Some(1000));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
