//! `ballast fit`: from events of deployments to the law that admission believes in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_placement::admission::events::Histories;
use ballast_placement::admission::fit::{Fitted, History, fit};
use ballast_placement::admission::{Belief, Gamma, Priors, PseudoObservations};
use clap::Args;
use serde_json::json;

use crate::common::deployment_events;
use crate::common::terminal::answer;

#[derive(Args, Debug)]
pub(crate) struct FitArgs {
    /// Events in the order of time: CSV, plain or zstd, or Parquet with deployment, time_h and cores (more, or fewer below 0),
    /// and perhaps label, the deployment's tenant or template. A deployment's first event is its arrival: leave out those
    /// that were there before
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Until when deployments were watched [default: the last event]
    #[arg(long, value_name = "H")]
    until_h: Option<f64>,
    /// What is seen of all deployments of a label is worth so many observations at most; 0 learns no labels
    #[arg(long, value_name = "N", default_value_t = 5, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    label_observations: u32,
    /// Where the law goes, as TOML: the priors of `ballast admit` and of ballast-place
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object {law, deployments, checks}, alone on stdout
    #[arg(long)]
    json: bool,
}

/// Which of a belief's three laws.
type Which = fn(&Belief) -> Gamma;

/// A figure of all beliefs after the events, beside what the law says of it.
struct Check {
    what: &'static str,
    seen: f64,
    law: f64,
}

pub(crate) fn run(args: &FitArgs) -> anyhow::Result<ExitCode> {
    let (labelled, hours) = read(args)?;
    let histories: Vec<History> = labelled.iter().map(|it| it.1).collect();
    let fitted = fit(&histories).with_context(|| args.input.display().to_string())?;
    let checks = checks(&histories, &fitted);
    let mut priors = Priors::new(fitted.law);
    priors.arrivals_per_h = Some(histories.len() as f64 / hours).filter(|it| it.is_finite());
    priors.labels = labels(&fitted.law, labelled, args.label_observations);
    priors.check().with_context(|| format!("{}: what is learnt cannot be", args.input.display()))?;

    if let Some(file) = &args.output {
        let text = toml::to_string(&priors)?;
        let head = format!("# The law of {} deployments, by `ballast fit`.\n", fitted.deployments);
        durable::replace(file, format!("{head}{text}").as_bytes())
            .with_context(|| file.display().to_string())?;
    }
    let rows: Vec<_> =
        checks.iter().map(|it| json!({ "what": it.what, "seen": it.seen, "law": it.law })).collect();
    let result = json!({
        "law": fitted.law, "deployments": fitted.deployments, "checks": rows, "labels": priors.labels
    });
    answer(args.json, &result, || page(&fitted, &checks))?;
    Ok(ExitCode::SUCCESS)
}

/// All histories with their labels, and over how many hours they were watched.
fn read(args: &FitArgs) -> anyhow::Result<(Vec<(String, History)>, f64)> {
    let mut histories = Histories::default();
    deployment_events::read(&args.input, |it| histories.add(&it.deployment, &it.label, it.at_h, it.cores))?;
    let (first, last) = (histories.first_h(), histories.last_h());
    match args.until_h {
        Some(until) if !(until.is_finite() && until >= last) => {
            bail!("--until-h {until}: at least {last}, the last event's time")
        }
        until => {
            let until = until.unwrap_or(last);
            Ok((histories.until(until), until - first))
        }
    }
}

/// What is known of each label; a deployment without one tells nothing of any.
fn labels(
    law: &Belief,
    labelled: Vec<(String, History)>,
    observations: u32,
) -> BTreeMap<String, PseudoObservations> {
    let mut by_label: BTreeMap<String, Vec<History>> = BTreeMap::new();
    for (label, history) in labelled {
        if observations > 0 && !label.is_empty() {
            by_label.entry(label).or_default().push(history);
        }
    }
    let observed = by_label
        .into_iter()
        .map(|(label, all)| (label, PseudoObservations::new(law, &all, f64::from(observations))));
    observed.collect()
}

/// If the law is right, the beliefs of all deployments after what they did are on average what it said before: their means,
/// and the means of their squares.
fn checks(histories: &[History], fitted: &Fitted) -> Vec<Check> {
    let law = &fitted.law;
    let beliefs: Vec<Belief> = histories.iter().map(|it| law.posterior(&it.observed())).collect();
    let mean = |of: &dyn Fn(&Belief) -> f64| beliefs.iter().map(of).sum::<f64>() / beliefs.len() as f64;

    let laws: [(&str, &str, Which); 3] = [
        ("mean of mu, 1/h", "mean square of mu", |it| it.mu),
        ("mean of lambda", "mean square of lambda", |it| it.lambda),
        ("mean of sigma, cores", "mean square of sigma", |it| it.sigma),
    ];
    let checks = laws.into_iter().flat_map(|(what, square, of)| {
        [
            Check { what, seen: mean(&|it| of(it).mean()), law: of(law).mean() },
            Check { what: square, seen: mean(&|it| of(it).mean_square()), law: of(law).mean_square() },
        ]
    });
    checks.collect()
}

fn page(fitted: &Fitted, checks: &[Check]) -> String {
    let Fitted { law, log_likelihood, deployments } = fitted;
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
    text.push_str(
        "\nHow well it fits: what is believed of these deployments now, and what the law said before\n",
    );
    for it in checks {
        text.push_str(&format!("{:24} {:>10.4} now {:>10.4} before\n", it.what, it.seen, it.law));
    }
    text.push_str(
        "\nBeliefs are approximate: after events that Gamma laws made, these differ by up to an eighth. \
         Numbers that differ far more say that the laws are no Gamma laws.",
    );
    text
}
