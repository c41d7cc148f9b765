//! `ballast-lab experiment chain`: from VMs' use to a budget that holds, with an oracle for every stage.

use ballast_cli::common::threads::run_all;
use ballast_lab::chain::{Job, Options, rows};
use ballast_lab::report::{self, Report};

use super::Setting;

pub(super) fn report(options: &Options, setting: &Setting) -> anyhow::Result<Report> {
    let jobs: Vec<Job> = options.seeds.all().into_iter().map(|seed| Job { seed }).collect();
    let done = run_all("chain", &jobs, setting.threads(), |job| job.run(options))?;
    report::chain::report(options, &rows(&done), setting.command("chain"))
}
