//! Tables of VMs with what tells how long they live: whose columns are found by their usual names.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ballast_predict::lifetime::{LifetimeFeatures, VmEnd, VmLifetime};
use ballast_sim::trace::cells::{Times, rfc_3339};
use ballast_sim::trace::{TableReader, TraceError};
use clap::ValueEnum;
use indicatif::ProgressBar;

use crate::common::table;

/// Columns whose names begin so are labels.
const LABEL: &str = "label_";
/// The first of these that a table has is taken.
const START: [&str; 4] = ["start_s", "arrival_s", "start", "start_time"];
const END: [&str; 3] = ["end_s", "end", "end_time"];
const MEMORY: [&str; 2] = ["memory_gb", "mem_gb"];
const TENANT: [&str; 2] = ["tenant", "subscription"];
const VM_TYPE: [&str; 2] = ["vm_type", "shape"];
const DEPLOYMENT: [&str; 2] = ["deployment", "batch_id"];
/// Lifetimes in bins, as Azure's traces have them.
const BINS: [&str; 3] = ["dur_lo_s", "dur_hi_s", "censored"];

/// The unit is told by the size of the numbers.
const TIME: &str = "a number of seconds, milliseconds, microseconds or nanoseconds since 1970, or a time \
                    such as 2026-04-01T08:00:00Z, in the same form in every row";

/// What is learnt or predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// User-facing or batch, and how busy
    #[default]
    ClassP95,
    /// How long a VM lives
    Lifetime,
}

/// Where a table has what.
pub struct LifetimeColumns {
    start: Option<usize>,
    end: Option<usize>,
    bins: Option<[usize; 3]>,
    pub vm_id: Option<usize>,
    pub uptime_s: Option<usize>,
    cores: Option<usize>,
    memory_gb: Option<usize>,
    tenant: Option<usize>,
    vm_type: Option<usize>,
    deployment: Option<usize>,
    batch_vms: Option<usize>,
    /// All labels in one column, as an object in JSON.
    all_labels: Option<usize>,
    labels: Vec<(String, usize)>,
    times: Times,
}

impl LifetimeColumns {
    pub fn of(table: &TableReader<'_>) -> Result<Self, TraceError> {
        let first = |names: &[&str]| -> Result<Option<usize>, TraceError> {
            let name = names.iter().find(|name| table.headers().iter().any(|header| header == *name));
            name.map(|name| table.column(name)).transpose()
        };
        let bins = match first(&BINS[..1])? {
            Some(low) => Some([low, table.column(BINS[1])?, table.column(BINS[2])?]),
            None => None,
        };
        let labels = table.headers().iter().enumerate().filter_map(|(column, header)| {
            let name = header.strip_prefix(LABEL).filter(|name| !name.is_empty())?;
            Some((name.to_owned(), column))
        });

        Ok(Self {
            start: first(&START)?,
            end: first(&END)?,
            bins,
            vm_id: first(&["vm_id"])?,
            uptime_s: first(&["uptime_s"])?,
            cores: first(&["cores"])?,
            memory_gb: first(&MEMORY)?,
            tenant: first(&TENANT)?,
            vm_type: first(&VM_TYPE)?,
            deployment: first(&DEPLOYMENT)?,
            batch_vms: first(&["batch_vms"])?,
            all_labels: first(&["labels"])?,
            labels: labels.collect(),
            times: Times::default(),
        })
    }

