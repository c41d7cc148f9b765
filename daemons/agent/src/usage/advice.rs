//! What VMs without a class seem to be, by their own records.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ballast_agent_core::AutoClass;
use ballast_types::VmClass;
use ballast_types::usage::BIN_S;
use ballast_usage::label::{Label, Pattern, Reason};
use ballast_usage::week::{Choice, DAYS, HalfHours};

use super::VmInstance;
use crate::config::RecordsConfig;
use crate::records;

/// What a VM seems to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) class: VmClass,
    pub(super) why: String,
}

/// Labels every one of these VMs by its weeks before `today` (a local day, counted from 1970-01-01).
pub(super) fn make(
    folder: &Path,
    vms: &[VmInstance],
    today: i32,
    config: &RecordsConfig,
) -> io::Result<BTreeMap<VmInstance, Advice>> {
    let empty = || HalfHours::new(BIN_S as u32).map_err(io::Error::other);
    if vms.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut uses = BTreeMap::new();

    for vm in vms {
        uses.insert(vm.clone(), empty()?);
    }
    records::read(folder, 0..=u32::MAX, |record| {
        let Some(mean) = record.steady_mean() else { return };
        let Some(halves) = uses.get_mut(&(record.vm, record.start)) else { return };
        let (day, half) = records::local_time(record.bin.start_s(), &config.timezone);

        // Today is not whole yet; what is later is of a clock that was wrong.
        if day < today {
            halves.add(day, half, 100.0 * mean);
        }
    })?;

    Ok(uses.into_iter().map(|(vm, halves)| (vm, advise(&halves, today, config))).collect())
}

/// Goes through every five working days on end, from the first on record to the last before `today`.
pub(super) fn advise(halves: &HalfHours, today: i32, config: &RecordsConfig) -> Advice {
    let calendar = &config.calendar;
    let first = halves.days().next().unwrap_or(today);
    let days: Vec<i32> = calendar.working_days(first, today - 1).collect();
    let (mut held, mut newest) = (AutoClass::default(), None);

    for (n, week) in days.windows(DAYS).enumerate() {
        let label = label(halves, week[0], config);
        held = held.next(n as u32, label.map(class));
        newest = label.or(newest);
    }

    let said = newest.map(|label| match label.compare8 {
        Some(compare8) => format!("{} (compare8 {compare8:.2})", label.reason),
        None => label.reason.to_string(),
    });

    let why = match (held, said) {
        (_, None) if days.len() < DAYS => {
            format!("{} of {DAYS} working days recorded", days.len())
        }
        (_, None) => Reason::TooManyGaps.to_string(),
        (AutoClass::UserFacing, Some(said)) => said,
        (AutoClass::Agreeing { .. }, Some(said)) => format!("{said}, for less than two weeks"),
        (AutoClass::Batch { .. }, Some(said)) => format!("{said}, for two weeks"),
    };

    Advice { class: held.class(), why }
}

fn class(label: Label) -> VmClass {
    if label.user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing }
}

/// The label of the five working days from `first` on; `None` where too much of them is missing.
fn label(halves: &HalfHours, first: i32, config: &RecordsConfig) -> Option<Label> {
    let week = halves.week(Choice::From(first), &config.calendar).ok()?;
    let label = Pattern::default().label(&week);
    let unknown = matches!(label.reason, Reason::TooShort | Reason::TooManyGaps);
    (!unknown).then_some(label)
}
