//! A tree of hazard tables: for all VMs, for those of a category, for those of that and of a category of the next column,
//! and so on. Each is drawn to the one above it.

use std::collections::BTreeMap;

use ballast_types::survival::{BINS, SurvivalCurve};

use super::counts::Counts;
use super::data::Lifetimes;
use super::score::log_likelihood;

/// A category of fewer VMs has no table of its own (LAVA, appendix B, collapses the same).
const MIN_VMS: usize = 10;
/// One of so many parts, of whole groups, chooses the columns.
const PARTS: u64 = 4;
/// A column must raise the log-likelihood of a VM by so much, in nats, or nobody misses it.
const WORTH: f64 = 1e-3;

/// The tables of one category, and those of its categories.
#[derive(Clone, Debug, PartialEq)]
pub struct TableCell {
    pub curve: SurvivalCurve,
    pub vms: u64,
    pub children: BTreeMap<u32, TableCell>,
}

/// Learns tables from these rows as they were known by a second. `order` are columns, the widest first.
pub fn learn(lifetimes: &Lifetimes, rows: &[u32], until_s: i64, order: &[usize]) -> TableCell {
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| {
        let key = |row: u32| order.iter().map(move |column| lifetimes.value(row, *column));
        key(*a).cmp(key(*b)).then(a.cmp(b))
    });

    let counts = count(lifetimes, &rows, until_s);
    let root = counts.hazards(&counts.prior());
    Learner { lifetimes, until_s }.cell(&rows, root, order)
}

/// The columns that say something, the widest first: each raises the log-likelihood of groups that were not learnt from
/// more than any other at its place would.
pub fn choose(lifetimes: &Lifetimes, rows: &[u32], until_s: i64) -> Vec<usize> {
    let (scored, learnt): (Vec<u32>, Vec<u32>) =
        rows.iter().partition(|row| lifetimes.part(**row, PARTS) == 0);
    let value = |order: &[usize]| {
        let root = learn(lifetimes, &learnt, until_s, order);
        let each =
            |row: &u32| log_likelihood(root.curve(lifetimes, *row, order), lifetimes.known_by(*row, until_s));
        scored.iter().map(each).sum::<f64>() / scored.len().max(1) as f64
    };

    // Hours and days of the week say nothing unless they come again.
    let first_s = rows.iter().map(|row| lifetimes.rows()[*row as usize].start_s).min().unwrap_or(until_s);
    let span_s = until_s - first_s;
    let offered: Vec<bool> = lifetimes.columns().iter().map(|column| span_s >= column.recurs_s()).collect();

    let (mut order, mut best) = (Vec::new(), value(&[]));
    loop {
        let left =
            (0..lifetimes.columns().len()).filter(|column| offered[*column] && !order.contains(column));
        let tried = left.map(|column| {
            let longer: Vec<usize> = order.iter().copied().chain([column]).collect();
            (value(&longer), column)
        });
        let better = tried.filter(|(value, _)| *value > best + WORTH).max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((value, column)) = better else { return order };
        best = value;
        order.push(column);
    }
}

impl TableCell {
    /// The narrowest curve that there is for a row.
    pub fn curve(&self, lifetimes: &Lifetimes, row: u32, order: &[usize]) -> &SurvivalCurve {
        let mut cell = self;
        for column in order {
            let Some(narrower) = cell.children.get(&lifetimes.value(row, *column)) else { break };
            cell = narrower;
        }
        &cell.curve
    }
}

struct Learner<'a> {
    lifetimes: &'a Lifetimes,
    until_s: i64,
}

impl Learner<'_> {
    /// The cell of rows that lie together by the categories of `order`.
    fn cell(&self, rows: &[u32], hazards: [f64; BINS], order: &[usize]) -> TableCell {
        let mut children = BTreeMap::new();
        if let [column, narrower @ ..] = order {
            let value = |row: u32| self.lifetimes.value(row, *column);
            for same in rows.chunk_by(|a, b| value(*a) == value(*b)) {
                if same.len() < MIN_VMS {
                    continue;
                }
                // The same VMs again say nothing more.
                let own = match same.len() == rows.len() {
                    true => hazards,
                    false => count(self.lifetimes, same, self.until_s).hazards(&hazards),
                };
                children.insert(value(same[0]), self.cell(same, own, narrower));
            }
        }

        TableCell { curve: SurvivalCurve::from_hazards(&hazards), vms: rows.len() as u64, children }
    }
}

fn count(lifetimes: &Lifetimes, rows: &[u32], until_s: i64) -> Counts {
    let mut counts = Counts::default();
    for row in rows {
        counts.add(lifetimes.rows()[*row as usize].span, lifetimes.seen_s(*row, until_s));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::super::data::{VmEnd, VmLifetime};
    use super::super::feature::LifetimeFeatures;
    use super::*;

    /// VMs of one shape, and two tenants: nine of the second.
    fn lifetimes() -> Lifetimes {
        let vm = |n: i64| VmLifetime {
            start_s: 1_000 * n,
            end: VmEnd::At(1_000 * n + if n < 9 { 50_000 } else { 100 }),
            deployment: n.to_string(),
            features: LifetimeFeatures {
                cores: Some(1.0),
                memory_gb: Some(1.0),
                tenant: Some(if n < 9 { "b" } else { "a" }.into()),
                ..LifetimeFeatures::default()
            },
        };
        Lifetimes::new((0..60).map(vm).collect())
    }

    #[test]
    fn a_category_of_all_or_of_few_has_the_curve_above_it() {
        let lifetimes = lifetimes();
        let column =
            |name: &str| lifetimes.columns().iter().position(|column| column.name() == name).unwrap();
        let all: Vec<u32> = (0..60).collect();
        let (shape, tenant) = (column("shape"), column("tenant"));
        let root = learn(&lifetimes, &all, lifetimes.horizon_s(), &[shape, tenant]);
        let of_shape = &root.children[&0];
        assert_eq!((of_shape.vms, &of_shape.curve), (60, &root.curve));
        assert_eq!(of_shape.children.keys().collect::<Vec<_>>(), [&0]);
        assert!(of_shape.children[&0].curve.at(1_000.0) < root.curve.at(1_000.0));
        // Of the nine nobody knows enough.
        assert_eq!(root.curve(&lifetimes, 0, &[shape, tenant]), &root.curve);
    }

    #[test]
    fn a_column_of_one_category_is_not_chosen() {
        let lifetimes = lifetimes();
        let all: Vec<u32> = (0..60).collect();
        let chosen = choose(&lifetimes, &all, lifetimes.horizon_s());
        let names: Vec<&str> = chosen.iter().map(|column| lifetimes.columns()[*column].name()).collect();
        assert!(names.is_empty() || names == ["tenant"], "{names:?}");
    }
}
