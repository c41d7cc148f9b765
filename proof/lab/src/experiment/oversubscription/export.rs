//! The draws of a fleet and what its servers were busy with, as files that `ballast plan` takes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use ballast_sim::verify::Draws;

/// Writes `FLEET-draws.csv.zst` and `FLEET-loads.csv.zst`: stretches of time, each with its start in seconds.
pub(super) fn write(
    folder: &Path,
    fleet: &str,
    parts: &[(i64, &[Draws])],
    period_s: u32,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = |what: &str, rows: fn(&mut dyn Write, &Draws, usize, i64) -> io::Result<()>, head: &str| {
        let path = folder.join(format!("{fleet}-{what}.csv.zst"));
        let written = || {
            let mut out = zstd::Encoder::new(BufWriter::new(File::create(&path)?), 0)?;
            writeln!(out, "{head}")?;
            for (start_s, chassis) in parts {
                for draws in *chassis {
                    for unit in 0..draws.len() {
                        rows(&mut out, draws, unit, start_s + unit as i64 * i64::from(period_s))?;
                    }
                }
            }
            out.finish()?.flush()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    };

    file("draws", draws_row, "t_s,chassis,watts")?;
    file("loads", loads_rows, "t_s,chassis,server,user_facing,others")
}

fn draws_row(out: &mut dyn Write, draws: &Draws, unit: usize, t_s: i64) -> io::Result<()> {
    match draws.get(unit) {
        Some(draw) => writeln!(out, "{t_s},{},{:.1}", draws.name(), draw.as_f64()),
        None => Ok(()),
    }
}

fn loads_rows(out: &mut dyn Write, draws: &Draws, unit: usize, t_s: i64) -> io::Result<()> {
    let servers = draws.get(unit).and_then(|_| draws.loads()?.at(unit)).unwrap_or_default();
    for (n, [user_facing, others]) in servers.into_iter().enumerate() {
        writeln!(out, "{t_s},{},s{:02},{user_facing:.4},{others:.4}", draws.name(), n + 1)?;
    }
    Ok(())
}
