//! A chassis's draws, out of its manager's recording.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::BufRead;

use ballast_chassis_core as chassis;
use ballast_types::recording::{Header, Step};
use ballast_types::wire::Level;
use ballast_types::{Cause, Instant, Watts};
use serde::de::IgnoredAny;

use super::recording::{Lines, Part, RecordedLine, RecordingError, check, parse};

/// A unit counts that was covered for at least this part of it.
const COVERED: u64 = 2;

/// The draws of chassis over time, as their managers recorded them: one mean for each unit of time.
///
/// A reading holds until the next, and no longer than until the manager would be blind; where it is, nothing
/// is known. A unit of which less than half is known is missing. Restarts of a manager only leave a gap, and
/// recordings of a rebooted machine stay in order: their headers say what clocks on the wall showed.
#[derive(Clone, Debug)]
pub struct RecordedDraws {
    period_ns: u64,
    chassis: BTreeMap<String, BTreeMap<i64, Coverage>>,
    damaged_tails: usize,
}

/// What is known of one unit of time.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    /// In milliwatts times nanoseconds.
    energy: i128,
    ns: u64,
    capped: bool,
}

/// One unit of time of one chassis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedUnit {
    /// When it begins, in seconds since 1970.
    pub t_s: i64,
    pub watts: Watts,
    /// The manager was capping in it: it would have drawn more.
    pub capped: bool,
}

/// One run of a manager, as far as it was read.
struct ManagerRun {
    chassis: String,
    draws: chassis::Draws,
    /// Nanoseconds since 1970 at the manager's instant zero.
    zero: i128,
    /// Which start of the manager it is.
    origin: (Instant, Option<i64>),
    at: Instant,
    capping: bool,
}

type Opened = Header<chassis::Params, chassis::Ledger, IgnoredAny>;

/// The header of a file that begins a run, or where one is taken up; `None` if it continues the one before.
fn open(line: &RecordedLine, before: Option<&ManagerRun>) -> Result<Option<Opened>, RecordingError> {
    let header: Opened = parse(&line.text).map_err(|reason| line.damaged(reason))?;
    check::<chassis::Chassis, _, _, _>(&header).map_err(|reason| line.damaged(reason))?;
    let continues = before.is_some_and(|run| run.origin == header.origin());
    match (header.start.is_some(), continues) {
        (true, _) => Ok(Some(header)),
        (false, true) => Ok(None),
        (false, false) if header.state.is_some() => Ok(Some(header)),
        (false, false) => Err(line
            .damaged("it continues an earlier file (`start` is null) that is not among those given".into())),
    }
}

impl ManagerRun {
    fn begin(header: Opened) -> Result<Self, String> {
        let unix_ms = header.unix_ms.ok_or("it does not say when it begins: `unix_ms` is null")?;
        Ok(Self {
            origin: header.origin(),
            chassis: header.params.chassis_id.to_string(),
            draws: chassis::Draws::new(header.params, header.at),
            zero: i128::from(unix_ms) * 1_000_000 - i128::from(header.at.as_nanos()),
            at: header.at,
            capping: false,
        })
    }
}

impl RecordedDraws {
    /// Nothing yet, with this unit of time: a second or more.
    pub fn new(period: Duration) -> Self {
        Self {
            period_ns: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1_000_000_000),
            chassis: BTreeMap::new(),
            damaged_tails: 0,
        }
    }

    /// Takes the files of one manager, oldest first. This fails if a file cannot be read, is of another
    /// machine than a chassis manager, or a line is damaged that is not the last one before a crash.
    pub fn take<R: BufRead>(&mut self, parts: Vec<Part<R>>) -> Result<(), RecordingError> {
        let mut lines = Lines::new(parts);
        let mut run: Option<ManagerRun> = None;

        // A line that cannot be read; tolerated if nothing of the same run follows it.
        let mut torn: Option<RecordingError> = None;

        while let Some(line) = lines.next()? {
            if line.opens_file {
                match open(&line, run.as_ref()) {
                    Ok(Some(header)) => {
                        self.damaged_tails += usize::from(torn.take().is_some());
                        run = Some(ManagerRun::begin(header).map_err(|reason| line.damaged(reason))?);
                    }
                    Ok(None) => {}
                    Err(error) if run.is_some() && torn.is_none() => torn = Some(error),
                    Err(error) => return Err(error),
                }
            } else if let Some(error) = torn {
                return Err(error);
            } else if let Some(run) = &mut run {
                match parse::<Step<chassis::Input, chassis::Output>>(&line.text) {
                    Ok(step) if step.at < run.at => {
                        let back = format!("time runs back to {} ns", step.at.as_nanos());
                        return Err(line.damaged(back));
                    }
                    Ok(step) => self.step(run, &step),
                    Err(reason) => torn = Some(line.damaged(reason)),
                }
            }
        }

        self.damaged_tails += usize::from(torn.is_some());
        Ok(())
    }

    fn step(&mut self, run: &mut ManagerRun, step: &Step<chassis::Input, chassis::Output>) {
        self.hold(run, step.at);
        run.at = step.at;
        if let Cause::Input(chassis::Input::Psu(poll)) = &step.cause {
            run.draws.take(step.at, poll);
        }
        let levels = step.outputs.iter().filter_map(|output| match output {
            chassis::Output::Alert { alert, .. } => Some(alert.level),
            _ => None,
        });
        if let Some(level) = levels.max() {
            run.capping = level >= Level::Cap;
        }
    }

    /// What was known at the run's last step holds until `to`.
    fn hold(&mut self, run: &ManagerRun, to: Instant) {
        let Some((draw, until)) = run.draws.known(run.at) else { return };
        let units = self.chassis.entry(run.chassis.clone()).or_default();
        let since_1970 = |at: Instant| run.zero + i128::from(at.as_nanos());
        let (mut from, to) = (since_1970(run.at), since_1970(to.min(until)));
        let period = i128::from(self.period_ns);
        while from < to {
            let unit = from.div_euclid(period);
            let end = to.min((unit + 1) * period);
            let covered = units.entry(i64::try_from(unit).unwrap_or(i64::MAX)).or_default();
            covered.energy += i128::from(draw.milli()) * (end - from);
            covered.ns += u64::try_from(end - from).unwrap_or(0);
            covered.capped |= run.capping;
            from = end;
        }
    }

    /// Every chassis, by name, with the units of time that are known well enough, in order.
    pub fn chassis(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = RecordedUnit>)> {
        self.chassis.iter().map(|(name, units)| {
            let known = units.iter().filter(|(_, covered)| covered.ns >= self.period_ns / COVERED);
            let unit = |(unit, covered): (&i64, &Coverage)| RecordedUnit {
                t_s: (i128::from(*unit) * i128::from(self.period_ns) / 1_000_000_000) as i64,
                watts: Watts::from_milli((covered.energy / i128::from(covered.ns)) as i64),
                capped: covered.capped,
            };
            (name.as_str(), known.map(unit))
        })
    }

    /// Last lines that were cut short by a crash.
    pub fn damaged_tails(&self) -> usize {
        self.damaged_tails
    }
}

