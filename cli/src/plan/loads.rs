//! What servers were busy with, by class, from files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_planner::Intake;
use ballast_sim::trace::{Layout, ReadOptions, Samples, Shape, Unit};
use ballast_sim::verify::ServerLoads;
use indicatif::ProgressBar;

use super::columns::Columns;
use crate::common::table;

/// So many rows are 1 GiB.
const MAX_ROWS: usize = 1 << 26;
const SHARE: &str = "a share of the server's cores, 0 to 1, with the other class's at most 1,";
/// Shares that were rounded may add up to a little more than 1.
const ROUNDED: f64 = 1.001;

/// Servers' loads by chassis and server, in the order of time.
#[derive(Default)]
pub(super) struct ClassLoads(BTreeMap<String, BTreeMap<String, Units>>);

/// Both classes' shares, with their units of time.
type Units = Vec<(i64, [f32; 2])>;

impl ClassLoads {
    /// Reads all files. Where a server has several rows in a unit of time the busiest counts.
    pub(super) fn read(
        files: &[PathBuf],
        columns: &Columns,
        intake: &Intake,
        servers: u32,
    ) -> anyhow::Result<Self> {
        let (mut all, mut rows) = (Self::default(), 0);
        for file in files {
            table::named(file, all.add(file, columns, intake, &mut rows))?;
        }

        for (chassis, of) in &mut all.0 {
            if of.len() > servers as usize {
                bail!("--loads: chassis {chassis} has {} servers: --servers is {servers}", of.len());
            }
            for units in of.values_mut() {
                // The busiest first.
                units.sort_by_key(|(unit, both)| {
                    (*unit, Reverse((both[0] + both[1]).to_bits()), Reverse(both.map(f32::to_bits)))
                });
                units.dedup_by_key(|(unit, _)| *unit);
            }
        }

        Ok(all)
    }

    fn add(
        &mut self,
        file: &Path,
        columns: &Columns,
        intake: &Intake,
        rows: &mut usize,
    ) -> anyhow::Result<()> {
        let options = ReadOptions {
            series_column: Some("chassis".to_owned()),
            value_column: Some("user_facing".to_owned()),
            unit: Some(Unit::Share),
            shape: Some(Shape::Long),
            ..columns.options()
        };
        let mut samples = Samples::new(table::open(file, &ProgressBar::hidden())?, &options)?;
        let (server, others) = (samples.table().column("server")?, samples.table().column("others")?);
        let Layout::Long { series: Some(chassis), value, .. } = *samples.layout() else {
            bail!("a row a server and time is needed: time, chassis, server, user_facing, others");
        };

        while let Some(ms) = samples.advance()? {
            let both = [samples.number(value)?, samples.number(others)?];
            let table = samples.table();
            for (column, share) in [value, others].into_iter().zip(both) {
                if !share.is_nan() && !(0.0..=ROUNDED).contains(&share) || both[0] + both[1] > ROUNDED {
                    return Err(table.refuse(column, SHARE).into());
                }
            }

            if both.iter().any(|share| share.is_nan()) {
                continue;
            }
            *rows += 1;
            if *rows > MAX_ROWS {
                bail!("more than {MAX_ROWS} loads: give fewer chassis, or less time");
            }
            let unit = intake.unit(ms.div_euclid(1000));
            let name = |column| table.text(column).into_owned();
            let of = self.0.entry(name(chassis)).or_default().entry(name(server)).or_default();
            of.push((unit, both.map(|share| share as f32)));
        }

        Ok(())
    }

    /// The loads of a chassis in these units, of which some may be none; `None` where it has no loads at all.
    pub(super) fn of(&self, chassis: &str, units: &[Option<i64>]) -> Option<ServerLoads> {
        let servers = self.0.get(chassis)?.values().map(|known| {
            let at = |unit: i64| known.binary_search_by_key(&unit, |(unit, _)| *unit).ok();
            let load = |unit: &Option<i64>| unit.and_then(at).map_or([f32::NAN; 2], |n| known[n].1);
            units.iter().map(load).collect()
        });
        Some(ServerLoads::new(servers.collect::<Vec<_>>()))
    }

    /// That none of `planned` has loads is a mistake.
    pub(super) fn check<'a>(&self, mut planned: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
        if self.0.is_empty() || planned.any(|name| self.0.contains_key(name)) {
            return Ok(());
        }
        let other = self.0.keys().next().context("loads of no chassis")?;
        bail!("--loads: no chassis of the telemetry has loads; they are of {other:?} and others")
    }
}
