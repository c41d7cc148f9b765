//! `ballast-lab experiment stability`: p-state changes with meters that are late, seldom or noisy.

use ballast_cli::common::numbers::{positive, share};
use ballast_cli::common::threads::run_all;
use ballast_lab::options::{Seeds, minutes, named};
use ballast_lab::report::{self, Report};
use ballast_lab::stability::{Job, Meters, Options, jobs, rows};
use ballast_lab::{Contender, Shape, server};
use clap::Args;

use super::Setting;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    #[command(flatten)]
    seeds: Seeds,
    /// How long the batch work takes without throttling
    #[arg(long, value_name = "MIN", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    #[command(flatten)]
    shape: Shape,
    /// The cap on the server's draw, in watts
    #[arg(long, value_name = "W", default_value_t = 230.0, value_parser = positive)]
    cap_w: f64,
    /// Which policies are compared, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "stepwise,manager",
        value_parser = named(Contender::ALL, Contender::name))]
    policies: Vec<Contender>,
    #[command(flatten)]
    meters: Meters,
    /// Share of the batch work that scales with the clock
    #[arg(long, value_name = "F", default_value_t = 0.6, value_parser = share)]
    batch_share: f64,
}

impl Choice {
    fn options(&self) -> Options {
        let server = server::Options {
            shape: self.shape,
            batch_share: self.batch_share,
            caps_w: vec![self.cap_w],
            contenders: self.policies.clone(),
            seeds: self.seeds.all(),
            minutes: self.minutes,
            ..server::Options::default()
        };
        Options { server, meters: self.meters.clone() }
    }
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = choice.options();
    let done = run_all("stability", &jobs(&options)?, setting.threads(), Job::run)?;
    let rows = rows(&options, &done);
    report::stability::report(&options, &rows, setting.command("stability"), setting.detail.figures)
}
