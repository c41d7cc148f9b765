//! One thread's way to the readings, and what it refuses.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use anyhow::bail;
use ballast_planner::{ChassisIndex, Readings, ReadingsError};
use ballast_runtime::lock;
use ballast_sim::trace::{Layout, Unit};

/// Readings that a thread gathers before it hands them over.
pub(super) const BATCH: usize = 8192;

/// One thread's way to the readings.
pub(crate) struct Worker<'a> {
    all: &'a Mutex<Readings>,
    times: &'a Range<i64>,
    /// Chassis by name and generation.
    names: HashMap<String, HashMap<String, ChassisIndex>>,
    batch: Vec<(ChassisIndex, i64, f64)>,
}

impl<'a> Worker<'a> {
    /// A thread that has read nothing yet.
    pub(crate) fn new(all: &'a Mutex<Readings>, times: &'a Range<i64>) -> Self {
        Self { all, times, names: HashMap::new(), batch: vec![] }
    }

    pub(crate) fn chassis(&mut self, name: &str, of: &str) -> Result<ChassisIndex, ReadingsError> {
        if let Some(&index) = self.names.get(name).and_then(|generations| generations.get(of)) {
            return Ok(index);
        }
        let index = lock(self.all).chassis(name, of)?;
        self.names.entry(name.to_owned()).or_default().insert(of.to_owned(), index);
        Ok(index)
    }

    pub(crate) fn take(&mut self, chassis: ChassisIndex, t_s: i64, watts: f64) -> Result<(), ReadingsError> {
        if !self.times.contains(&t_s) {
            return Ok(());
        }
        self.batch.push((chassis, t_s, watts));
        if self.batch.len() < BATCH { Ok(()) } else { self.hand_over() }
    }

    pub(crate) fn hand_over(&mut self) -> Result<(), ReadingsError> {
        let mut all = lock(self.all);
        self.batch.drain(..).try_for_each(|(chassis, t_s, watts)| all.take(chassis, t_s, watts))
    }
}

/// What a chassis must have.
pub(super) const NAME: &str = "a name";

/// A plan is made from draws.
pub(super) fn watts(layout: &Layout) -> anyhow::Result<()> {
    match layout.unit() {
        Unit::Watts => Ok(()),
        Unit::Percent | Unit::Share => {
            bail!("this is CPU use: watts are needed (see --value-column, --unit)")
        }
    }
}
