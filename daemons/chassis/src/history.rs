//! What the chassis drew, for people: 5 Hz for an hour, and minimum, mean and maximum per 10 s for a day.
//!
//! An excess lasts for less than a second, so no scraper sees it. A thread of its own reads the status that the control
//! thread publishes, and the control thread never waits for that one. All memory is taken at the start.

pub(crate) mod file;
mod ring;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_runtime::control::Snapshot;
use ballast_runtime::{clock, lock, threads};
use ballast_types::wire::{ChassisStatus, History};
use ballast_types::{ServerId, Watts};
use serde::Serialize;
use tokio::sync::watch;

use file::FileRow;
use ring::{Keep, Series};

/// Twice as often as supplies are polled by default, so that no poll is missed.
const LOOK: Duration = Duration::from_millis(100);
/// The chassis's own draw: 5 Hz.
const FINE_MS: u64 = 200;
/// Reports come twice a second.
const REPORT_MS: u64 = 500;
/// Steps of this and above are answered from the day, shorter ones from the hour.
pub(crate) const COARSE_MS: u64 = 10_000;
/// No answer has longer steps.
const STEP_MS_MAX: u64 = 3_600_000;
/// A status or report that is older says nothing of now.
const FRESH_MS: u64 = 2_000;
/// Pages get news at this pace, each with so much of the past.
const TICK_MS: u64 = 1_000;
const TICK_SPAN_MS: u64 = 3_000;

/// Draw, and what the draw should stay under.
struct Pair {
    power: Series,
    limit: Series,
}

impl Pair {
    fn new(fine_ms: u64) -> Self {
        Self { power: Series::new(fine_ms, Keep::Highest), limit: Series::new(fine_ms, Keep::Lowest) }
    }

    fn take(&mut self, unix_ms: u64, power: Option<Watts>, limit: Option<Watts>) {
        self.power.take(unix_ms, power);
        self.limit.take(unix_ms, limit);
    }

    fn is_known(&self, bin: u64, step_ms: u64) -> bool {
        self.power.joined(bin, step_ms).is_some() || self.limit.joined(bin, step_ms).is_some()
    }
}

/// What is kept.
pub(crate) struct Kept {
    chassis: Pair,
    servers: BTreeMap<ServerId, Pair>,
    /// The 10 s that are being filled.
    open: u64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) since_unix_ms: u64,
    pub(crate) step_ms: u64,
    /// One server's instead of the chassis's.
    pub(crate) server: Option<ServerId>,
}

impl Question {
    /// Which steps there are.
    pub(crate) const STEPS: std::ops::RangeInclusive<u64> = FINE_MS..=STEP_MS_MAX;
}