    /// Refuses a table that does not tell starts and ends.
    pub fn check_ends(&self, table: &TableReader<'_>) -> Result<(), TraceError> {
        if self.start.is_none() {
            table.column(START[0])?;
        }
        match (self.end, self.bins) {
            (None, None) => table.column(END[0]).map(|_| ()),
            (Some(end), Some([low, ..])) => Err(TraceError::Header {
                file: table.file().to_owned(),
                problem: format!(
                    "{} and {} both tell how long a VM lived: take one of the columns out",
                    table.headers()[end],
                    table.headers()[low]
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The VM of the current row; `now_s` stands for a start that nobody told.
    pub fn vm(&mut self, table: &TableReader<'_>, now_s: Option<i64>) -> Result<VmLifetime, TraceError> {
        let start_s = match (self.start, now_s) {
            (Some(column), None) => self.time_s(table, column)?,
            (Some(column), Some(now_s)) if table.cell(column).is_missing() => now_s,
            (Some(column), Some(_)) => self.time_s(table, column)?,
            (None, now_s) => now_s.unwrap_or_default(),
        };
        let end = match (self.bins, self.end) {
            (Some(bins), _) => binned(table, bins)?,
            (None, Some(column)) if !table.cell(column).is_missing() => {
                VmEnd::At(self.time_s(table, column)?)
            }
            (None, _) => VmEnd::Running { seen_s: 0 },
        };

        let text = |column: usize| {
            Some(table.text(column).into_owned()).filter(|_| !table.cell(column).is_missing())
        };
        let mut labels: BTreeMap<String, String> = match self.all_labels.filter(|it| text(*it).is_some()) {
            Some(column) => serde_json::from_str(&table.text(column))
                .map_err(|_| table.refuse(column, "an object of texts in JSON, or blank"))?,
            None => BTreeMap::new(),
        };
        labels.extend(self.labels.iter().filter_map(|(name, column)| Some((name.clone(), text(*column)?))));
        let features = LifetimeFeatures {
            cores: positive(table, self.cores, 65_536.0)?,
            memory_gb: positive(table, self.memory_gb, 1e6)?,
            tenant: self.tenant.and_then(text),
            vm_type: self.vm_type.and_then(text),
            batch_vms: positive(table, self.batch_vms, 1e9)?.map(|vms| vms as u32),
            labels,
        };

        Ok(VmLifetime {
            start_s,
            end,
            deployment: self.deployment.and_then(text).unwrap_or_default(),
            features,
        })
    }

    fn time_s(&mut self, table: &TableReader<'_>, column: usize) -> Result<i64, TraceError> {
        let ms = self.times.read(&table.cell(column), rfc_3339).map_err(|_| table.refuse(column, TIME))?;
        Ok(ms.div_euclid(1_000))
    }
}

/// How long a row of bins lived. A bin of zero is that of the first five minutes.
fn binned(table: &TableReader<'_>, [low, high, censored]: [usize; 3]) -> Result<VmEnd, TraceError> {
    let seconds = "whole seconds, 0 or above";
    let (from_s, to_s) = (table.integer(low, seconds)?, table.integer(high, seconds)?);
    if let Some((column, _)) = [(low, from_s), (high, to_s)].into_iter().find(|(_, seconds)| *seconds < 0) {
        return Err(table.refuse(column, seconds));
    }
    match table.integer(censored, "0 or 1")? {
        0 => Ok(VmEnd::Between { from_s, to_s: if to_s == 0 { 300 } else { to_s } }),
        1 => Ok(VmEnd::Running { seen_s: from_s }),
        _ => Err(table.refuse(censored, "0 or 1")),
    }
}

/// All VMs of a table with starts and ends; `-` is stdin.
pub fn read(path: &Path) -> anyhow::Result<Vec<VmLifetime>> {
    let read = || {
        let table = match path.to_str() {
            Some("-") => TableReader::csv(table::text(path)?, "stdin")?,
            _ => table::open(path, &ProgressBar::hidden())?,
        };
        Ok(rows(table)?)
    };
    table::named(path, read())
}

fn rows(mut table: TableReader<'_>) -> Result<Vec<VmLifetime>, TraceError> {
    let mut columns = LifetimeColumns::of(&table)?;
    columns.check_ends(&table)?;
    let (mut vms, mut places) = (Vec::<VmLifetime>::new(), HashMap::new());
    while table.advance()? {
        let vm = columns.vm(&table, None)?;
        // A journal tells a VM when it starts, and again when it has ended: the last row counts.
        let id = columns.vm_id.filter(|column| !table.cell(*column).is_missing());
        let earlier = id.and_then(|column| {
            let next = vms.len();
            let place = *places.entry((table.text(column).into_owned(), vm.start_s)).or_insert(next);
            (place < next).then_some(place)
        });
        match earlier {
            Some(place) => vms[place] = vm,
            None => vms.push(vm),
        }
    }
    Ok(vms)
}

/// A number above 0, at most `most`; nothing where it is missing.
fn positive(table: &TableReader<'_>, column: Option<usize>, most: f64) -> Result<Option<f64>, TraceError> {
    let Some(column) = column else { return Ok(None) };
    let allowed = format!("above 0, at most {most}, or blank");
    let number = table.number(column, &allowed)?;
    match number.is_nan() || (number > 0.0 && number <= most) {
        true => Ok(Some(number).filter(|number| !number.is_nan())),
        false => Err(table.refuse(column, &allowed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<VmLifetime>, TraceError> {
        rows(TableReader::csv(text.as_bytes(), "vms.csv")?)
    }

    #[test]
    fn a_users_own_table() {
        let vms = read(
            "start,end,vm_id,tenant,cores,memory_gb,label_zone,label_,deployment,batch_vms\n\
             2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,a,t,2,8,z1,x,d,3\n\
             2026-01-01T00:00:00Z,,b,,,,,,,\n",
        )
        .unwrap();
        let features = LifetimeFeatures {
            cores: Some(2.0),
            memory_gb: Some(8.0),
            tenant: Some("t".into()),
            vm_type: None,
            batch_vms: Some(3),
            labels: [("zone".to_owned(), "z1".to_owned())].into(),
        };
        let (start_s, end) = (1_767_225_600, VmEnd::At(1_767_229_200));
        assert_eq!(vms[0], VmLifetime { start_s, end, deployment: "d".into(), features });
        let (end, features) = (VmEnd::Running { seen_s: 0 }, LifetimeFeatures::default());
        assert_eq!(vms[1], VmLifetime { start_s, end, deployment: String::new(), features });
    }

    #[test]
    fn all_labels_may_stand_in_one_column() {
        let of = |labels: &str| format!("start_s,end_s,labels,label_zone\n1,2,{labels},z2\n");
        let labels = |text: &str| read(text).map(|vms| vms[0].features.labels.clone());
        let both = labels(&of("\"{\"\"zone\"\":\"\"z1\"\",\"\"tier\"\":\"\"a\"\"}\"")).unwrap();
        // Whoever has a column of its own means that.
        assert_eq!(both, [("tier", "a"), ("zone", "z2")].map(|(k, v)| (k.into(), v.into())).into());
        assert_eq!(labels(&of("")).unwrap(), [("zone".to_owned(), "z2".to_owned())].into());
        for wrong in ["zone=z1", "[1]", "\"{\"\"zone\"\":1}\""] {
            let why = read(&of(wrong)).unwrap_err().to_string();
            assert!(why.contains("labels") && why.contains("object of texts"), "{why}");
        }
    }

    #[test]
    fn azures_arrivals_as_they_are() {
        let vms = read(
            "vm_id,batch_id,arrival_s,cores,mem_gb,dur_lo_s,dur_hi_s,censored\n\
             0,7,1800000,2,3.5,3900,7200,0\n1,7,1800000,2,3.5,0,0,0\n2,7,1800000,2,3.5,259500,345600,1\n",
        )
        .unwrap();
        let ends: Vec<VmEnd> = vms.iter().map(|vm| vm.end).collect();
        let between = |from_s, to_s| VmEnd::Between { from_s, to_s };
        assert_eq!(ends, [between(3_900, 7_200), between(0, 300), VmEnd::Running { seen_s: 259_500 }]);
        assert_eq!((vms[0].start_s, vms[0].deployment.as_str()), (1_800_000, "7"));
        assert_eq!(vms[0].features.memory_gb, Some(3.5));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, parts) in [
            ("end_s,cores\n1,1\n", &["\"start_s\""][..]),
            ("start_s,cores\n1,1\n", &["\"end_s\""]),
            ("start_s,dur_lo_s\n1,1\n", &["\"dur_hi_s\""]),
            ("start_s,end_s\n,1\n", &["line 2", "start_s"]),
            ("start_s,end_s\n1,soon\n", &["line 2", "end_s", "soon"]),
            ("start_s,end_s,cores\n1,2,0\n", &["line 2", "cores", "above 0"]),
            ("start_s,dur_lo_s,dur_hi_s,censored\n1,2,3,2\n", &["line 2", "censored", "0 or 1"]),
            ("start_s,dur_lo_s,dur_hi_s,censored\n1,2,x,0\n", &["line 2", "dur_hi_s"]),
            ("start_s,dur_lo_s,dur_hi_s,censored\n1,-2,3,0\n", &["line 2", "dur_lo_s", "0 or above"]),
            ("start_s,start_s,end_s\n1,2,3\n", &["two columns"]),
            ("start_s,end_s,dur_lo_s,dur_hi_s,censored\n1,2,3,4,0\n", &["end_s and dur_lo_s both"]),
            ("start_s,end_s\n1767225600,2026-01-01T01:00:00Z\n", &["line 2", "end_s", "the same form"]),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
