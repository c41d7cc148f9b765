//! `ballast-lab experiment server`: one server under a fixed cap, the paper's Figures 4 and 5.

use ballast_cli::common::numbers::{positive, share};
use ballast_cli::common::threads::run_all;
use ballast_lab::options::{Seeds, minutes, named};
use ballast_lab::report::server::{LoadRows, Loads};
use ballast_lab::report::{self, Report};
use ballast_lab::server::{self, Job, Options, Trace};
use ballast_lab::{Arrivals, Contender, Shape};
use clap::Args;
use clap::builder::ArgPredicate::IsPresent;

use super::Setting;

/// Figure 4 shows a run of so many minutes of batch work.
const TRACE_MINUTES: f64 = 2.0;
/// The cap of Figure 4, and of the cases beside the base case, in watts.
const CAP_W: f64 = 230.0;
/// Who is in Figure 4.
const TRACED: [Contender; 4] =
    [Contender::None, Contender::FullServer, Contender::Stepwise, Contender::Manager];

/// Of several values the first is the base case. The document shows more.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("seeds", |arg| arg.default_value("10")))]
pub(crate) struct Choice {
    #[command(flatten)]
    seeds: Seeds,
    /// How long the batch work takes without throttling
    #[arg(long, value_name = "MIN", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    #[command(flatten)]
    shape: Shape,
    /// Caps on the server's draw, in watts, with commas between
    #[arg(long, value_name = "W,…", value_delimiter = ',', default_value = "250,240,230,220,210",
        value_parser = positive)]
    caps_w: Vec<f64>,
    /// Which policies are compared, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        default_value = "none,full-server,stepwise,manager,thunderbolt,oracle",
        value_parser = named(Contender::ALL, Contender::name))]
    policies: Vec<Contender>,
    /// How user-facing requests come; with --output steady,bursty,diurnal. Of several, the first is the base
    /// case, and the others are tried with the first batch share alone
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "steady",
        default_value_if("output", IsPresent, "steady,bursty,diurnal"),
        value_parser = named(Arrivals::ALL, Arrivals::name))]
    arrivals: Vec<Arrivals>,
    /// Share of the batch work that scales with the clock; with --output 0.6,0.4,0.8,1. Of several, the others
    /// are tried with the first kind of arrivals alone
    #[arg(long, value_name = "F,…", value_delimiter = ',', default_value = "0.6",
        default_value_if("output", IsPresent, "0.6,0.4,0.8,1"), value_parser = share)]
    batch_share: Vec<f64>,
    /// Mean service time of user-facing requests, in milliseconds; with --output 0.5,1,5. Of several, the
    /// others are tried with bursty arrivals alone
    #[arg(long, value_name = "MS,…", value_delimiter = ',', default_value = "0.5",
        default_value_if("output", IsPresent, "0.5,1,5"), value_parser = positive)]
    service_ms: Vec<f64>,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let Choice { seeds, minutes, shape, caps_w, policies, arrivals, batch_share, service_ms } =
        choice.clone();
    let base = Options {
        shape,
        arrivals: arrivals[0],
        batch_share: batch_share[0],
        service_ms: service_ms[0],
        caps_w,
        contenders: policies,
        seeds: seeds.all(),
        minutes,
    };

    let loads = Loads { arrivals, shares: batch_share, services_ms: service_ms };
    let sets = measure(&cases(&base, &loads), setting.threads())?;
    let traces = setting.figures.then(|| figure4(&base, setting.threads())).transpose()?;
    report::server::report(&base, &loads, sets, traces, setting.command("server"))
}

/// The base case and the other arrivals under every cap; then, under one cap, the other shares and the
/// other service times: one thing moves at a time.
fn cases(base: &Options, loads: &Loads) -> Vec<Options> {
    let one_cap = Options { caps_w: vec![one_cap_w(base)], ..base.clone() };
    let bursty = Options { arrivals: Arrivals::Bursty, ..one_cap.clone() };
    let arrivals = loads.arrivals.iter().map(|&arrivals| Options { arrivals, ..base.clone() });
    let shares = loads.shares.iter().skip(1);
    let shares = shares.map(|&batch_share| Options { batch_share, ..one_cap.clone() });
    let services = loads.services_ms.iter().skip(1);
    let services = services.map(|&service_ms| Options { service_ms, ..bursty.clone() });
    arrivals.chain(shares).chain(services).collect()
}

/// The cap that is looked at closer.
fn one_cap_w(base: &Options) -> f64 {
    if base.caps_w.contains(&CAP_W) { CAP_W } else { base.caps_w[0] }
}

fn measure(cases: &[Options], threads: usize) -> anyhow::Result<Vec<LoadRows>> {
    let jobs = cases.iter().map(server::jobs).collect::<Result<Vec<_>, _>>()?;
    let flat: Vec<&Job> = jobs.iter().flatten().collect();
    let mut runs = run_all("server", &flat, threads, |job| job.run())?.into_iter();
    let sets = cases.iter().zip(&jobs).map(|(options, jobs)| {
        let runs: Vec<_> = runs.by_ref().take(jobs.len()).collect();
        let Options { arrivals, batch_share, service_ms, .. } = *options;
        LoadRows { arrivals, batch_share, service_ms, rows: server::rows(options, &runs) }
    });
    Ok(sets.collect())
}

/// What Figure 4 shows: one seed, one cap, and nobody's cap for comparison.
fn figure4(base: &Options, threads: usize) -> anyhow::Result<(Vec<Trace>, f64)> {
    let cap_w = one_cap_w(base);
    let shown = |c: &Contender| base.contenders.contains(c);
    let options = Options {
        caps_w: vec![cap_w],
        contenders: TRACED.into_iter().filter(shown).collect(),
        seeds: base.seeds[..1].to_vec(),
        minutes: base.minutes.min(TRACE_MINUTES),
        ..base.clone()
    };
    let mut jobs = server::jobs(&options)?;
    jobs.retain(|job| options.contenders.contains(&job.contender));
    let traces = run_all("server, over time", &jobs, threads, Job::trace)?;
    Ok((traces, cap_w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_moves_at_a_time() {
        let arrivals = [Arrivals::Steady, Arrivals::Bursty];
        let loads = Loads { arrivals: arrivals.into(), shares: vec![0.6, 1.0], services_ms: vec![0.5, 5.0] };
        let cases = cases(&Options::default(), &loads);
        let seen = cases.iter().map(|o| (o.arrivals, o.batch_share, o.service_ms, o.caps_w.len()));
        let expected = [
            (Arrivals::Steady, 0.6, 0.5, 5),
            (Arrivals::Bursty, 0.6, 0.5, 5),
            (Arrivals::Steady, 1.0, 0.5, 1),
            (Arrivals::Bursty, 0.6, 5.0, 1),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
