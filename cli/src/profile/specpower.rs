//! A first guess from published results of SPECpower_ssj2008: watts at active idle and at full load.
//!
//! The benchmark tells nothing of lower frequencies; the paper's server lends its proportions.

use std::path::Path;

use anyhow::bail;
use ballast_types::{PowerModel, median};
use indicatif::ProgressBar;

use crate::common::table;

/// One usable result, for one node.
struct PublishedSystem {
    system: String,
    cpu: String,
    cores: f64,
    nodes: f64,
    idle_w: f64,
    full_w: f64,
}

pub(super) enum Selection<'a> {
    /// The one system whose name holds this text.
    Server(&'a str),
    /// The median of all with so many cores in one node.
    Cores(u32),
}

/// A model by those results, and what they are of.
pub(super) fn guess(path: &Path, wanted: &Selection<'_>) -> anyhow::Result<(PowerModel, String)> {
    let rows = table::named(path, read(path))?;
    let (idle_w, full_w, of) = match *wanted {
        Selection::Server(name) => {
            let row = one(&rows, name)?;
            (row.idle_w, row.full_w, format!("SPECpower_ssj2008: {} ({})", row.system, row.cpu))
        }
        Selection::Cores(cores) => {
            let fits = |row: &&PublishedSystem| row.nodes == 1.0 && row.cores == f64::from(cores);
            let found: Vec<_> = rows.iter().filter(fits).collect();
            if found.is_empty() {
                bail!("--cores {cores}: no result of one node has as many; {}", nearest(&rows, cores));
            }

            let of = format!("SPECpower_ssj2008: medians of {} results with {cores} cores", found.len());
            let all = |watts: fn(&PublishedSystem) -> f64| {
                median(&mut found.iter().map(|row| watts(row)).collect::<Vec<_>>())
            };

            (all(|row| row.idle_w), all(|row| row.full_w), of)
        }
    };

    let model = PowerModel::in_proportion(idle_w, full_w);
    model.check().map_err(|wrong| anyhow::anyhow!("{of}: {idle_w} W idle, {full_w} W: {wrong}"))?;

    Ok((model, of))
}

/// Results without figures ("NC": not compliant) are left out.
fn read(path: &Path) -> anyhow::Result<Vec<PublishedSystem>> {
    let mut table = table::open(path, &ProgressBar::hidden())?;
    let system = table.column("System Enclosure (if applicable)")?;
    let vendor = table.column("Hardware Vendor Test Sponsor")?;
    let cpu = table.column("CPU Description")?;
    let (cores, nodes) = (table.column("Cores")?, table.column("Nodes")?);
    let full = table.column("avg. watts @ 100%")?;
    let idle = table.column("avg. watts @ active idle")?;
    let mut rows = vec![];

    while table.advance()? {
        let number = |column| {
            let text = table.text(column).replace(',', "");
            text.parse::<f64>().ok().filter(|value| *value > 0.0 && value.is_finite())
        };

        let all = (number(cores), number(nodes), number(idle), number(full));
        if let (Some(cores), Some(nodes), Some(idle), Some(full)) = all {
            rows.push(PublishedSystem {
                system: format!("{} {}", table.text(vendor), table.text(system)),
                cpu: table.text(cpu).into_owned(),
                cores,
                nodes,
                idle_w: idle / nodes,
                full_w: full / nodes,
            });
        }
    }

    if rows.is_empty() {
        bail!("there is no result with cores, nodes and watts in it");
    }
    Ok(rows)
}

fn one<'a>(rows: &'a [PublishedSystem], name: &str) -> anyhow::Result<&'a PublishedSystem> {
    let wanted = name.to_lowercase();
    let holds =
        |row: &&PublishedSystem| format!("{} {}", row.system, row.cpu).to_lowercase().contains(&wanted);
    let found: Vec<_> = rows.iter().filter(holds).collect();
    match found[..] {
        [one] => Ok(one),
        [] => bail!("--server {name:?}: no result's vendor, system and CPU hold that text"),
        _ => {
            let names =
                found.iter().take(5).map(|row| format!("{:?}", format!("{} {}", row.system, row.cpu)));
            let names = names.collect::<Vec<_>>().join(", ");
            bail!("--server {name:?}: {} results hold that text, such as {names}", found.len())
        }
    }
}

fn nearest(rows: &[PublishedSystem], cores: u32) -> String {
    let single = rows.iter().filter(|row| row.nodes == 1.0).map(|row| row.cores);
    let below = single.clone().filter(|n| *n < f64::from(cores)).fold(None, most);
    let above = single.filter(|n| *n > f64::from(cores)).map(|n| -n).fold(None, most).map(|n| -n);
    let ends: Vec<_> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
    format!("the nearest have {}", ends.join(" and "))
}

fn most(best: Option<f64>, next: f64) -> Option<f64> {
    Some(best.map_or(next, |best| best.max(next)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = "Hardware Vendor Test Sponsor,System Enclosure (if applicable),Nodes,CPU \
        Description,Cores,avg. watts @ 100%,avg. watts @ active idle\n\
        A Inc.,\"Box 1, short\",1,CPU X,40,400,100\n\
        A Inc.,Box 2,1,CPU X,40,\"1,200\",200\n\
        B Inc.,Blade,4,CPU Y,160,1600,480\n\
        B Inc.,Odd,1,CPU Z,40,NC,NC\n\
        B Inc.,Small,1,CPU Z,2,100,\n";

    fn ask(wanted: &Selection<'_>) -> Result<(PowerModel, String), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("spec.csv");
        std::fs::write(&file, RESULTS).unwrap();
        guess(&file, wanted).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn one_node_of_the_system_that_is_meant_gives_the_guess() {
        let (model, of) = ask(&Selection::Server("blade")).unwrap();
        assert_eq!((model.idle_w, model.full_w), (120.0, 400.0));
        assert!(of.contains("B Inc. Blade (CPU Y)"), "{of}");
        assert!((model.exponent() - PowerModel::PAPER.exponent()).abs() < 1e-9);
        // Two of them, one with commas in its watts; the one without figures does not count.
        let (model, of) = ask(&Selection::Cores(40)).unwrap();
        assert_eq!((model.idle_w, model.full_w), (150.0, 800.0));
        assert!(of.contains("2 results with 40 cores"), "{of}");
    }

    #[test]
    fn what_is_not_there_or_ambiguous_is_refused() {
        for (wanted, said) in [
            (
                Selection::Server("Box"),
                "\"Box\": 2 results hold that text, such as \"A Inc. Box 1, short CPU X\"",
            ),
            (Selection::Server("none"), "--server \"none\": no result's"),
            (Selection::Cores(41), "--cores 41: no result of one node has as many; the nearest have 40"),
        ] {
            let error = ask(&wanted).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
