//! `ballast-lab experiment chassis`: twelve servers under one budget, the paper's Figure 6.

use ballast_cli::common::threads::run_all;
use ballast_lab::chassis::{Job, Options, jobs, rows};
use ballast_lab::report::{self, Report};

use super::Setting;

pub(super) fn report(options: &Options, setting: &Setting) -> anyhow::Result<Report> {
    let done = run_all("chassis", &jobs(options)?, setting.threads(), Job::run)?;
    let rows = rows(options, &done);
    report::chassis::report(options, &rows, setting.command("chassis"))
}
