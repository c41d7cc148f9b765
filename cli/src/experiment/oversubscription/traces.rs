//! Chassis of VMs whose CPU use was measured: Bitbrains and Azure.

use anyhow::Context;
use ballast_lab::oversubscription::chassis::{MeasuredVm, Part, Population, Rack, made_cores};
use ballast_lab::oversubscription::weeks::{WEEK_S, resampled};
use ballast_lab::oversubscription::{Case, deltas, histogram};
use ballast_lab::report::oversubscription::fleet::{About, Fleet, Scaling, Source, TakenVms};
use ballast_planner::Chassis;
use ballast_predict::label::{Label, Pattern, Reason};
use ballast_predict::week::{Calendar, Choice as Week, HalfHours};
use ballast_sim::trace::{Series, Trace};

use super::choice::Choice;
use super::fleets::{MEAN_SHARE, RESOLUTION, terms};
use crate::common::threads;
use crate::experiment::data::{Bitbrains, folder, trace};

const CORES: u32 = 40;
/// From local midnight to midnight UTC, where Bitbrains' summer was.
const CEST_S: f64 = 7200.0;

/// VMs that were measured one by one.
pub(super) struct Traces {
    data: &'static str,
    made: &'static str,
    period_s: u32,
    population: Population,
}

/// July and August 2013; `None` where the data is not there.
pub(super) fn bitbrains() -> anyhow::Result<Option<Traces>> {
    let Some(Bitbrains { first, second, sizes }) = Bitbrains::read()? else { return Ok(None) };
    let period_s = whole_seconds(&first)?;
    let start_s = first.start_s + CEST_S;
    let vm = |series: &Series| {
        let later = second.series.iter().find(|other| other.name == series.name)?;
        let (cores, _) = sizes.get(&series.name)?;
        let label = label(&series.values, start_s, period_s, &Calendar::default());

        Some(MeasuredVm {
            cores: *cores as u16,
            user_facing: label.user_facing,
            history: shares(&series.values),
            held_out: shares(&later.values),
        })
    };

    let population = Population::new(first.series.iter().filter_map(vm).collect(), period_s);
    let made = "chassis: VMs are dealt to servers and shifted by whole weeks; power: a server's curves";
    Ok(Some(Traces { data: "bitbrains", made, period_s, population }))
}

/// Four weeks of 2016 without dates; `None` where the data is not there.
pub(super) fn azure(choice: &Choice) -> anyhow::Result<Option<Traces>> {
    let folder = folder().join("azure2017_util");
    if !folder.is_dir() {
        return Ok(None);
    }
    let trace = trace(&folder.join("microsoft_avg_100.csv.zst"))?;
    let period_s = whole_seconds(&trace)?;
    let week = (WEEK_S / period_s) as usize;
    let calendar = Calendar { dateless: true, ..Calendar::default() };
    let vm = |(number, series): (u32, &Series)| {
        // A last week that lacks a few hours is one.
        let weeks = (series.values.len() + week / 7) / week;
        let (history, held_out) = series.values.split_at((weeks / 2 * week).min(series.values.len()));
        MeasuredVm {
            cores: made_cores(choice.seed, number),
            user_facing: label(history, 0.0, period_s, &calendar).user_facing,
            history: shares(history),
            held_out: shares(held_out),
        }
    };

    let vms = (0..).zip(&trace.series).map(vm).collect();
    let made = "chassis: VMs are dealt to servers and shifted by whole weeks; VMs' cores: the shares of the \
                paper's Table I; power: a server's curves";
    Ok(Some(Traces { data: "azure", made, period_s, population: Population::new(vms, period_s) }))
}

pub(super) fn whole_seconds(trace: &Trace) -> anyhow::Result<u32> {
    let period = trace.period_s;
    let whole = (period.fract() == 0.0 && (1.0..=1800.0).contains(&period)).then_some(period as u32);
    whole.with_context(|| format!("{}: a reading every {period} s: 1 to 1800 s", trace.name))
}

fn shares(percent: &[f32]) -> Vec<f32> {
    percent.iter().map(|value| value / 100.0).collect()
}