#[cfg(test)]
mod tests {
    use ballast_agent_core::Policy;

    use super::*;
    use crate::scenario::Scenario;
    use crate::verify::tests::recorded_plant;
    use crate::world::{Checks, Fault, FaultPlan, Window};

    const S: fn(u64) -> Instant = |s| Instant::from_millis(1000 * s);

    /// The starts of a manager that is down from 45 to 58 s, each as a file's text. The chassis draws 350 W,
    /// from 80 s on 430 W, with a budget of 420 W.
    fn starts(unix_ms: Option<i64>) -> Vec<Vec<u8>> {
        let spec = recorded_plant(&[(0.0, 350), (80.0, 430)], 420);
        let mut scenario = Scenario::new(spec, Policy::Stepwise, 1, Duration::from_secs(100));
        scenario.checks = Checks::NONE;
        scenario.record = true;
        let window = Window { from: S(45), to: S(58), fault: Fault::ChassisDown };
        scenario.faults = FaultPlan { windows: vec![window] };
        let report = scenario.run(&mut []).kept().unwrap();
        let starts = report.run().world().unwrap().chassis_tape().unwrap().instances();

        // The manager's clock does not begin when the world does.
        let first = starts[0].header.at;
        let text = |run: &crate::world::TapedInstance<_, _, _, _>| {
            let mut run = run.clone();
            let since = run.header.at.since(first).as_millis() as i64;
            run.header.unix_ms = unix_ms.map(|ms| ms + since);
            let mut text = Vec::new();
            run.write(&mut text).unwrap();

            text
        };

        starts.iter().map(text).collect()
    }

    fn part(text: &[u8]) -> Part<&[u8]> {
        Part { name: "chassis.jsonl".into(), lines: text }
    }

    fn units(draws: &RecordedDraws) -> Vec<(i64, f64, bool)> {
        let (name, units) = draws.chassis().next().unwrap();
        assert_eq!(name, "chassis");
        units.map(|u| (u.t_s, libm::round(u.watts.as_f64()), u.capped)).collect()
    }

    #[test]
    fn a_recording_gives_the_draws_of_whole_units_and_a_restart_leaves_a_gap() {
        let texts = starts(Some(1_000_000_000));
        assert_eq!(texts.len(), 2);
        let mut draws = RecordedDraws::new(Duration::from_secs(20));

        // The order of the files of two starts does not matter.
        for text in texts.iter().rev() {
            draws.take(vec![part(text)]).unwrap();
        }
        let units = units(&draws);
        let times: Vec<_> = units.iter().map(|unit| unit.0 - 1_000_000).collect();

        // From 40 to 60 s a quarter is known, and a little of the end.
        assert_eq!(times, [0, 20, 60, 80]);
        assert!(units[..3].iter().all(|unit| (348.0..=352.0).contains(&unit.1) && !unit.2), "{units:?}");

        // Capped to a little under the budget, which says so.
        assert!(units[3].1 < 425.0 && units[3].2, "{units:?}");
        assert_eq!(draws.damaged_tails(), 0);
    }

    #[test]
    fn a_start_that_does_not_say_when_it_was_is_refused() {
        let texts = starts(None);
        let error = RecordedDraws::new(Duration::from_secs(20)).take(vec![part(&texts[0])]).unwrap_err();
        assert!(error.to_string().contains("`unix_ms` is null"), "{error}");
    }

    #[test]
    fn damage_is_told_by_file_and_line_unless_a_crash_made_it() {
        let texts = starts(Some(0));
        let mut draws = RecordedDraws::new(Duration::from_secs(20));
        draws.take(vec![part(&texts[0][..texts[0].len() - 30])]).unwrap();
        assert_eq!((draws.damaged_tails(), units(&draws).len()), (1, 2));
        let torn = [&texts[0][..texts[0].len() - 30], b"\n", &texts[0][..100]].concat();
        let header = texts[0].iter().position(|byte| *byte == b'\n').unwrap();
        let tail = [&texts[0][..header], b"\n{\n{}\n"].concat();
        for (text, said) in [
            (&torn[..], "chassis.jsonl:"),
            (&tail[..], "chassis.jsonl:2: damaged"),
            (b"{}\n", "chassis.jsonl:1: damaged"),
        ] {
            let error = draws.take(vec![part(text)]).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
