//! Reading what a store has written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;

use ballast_types::{UsageRecord, VmId, VmStart};

use super::codec::{self, Damage, Frames, HEADER};
use super::{days, named};

/// What came up while records were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    pub records: u64,
    /// Pieces that were damaged, and left out.
    pub dropped: u64,
    /// Files that could not be read at all, with the reason.
    pub problems: Vec<String>,
}

/// Gives every record of these days in UTC (counted from 1970-01-01), in order of day, and of time for each
/// instance of a VM. What was recorded of one five minutes before and after a restart is one record.
///
/// An agent may write at the same time: then the last record may be cut short, and is left out.
pub fn read(
    folder: &Path,
    days_in: RangeInclusive<u32>,
    mut each: impl FnMut(UsageRecord),
) -> io::Result<ReadSummary> {
    let mut summary = ReadSummary::default();
    for (day, path, _) in days(folder)?.into_iter().filter(|(day, ..)| days_in.contains(day)) {
        let file = File::open(&path).map_err(|error| named(&path, &error))?;
        match read_day(BufReader::new(file), day, &mut summary, &mut each) {
            Ok(Ok(())) => {}
            Ok(Err(damage)) => summary.problems.push(format!("{}: {damage}", path.display())),
            Err(error) => return Err(named(&path, &error)),
        }
    }
    Ok(summary)
}

fn read_day(
    mut file: impl io::Read,
    day: u32,
    summary: &mut ReadSummary,
    each: &mut impl FnMut(UsageRecord),
) -> io::Result<Result<(), Damage>> {
    let mut header = [0; HEADER];

    // A shorter one does not check.
    codec::fill(&mut file, &mut header)?;

    if let Err(damage) = codec::check_header(&header, day) {
        return Ok(Err(damage));
    }
    let mut give = |record| {
        summary.records += 1;
        each(record);
    };

    // The newest of each VM: the next may be of the same five minutes.
    let mut held: BTreeMap<(VmId, VmStart), UsageRecord> = BTreeMap::new();
    let mut frames = Frames::new(file, day);

    while let Some(record) = frames.next()? {
        match held.get_mut(&(record.vm.clone(), record.start)) {
            Some(before) if before.bin == record.bin => before.merge(record),
            Some(before) => give(std::mem::replace(before, record)),
            None => drop(held.insert((record.vm.clone(), record.start), record)),
        }
    }

    held.into_values().for_each(&mut give);
    summary.dropped += frames.dropped;

    Ok(Ok(()))
}
