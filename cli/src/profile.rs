//! `ballast profile`: a server's draw by load and frequency, measured, fitted or guessed.

mod gather;
mod load;
mod measure;
mod points;
mod specpower;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use ballast_hw::durable;
use ballast_planner::{Fit, Point};
use clap::Args;

use crate::common::grid::plain;
use crate::common::profile::{Kind, Measured, Profile};
use crate::common::terminal::{answer, tell};
use specpower::Selection;

#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    source: Source,
    /// With --specpower: the one result whose vendor, system and CPU hold this text
    #[arg(long, value_name = "TEXT", requires = "specpower", group = "published")]
    server: Option<String>,
    /// With --specpower: the medians of all servers with so many cores
    #[arg(long, value_name = "N", requires = "specpower", group = "published")]
    cores: Option<u32>,
    #[command(flatten)]
    grid: measure::Grid,
    /// Write the profile here, for ballast plan --profile
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Print the profile as one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

/// What the profile is made from.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Source {
    /// Measure the server of this agent.toml, with its meter: loads all cores and lowers their frequency, so
    /// the server must be empty and its agent stopped
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Fit measurements that were made elsewhere (CSV, also .zst, or Parquet): utilisation, frequency, watts
    /// and, where it is known, error_w; the first two are shares of the highest
    #[arg(long = "input", value_name = "FILE")]
    points: Option<PathBuf>,
    /// Make a first guess from published results of SPECpower_ssj2008 (CSV): idle and full load are a
    /// server's own, half frequency is in proportion to the paper's server
    #[arg(long, value_name = "FILE", requires = "published")]
    specpower: Option<PathBuf>,
}

pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let made_at = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let Source { config, points, specpower } = &args.source;
    let profile = match (config, points, specpower) {
        (Some(config), ..) => match measure::run(config, &args.grid)? {
            measure::Ended::Measured(measured) => {
                let mut profile = fitted(Kind::Measured, measured.of, made_at, &measured.points)?;
                (profile.meter, profile.machine) = (Some(measured.meter), Some(measured.machine));
                profile
            }
            measure::Ended::Early(code) => return Ok(code.into()),
        },
        (_, Some(points), _) => {
            let of = points.display().to_string();
            let measured = points::read(points)?.into_iter().map(|point| Measured { point, values: None });
            fitted(Kind::Points, of, made_at, &measured.collect::<Vec<_>>())?
        }
        (_, _, Some(results)) => {
            let named = args.server.as_deref().map(Selection::Server);
            let wanted = named.unwrap_or(Selection::Cores(args.cores.unwrap_or_default()));
            let (model, of) = specpower::guess(results, &wanted)?;

            Profile::new(Kind::FirstGuess, of, made_at, model)
        }
        (None, None, None) => anyhow::bail!("nothing to make a profile of"),
    };

    finish(args, &profile)?;

    Ok(ExitCode::SUCCESS)
}

fn fitted(kind: Kind, of: String, made_at: String, points: &[Measured]) -> anyhow::Result<Profile> {
    let fit = Fit::of(&points.iter().map(|point| point.point).collect::<Vec<_>>())?;
    if points.len() <= 4 {
        tell("four points determine the curves: how far they are off cannot be told");
    }
    let mut profile = Profile::new(kind, of, made_at, fit.model);
    profile.fit = Some((&fit).into());
    profile.points = points.to_vec();
    Ok(profile)
}

fn finish(args: &ProfileArgs, profile: &Profile) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        durable::replace(path, profile.text()?.as_bytes())
            .with_context(|| format!("--output {}", path.display()))?;
    }
    answer(args.json, profile, || text(profile))?;
    if args.output.is_none() && !args.json {
        tell("nothing was written: --output FILE.toml keeps it for ballast plan --profile");
    }
    Ok(())
}

fn text(profile: &Profile) -> String {
    let model = profile.model();
    let mut lines = vec![
        format!("{} ({})", profile.of, profile.kind.words()),
        format!("  idle {:.1} W, full load {:.1} W", model.idle_w, model.full_w),
        format!(
            "  at half frequency {:.1} W and {:.1} W: dynamic power goes as frequency to the power of {:.3}",
            model.half_idle_w,
            model.half_full_w,
            model.exponent()
        ),
    ];

    if let Some(fit) = &profile.fit {
        let (curves, line) = (fit.residuals, fit.linear.residuals);
        lines.push(format!(
            "  off by {:.2} W (RMS) and {:.2} W, {:.1} % (most); a straight line over frequency would be by \
             {:.2} W and {:.2} W, {:.1} %",
            curves.rms_w, curves.max_w, curves.max_percent, line.rms_w, line.max_w, line.max_percent
        ));
    }

    if !profile.points.is_empty() {
        let rows = profile.points.iter().map(|Measured { point, .. }| {
            let Point { utilisation, frequency, watts, error_w } = *point;
            [
                format!("{utilisation:.3}"),
                format!("{frequency:.3}"),
                format!("{watts:.1}"),
                error_w.map(|w| format!("{w:.2}")).unwrap_or_default(),
                format!("{:.1}", model.power(utilisation, frequency).as_f64()),
            ]
        });
        lines.push(format!("\n{}", plain(["utilisation", "frequency", "watts", "error", "curves"], rows)));
    }

    lines.join("\n")
}
