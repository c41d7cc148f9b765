//! VMs of the past, as users have them: cleaned, in batches and groups, and with categories by number.

use std::collections::BTreeMap;

use ballast_types::SplitMix64;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::counts::LifetimeSpan;
use super::feature::{Column, LifetimeFeatures};
use crate::vm::DAY_S;

/// VMs of a tenant that start within so many seconds of the first are one batch.
const TOGETHER_S: i64 = 300;
/// No time is further from 1970, in seconds: three thousand years.
const FAR_S: u64 = 100_000_000_000;
/// The share of the record's time that is held out, the newest. More than of class and P95: what starts in it must
/// still be seen for a while.
const HOLDOUT: f64 = 1.0 / 3.0;

/// One VM of the past, as somebody's table has it.
#[derive(Clone, Debug, PartialEq)]
pub struct VmLifetime {
    /// When it started, in Unix seconds; any other zero will do, but hours are then of another day.
    pub start_s: i64,
    pub end: VmEnd,
    /// With which others of its tenant it was deployed; empty if nobody told.
    pub deployment: String,
    pub features: LifetimeFeatures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmEnd {
    /// It still runs, and was seen for at least so many seconds.
    Running {
        seen_s: i64,
    },
    At(i64),
    /// It lived for at least and at most so many seconds.
    Between {
        from_s: i64,
        to_s: i64,
    },
}

/// What was wrong with a table, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaned {
    /// VMs that are learnt from or scored on.
    pub vms: u64,
    /// Of these, VMs that still run.
    pub running: u64,
    /// Left out: the end is before the start.
    pub end_before_start: u64,
    /// Left out: the start is far before or after all others; a clock jumped.
    pub start_out_of_time: u64,
    /// Clamped: the lifetime was 0 and counts as one second at most.
    pub zero_lifetime: u64,
    /// Clamped: the end is far after all starts; the VM counts as running.
    pub end_out_of_time: u64,
}

/// Too little is left to learn from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{found} VMs to learn from or to score on, {ended} of them ended; at least {needed} of each are needed"
)]
pub struct TooFewLifetimes {
    pub found: usize,
    pub ended: usize,
    pub needed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LifetimeRow {
    pub start_s: i64,
    pub span: LifetimeSpan,
    /// What is learnt of one VM of a group is nearly known of the others.
    pub group: u32,
}

/// VMs that are learnt from, in an order that the table's order does not change.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    columns: Vec<Column>,
    /// Of each column the categories, sorted; what is absent is the empty name.
    names: Vec<Vec<String>>,
    rows: Vec<LifetimeRow>,
    /// Of each row the category in each column.
    values: Vec<u32>,
    /// Of each group a number as good as random.
    drawn: Vec<u64>,
    horizon_s: i64,
    cleaned: Cleaned,
}

/// Rows by their numbers, with the second up to which they were looked at.
#[derive(Clone, Debug)]
pub struct LifetimeSplit {
    pub fit: Vec<u32>,
    pub held_out: Vec<u32>,
    /// What is fitted to was known by then, and what is held out started then or later.
    pub cut_s: i64,
}

impl Lifetimes {
    /// Takes the VMs of a table. What cannot be is left out or clamped, and counted.
    pub fn new(mut vms: Vec<VmLifetime>) -> Self {
        let mut cleaned = Cleaned::default();
        vms.sort_by(|a, b| batch_key(a).cmp(&batch_key(b)));
        let (first_s, last_s) = usual_times(&vms);
        let usual = |vm: &VmLifetime| (first_s..=last_s).contains(&vm.start_s);
        cleaned.start_out_of_time = vms.iter().filter(|vm| !usual(vm)).count() as u64;
        vms.retain(usual);

        let latest_s = last_s.saturating_add((last_s - first_s).max(DAY_S));
        let horizon_s =
            vms.iter().filter_map(|vm| seen_until(vm, latest_s)).max().unwrap_or(last_s).max(last_s);
        let spans: Vec<Option<LifetimeSpan>> =
            vms.iter().map(|vm| span(vm, horizon_s, latest_s, &mut cleaned)).collect();
        let mut keep = spans.iter();
        vms.retain(|_| keep.next().is_some_and(Option::is_some));
        let spans: Vec<LifetimeSpan> = spans.into_iter().flatten().collect();

        let (groups, drawn) = groups(&mut vms);
        let rows: Vec<LifetimeRow> = vms
            .iter()
            .zip(spans)
            .zip(groups)
            .map(|((vm, span), group)| LifetimeRow { start_s: vm.start_s, span, group })
            .collect();
        cleaned.vms = rows.len() as u64;
        cleaned.running = rows.iter().filter(|row| !row.span.ended()).count() as u64;

        let (columns, names, values) = categories(&vms);
        Self { columns, names, rows, values, drawn, horizon_s, cleaned }.in_order()
    }

