//! `ballast-lab experiment scheduler`: what the power rule does to placements, and these to power (Figure 7).

use ballast_cli::common::threads::run_all;
use ballast_lab::report::scheduler::More;
use ballast_lab::report::{self, Report};
use ballast_lab::scheduler::{self, Case, Job, Options, SchedulerResult, jobs, rows};

use super::Setting;

pub(super) fn report(options: &Options, setting: &Setting) -> anyhow::Result<Report> {
    let budget_w = scheduler::calibrate(options)?;
    let measured = |cases: Vec<Case>| -> anyhow::Result<(Vec<Case>, Vec<SchedulerResult>)> {
        let jobs = jobs(options, &cases, budget_w)?;
        let done = run_all("scheduler", &jobs, setting.threads(), Job::run)?;
        let rows = rows(options, &cases, &done);
        Ok((cases, rows))
    };

    let (_, rows) = measured(options.figure7()?)?;
    let more = || {
        anyhow::Ok(More {
            knowledge: measured(options.knowledge())?,
            weights: measured(options.weights())?,
            baseline: measured(options.baseline())?,
            fuller: measured(options.fuller())?,
        })
    };
    let more = setting.detail.document.then(more).transpose()?;
    let command = setting.command("scheduler");
    report::scheduler::report(options, budget_w, &rows, more.as_ref(), command, setting.detail.figures)
}