impl Kept {
    /// Nothing yet, with room for these servers.
    pub(crate) fn new<'a>(servers: impl IntoIterator<Item = &'a ServerId>) -> Self {
        let servers = servers.into_iter().map(|id| (id.clone(), Pair::new(REPORT_MS))).collect();
        Self { chassis: Pair::new(FINE_MS), servers, open: 0 }
    }

    /// Takes a status; gives the 10 s that it has ended.
    fn take(&mut self, unix_ms: u64, status: &ChassisStatus) -> Option<FileRow> {
        let now = unix_ms / COARSE_MS;
        let ended = (self.open != 0 && now != self.open).then(|| self.row(self.open));
        self.open = now;

        self.chassis.take(unix_ms, status.power_w, Some(status.limit_w));
        // A reload may have changed them.
        self.servers.retain(|id, _| status.servers.iter().any(|it| it.server == *id));
        for server in &status.servers {
            if !self.servers.contains_key(&server.server) {
                self.servers.insert(server.server.clone(), Pair::new(REPORT_MS));
            }
            let Some(pair) = self.servers.get_mut(&server.server) else { continue };
            let is_fresh = server.report_age_ms.is_some_and(|age| age <= FRESH_MS);
            let report = server.report.as_ref().filter(|_| is_fresh);
            pair.take(unix_ms, report.and_then(|it| it.power_w), server.granted_w);
        }
        ended
    }

    /// The row of the file that says what was in these 10 s.
    fn row(&self, bin: u64) -> FileRow {
        let pair = |it: &Pair| [it.power.coarse(bin), it.limit.coarse(bin)];
        FileRow {
            at_unix_ms: bin * COARSE_MS,
            chassis: pair(&self.chassis),
            servers: self.servers.iter().map(|(id, it)| (id.clone(), pair(it))).collect(),
        }
    }

    /// Takes a row of the file back. Rows come in the order of time.
    pub(crate) fn restore(&mut self, row: &FileRow) {
        let at = row.at_unix_ms;
        let restore = |pair: &mut Pair, [power, limit]: &[Option<[f32; 3]>; 2]| {
            pair.power.restore(at, *power);
            pair.limit.restore(at, *limit);
        };
        restore(&mut self.chassis, &row.chassis);
        for (id, values) in &row.servers {
            if let Some(pair) = self.servers.get_mut(id) {
                restore(pair, values);
            }
        }
    }

    /// What was asked for; `None` where there is no such server.
    pub(crate) fn answer(&self, question: &Question) -> Option<History> {
        let (pair, fine_ms) = match &question.server {
            None => (&self.chassis, FINE_MS),
            Some(id) => (self.servers.get(id)?, REPORT_MS),
        };
        let base = if question.step_ms < COARSE_MS { fine_ms } else { COARSE_MS };
        let step_ms = question.step_ms.div_ceil(base) * base;
        let (at_unix_ms, now_ms) = (clock::unix_ms(), clock::now().as_millis());

        let mut bins = pair.power.bins(question.since_unix_ms, step_ms, at_unix_ms);
        bins.start = bins.clone().find(|&bin| pair.is_known(bin, step_ms)).unwrap_or(bins.end);
        let [min, mean, max] = pair.power.read(bins.clone(), step_ms);
        let [limit, ..] = pair.limit.read(bins.clone(), step_ms);

        Some(History {
            at_unix_ms,
            now_ms,
            step_ms,
            from_unix_ms: bins.start * step_ms,
            power_min_w: min,
            power_mean_w: mean,
            power_max_w: max,
            limit_w: limit,
        })
    }
}

/// What the thread that fills it has in common with who answers.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) kept: Arc<Mutex<Kept>>,
    /// The newest message to every page that is open, in JSON.
    pub(crate) ticks: watch::Sender<Arc<str>>,
}

impl Shared {
    pub(crate) fn new(kept: Kept) -> Self {
        Self { kept: Arc::new(Mutex::new(kept)), ticks: watch::Sender::default() }
    }
}

/// One message to pages: the status, and the last seconds of the history.
#[derive(Serialize)]
struct Tick<'a> {
    at_unix_ms: u64,
    status: &'a ChassisStatus,
    history: Option<History>,
}