    /// The same in one order, whatever order the table had.
    fn in_order(mut self) -> Self {
        let width = self.columns.len();
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by(|a, b| {
            let key = |n: usize| {
                let LifetimeRow { start_s, span, group } = self.rows[n];
                let to_s = span.to_s.unwrap_or(-1.0);
                (start_s, group, span.from_s.to_bits(), to_s.to_bits(), &self.values[n * width..][..width])
            };
            key(*a).cmp(&key(*b))
        });

        self.values = order.iter().flat_map(|n| self.values[n * width..][..width].iter().copied()).collect();
        self.rows = order.iter().map(|n| self.rows[*n]).collect();
        self
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The categories of a column, sorted.
    pub fn names(&self, column: usize) -> &[String] {
        &self.names[column]
    }

    pub fn rows(&self) -> &[LifetimeRow] {
        &self.rows
    }

    /// The category of a row in a column.
    pub fn value(&self, row: u32, column: usize) -> u32 {
        self.values[row as usize * self.columns.len() + column]
    }

    /// The last thing that is known, in Unix seconds.
    pub fn horizon_s(&self) -> i64 {
        self.horizon_s
    }

    pub fn cleaned(&self) -> &Cleaned {
        &self.cleaned
    }

    /// For how long a row could have been seen by then.
    pub fn seen_s(&self, row: u32, until_s: i64) -> f32 {
        (until_s - self.rows[row as usize].start_s).max(0) as f32
    }

    /// What was known of a row by then. If it may have ended or not, it was still there at the least that it lived.
    pub fn known_by(&self, row: u32, until_s: i64) -> LifetimeSpan {
        let (LifetimeRow { span, .. }, seen_s) = (self.rows[row as usize], self.seen_s(row, until_s));
        match span.to_s {
            Some(to_s) if to_s <= seen_s => span,
            _ => LifetimeSpan { from_s: span.from_s.min(seen_s), to_s: None },
        }
    }

    /// The newest third of the time is held out. A group that had begun before is not scored on.
    pub fn split(&self) -> LifetimeSplit {
        let first_s = self.rows.first().map_or(0, |row| row.start_s);
        let cut_s = self.horizon_s - ((self.horizon_s - first_s) as f64 * HOLDOUT) as i64;
        let (fit, later): (Vec<u32>, Vec<u32>) =
            (0..self.rows.len() as u32).partition(|row| self.rows[*row as usize].start_s < cut_s);

        let mut begun = vec![false; self.drawn.len()];
        fit.iter().for_each(|row| begun[self.group(*row) as usize] = true);
        let held_out = later.into_iter().filter(|row| !begun[self.group(*row) as usize]).collect();
        LifetimeSplit { fit, held_out, cut_s }
    }

    /// Deals rows into parts, whole groups each, by a hash of whose and which they are.
    pub fn part(&self, row: u32, parts: u64) -> u64 {
        self.drawn[self.group(row) as usize] % parts
    }

    pub fn group(&self, row: u32) -> u32 {
        self.rows[row as usize].group
    }
}

/// What makes a batch, in the order of starts.
fn batch_key(vm: &VmLifetime) -> (i64, &str, &str) {
    (vm.start_s, vm.features.tenant.as_deref().unwrap_or(""), &vm.deployment)
}

/// The first and the last start, without those that lie apart from nearly all: a hundredth at most, and further than
/// the others span. Starts are sorted.
fn usual_times(vms: &[VmLifetime]) -> (i64, i64) {
    let starts: Vec<i64> =
        vms.iter().map(|vm| vm.start_s).filter(|start| start.unsigned_abs() <= FAR_S).collect();
    if starts.is_empty() {
        return (0, 0);
    }

    let few = if starts.len() < 10 { 0 } else { (starts.len() / 100).max(1) };
    let (low, high) = (few, starts.len() - 1 - few);
    let span = (starts[high] - starts[low]).max(DAY_S);
    let apart = |two: &[i64]| two[1] - two[0] > span;
    let first = (0..low).rev().find(|n| apart(&starts[*n..*n + 2])).map_or(0, |n| n + 1);
    let last = (high..starts.len() - 1).find(|n| apart(&starts[*n..*n + 2])).unwrap_or(starts.len() - 1);
    (starts[first], starts[last])
}

/// The last second at which something is known of this VM.
fn seen_until(vm: &VmLifetime, latest_s: i64) -> Option<i64> {
    match vm.end {
        VmEnd::Running { seen_s } => Some(vm.start_s.saturating_add(seen_s)),
        VmEnd::At(end_s) => Some(end_s),
        VmEnd::Between { from_s, .. } => Some(vm.start_s.saturating_add(from_s)),
    }
    .filter(|seen_s| *seen_s <= latest_s)
}

/// How long it lived; `None` if the end is before the start.
fn span(vm: &VmLifetime, horizon_s: i64, latest_s: i64, cleaned: &mut Cleaned) -> Option<LifetimeSpan> {
    let seen_s = horizon_s - vm.start_s;
    let running = LifetimeSpan { from_s: seen_s as f32, to_s: None };
    let (from_s, to_s) = match vm.end {
        VmEnd::Running { .. } => return Some(running),
        VmEnd::At(end_s) => (end_s.saturating_sub(vm.start_s), end_s.saturating_sub(vm.start_s)),
        VmEnd::Between { from_s, to_s } => (from_s, to_s),
    };

    if from_s < 0 || to_s < from_s {
        cleaned.end_before_start += 1;
        return None;
    }
    if vm.start_s.saturating_add(from_s) > latest_s {
        cleaned.end_out_of_time += 1;
        return Some(running);
    }
    if to_s == 0 {
        cleaned.zero_lifetime += 1;
    }

    let to_s = to_s.min(seen_s).max(1).max(from_s);
    Some(LifetimeSpan { from_s: from_s as f32, to_s: Some(to_s as f32) })
}

/// Counts the VMs of each batch, for VMs of which nobody told. Whoever has no tenant and no deployment is in none.
pub fn count_batches(vms: &mut [VmLifetime]) {
    groups(vms);
}

/// The group of each VM, and a number for each group; batches are counted.
fn groups(vms: &mut [VmLifetime]) -> (Vec<u32>, Vec<u64>) {
    struct Open {
        group: u32,
        batch: usize,
        first_s: i64,
    }
    let (mut open, mut drawn) = (BTreeMap::<(&str, &str), Open>::new(), Vec::<u64>::new());
    let (mut groups, mut batches) = (vec![0; vms.len()], vec![None; vms.len()]);
    let mut sizes = Vec::<u32>::new();
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by(|a, b| batch_key(&vms[*a]).cmp(&batch_key(&vms[*b])));

    for place in order {
        let (start_s, tenant, deployment) = batch_key(&vms[place]);
        let alone = tenant.is_empty() && deployment.is_empty();
        let before = open.get(&(tenant, deployment)).filter(|_| !alone);
        let together = before.is_some_and(|open| start_s.saturating_sub(open.first_s) <= TOGETHER_S);

        let group = match before {
            Some(open) if together || !deployment.is_empty() => open.group,
            _ => {
                drawn.push(hash(tenant, deployment, start_s));
                drawn.len() as u32 - 1
            }
        };
        let batch = match before {
            Some(open) if together => open.batch,
            _ => {
                sizes.push(0);
                sizes.len() - 1
            }
        };

        sizes[batch] += 1;
        groups[place] = group;
        batches[place] = (!alone).then_some(batch);
        if !together {
            open.insert((tenant, deployment), Open { group, batch, first_s: start_s });
        }
    }

    for (vm, batch) in vms.iter_mut().zip(batches) {
        vm.features.batch_vms = vm.features.batch_vms.or(batch.map(|batch| sizes[batch]));
    }

    (groups, drawn)
}

fn hash(tenant: &str, deployment: &str, start_s: i64) -> u64 {
    let first = if deployment.is_empty() { start_s.to_string() } else { deployment.to_owned() };
    let bytes = tenant.bytes().chain([0]).chain(first.bytes());
    bytes.fold(0, |hash, byte| SplitMix64::first(hash ^ u64::from(byte)))
}

/// The columns of which something is known, their categories, and those of each VM.
fn categories(vms: &[VmLifetime]) -> (Vec<Column>, Vec<Vec<String>>, Vec<u32>) {
    let mut all = vec![
        Column::Shape,
        Column::Cores,
        Column::Tenant,
        Column::VmType,
        Column::BatchVms,
        Column::BatchDoublings,
        Column::Hour,
        Column::Weekend,
    ];
    let mut labels: Vec<&String> = vms.iter().flat_map(|vm| vm.features.labels.keys()).collect();
    labels.sort_unstable();
    labels.dedup();
    all.extend(labels.into_iter().cloned().map(Column::Label));

    let (mut columns, mut names, mut by_column) = (Vec::new(), Vec::new(), Vec::new());
    for column in all {
        let mut numbers = BTreeMap::new();
        let mut values: Vec<u32> = Vec::with_capacity(vms.len());
        for vm in vms {
            let value = column.value(&vm.features, vm.start_s).unwrap_or_default();
            let next = numbers.len() as u32;
            values.push(match numbers.get(&*value) {
                Some(number) => *number,
                None => *numbers.entry(value.into_owned()).or_insert(next),
            });
        }
        if numbers.keys().all(String::is_empty) {
            continue;
        }

        let mut sorted = vec![0; numbers.len()];
        numbers.values().zip(0..).for_each(|(number, place)| sorted[*number as usize] = place);
        by_column.push(values.into_iter().map(|value| sorted[value as usize]).collect::<Vec<u32>>());
        names.push(numbers.into_keys().collect());
        columns.push(column);
    }

    let values = (0..vms.len()).flat_map(|vm| by_column.iter().map(move |values| values[vm])).collect();
    (columns, names, values)
}

#[cfg(test)]
mod tests;
