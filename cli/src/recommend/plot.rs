//! What jobs use, what their limits would have been, and what they could use without.

use std::path::Path;

use crate::common::plot::{BLUE, GREEN, GREY, Panel, legend, line, panel, svg};
use plotters::prelude::SeriesLabelPosition::UpperLeft;

use super::Answer;

const SIZE: (u32, u32) = (1000, 520);

/// Draws the jobs side by side, by their mean limit.
pub(super) fn draw(file: &Path, answer: &Answer<'_>) -> anyhow::Result<()> {
    let mut jobs: Vec<_> = answer.jobs.iter().map(|job| (job.mean_limit_ratio, job.measures.slack)).collect();
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = jobs.len() as f64;

    let svg = svg(SIZE, |area| {
        let about = Panel {
            caption: &format!(
                "{} of {} jobs, means of {} days",
                answer.resource,
                jobs.len(),
                answer.judged_days
            ),
            x: ("jobs, by their limit", 0.0..all),
            y: ("share of what a job could use", 0.0..1.05),
        };
        let mut chart = panel(area, &about)?;
        // A job is a step, so that one alone is seen too.
        let steps = |value: fn(&(f64, f64)) -> f64| {
            let ends = |(n, job)| [(n as f64, value(job)), ((n + 1) as f64, value(job))];
            jobs.iter().enumerate().flat_map(ends).collect::<Vec<_>>()
        };
        line(&mut chart, "before: no limit", GREY, [(0.0, 1.0), (all, 1.0)])?;
        line(&mut chart, "after: the limit", BLUE, steps(|job| job.0))?;
        line(&mut chart, "used, P95 of a day", GREEN, steps(|(limit, slack)| limit * (1.0 - slack)))?;
        legend(&mut chart, UpperLeft)
    })?;
    std::fs::write(file, svg)?;
    Ok(())
}
