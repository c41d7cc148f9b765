//! What answers: the tables as they are kept and asked.

use std::borrow::Cow;

use ballast_types::survival::{CurveId, Curves};
use serde::{Deserialize, Serialize};

use super::data::Lifetimes;
use super::feature::{Column, LifetimeFeatures};
use super::score::LONG_S;
use super::tables::TableCell;

/// Curves for all VMs that may arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeModel {
    /// The columns that are asked for, the widest first.
    columns: Vec<Column>,
    /// Of each column the categories that have a table somewhere, sorted.
    names: Vec<Vec<String>>,
    /// The first is that of all VMs.
    cells: Vec<Cell>,
    curves: Curves,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cell {
    curve: CurveId,
    /// Categories of the next column, sorted, with their cells.
    narrower: Vec<(u32, u32)>,
}

/// What a model says of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifetimeAnswer {
    /// Expected remaining lifetime, where what exceeds 14 days counts as 14 days.
    pub expected_s: f32,
    /// So long half of such VMs still live, and nine and one of ten.
    pub median_s: f32,
    pub p10_s: f32,
    pub p90_s: f32,
    /// The probability to live for seven days, from its start on.
    pub lives_7d: f32,
    /// So many of the model's columns were known; the next category was new to the model, or too rare.
    pub known_columns: u32,
}

impl LifetimeModel {
    pub(super) fn new(lifetimes: &Lifetimes, order: &[usize], root: &TableCell) -> Self {
        let mut used = vec![Vec::new(); order.len()];
        categories(root, &mut used);
        let names = order.iter().zip(&used).map(|(column, used)| {
            used.iter().map(|value| lifetimes.names(*column)[*value as usize].clone()).collect()
        });

        let mut model = Self {
            columns: order.iter().map(|column| lifetimes.columns()[*column].clone()).collect(),
            names: names.collect(),
            cells: Vec::new(),
            curves: Curves::default(),
        };
        model.add(root, &used);
        model
    }

    /// Keeps a cell and those below it; the number of the cell.
    fn add(&mut self, cell: &TableCell, used: &[Vec<u32>]) -> u32 {
        let (number, curve) = (self.cells.len(), self.curves.intern(cell.curve.clone()));
        self.cells.push(Cell { curve, narrower: Vec::new() });

        if let [values, below @ ..] = used {
            let narrower = cell.children.iter().map(|(value, child)| {
                let name = values.partition_point(|other| other < value);
                (name as u32, self.add(child, below))
            });
            let narrower = narrower.collect();
            self.cells[number].narrower = narrower;
        }
        number as u32
    }

    /// The columns that the model asks for, the widest first.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// All curves: what a placement keeps beside the ids of its VMs.
    pub fn curves(&self) -> &Curves {
        &self.curves
    }

    /// The curve of a VM that starts at this Unix second. A category that the model does not know, or knows too few VMs
    /// of, has the curve of the wider one.
    pub fn curve(&self, features: &LifetimeFeatures, start_s: i64) -> CurveId {
        self.find(|column| column.value(features, start_s)).0
    }

    /// What to reckon with for a VM that has run for so long; 0 when it arrives.
    pub fn answer(&self, features: &LifetimeFeatures, start_s: i64, uptime_s: f32) -> LifetimeAnswer {
        let (id, known_columns) = self.find(|column| column.value(features, start_s));
        let expected_s = self.curves.remaining_s(id, uptime_s);
        let Some(curve) = self.curves.get(id) else { unreachable!("a model's cells have its own curves") };
        let [median_s, p10_s, p90_s] = [0.5, 0.9, 0.1].map(|share| curve.quantile_s(uptime_s, share));
        let lives_7d = curve.conditional(uptime_s, (LONG_S[2] - uptime_s).max(0.0));
        LifetimeAnswer { expected_s, median_s, p10_s, p90_s, lives_7d, known_columns }
    }

    /// The curve of a row of other data.
    pub(super) fn curve_of(&self, lifetimes: &Lifetimes, row: u32) -> CurveId {
        let value = |column: &Column| {
            let place = lifetimes.columns().iter().position(|other| other == column)?;
            Some(Cow::from(lifetimes.names(place)[lifetimes.value(row, place) as usize].as_str()))
        };
        self.find(value).0
    }

    fn find<'a>(&self, value: impl Fn(&Column) -> Option<Cow<'a, str>>) -> (CurveId, u32) {
        let (mut cell, mut known) = (&self.cells[0], 0);
        for (column, names) in self.columns.iter().zip(&self.names) {
            let value = value(column).unwrap_or_default();
            let Ok(name) = names.binary_search_by(|name| name.as_str().cmp(&value)) else { break };
            let Ok(place) = cell.narrower.binary_search_by_key(&(name as u32), |(name, _)| *name) else {
                break;
            };
            cell = &self.cells[cell.narrower[place].1 as usize];
            known += 1;
        }
        (cell.curve, known)
    }

    /// Whether the parts fit together; each is sound by itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.cells.is_empty() || self.names.len() != self.columns.len() {
            let (cells, names, columns) = (self.cells.len(), self.names.len(), self.columns.len());
            return Err(format!("lifetimes: {cells} cells, names of {names} of {columns} columns"));
        }
        for (number, cell) in self.cells.iter().enumerate() {
            // A cell below another comes after it: so no walk goes round.
            let sound = |(_, to): &(u32, u32)| (*to as usize) > number && (*to as usize) < self.cells.len();
            let sorted = cell.narrower.is_sorted_by(|a, b| a.0 < b.0);
            if self.curves.get(cell.curve).is_none() || !sorted || !cell.narrower.iter().all(sound) {
                return Err(format!("lifetimes: cell {number} names what is not there"));
            }
        }
        match self.names.iter().find(|names| !names.is_sorted_by(|a, b| a < b)) {
            Some(_) => Err("lifetimes: categories that are not sorted".into()),
            None => Ok(()),
        }
    }
}

/// The categories that have a cell, by column, sorted.
fn categories(cell: &TableCell, used: &mut [Vec<u32>]) {
    if let [values, below @ ..] = used {
        for (value, child) in &cell.children {
            if let Err(place) = values.binary_search(value) {
                values.insert(place, *value);
            }
            categories(child, below);
        }
    }
}
