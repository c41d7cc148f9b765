//! `ballast-lab experiment scheduler`: what the power rule does to placements, and these to power (Figure 7).

use ballast_cli::common::threads::run_all;
use ballast_lab::report::scheduler::More;
use ballast_lab::report::{self, Report};
use ballast_lab::scheduler::{self, Case, Job, Options, SchedulerResult, jobs, rows};

use super::Setting;

pub(super) fn report(options: &Options, setting: &Setting) -> anyhow::Result<Report> {
    let budget_w = scheduler::calibrate(options)?;
    let measurement = Measurement { options, setting, budget_w };
    let (_, rows) = measurement.run(options.figure7()?)?;
    let more = setting.document.then(|| measurement.more()).transpose()?;
    let command = setting.command("scheduler");
    report::scheduler::report(options, budget_w, &rows, more.as_ref(), command)
}

struct Measurement<'a> {
    options: &'a Options,
    setting: &'a Setting,
    budget_w: f64,
}

impl Measurement<'_> {
    fn run(&self, cases: Vec<Case>) -> anyhow::Result<(Vec<Case>, Vec<SchedulerResult>)> {
        let jobs = jobs(self.options, &cases, self.budget_w)?;
        let results = run_all("scheduler", &jobs, self.setting.threads(), Job::run)?;
        let rows = rows(self.options, &cases, &results);
        Ok((cases, rows))
    }

    /// The cases that only the page shows.
    fn more(&self) -> anyhow::Result<More> {
        Ok(More {
            knowledge: self.run(self.options.knowledge())?,
            weights: self.run(self.options.weights())?,
            baseline: self.run(self.options.baseline())?,
            fuller: self.run(self.options.fuller())?,
        })
    }
}
