//! A daemon's recording, replayed: the outputs must come out identical.

use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use ballast_sim::replay::{Part, RecordingReport, replay};
use serde::Serialize;

use crate::common::recording::{files, lines, machine};
use crate::common::terminal::answer;

/// The report on all machines of a folder.
#[derive(Debug, Serialize)]
struct Report {
    steps: u64,
    mismatches: u64,
    recordings: Vec<RecordingReport>,
}

pub(super) fn run(path: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let mut recordings = Vec::new();
    for files in machines(files(path)?)? {
        recordings.push(replay(files)?);
    }
    let report = Report {
        steps: recordings.iter().map(|r| r.steps).sum(),
        mismatches: recordings.iter().map(|r| r.mismatches).sum(),
        recordings,
    };
    answer(json, &report, || text(&report))?;
    Ok(if report.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parts the files by the machine that their headers name.
fn machines(files: Vec<PathBuf>) -> anyhow::Result<Vec<Vec<Part<impl BufRead>>>> {
    let mut groups: Vec<(String, Vec<Part<_>>)> = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let machine = machine(&path).with_context(|| name.clone())?;
        let lines = File::open(&path).and_then(lines).with_context(|| name.clone())?;
        let part = Part { name, lines };
        // A header that cannot be read belongs to the file before it: the replay judges it.
        let group = match &machine {
            Some(machine) => groups.iter().position(|(known, _)| known == machine),
            None => groups.len().checked_sub(1),
        };
        match group {
            Some(n) => groups[n].1.push(part),
            None => groups.push((machine.unwrap_or_default(), vec![part])),
        }
    }
    Ok(groups.into_iter().map(|(_, files)| files).collect())
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for r in &report.recordings {
        lines.push(format!(
            "{}: {} steps, {} outputs, {:.1} s in {} file(s), {} start(s)",
            r.machine, r.steps, r.outputs, r.recorded_s, r.files, r.starts
        ));

        if r.resumed > 0 {
            lines.push(format!(
                "  taken up {} time(s) from what a file's first line says of the machine: steps before it \
                 are missing",
                r.resumed
            ));
        }

        if r.damaged_tails > 0 {
            lines.push(format!("  {} last line(s) cut short by a crash, left out", r.damaged_tails));
        }

        match &r.first_mismatch {
            None => lines.push(format!("  every output is identical (hash {})", r.outputs_hash)),
            Some(first) => lines.extend([
                format!("  {} step(s) came out differently; the first:", r.mismatches),
                format!("  {}:{} at {} ns", first.file, first.line, first.at.as_nanos()),
                format!("    recorded {}", first.recorded),
                format!("    replayed {}", first.replayed),
            ]),
        }
    }

    lines.join("\n")
}
