//! What came of a plan that was verified.

use std::io::Write;

use ballast_sim::verify::{Measured, Options, Verdict};
use serde::Serialize;

use crate::common::grid::plain;

/// What came of it, for one hardware generation.
#[derive(Debug, Serialize)]
pub(super) struct Verified {
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    /// Of one unit of time.
    pub(super) unit_s: u32,
    pub(super) options: Options,
    /// Readings of the held-out telemetry that did not count, over all generations.
    pub(super) rejected_readings: u64,
    pub(super) buffers: Vec<BufferVerdict>,
}

#[derive(Debug, Serialize)]
pub(super) struct BufferVerdict {
    pub(super) buffer: f64,
    pub(super) delta_percent: f64,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
}

impl Verified {
    pub(super) fn text(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (verdict, m) = (&self.verdict, &self.verdict.measured);
        writeln!(
            out,
            "Verified on {} held-out chassis, {} units of {} s, {} of them near enough to {} to be replayed \
             with the real controllers: {}\n",
            m.chassis,
            m.units,
            self.unit_s,
            m.replayed_units,
            verdict.budget,
            word(verdict.kept)
        )?;

        let promises = verdict.promises.iter().map(|promise| {
            [
                promise.what.words().to_owned(),
                format!("{:.4}", promise.accepted),
                promise.foretold.map_or_else(String::new, |foretold| format!("{foretold:.4}")),
                format!("{:.4}", promise.measured),
                word(promise.kept).to_owned(),
            ]
        });
        writeln!(out, "{}\n", plain(["promise", "accepted", "foretold", "measured", ""], promises))?;
        self.shed(out)?;
        if !self.buffers.is_empty() {
            writeln!(out, "\n{}", self.sweep())?;
        }
        writeln!(out)
    }

    /// The events, the watts that were shed, and where the curves do not fit.
    fn shed(&self, out: &mut impl Write) -> std::io::Result<()> {
        let m = &self.verdict.measured;
        let Measured { events_user_facing, events_batch, readings_above_budget, .. } = m;
        let (longest_s, above) =
            (m.longest_event_units * u64::from(self.unit_s), m.highest_above.at_least_zero());
        writeln!(
            out,
            "  events: {events_user_facing} with user-facing VMs, {events_batch} of batch VMs alone, the \
             longest {longest_s} s; {readings_above_budget} readings were above the budget, by at most \
             {above}"
        )?;

        let Measured { deepest, deepest_moment, over_budget_s, over_budget_s_max, hardware_s, .. } = m;
        writeln!(
            out,
            "  shed: {deepest} at most over a unit (foretold {}), {deepest_moment} in a moment; above the \
             budget for {over_budget_s:.2} s in all, {over_budget_s_max:.2} s at a stretch; hardware held \
             cores for {hardware_s:.1} s",
            self.verdict.foretold_deepest
        )?;

        if m.beyond_full_load + m.below_idle > 0 {
            writeln!(
                out,
                "  the servers' curves do not fit all readings: {} were above full load and {} below idle, \
                 and were replayed at that",
                m.beyond_full_load, m.below_idle
            )?;
        }
        Ok(())
    }

    /// What other buffers would do.
    fn sweep(&self) -> String {
        let head = [
            "buffer %",
            "budget",
            "under %",
            "events",
            "user-facing",
            "longest s",
            "deepest",
            "lowest batch",
            "user-facing",
            "over budget s",
            "hardware s",
            "",
        ];
        let rows = self.buffers.iter().map(|row| {
            let (verdict, m) = (&row.verdict, &row.verdict.measured);
            let broken: Vec<_> = verdict.broken().map(|promise| promise.what.short()).collect();
            [
                format!("{:.1}", 100.0 * row.buffer),
                verdict.budget.to_string(),
                format!("{:.1}", row.delta_percent),
                format!("{:.4}", verdict.events_rate),
                format!("{:.4}", verdict.events_user_facing_rate),
                (m.longest_event_units * u64::from(self.unit_s)).to_string(),
                m.deepest.to_string(),
                format!("{:.2}", m.lowest_batch_frequency),
                format!("{:.2}", m.lowest_user_facing_frequency),
                format!("{:.2}", m.over_budget_s_max),
                format!("{:.1}", m.hardware_s),
                if verdict.kept { "kept".to_owned() } else { format!("BROKEN: {}", broken.join(", ")) },
            ]
        });
        plain(head, rows)
    }
}

fn word(kept: bool) -> &'static str {
    if kept { "kept" } else { "BROKEN" }
}