/// Fills it for as long as the process lives. Ended rows go to `file`.
pub(crate) fn start(
    Shared { kept, ticks }: Shared,
    snapshot: Arc<Snapshot<ChassisStatus>>,
    file: Option<SyncSender<FileRow>>,
) -> io::Result<()> {
    let mut newest_tick = 0;
    threads::every("history", LOOK, move || {
        let (now_ms, unix_ms) = (clock::now().as_millis(), clock::unix_ms());
        let status = snapshot.get().filter(|it| now_ms.saturating_sub(it.now_ms) <= FRESH_MS);
        let Some(status) = status else { return true };

        if let Some(row) = lock(&kept).take(unix_ms, &status)
            && let Some(file) = &file
        {
            // A disk that is so late gets no more; the row is still in memory.
            let _ = file.try_send(row);
        }

        if unix_ms / TICK_MS != newest_tick {
            newest_tick = unix_ms / TICK_MS;
            if ticks.receiver_count() > 0 {
                let question = Question {
                    since_unix_ms: unix_ms.saturating_sub(TICK_SPAN_MS),
                    step_ms: FINE_MS,
                    server: None,
                };
                let at_unix_ms = clock::unix_ms_at(status.now_ms);
                let history = lock(&kept).answer(&question);
                let tick = Tick { at_unix_ms, status: &status, history };
                if let Ok(text) = serde_json::to_string(&tick) {
                    ticks.send_replace(text.into());
                }
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use ballast_chassis_core::{Chassis, Ledger, Params, Server};
    use ballast_types::{ChassisId, Instant};

    use super::*;

    /// A time that begins an hour.
    const HOUR: u64 = 1_764_000_000_000;

    fn status(power: Option<i64>) -> ChassisStatus {
        let id = ChassisId::new("c1").unwrap();
        let server = Server::new(ServerId::new("s1").unwrap(), None);
        let watts = Watts::from_whole(2450);
        let params = Params::defaults(id, watts, vec![Watts::from_whole(3000)], vec![server]);
        let chassis = Chassis::new(params, Ledger::default(), Instant::ZERO);
        ChassisStatus { power_w: power.map(Watts::from_whole), ..chassis.status(Instant::ZERO) }
    }

    fn kept() -> Kept {
        Kept::new([&ServerId::new("s1").unwrap()])
    }

    fn ask(kept: &Kept, since_unix_ms: u64, step_ms: u64) -> History {
        kept.answer(&Question { since_unix_ms, step_ms, server: None }).unwrap()
    }

    #[test]
    fn a_short_excess_stands_in_both_tiers_and_what_is_missing_is_never_low() {
        let mut kept = kept();
        let mut rows = vec![];
        for n in 0..200 {
            let power = match n {
                37 => Some(2600),
                50..60 => None,
                _ => Some(2000),
            };
            rows.extend(kept.take(HOUR + n * 100, &status(power)));
        }
        let fine = ask(&kept, HOUR, 200);
        assert_eq!((fine.step_ms, fine.from_unix_ms), (200, HOUR));
        assert_eq!(fine.power_max_w[17..20], [Some(2000.0), Some(2600.0), Some(2000.0)]);
        assert_eq!(fine.power_max_w[25..30], [None; 5]);
        assert_eq!(fine.limit_w[0], Some(2450.0));

        let coarse = ask(&kept, HOUR, COARSE_MS);
        assert_eq!(coarse.power_max_w[..2], [Some(2600.0), Some(2000.0)]);
        assert_eq!(coarse.power_min_w[..2], [Some(2000.0); 2]);
        let mean = coarse.power_mean_w[0].unwrap();
        assert!((2006.0..2007.5).contains(&mean), "{mean}: 600 W for one of 90 samples");

        // A step that is no multiple becomes the next one, and a longer one joins.
        assert_eq!(ask(&kept, HOUR, 900).step_ms, 1000);
        assert_eq!(ask(&kept, HOUR, 900).power_max_w[3], Some(2600.0));
        assert_eq!(rows.len(), 1);

        // Another start reads the same from the file.
        let mut again = self::kept();
        rows.iter().for_each(|row| again.restore(row));
        assert_eq!(ask(&again, HOUR, COARSE_MS).power_max_w[0], Some(2600.0));
        assert_eq!(ask(&again, HOUR, 200).power_max_w.iter().flatten().count(), 0);
    }

    #[test]
    fn an_hour_and_a_day_are_kept_and_a_clock_may_jump() {
        let mut kept = kept();
        for n in 0..=20 {
            kept.take(HOUR + n * COARSE_MS * 1000, &status(Some(1000 + n as i64)));
        }
        // The newest fine row is alone in its hour, the oldest coarse ones have gone.
        let newest = HOUR + 20 * COARSE_MS * 1000;
        let fine = ask(&kept, 0, 200);
        assert_eq!(fine.power_max_w.iter().flatten().count(), 1);
        assert!(fine.from_unix_ms <= newest && fine.power_max_w.len() <= 18_000);
        let coarse = ask(&kept, 0, COARSE_MS);
        let values: Vec<_> = coarse.power_max_w.iter().flatten().collect();
        assert_eq!(values.len(), 9, "8,640 rows hold nine of those that lie 1,000 apart");

        // Somebody sets the clock back: what would now be the future is forgotten, the past stays.
        kept.take(newest - COARSE_MS * 1500, &status(Some(5)));
        let after = ask(&kept, 0, COARSE_MS).power_max_w;
        assert_eq!(after.iter().flatten().last(), Some(&5.0));
        assert!(!after.contains(&Some(1020.0)) && after.contains(&Some(1018.0)));
    }
}
