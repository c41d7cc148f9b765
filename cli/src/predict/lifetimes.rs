//! `ballast predict --target lifetime`: how long each VM is expected to live.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ballast_predict::lifetime::data::count_batches;
use ballast_predict::lifetime::{LifetimeAnswer, LifetimeModel, LifetimeQuestion, VmLifetime};
use ballast_sim::trace::TableReader;
use serde::{Deserialize, Serialize};

use crate::common::lifetimes::LifetimeColumns;

#[derive(Deserialize)]
struct LifetimeRequest {
    vm_id: Option<String>,
    #[serde(flatten)]
    question: LifetimeQuestion,
}

#[derive(Serialize)]
struct LifetimeReply {
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_id: Option<String>,
    #[serde(flatten)]
    answer: LifetimeAnswer,
}

/// Answers a CSV. VMs of a batch are counted over the whole table, which is read first.
pub(super) fn csv(
    model: &LifetimeModel,
    input: impl Read,
    file: &str,
    output: &mut impl Write,
) -> anyhow::Result<u64> {
    let mut table = TableReader::csv(input, file)?;
    let mut columns = LifetimeColumns::of(&table)?;
    let (now_s, mut vms, mut named) = (now_s(), Vec::new(), Vec::new());
    while table.advance()? {
        let uptime_s = match columns.uptime_s {
            Some(column) => Some(table.number(column, "seconds, or blank")?).filter(|it| !it.is_nan()),
            None => None,
        };
        let uptime_s = uptime_s.unwrap_or_default();
        let vm_id = columns.vm_id.map(|column| table.text(column).into_owned()).unwrap_or_default();
        let vm = columns.vm(&table, Some(now_s - uptime_s as i64))?;
        question(&vm, uptime_s).check().with_context(|| format!("{file}, {}", table.place()))?;
        named.push((vm_id, uptime_s));
        vms.push(vm);
    }
    count_batches(&mut vms);

    let mut csv = csv::Writer::from_writer(output);
    csv.write_record(["vm_id", "expected_s", "median_s", "p10_s", "p90_s", "lives_7d", "known_columns"])?;
    for (vm, (vm_id, uptime_s)) in vms.iter().zip(&named) {
        let of = model.reply(&question(vm, *uptime_s), now_s)?;
        let times = [of.expected_s, of.median_s, of.p10_s, of.p90_s].map(|time_s| format!("{time_s:.0}"));
        let more = [format!("{:.4}", of.lives_7d), of.known_columns.to_string()];
        csv.write_record([vm_id].into_iter().chain(&times).chain(&more))?;
    }

    csv.flush()?;

    Ok(vms.len() as u64)
}

fn question(vm: &VmLifetime, uptime_s: f64) -> LifetimeQuestion {
    LifetimeQuestion { start_s: Some(vm.start_s), uptime_s, features: vm.features.clone() }
}

pub(super) fn json_lines(
    model: &LifetimeModel,
    input: impl Read,
    file: &str,
    output: &mut impl Write,
) -> anyhow::Result<u64> {
    let (now_s, mut count) = (now_s(), 0);
    for (number, line) in BufReader::new(input).lines().enumerate() {
        let place = || format!("{file}, line {}", number + 1);
        let line = line.with_context(place)?;
        if line.trim().is_empty() {
            continue;
        }
        let request: LifetimeRequest = serde_json::from_str(&line).with_context(place)?;
        let LifetimeRequest { vm_id, question } = request;
        let answer = model.reply(&question, now_s).with_context(place)?;
        serde_json::to_writer(&mut *output, &LifetimeReply { vm_id, answer })?;
        writeln!(output)?;
        count += 1;
    }

    Ok(count)
}

/// The current Unix second: when a VM starts that tells no start.
fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
