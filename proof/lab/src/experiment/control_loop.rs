//! `ballast-lab experiment loop`: the control loop beside an oracle, a plain PI and Dynamo's bands.

use std::convert::Infallible;

use ballast_cli::common::threads::run_all;
use ballast_lab::control_loop::{Job, Options, draw_faultless, jobs, rows, run_random};
use ballast_lab::report::{self, Report};

use super::Setting;

pub(super) fn report(options: &Options, setting: &Setting) -> anyhow::Result<Report> {
    let command = setting.command("loop");
    if let Some(count) = options.random {
        let seeds = draw_faultless(options.seeds.seed, count as usize);
        let runs = run_all("loop", &seeds, setting.threads(), |seed| Ok::<_, Infallible>(run_random(*seed)))?;
        return report::control_loop::random(options, &runs, command);
    }
    let jobs = jobs(options)?;
    let done = run_all("loop", &jobs, setting.threads(), Job::run)?;
    report::control_loop::report(options, &rows(options, &jobs, &done), command)
}
