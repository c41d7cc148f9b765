//! `ballast fit`: from events of deployments to the law that admission believes in.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_placement::admission::events::Histories;
use ballast_placement::admission::fit::{Fitted, History, fit};
use ballast_placement::admission::{Form, Gamma, Observed};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use crate::common::table;
use crate::common::terminal::say;

#[derive(Args, Debug)]
pub(crate) struct FitArgs {
    /// Events in the order of time: CSV, plain or zstd, or Parquet with deployment, time_h and cores (more, or fewer below 0).
    /// A deployment's first event is its arrival: leave out those that were there before
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Until when deployments were watched [default: the last event]
    #[arg(long, value_name = "H")]
    until_h: Option<f64>,
    /// Where the law goes, as TOML
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object {law, deployments, checks}, alone on stdout
    #[arg(long)]
    json: bool,
}

/// A figure of the events, beside what the law says of it.
struct Check {
    what: &'static str,
    seen: f64,
    law: f64,
}

pub(crate) fn run(args: &FitArgs) -> anyhow::Result<ExitCode> {
    let histories = table::named(&args.input, read(args))?;
    let Some(fitted) = fit(&histories) else {
        bail!(
            "{}: at least 30 deployments that end and scale out, not {}",
            args.input.display(),
            histories.len()
        );
    };
    let checks = checks(&histories, &fitted);

    if let Some(file) = &args.output {
        let text = toml::to_string(&fitted.law)?;
        let head = format!("# The law of {} deployments, by `ballast fit`.\n", fitted.deployments);
        durable::replace(file, format!("{head}{text}").as_bytes())
            .with_context(|| file.display().to_string())?;
    }
    let text = if args.json {
        let checks: Vec<_> =
            checks.iter().map(|it| json!({ "what": it.what, "seen": it.seen, "law": it.law })).collect();
        let all = json!({ "law": fitted.law, "deployments": fitted.deployments, "checks": checks });
        serde_json::to_string_pretty(&all)?
    } else {
        page(&fitted, &checks)
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &FitArgs) -> anyhow::Result<Vec<History>> {
    let mut table = table::open(&args.input, &ProgressBar::hidden())?;
    let [deployment, time, cores] = ["deployment", "time_h", "cores"].map(|name| table.column(name));
    let (deployment, time, cores) = (deployment?, time?, cores?);
    let mut histories = Histories::default();
    let mut row = 1_u64;
    while table.advance()? {
        row += 1;
        let (at_h, more) = (table.number(time, "hours")?, table.number(cores, "cores")?);
        let name = table.text(deployment).into_owned();
        histories.add(&name, at_h, more).with_context(|| format!("row {row}"))?;
    }
    let last = histories.last_h();
    match args.until_h {
        Some(until) if !(until.is_finite() && until >= last) => {
            bail!("--until-h {until}: at least {last}, the last event's time")
        }
        until => Ok(histories.until(until.unwrap_or(last))),
    }
}

/// What the law says of figures that it was not fitted to one by one.
fn checks(histories: &[History], fitted: &Fitted) -> Vec<Check> {
    let sum = |of: &dyn Fn(&History) -> f64| histories.iter().map(of).sum::<f64>();
    let n = histories.len() as f64;
    let law = &fitted.law;
    let posterior = |it: &History| {
        law.posterior(&Observed {
            age_h: it.age_h,
            core_hours: it.core_hours,
            core_ends: it.core_ends,
            scale_outs: it.scale_outs,
            requests: it.requests,
            further_cores: it.further_cores,
        })
    };
    let young = |it: &&History| it.age_h >= 24.0;
    let old: Vec<_> = histories.iter().filter(young).map(posterior).collect();
    let mean = |of: &dyn Fn(Gamma) -> f64, mu: bool| {
        let pick = |it: &ballast_placement::admission::Belief| if mu { it.mu } else { it.lambda };
        old.iter().map(|it| of(pick(it))).sum::<f64>() / old.len().max(1) as f64
    };
    vec![
        Check {
            what: "cores of a request",
            seen: 1.0 + sum(&|it| it.further_cores) / sum(&|it| it.requests),
            law: 1.0 + law.sigma.mean(),
        },
        Check {
            what: "shutdowns in all ends of deployments",
            seen: sum(&|it| f64::from(u8::from(it.shutdown)))
                / sum(&|it| f64::from(u8::from(it.shutdown || it.ended_alone))).max(1.0),
            law: f64::NAN,
        },
        Check { what: "scale-outs of a deployment", seen: sum(&|it| it.scale_outs) / n, law: f64::NAN },
        Check {
            what: "mu of deployments older than a day, 1/h",
            seen: mean(&Gamma::mean, true),
            law: law.mu.mean(),
        },
        Check {
            what: "lambda of deployments older than a day",
            seen: mean(&Gamma::mean, false),
            law: law.lambda.mean(),
        },
        Check {
            what: "cores of a new deployment after a week",
            seen: f64::NAN,
            law: law.moments(Form::Exact, 1.0 + law.sigma.mean(), 168.0).mean,
        },
    ]
}

fn page(fitted: &Fitted, checks: &[Check]) -> String {
    let Fitted { law, log_likelihood, deployments } = fitted;
    let number = |value: f64| if value.is_finite() { format!("{value:.4}") } else { "–".to_owned() };
    let mut text = format!(
        "The law of {deployments} deployments (log likelihood {log_likelihood:.1})\n\n\
         kappa   {:.4}\ndelta   {:.5}\n",
        law.kappa, law.delta
    );
    for (name, gamma) in [("mu", law.mu), ("lambda", law.lambda), ("sigma", law.sigma)] {
        text.push_str(&format!(
            "{name:7} shape {:.4}, rate {:.4}, mean {:.4}\n",
            gamma.shape,
            gamma.rate,
            gamma.mean()
        ));
    }
    text.push_str("\nHow well it fits\n");
    for it in checks {
        text.push_str(&format!(
            "{:44} {:>10} seen {:>10} by the law\n",
            it.what,
            number(it.seen),
            number(it.law)
        ));
    }
    text.push_str(
        "\nA figure far from what was seen says that the law does not fit. Of deployments that were watched \
         for less than their lives the law is surer than the events.",
    );
    text
}
