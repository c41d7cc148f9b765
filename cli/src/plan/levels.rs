//! Racks, rows, UPSs: budgets that every breaker of a topology file can carry.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ballast_planner::{Generation, Histogram, Levels, Node, NodePlan, Topology};
use clap::Args;
use serde::Deserialize;

use super::answer::Answer;
use super::request::PlanRequest;
use super::telemetry::Telemetry;
use crate::common::grid::plain;

/// So many lowered chassis are told of one by one.
const SHOWN: usize = 20;

/// Levels above the chassis.
#[derive(Args, Debug)]
pub(super) struct LevelArgs {
    /// What feeds the chassis (TOML: tables `node` with name, level, provisioned_w, parent, chassis): no
    /// rack, row or UPS gets chassis budgets that its breaker cannot carry. Not derivable from histograms: it
    /// needs telemetry
    #[arg(long, value_name = "FILE.toml", conflicts_with = "histogram")]
    topology: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    node: Vec<Node>,
}

fn topology(file: &Path) -> anyhow::Result<Topology> {
    let text = std::fs::read_to_string(file)?;
    let read: File = toml::from_str(&text)?;
    Ok(Topology::new(read.node)?)
}

impl LevelArgs {
    /// Plans all levels, if a topology is given.
    pub(super) fn plan(
        &self,
        telemetry: &mut Telemetry<'_>,
        asked: &PlanRequest,
        draws: &BTreeMap<String, Histogram>,
        answers: &[Answer],
    ) -> anyhow::Result<Option<Levels>> {
        let Some(file) = &self.topology else { return Ok(None) };
        let topology = topology(file).with_context(|| format!("cannot take {}", file.display()))?;
        let generations = answers.iter().map(|answer| {
            let draws = &draws[&answer.generation];
            (answer.generation.clone(), Generation { draws, plan: &answer.plan })
        });

        let (generations, policy) = (generations.collect(), &asked.approach.policy);
        let mut levels = None;
        telemetry.looks(|readings| {
            levels = Some(Levels::plan(&topology, readings, policy, &generations, &asked.terms)?);
            Ok(())
        })?;

        levels.map(Some).context("no telemetry")
    }
}

/// Tells of the levels, the outermost first.
pub(super) fn text(out: &mut impl Write, levels: &Levels) -> anyhow::Result<()> {
    writeln!(out, "{}\n", nodes(levels))?;
    writeln!(
        out,
        "Own sums admit less than the budgets add up to, since chassis do not peak together; to go that low \
         an\noperator must lower the chassis' budgets (PUT /v1/budget) while the level draws more.\n"
    )?;

    lowered(out, levels)
}

/// The table of levels, with one row for nodes that are alike.
fn nodes(levels: &Levels) -> String {
    let head = [
        "level",
        "nodes",
        "chassis",
        "provisioned",
        "budgets add up to",
        "room for more",
        "own sums admit",
        "limited by",
    ];
    let mut shown = BTreeSet::new();
    let rows = levels.nodes.iter().filter_map(|node| {
        if shown.contains(node.name.as_str()) {
            return None;
        }
        let alike: Vec<_> = levels.nodes.iter().filter(|other| is_alike(other, node)).collect();
        shown.extend(alike.iter().map(|node| node.name.as_str()));
        Some([
            node.level.clone(),
            if alike.len() == 1 { node.name.clone() } else { alike.len().to_string() },
            node.chassis.to_string(),
            node.provisioned.to_string(),
            node.budget.to_string(),
            node.headroom.to_string(),
            node.alone.map_or("not derivable".into(), |plan| plan.budget.to_string()),
            node.alone.map_or("too few complete sums", |plan| plan.binding.words()).to_owned(),
        ])
    });
    plain(head, rows)
}

fn is_alike(one: &NodePlan, other: &NodePlan) -> bool {
    (&one.level, one.chassis, one.provisioned, one.budget, &one.alone)
        == (&other.level, other.chassis, other.provisioned, other.budget, &other.alone)
}

/// The chassis that get less than planned.
fn lowered(out: &mut impl Write, levels: &Levels) -> anyhow::Result<()> {
    let lowered: Vec<_> = levels.chassis.iter().filter(|it| it.lowered_by.is_some()).collect();
    let broken = lowered.iter().filter(|chassis| !chassis.kept).count();

    if !lowered.is_empty() {
        writeln!(
            out,
            "{} chassis get less than planned, since a breaker carries no more; {broken} of them would break \
             the policy:",
            lowered.len()
        )?;
    }

    for chassis in lowered.iter().take(SHOWN) {
        writeln!(
            out,
            "  {}: {} (by {}){}",
            chassis.chassis,
            chassis.budget,
            chassis.lowered_by.as_deref().unwrap_or_default(),
            if chassis.kept { "" } else { ", breaks the policy" }
        )?;
    }

    if lowered.len() > SHOWN {
        writeln!(out, "  … and {} more (--json has all)", lowered.len() - SHOWN)?;
    }
    Ok(())
}
