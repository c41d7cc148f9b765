//! `ballast-lab bench predict`: how many predictions a second the real daemon gives over loopback, and how fast.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::load::{self, LoadArgs, Way, bench, post};
use ballast_cli::common::terminal::say;

#[derive(Args, Debug)]
pub struct PredictArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// VMs in every question
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
}

#[derive(Debug, Serialize)]
struct Measured {
    batch: u16,
    vms_per_s: f64,
    #[serde(flatten)]
    load: load::Measured,
}

pub(crate) fn run(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let batch = args.batch;
    let load =
        bench(&args.load, Way::Loopback, |_| Ok(String::new()), async |_| Ok(()), |_| vec![request(batch)])?;
    let vms_per_s = load.requests_per_s * f64::from(batch);
    let text = load.text(&format!("{batch} VMs in each, {vms_per_s:.0} VMs/s"));
    let measured = Measured { batch, vms_per_s, load };
    say(&if args.load.json { serde_json::to_string_pretty(&measured)? } else { text })?;
    Ok(ExitCode::SUCCESS)
}

/// A whole HTTP request for so many VMs, all of one subscription that the model knows or not.
fn request(batch: u16) -> Vec<u8> {
    let vm = r#"{"vm_id":"vm-1","subscription":"sub-00001","cores":4,"memory_gb":16,"vm_type":"general"}"#;
    let body = match batch {
        1 => vm.to_owned(),
        _ => format!(r#"{{"vms":[{}]}}"#, vec![vm; batch.into()].join(",")),
    };
    post("/v1/predict", &body)
}
