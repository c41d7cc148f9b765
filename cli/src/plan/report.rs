//! The answer, for people and for programs.

use std::io::{self, Write};

use ballast_planner::{Levels, Plan, RackFit, Reductions, Rejected};
use serde::Serialize;

use super::answer::{Answer, PolicyTest, labelled};
use super::levels;
use super::request::{Basis, PlanRequest};
use super::trials;
use super::verified::Verified;
use crate::common::grid::plain;

pub(super) struct Report<'a> {
    pub(super) asked: &'a PlanRequest,
    pub(super) answers: &'a [Answer],
    pub(super) rejected: Rejected,
    /// Levels above the chassis, where a topology was given.
    pub(super) levels: Option<Levels>,
}

#[derive(Serialize)]
struct AnswerJson<'a> {
    generation: &'a str,
    basis: &'a Basis,
    policy: &'static str,
    #[serde(flatten)]
    plan: &'a Plan,
    limited_by: &'static str,
    rack: RackFit,
    longest_event_s: Option<u64>,
    rejected_readings: u64,
    rejected: Rejected,
    approaches: Vec<ApproachPlan>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    back_test: &'a [PolicyTest],
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<&'a Verified>,
    config: String,
}

#[derive(Serialize)]
struct ApproachPlan {
    approach: &'static str,
    #[serde(flatten)]
    plan: Plan,
    rack: RackFit,
}

impl Report<'_> {
    /// One object; with several hardware generations one that holds them.
    pub(super) fn json(&self) -> anyhow::Result<()> {
        let all: Vec<_> = self.answers.iter().map(|answer| self.object(answer)).collect();
        let mut answer = match &all[..] {
            [one] => serde_json::to_value(one)?,
            _ => serde_json::json!({
                "generations": all,
                "readings": self.answers.iter().map(|a| a.plan.readings).sum::<u64>(),
                "rejected_readings": self.rejected.all(),
            }),
        };
        if let Some(levels) = &self.levels {
            answer["levels"] = serde_json::to_value(levels)?;
        }
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&answer)?)?;
        Ok(())
    }

    fn object<'a>(&'a self, answer: &'a Answer) -> AnswerJson<'a> {
        AnswerJson {
            generation: &answer.generation,
            basis: &answer.basis,
            policy: self.asked.approach.name,
            plan: &answer.plan,
            limited_by: answer.plan.binding.words(),
            rack: self.asked.fit(&answer.plan),
            longest_event_s: answer.longest_event_s,
            rejected_readings: self.rejected.all(),
            rejected: self.rejected,
            approaches: answer
                .table
                .iter()
                .map(|&(approach, plan)| ApproachPlan { approach, plan, rack: self.asked.fit(&plan) })
                .collect(),
            back_test: &answer.tests,
            verify: answer.verified.as_ref(),
            config: self.config(answer),
        }
    }

    pub(super) fn text(&self) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        for answer in self.answers {
            self.answer(&mut out, answer)?;
        }
        if let Some(levels) = &self.levels {
            levels::text(&mut out, levels)?;
        }
        if self.rejected.all() > 0 {
            writeln!(out, "Readings that did not count: {}.", rejected(self.rejected))?;
        }
        Ok(())
    }

    fn answer(&self, out: &mut impl Write, answer: &Answer) -> anyhow::Result<()> {
        let (plan, terms) = (&answer.plan, &self.asked.terms);
        let of = labelled(&answer.generation);
        writeln!(out, "Budget for policy {}{of}: {}", self.asked.approach.name, plan.budget)?;
        let Plan { delta_percent, extra_servers_percent, p_min, .. } = plan;
        let (provisioned, limit) = (terms.provisioned, plan.binding.words());
        writeln!(
            out,
            "  {delta_percent:.1} % under the provisioned {provisioned}, {extra_servers_percent:.1} % more \
             servers; limited by {limit}"
        )?;

        self.rack(out, plan)?;

        let own = self.asked.terms(&answer.generation, &self.asked.approach);
        let (buffer, Reductions { user_facing, first }) = (f64::from(own.buffer_ppm) / 1e4, plan.reductions);
        writeln!(
            out,
            "  lowest without the buffer of {buffer} %: {p_min}; capping takes off up to {user_facing} of \
             user-facing and {first} of other VMs"
        )?;

        events(out, answer)?;
        writeln!(out, "  servers' curves: {}", answer.basis.curves)?;
        writeln!(out, "  load: {}\n", answer.basis.load)?;
        writeln!(out, "{}\n", self.approaches(answer))?;

        if !answer.tests.is_empty() {
            trials::text(out, &answer.tests)?;
        }
        if let Some(verified) = &answer.verified {
            verified.text(out)?;
        }
        writeln!(out, "{}", self.config(answer))?;
        Ok(())
    }

    fn approaches(&self, answer: &Answer) -> String {
        let head = [
            "approach",
            "budget",
            "under %",
            "servers %",
            "in the rack",
            "saves $M",
            "events/week",
            "limited by",
        ];
        let rows = answer.table.iter().map(|(name, plan)| {
            [
                (*name).to_owned(),
                plan.budget.to_string(),
                format!("{:.1}", plan.delta_percent),
                format!("{:.1}", plan.extra_servers_percent),
                self.asked.fit(plan).servers.to_string(),
                format!("{:.1}", plan.savings_usd / 1e6),
                format!("{:.3}", plan.events_per_week),
                plan.binding.words().to_owned(),
            ]
        });
        plain(head, rows)
    }

    fn rack(&self, out: &mut impl Write, plan: &Plan) -> anyhow::Result<()> {
        let RackFit { rack, servers_provisioned, servers, chassis_provisioned, chassis } =
            self.asked.fit(plan);
        writeln!(
            out,
            "  a rack of {rack} feeds {servers} servers ({servers_provisioned} as provisioned), or {chassis} \
             whole chassis ({chassis_provisioned})"
        )?;
        Ok(())
    }

    /// The fragment of `chassis.toml` that sets the budget.
    fn config(&self, answer: &Answer) -> String {
        let plan = &answer.plan;
        format!(
            "# policy {}: {:.1} % under {}, from {} readings\nbudget_w = {}\n",
            self.asked.approach.name,
            plan.delta_percent,
            self.asked.terms.provisioned,
            plan.readings,
            plan.budget.as_f64()
        )
    }
}

fn events(out: &mut impl Write, answer: &Answer) -> anyhow::Result<()> {
    let Plan { events, readings, events_per_week, .. } = &answer.plan;
    let (all, user_facing, unmet) = (events.all(), events.user_facing, events.unmet);
    write!(
        out,
        "  in this history: {all} events in {readings} readings ({events_per_week:.3} per chassis and \
         week), {user_facing} of them with user-facing VMs, {unmet} beyond what can be shed"
    )?;

    if all > 0 {
        write!(out, "; the deepest {}", events.deepest)?;
    }
    match answer.longest_event_s {
        Some(s) if s > 0 => writeln!(out, ", the longest {s} s")?,
        _ => writeln!(out)?,
    }
    Ok(())
}

/// Why readings did not count.
pub(super) fn rejected(rejected: Rejected) -> String {
    let Rejected { missing, not_above_zero, implausible_values, duplicates, stuck } = rejected;
    format!(
        "{missing} missing, {not_above_zero} not above 0 W, {implausible_values} above what a chassis can \
         draw, {duplicates} duplicates, {stuck} of stuck meters"
    )
}
