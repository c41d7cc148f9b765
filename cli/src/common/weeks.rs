//! Files with one row per VM: `id`, any others, `u0` to `u239`, half-hour averages of five working days.

use std::path::Path;

use anyhow::bail;
use ballast_sim::trace;
use ballast_usage::label::Reason;
use ballast_usage::week::{HALF_HOURS, Week};
use indicatif::ProgressBar;

use crate::common::table;

/// VMs that are read before they are labelled: enough for every core, little in memory.
pub(crate) const BATCH: usize = 4096;

pub(crate) struct VmWeek {
    pub(crate) id: String,
    /// Further columns of its row.
    pub(crate) extra: Vec<String>,
    pub(crate) week: Result<Week, Reason>,
}

/// Takes VMs: the names of the columns that pass through, and the VMs in the files' order.
pub(crate) type Take<'a> = dyn FnMut(&[String], Vec<VmWeek>) -> anyhow::Result<()> + 'a;

/// Hands the VMs of a file with one row per VM over.
pub(crate) fn rows(file: &Path, take: &mut Take<'_>) -> anyhow::Result<()> {
    let mut read = || match Rows::of(file, None, Some(true))? {
        Some(rows) => rows.read(file, &ProgressBar::hidden(), take),
        None => bail!("one row per VM is needed"),
    };
    table::named(file, read())
}

/// Usual names of the column with the VM.
pub(crate) const NAMES: [&str; 3] = ["id", "vm", "vm_id"];

/// Where things stand in a file with one row per VM.
pub(crate) struct Rows {
    id: usize,
    values: Vec<usize>,
    extra: Vec<usize>,
}

impl Rows {
    /// `None` where these are samples. Whose a week is stands in the column `named`; `told` is whether the
    /// file has one row per VM, where somebody says so.
    pub(crate) fn of(file: &Path, named: Option<&str>, told: Option<bool>) -> anyhow::Result<Option<Self>> {
        if file.exists() && !file.is_file() && !file.is_dir() {
            bail!("a file is needed: a pipe can be read only once");
        }
        let table = table::open(file, &ProgressBar::hidden())?;
        let is_there = |name: &str| table.column(name).is_ok();
        let usual = NAMES.into_iter().find(|name| is_there(name)).unwrap_or(NAMES[0]);
        let named = named.unwrap_or(usual);
        if !told.unwrap_or_else(|| ["u0", "u239", named].into_iter().all(is_there)) {
            return Ok(None);
        }
        let id = table.column(named)?;
        let values = (0..HALF_HOURS).map(|n| table.column(&format!("u{n}")));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let passes = |n: &usize| *n != id && !values.contains(n);
        let extra = (0..table.headers().len()).filter(passes).collect();
        Ok(Some(Self { id, values, extra }))
    }

    pub(crate) fn read(&self, file: &Path, bar: &ProgressBar, take: &mut Take<'_>) -> anyhow::Result<()> {
        let mut table = table::open(file, bar)?;
        let names: Vec<String> = self.extra.iter().map(|n| table.headers()[*n].clone()).collect();
        let mut batch = Vec::with_capacity(BATCH);

        while table.advance()? {
            let mut week = [f64::NAN; HALF_HOURS];
            for (into, column) in week.iter_mut().zip(&self.values) {
                *into = table.number(*column, trace::VALUE)?;
            }
            batch.push(VmWeek {
                id: table.text(self.id).into_owned(),
                extra: self.extra.iter().map(|n| table.text(*n).into_owned()).collect(),
                week: Ok(Week::new(week)),
            });

            if batch.len() == BATCH {
                take(&names, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))?;
            }
        }

        take(&names, batch)
    }
}
