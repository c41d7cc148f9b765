//! `ballast-lab experiment server`: one server under a fixed cap, the paper's Figures 4 and 5.

use ballast_lab::report::server::{LoadRows, Loads};
use ballast_lab::report::{self, Detail, Report};
use ballast_lab::server::{self, Job, Options, Trace};
use ballast_lab::{Arrivals, Contender};
use clap::Args;

use super::args::{self, Runs, list, or};
use ballast_cli::common::numbers::{positive, share};
use ballast_cli::common::threads::run_all;

/// Figure 4 shows a run of so many minutes of batch work.
const TRACE_MINUTES: f64 = 2.0;
/// The cap of Figure 4, and of the cases beside the base case, in watts.
const CAP_W: f64 = 230.0;
/// Who is in Figure 4.
const TRACED: [Contender; 4] =
    [Contender::None, Contender::FullServer, Contender::Stepwise, Contender::Predictive];
/// The document's kinds of arrivals, its batch shares, and its service times in milliseconds.
const DOCUMENT_ARRIVALS: [Arrivals; 3] = [Arrivals::Steady, Arrivals::Bursty, Arrivals::Diurnal];
const DOCUMENT_SHARES: [f64; 4] = [0.6, 0.4, 0.8, 1.0];
const DOCUMENT_SERVICES: [f64; 3] = [0.5, 1.0, 5.0];

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Caps on the server's draw, in watts, with commas between [default: 250,240,230,220,210]
    #[arg(long, value_name = "W,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = positive)]
    caps_w: Vec<f64>,
    /// Which policies are compared, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = args::policy())]
    policies: Vec<Contender>,
    /// How user-facing requests come [default: steady; with --output steady,bursty,diurnal]; of several,
    /// the first is the base case, and the others are tried with the first batch share alone
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = args::arrivals())]
    arrivals: Vec<Arrivals>,
    /// Share of the batch work that scales with the clock [default: 0.6; with --output 0.6,0.4,0.8,1]; of
    /// several, the others are tried with the first kind of arrivals alone
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = share)]
    batch_share: Vec<f64>,
    /// Mean service time of user-facing requests, in milliseconds [default: 0.5; with --output 0.5,1,5]; of
    /// several, the others are tried with bursty arrivals alone
    #[arg(long, value_name = "MS,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = positive)]
    service_ms: Vec<f64>,
}

pub(super) fn report(choice: &Choice, runs: &Runs, detail: Detail) -> anyhow::Result<Report> {
    let usual = Options::default();
    let all: (&[_], &[_], &[_]) = if detail.document {
        (&DOCUMENT_ARRIVALS, &DOCUMENT_SHARES, &DOCUMENT_SERVICES)
    } else {
        (&[usual.arrivals], &[usual.batch_share], &[usual.service_ms])
    };

    let arrivals = or(&choice.arrivals, all.0);
    let shares = or(&choice.batch_share, all.1);
    let services_ms = or(&choice.service_ms, all.2);
    let base = Options {
        shape: runs.shape()?,
        arrivals: arrivals[0],
        batch_share: shares[0],
        service_ms: services_ms[0],
        caps_w: or(&choice.caps_w, &usual.caps_w),
        contenders: or(&choice.policies, &usual.contenders),
        seeds: runs.seeds(usual.seeds.len())?,
        minutes: runs.minutes.unwrap_or(usual.minutes),
        ..usual
    };

    let loads = Loads { arrivals, shares, services_ms };
    let sets = measure(&cases(&base, &loads), runs.threads())?;
    let traces = detail.figures.then(|| figure4(&base, runs.threads())).transpose()?;
    let command = command(&base, &loads, runs, detail);

    report::server::report(&base, &loads, sets, traces, command)
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
    jobs.retain(|job| options.contenders.contains(&job.contender()));
    let traces = run_all("server, over time", &jobs, threads, Job::trace)?;
    Ok((traces, cap_w))
}

fn command(base: &Options, loads: &Loads, runs: &Runs, detail: Detail) -> String {
    runs.command(
        "server",
        &base.seeds,
        base.minutes,
        detail,
        &[
            ("caps-w", list(&base.caps_w, f64::to_string)),
            ("policies", list(&base.contenders, |c| c.name().to_owned())),
            ("arrivals", list(&loads.arrivals, |a| a.name().to_owned())),
            ("batch-share", list(&loads.shares, f64::to_string)),
            ("service-ms", list(&loads.services_ms, f64::to_string)),
        ],
    )
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