/// The paper's labeller on a VM's last whole week; `start_s` is local time.
fn label(percent: &[f32], start_s: f64, period_s: u32, calendar: &Calendar) -> Label {
    let week = HalfHours::new(period_s).map(|mut half_hours| {
        for (n, value) in percent.iter().enumerate() {
            let half_hour = (start_s as i64 + n as i64 * i64::from(period_s)).div_euclid(1800);
            let (day, slot) = (half_hour.div_euclid(48), half_hour.rem_euclid(48));
            half_hours.add(day as i32, slot as usize, f64::from(*value));
        }
        half_hours.week(Week::Last, calendar)
    });
    match week {
        Ok(Ok(week)) => Pattern::default().label(&week),
        Ok(Err(reason)) => Label::unknown(reason),
        Err(_) => Label::unknown(Reason::TooShort),
    }
}

impl Traces {
    /// Chassis of these VMs: as they are, and busier.
    pub(super) fn fleets(&self, choice: &Choice) -> anyhow::Result<Vec<Fleet>> {
        let Self { population, period_s, .. } = self;
        let server = choice.server.model();
        let usual = Chassis::default();
        let rack = Rack { servers: usual.servers, cores: CORES, alloc: usual.alloc };
        let packed = population.pack(choice.seed, choice.chassis, rack);
        let busy = |part, weeks: &[usize]| packed.busy(population, part, weeks);
        let all = |part| (0..population.weeks(part)).collect::<Vec<_>>();
        let history = busy(Part::History, &all(Part::History));
        let held_out = busy(Part::HeldOut, &all(Part::HeldOut));
        let provisioned_w = f64::from(rack.servers) * server.full_w;
        let mut cases = vec![(Scaling::AsTheyAre, 1.0)];
        let scaled = history.factor(&server, MEAN_SHARE * provisioned_w);
        cases.extend(scaled.map(|factor| (Scaling::Mean, factor)));
        let cases: Vec<_> = cases
            .into_iter()
            .map(|(scaling, factor)| (scaling, factor, population.estimate(&packed, factor, server)))
            .collect();
        // One set of weeks after the other is built once, for all scalings.
        let weeks = resampled(choice.seed, population.weeks(Part::History), choice.replicates);
        let replicates = threads::run("weeks", &weeks, choice.threads(), |weeks| {
            let busy = busy(Part::History, weeks);
            let one = |(_, factor, chassis): &(_, f64, Chassis)| {
                let history = histogram(&busy.draws(&server, *factor), RESOLUTION)?;
                Ok(deltas(&history, chassis, &terms(chassis, *period_s)))
            };

            cases.iter().map(one).collect::<anyhow::Result<Vec<_>>>()
        });

        let replicates: Vec<Vec<Vec<f64>>> = replicates.into_iter().collect::<Result<_, _>>()?;
        let user_facing = population.vms().iter().filter(|vm| vm.user_facing).count();
        let fleet = |(n, (scaling, factor, chassis)): (usize, &(Scaling, f64, Chassis))| {
            let about = About {
                source: Source::UtilisationTraces,
                data: self.data,
                scaling: *scaling,
                synthetic: true,
                measured: "CPU use of every VM",
                made: self.made,
                chassis: choice.chassis as usize,
                weeks: population.weeks(Part::History),
                model: *chassis,
                vms: Some(TakenVms {
                    taken: population.vms().len(),
                    left_out: population.left_out(),
                    user_facing,
                }),
                factor: *factor,
                mean_share: 0.0,
                held_out_mean_share: None,
            };

            let later = held_out.draws(&server, *factor);
            let case = Case {
                chassis: *chassis,
                terms: terms(chassis, *period_s),
                history: histogram(&history.draws(&server, *factor), RESOLUTION)?,
                held_out: Some(histogram(&later, RESOLUTION)?),
            };

            let replicates: Vec<Vec<f64>> = replicates.iter().map(|all| all[n].clone()).collect();

            Ok(Fleet::new(about, case, later, &replicates))
        };

        cases.iter().enumerate().map(fleet).collect()
    }
}
