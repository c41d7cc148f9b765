//! What deployments did, from a list of events: more cores, or fewer, in the order of time.

use std::collections::BTreeMap;

use thiserror::Error;

use super::fit::History;

/// An event that cannot be. The events before it stand.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EventError {
    /// Cores end that were never there.
    #[error("{deployment:?} loses {ended} cores, and has {cores}")]
    TooMany {
        /// Its name, as in the events.
        deployment: String,
        /// Those that it has.
        cores: f64,
        /// Those that are said to end.
        ended: f64,
    },
    /// Events come in the order of time, over all deployments.
    #[error("{at_h} h comes after {last_h} h: events in the order of time")]
    OutOfOrder {
        /// This event's time, in hours.
        at_h: f64,
        /// The latest time before.
        last_h: f64,
    },
    /// Neither more cores nor fewer.
    #[error("{0} cores: a number other than 0, below 1e9")]
    Cores(f64),
    /// Seconds or milliseconds, perhaps.
    #[error("time_h = {0}: hours, 0 to {LATEST_H}")]
    Time(f64),
}

/// Eleven thousand years.
const LATEST_H: f64 = 1e8;

/// One deployment while it is watched.
#[derive(Clone, Debug, Default)]
struct Watched {
    cores: f64,
    begun_h: f64,
    until_h: f64,
    /// The cores that ended at `until_h`, if the last event was an end.
    ended: f64,
    label: String,
    history: History,
}

/// Deployments while their events are read.
#[derive(Clone, Debug, Default)]
pub struct Histories {
    live: BTreeMap<String, Watched>,
    over: Vec<(String, History)>,
    first_h: Option<f64>,
    last_h: f64,
}

impl Histories {
    /// One event. A deployment's first is its arrival, which says its label; after its last core has ended the name is a new
    /// deployment's.
    ///
    /// # Errors
    /// For an event that cannot be.
    pub fn add(&mut self, deployment: &str, label: &str, at_h: f64, cores: f64) -> Result<(), EventError> {
        if !(cores.abs() > 0.0 && cores.abs() < 1e9) {
            return Err(EventError::Cores(cores));
        }
        if !(0.0..=LATEST_H).contains(&at_h) {
            return Err(EventError::Time(at_h));
        }
        if at_h < self.last_h {
            return Err(EventError::OutOfOrder { at_h, last_h: self.last_h });
        }

        let there = self.live.get(deployment).map_or(0.0, |it| it.cores);
        if cores < 0.0 && -cores > there + 1e-6 {
            return Err(EventError::TooMany {
                deployment: deployment.to_owned(),
                cores: there,
                ended: -cores,
            });
        }
        self.last_h = at_h;
        self.first_h.get_or_insert(at_h);
        let it = self.live.entry(deployment.to_owned()).or_insert_with(|| Watched {
            begun_h: at_h,
            until_h: at_h,
            label: label.to_owned(),
            ..Watched::default()
        });
        it.history.core_hours += it.cores * (at_h - it.until_h);
        it.ended = if cores < 0.0 && (at_h > it.until_h || it.ended > 0.0) {
            -cores + if at_h > it.until_h { 0.0 } else { it.ended }
        } else {
            0.0
        };
        it.until_h = at_h;
        it.cores += cores;

        if cores > 0.0 {
            it.history.scale_outs += f64::from(u8::from(it.history.requests > 0.0));
            it.history.requests += 1.0;
            it.history.further_cores += (cores - 1.0).max(0.0);
        } else {
            it.history.core_ends -= cores;
        }
        if it.cores < 1e-6 {
            let mut it = self.live.remove(deployment).unwrap_or_default();
            it.history.age_h = at_h - it.begun_h;
            it.history.shutdown = it.ended > 1.5;
            it.history.ended_alone = !it.history.shutdown;
            if it.history.shutdown {
                it.history.core_ends -= it.ended;
            }
            self.over.push((it.label, it.history));
        }
        Ok(())
    }

    /// All histories with their labels, as of a time: those that go on are watched until then.
    pub fn until(mut self, end_h: f64) -> Vec<(String, History)> {
        let end_h = end_h.max(self.last_h);
        for mut it in self.live.into_values() {
            it.history.core_hours += it.cores * (end_h - it.until_h);
            it.history.age_h = end_h - it.begun_h;
            self.over.push((it.label, it.history));
        }
        self.over
    }

    /// The time of the first event, in hours.
    pub fn first_h(&self) -> f64 {
        self.first_h.unwrap_or(self.last_h)
    }

    /// The time of the last event, in hours.
    pub const fn last_h(&self) -> f64 {
        self.last_h
    }
}
