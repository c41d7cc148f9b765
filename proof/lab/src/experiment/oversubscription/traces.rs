//! Chassis of VMs whose CPU use was measured: Bitbrains and Azure.

use anyhow::Context;
use ballast_lab::oversubscription::chassis::{MeasuredVm, Part, Population, Rack, made_cores};
use ballast_lab::oversubscription::weeks::{WEEK_S, resampled};
use ballast_lab::oversubscription::{Case, back_tests, deltas, histogram, needed};
use ballast_lab::report::oversubscription::fleet::{About, Fleet, Scaling, Source, TakenVms, promised};
use ballast_planner::Chassis;
use ballast_sim::trace::{Series, Trace};
use ballast_sim::verify::{Draws, Past, peaks};
use ballast_usage::label::{Label, Pattern, Reason};
use ballast_usage::week::{Calendar, Choice as Week, HalfHours};

use super::choice::Choice;
use super::{RESOLUTION, export, terms};
use crate::experiment::data::{Bitbrains, folder, trace};
use ballast_cli::common::replays::replays;
use ballast_cli::common::threads;

const CORES: u32 = 40;
/// How busy fleets are made that are too idle to be planned for.
const MEAN_SHARE: f64 = 0.55;
/// From local midnight to midnight UTC, where Bitbrains' summer was.
const CEST_S: f64 = 7200.0;

/// VMs that were measured one by one.
pub(super) struct Traces {
    data: &'static str,
    made: &'static str,
    period_s: u32,
    /// When the history begins, and the later weeks.
    starts_s: [i64; 2],
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
    let made = "chassis: VMs are dealt to servers; power: a server's curves";
    let starts_s = [first.start_s as i64, second.start_s as i64];
    Ok(Some(Traces { data: "bitbrains", made, period_s, starts_s, population }))
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
    let made = "chassis: VMs are dealt to servers; VMs' cores: the shares of the paper's Table I; power: a \
                server's curves";
    let population = Population::new(vms, period_s);
    let history_s = population.weeks(Part::History) as i64 * i64::from(WEEK_S);
    Ok(Some(Traces { data: "azure", made, period_s, starts_s: [0, history_s], population }))
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
    pub(super) fn fleets(&self, choice: &Choice, threads: usize) -> anyhow::Result<Vec<Fleet>> {
        let Self { population, .. } = self;
        let server = choice.server.model();
        let usual = Chassis::default();
        let rack = Rack { servers: usual.servers, cores: CORES, alloc: usual.alloc };
        let packed = population.pack(choice.seed, choice.chassis, rack);
        let busy = |part, weeks: &[usize]| packed.busy(population, part, weeks);
        let all = |part| (0..population.weeks(part)).collect::<Vec<_>>();
        let history = busy(Part::History, &all(Part::History));
        let held_out = busy(Part::HeldOut, &all(Part::HeldOut));
        let provisioned_w = f64::from(rack.servers) * server.full_w;
        let mut scalings = vec![(Scaling::AsTheyAre, 1.0)];
        let scaled = history.factor(&server, MEAN_SHARE * provisioned_w);
        scalings.extend(scaled.map(|factor| (Scaling::Mean, factor)));

        let mut cases = Vec::new();

        for (scaling, factor) in scalings {
            let (past, later) = (history.loaded(&server, factor), held_out.loaded(&server, factor));
            if let Some(folder) = &choice.export {
                let parts = [(self.starts_s[0], &past[..]), (self.starts_s[1], &later[..])];
                export::write(folder, &format!("{}-{}", self.data, scaling.name()), &parts, self.period_s)?;
            }
            let means = population.estimate(&packed, factor, server);
            cases.push((scaling, factor, self.case(choice, threads, scaling, &means, &past, &later)?, later));
        }

        // One set of weeks after the other is built once, for all scalings.
        let weeks = resampled(choice.seed, population.weeks(Part::History), choice.replicates);
        let replicates = threads::run("weeks", &weeks, threads, |weeks| {
            let busy = busy(Part::History, weeks);
            let one = |(_, factor, case, _): &(_, f64, Case, _)| {
                Ok(deltas(&histogram(&busy.draws(&server, *factor), RESOLUTION)?, case))
            };

            cases.iter().map(one).collect::<anyhow::Result<Vec<_>>>()
        });

        let replicates: Vec<Vec<Vec<f64>>> = replicates.into_iter().collect::<Result<_, _>>()?;
        let fleet = |(n, (scaling, factor, case, later)): (usize, (_, f64, Case, _))| {
            let about = self.about(choice, scaling, factor, &case);
            let replicates: Vec<Vec<f64>> = replicates.iter().map(|all| all[n].clone()).collect();
            Fleet::new(about, case, later, &replicates)
        };

        Ok(cases.into_iter().enumerate().map(fleet).collect())
    }

    /// What is planned, with the buffers that trials inside the history propose.
    fn case(
        &self,
        choice: &Choice,
        threads: usize,
        scaling: Scaling,
        means: &Chassis,
        past: &[Draws],
        later: &[Draws],
    ) -> anyhow::Result<Case> {
        let chassis = Chassis { at_peak: peaks(past, usize::MAX), ..*means };
        let terms = terms(&chassis, self.period_s);
        let of =
            |draws, chassis, start_s| Past { draws, start_s, chassis, terms: &terms, resolution: RESOLUTION };
        let [before_s, after_s] = self.starts_s;
        let mut back_tests = back_tests(&of(past, means, before_s))?;

        // Those that are too idle to be planned for are not worth hours of replays.
        let replayed = choice.replay_chassis > 0 && scaling == Scaling::Mean;
        for test in back_tests.iter_mut().filter(|_| replayed) {
            if let Some(approach) = promised().find(|approach| approach.name == test.approach) {
                of(past, means, before_s).confirm(approach, test, |draws, planned| {
                    let first = &draws[..draws.len().min(choice.replay_chassis as usize)];
                    replays(first, planned, &choice.replay_options(), threads)
                })?;
            }
        }

        Ok(Case {
            chassis,
            terms,
            history: histogram(past, RESOLUTION)?,
            held_out: Some(histogram(later, RESOLUTION)?),
            back_tests,
            needed: needed(&of(later, &chassis, after_s))?,
        })
    }

    fn about(&self, choice: &Choice, scaling: Scaling, factor: f64, case: &Case) -> About {
        let population = &self.population;
        About {
            source: Source::UtilisationTraces,
            data: self.data,
            scaling,
            synthetic: true,
            measured: "CPU use of every VM",
            made: self.made,
            chassis: choice.chassis as usize,
            weeks: population.weeks(Part::History),
            model: case.chassis,
            vms: Some(TakenVms {
                taken: population.vms().len(),
                left_out: population.left_out(),
                user_facing: population.vms().iter().filter(|vm| vm.user_facing).count(),
            }),
            factor,
            mean_share: 0.0,
            held_out_mean_share: None,
        }
    }
}
