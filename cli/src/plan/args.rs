//! What is asked of a plan.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use ballast_planner::{Approach, Intake, Policy, Terms, Treated};
use ballast_types::Watts;
use clap::Args;
use core::time::Duration;

use super::columns::Columns;
use super::curves::CurveArgs;
use super::history::LoadArgs;
use super::levels::LevelArgs;
use super::request::{PlanRequest, ppm};
use super::verify::VerifyArgs;
use crate::common::numbers::{positive, share};
use crate::common::one_of;

#[derive(Args, Debug)]
#[command(group = one_of(["telemetry", "histogram"]))]
pub(crate) struct PlanArgs {
    /// Draws of chassis (CSV, also .zst, or Parquet): time, chassis, watts and, where there are several, the
    /// hardware generation; or time and one column a chassis. In any order; each chassis counts once in each
    /// period. Or what chassis managers recorded (record_dir): folders, or files *.jsonl.zst
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) telemetry: Vec<PathBuf>,
    /// Counted draws instead: generation, watts, count (CSV, also .zst, or .parquet); or manifests (.toml) of
    /// such files, which say what each of them counts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) histogram: Vec<PathBuf>,
    /// What is accepted: full-server, no-impact, minimal-impact; the last two also with -internal (only the
    /// provider's own VMs are capped first) and -non-premium
    #[arg(long, value_name = "NAME", default_value = "no-impact")]
    policy: String,
    /// Instead of --policy's: how often user-facing VMs may be capped, as a share of all readings
    #[arg(long, value_name = "SHARE", value_parser = share,
        requires_all = ["emax_nuf", "fmin_uf", "fmin_nuf"])]
    emax_uf: Option<f64>,
    /// How often only the others may be capped
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "emax_uf")]
    emax_nuf: Option<f64>,
    /// How deep user-facing VMs may go, as a share of the highest frequency
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "emax_uf")]
    fmin_uf: Option<f64>,
    /// How deep the others may go
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "emax_uf")]
    fmin_nuf: Option<f64>,
    /// What servers were busy with (CSV, also .zst, or Parquet): time, chassis, server, user_facing and others,
    /// shares of the server's cores. Capping is then counted on for what chassis could shed at their peaks, and
    /// --verify has each class where it was
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "histogram")]
    pub(super) loads: Vec<PathBuf>,
    /// Find the buffer: plan every day after the first week from what came before it, and take what held on all
    /// of them. Without --verify or --verify-from the second half of the telemetry is held out; no-impact and
    /// minimal-impact are verified on it too
    #[arg(long, conflicts_with = "histogram")]
    pub(super) back_test: bool,
    /// Print the answer as one JSON object, alone on stdout
    #[arg(long)]
    pub(super) json: bool,
    /// Draw the sorted draws, the budget and the events into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) levels: LevelArgs,
    #[command(flatten)]
    site: SiteArgs,
    #[command(flatten)]
    pub(super) columns: Columns,
    #[command(flatten)]
    pub(super) verify: VerifyArgs,
}

/// The chassis and its load.
#[derive(Args, Debug)]
#[command(next_help_heading = "Chassis and site")]
struct SiteArgs {
    /// What a chassis is provisioned for, in watts
    #[arg(long, value_name = "W", default_value_t = 3720.0, value_parser = positive)]
    provisioned_w: f64,
    /// Servers in a chassis
    #[arg(long, value_name = "N", default_value_t = 12)]
    servers: u32,
    /// What the breaker of a rack carries, in watts: for how many servers fit [default: three chassis as
    /// provisioned]
    #[arg(long, value_name = "W", value_parser = positive)]
    rack_w: Option<f64>,
    #[command(flatten)]
    load: LoadArgs,
    /// Room above the lowest budget for a future unlike the past, as a share of it. With --back-test the least
    /// room, as long as there are fewer than 8 weeks of trials
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    buffer: f64,
    #[command(flatten)]
    curves: CurveArgs,
    /// The meter's resolution, in watts: draws count at the nearest step, and the budget is one
    #[arg(long, value_name = "W", default_value_t = 1.0, value_parser = positive)]
    resolution_w: f64,
    /// What the site is provisioned for, in megawatts: for the savings
    #[arg(long, value_name = "MW", default_value_t = 128.0, value_parser = positive)]
    site_mw: f64,
    /// What a provisioned watt costs, in dollars
    #[arg(long, value_name = "USD", default_value_t = 10.0, value_parser = positive)]
    usd_per_w: f64,
}

impl PlanArgs {
    pub(super) fn asked(&self) -> anyhow::Result<PlanRequest> {
        let approach = self.approach()?;
        approach.policy.check()?;
        let site = &self.site;
        let (servers, loads) = (site.servers, site.load.loads()?);
        let curves = site.curves.curves()?;
        let provisioned = watts("--provisioned-w", site.provisioned_w)?;
        let terms = Terms {
            provisioned,
            buffer_ppm: ppm(site.buffer),
            period: Duration::from_secs(self.columns.period_s.into()),
            site: watts("--site-mw", site.site_mw * 1e6)?,
            usd_per_w: site.usd_per_w,
        };

        terms.check()?;
        let most = self.columns.most_w.map_or(Ok(provisioned + provisioned), |w| watts("--most-w", w))?;
        let resolution = watts("--resolution-w", site.resolution_w)?;
        let intake = Intake { period_s: self.columns.period_s, resolution, max: most };

        let rack =
            site.rack_w.map_or(Ok(provisioned + provisioned + provisioned), |w| watts("--rack-w", w))?;

        Ok(PlanRequest {
            approach,
            servers,
            loads,
            curves,
            terms,
            intake,
            rack,
            peaks: BTreeMap::new(),
            buffers: BTreeMap::new(),
        })
    }

    fn approach(&self) -> anyhow::Result<Approach> {
        if let (Some(emax_uf), Some(emax_nuf), Some(fmin_uf), Some(fmin_nuf)) =
            (self.emax_uf, self.emax_nuf, self.fmin_uf, self.fmin_nuf)
        {
            let policy = Policy::PerVm {
                emax_user_facing_ppm: ppm(emax_uf),
                emax_non_user_facing_ppm: ppm(emax_nuf),
                fmin_user_facing_ppm: ppm(fmin_uf),
                fmin_non_user_facing_ppm: ppm(fmin_nuf),
            };
            return Ok(Approach { name: "as given", policy, treated: Treated::All });
        }
        match Approach::named(&self.policy) {
            Some(approach) => Ok(approach),
            None => bail!("--policy = {:?}: one of {}", self.policy, names().join(", ")),
        }
    }
}

fn names() -> Vec<&'static str> {
    Approach::ALL.iter().map(|approach| approach.name).collect()
}

fn watts(flag: &str, w: f64) -> anyhow::Result<Watts> {
    let watts = Watts::from_f64(w).filter(|&watts| watts > Watts::ZERO);
    watts.with_context(|| format!("{flag} = {w}: 0.001 to 1e9 watts"))
}
