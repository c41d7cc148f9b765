//! `ballast-lab experiment tradeoff`: lost run time against time above the cap, as margins move.

use ballast_cli::common::numbers::{positive, share};
use ballast_cli::common::threads::run_all;
use ballast_lab::options::{Seeds, minutes, named};
use ballast_lab::report::{self, Report};
use ballast_lab::tradeoff::{Job, Margins, Options, jobs, rows};
use ballast_lab::{Arrivals, Shape, server};
use clap::Args;

use super::Setting;

#[derive(Args, Clone, Debug)]
#[command(mut_arg("seeds", |arg| arg.default_value("5")))]
pub(crate) struct Choice {
    #[command(flatten)]
    seeds: Seeds,
    /// How long the batch work takes without throttling
    #[arg(long, value_name = "MIN", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    #[command(flatten)]
    shape: Shape,
    /// Caps on the server's draw, in watts, with commas between
    #[arg(long, value_name = "W,…", value_delimiter = ',', default_value = "250,240,230,220",
        value_parser = positive)]
    caps_w: Vec<f64>,
    #[command(flatten)]
    margins: Margins,
    /// How user-facing requests come
    #[arg(long, value_name = "NAME", default_value = "bursty",
        value_parser = named(Arrivals::ALL, Arrivals::name))]
    arrivals: Arrivals,
    /// Share of the batch work that scales with the clock
    #[arg(long, value_name = "F", default_value_t = 0.6, value_parser = share)]
    batch_share: f64,
}

impl Choice {
    fn options(&self) -> Options {
        let server = server::Options {
            shape: self.shape,
            arrivals: self.arrivals,
            batch_share: self.batch_share,
            caps_w: self.caps_w.clone(),
            seeds: self.seeds.all(),
            minutes: self.minutes,
            ..server::Options::default()
        };
        Options { server, margins: self.margins.clone() }
    }
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = choice.options();
    let done = run_all("tradeoff", &jobs(&options)?, setting.threads(), Job::run)?;
    let rows = rows(&options, &done);
    report::tradeoff::report(&options, &rows, setting.command("tradeoff"), setting.detail.figures)
}
