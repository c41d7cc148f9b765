//! Power sensors on threads of their own, and what operators see of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock;
use ballast_types::Instant;
use ballast_types::wire::{Alarm, AlarmId, SensorStatus};

/// One sensor as operators see it. Its reader tells it what it does; anybody may ask.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    name: String,
    /// A read that takes longer counts as missing until it ends.
    deadline: Duration,
    /// When the read under way began.
    reading_since: Option<Instant>,
    taken_at: Option<Instant>,
    refresh: Option<Duration>,
    faults: u64,
    problem: Option<String>,
    /// Why its readings are worth less than they could be: the configured times, a line not learnt yet.
    advice: Option<String>,
    advised_since: Option<Instant>,
    advice_logged_at: Option<Instant>,
}

/// Advice for a moment is not worth a line: a refresh that is being measured moves.
const ADVICE_LASTS: Duration = Duration::from_secs(60);
/// What lasts stands in the log again after this.
const ADVICE_AGAIN: Duration = Duration::from_secs(3600);

/// What came of one read: when the value was produced, or why there is none.
pub type Outcome<'a> = Result<Instant, &'a dyn std::fmt::Display>;

impl Gauge {
    /// A sensor that has not been read yet.
    pub fn new(name: String, deadline: Duration) -> Self {
        Self(Arc::new(Mutex::new(State { name, deadline, ..State::default() })))
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut lock(&self.0))
    }

    pub fn read_begins(&self, now: Instant) {
        self.with(|state| state.reading_since = Some(now));
    }

    pub fn answered(&self, outcome: Outcome<'_>, refresh: Option<Duration>) {
        self.with(|state| {
            state.reading_since = None;
            state.refresh = refresh;
            match outcome {
                Ok(taken_at) => (state.taken_at, state.problem) = (Some(taken_at), None),
                Err(why) => {
                    state.faults = state.faults.saturating_add(1);
                    state.problem = Some(why.to_string());
                }
            }
        });
    }

    /// A read has ended with the value that was there before.
    pub fn unmoved(&self) {
        self.with(|state| (state.reading_since, state.problem) = (None, None));
    }

    /// A reading was refused; what is known stays.
    pub fn refused(&self) {
        self.with(|state| state.faults = state.faults.saturating_add(1));
    }

    /// Why its readings are worth less than they could be, if they are; logged where that lasts.
    pub fn advise(&self, now: Instant, advice: Option<String>) {
        self.with(|state| {
            let is_due = state.advise(now, advice);
            if let Some(advice) = state.advice.as_ref().filter(|_| is_due) {
                tracing::warn!(sensor = state.name, advice, "sensor");
            }
        });
    }

    /// Since when the read under way is taken for missing, if it is.
    pub fn overdue(&self, now: Instant) -> Option<Duration> {
        self.with(|state| state.overdue(now))
    }

    pub fn status(&self, now: Instant) -> SensorStatus {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.with(|state| SensorStatus {
            sensor: state.name.clone(),
            refresh_ms: state.refresh.map(ms),
            age_ms: state.taken_at.map(|at| ms(now.since(at))),
            faults: state.faults,
            problem: state.problem(now),
        })
    }

    /// What an operator should look at.
    pub fn alarms(&self, now: Instant) -> Vec<Alarm> {
        self.with(|state| {
            let found =
                [(AlarmId::SensorFailing, state.problem(now)), (AlarmId::SensorAdvice, state.advice.clone())];
            let alarm = |(id, what): (AlarmId, Option<String>)| {
                Some(Alarm::about(id, &state.name, format!("{}: {}", state.name, what?)))
            };
            found.into_iter().filter_map(alarm).collect()
        })
    }
}

impl State {
    /// Takes the advice of now; whether the log is to have it.
    fn advise(&mut self, now: Instant, advice: Option<String>) -> bool {
        self.advised_since = advice.as_ref().map(|_| self.advised_since.unwrap_or(now));
        self.advice = advice;
        let lasts = self.advised_since.is_some_and(|since| now.since(since) >= ADVICE_LASTS);
        let is_due = lasts && self.advice_logged_at.is_none_or(|at| now.since(at) >= ADVICE_AGAIN);
        if is_due {
            self.advice_logged_at = Some(now);
        }
        is_due
    }

    fn overdue(&self, now: Instant) -> Option<Duration> {
        self.reading_since.map(|at| now.since(at)).filter(|taken| *taken > self.deadline)
    }

    fn problem(&self, now: Instant) -> Option<String> {
        let late = self.overdue(now).map(|taken| format!("no answer for {} ms", taken.as_millis()));
        late.or_else(|| self.problem.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn said(gauge: &Gauge, ms: u64) -> Vec<String> {
        gauge.alarms(MS(ms)).into_iter().map(|alarm| alarm.message).collect()
    }

    #[test]
    fn a_read_past_its_deadline_is_a_problem_until_it_ends() {
        let gauge = Gauge::new("rapl".into(), Duration::from_millis(1500));
        assert_eq!(gauge.status(MS(9)).age_ms, None);
        gauge.read_begins(MS(1000));
        assert_eq!((gauge.overdue(MS(2500)), gauge.alarms(MS(2500))), (None, vec![]));
        assert!(gauge.overdue(MS(2501)).is_some());
        assert_eq!(said(&gauge, 6000), ["rapl: no answer for 5000 ms"]);
        // It answers after five seconds: what it says is as old as the question.
        gauge.answered(Ok(MS(1000)), None);
        let status = gauge.status(MS(6000));
        assert_eq!((status.age_ms, status.problem, status.faults), (Some(5000), None, 0));
    }

    #[test]
    fn advice_is_logged_once_it_lasts_and_then_hourly() {
        let mut state = State::default();
        // In other words each time, and gone for a moment after 100 s and every hour.
        let mut logged = vec![];
        for s in 0..8000 {
            let advice = (s != 100 && s % 3600 != 3599).then(|| format!("{s} ms would do"));
            if state.advise(MS(1000 * s), advice) {
                logged.push(s);
            }
        }
        assert_eq!(logged, [60, 3660, 7260]);
        let mut flapping = State::default();
        assert!((0..8000).all(|s| !flapping.advise(MS(1000 * s), (s % 50 != 0).then(|| "x".into()))));
    }

    #[test]
    fn faults_are_counted_and_told_until_a_value_comes() {
        let gauge = Gauge::new("psu".into(), Duration::from_secs(1));
        gauge.answered(Err(&"EIO"), None);
        gauge.answered(Err(&"zero"), None);
        gauge.advise(MS(4), Some("slower".into()));
        assert_eq!(said(&gauge, 5), ["psu: zero", "psu: slower"]);
        gauge.answered(Ok(MS(5)), Some(Duration::from_secs(1)));
        gauge.advise(MS(5), None);
        let status = gauge.status(MS(6));
        assert_eq!((status.faults, status.refresh_ms, status.problem), (2, Some(1000), None));
    }
}
