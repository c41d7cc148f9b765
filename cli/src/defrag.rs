//! `ballast defrag`: hosts that come free, and which VMs are moved for it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use ballast_types::wire::{DrainAnswer, DrainHost, DrainMove, DrainState, MoveState};
use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::daemons::{Orders, TlsArgs};
use crate::common::grid::{Column, Fit, grid};
use crate::common::terminal;

/// An answer comes when it is on disk.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args, Debug)]
pub(crate) struct DefragArgs {
    /// The placement daemon, as unix:/PATH or https://ADDRESS:PORT; http://ADDRESS:PORT only shows with --id
    #[arg(value_name = "URL", env = "BALLAST_URL", default_value = "unix:/run/ballast-place/ballast.sock")]
    url: String,
    /// Drain these hosts; they stay closed when they are empty
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "count")]
    hosts: Vec<String>,
    /// Drain so many hosts, those with the most cores free; they open again when they are empty
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    count: u32,
    /// Which VM goes first, else as the daemon is configured: of all hosts, or host after host, the one that is
    /// expected to live longest; the one that came first; the largest of each host
    #[arg(long, value_enum)]
    order: Option<OrderArg>,
    /// So many VMs may be on their way together; otherwise as the daemon is configured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
    /// Begin: without it the plan is only shown
    #[arg(long)]
    approve: bool,
    /// Show a drain by its number; with --approve begin it
    #[arg(long, value_name = "N", conflicts_with_all = ["hosts", "count", "order", "limit"])]
    id: Option<u64>,
    /// End the drain of --id: its hosts are as they were before, and no room is held
    #[arg(long, requires = "id", conflicts_with = "approve")]
    cancel: bool,
    /// Print the daemon's answer as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    Global,
    PerHost,
    Arrival,
    Largest,
}

impl OrderArg {
    fn word(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::PerHost => "per-host",
            Self::Arrival => "arrival",
            Self::Largest => "largest",
        }
    }
}

/// Asks the daemon, and shows what it says.
pub(crate) fn run(args: &DefragArgs) -> anyhow::Result<ExitCode> {
    let (path, calls) = calls(args);
    let orders = Orders::to(&args.url, &args.tls, TIMEOUT)?;
    let mut answer = Value::Null;
    for (method, path, body) in calls {
        answer = orders.send(method, &path, Some(&body).filter(|body| !body.is_null()), None)?;
    }

    let drain: DrainAnswer =
        serde_json::from_value(answer.clone()).map_err(|error| anyhow!("{path}: not a drain: {error}"))?;
    terminal::answer(args.json, &answer, || text(&drain, &args.url, Fit::stdout(false)))?;
    Ok(ExitCode::SUCCESS)
}

type Call = (Method, String, Value);

/// What is asked, one after the other; the last answer is a drain. And the path of that.
fn calls(args: &DefragArgs) -> (String, Vec<Call>) {
    if let Some(id) = args.id {
        let path = format!("/v1/drains/{id}");
        let show = (Method::GET, path.clone(), Value::Null);
        let calls = match (args.approve, args.cancel) {
            (true, _) => vec![(Method::POST, format!("{path}/approve"), Value::Null)],
            (_, true) => vec![(Method::DELETE, path.clone(), Value::Null), show],
            _ => vec![show],
        };
        return (path, calls);
    }

    let mut body = match args.hosts.is_empty() {
        true => json!({"count": args.count}),
        false => json!({"hosts": args.hosts}),
    };
    body[if args.approve { "approve" } else { "dry_run" }] = true.into();
    if let Some(order) = args.order {
        body["order"] = order.word().into();
    }
    if let Some(limit) = args.limit {
        body["limit"] = limit.into();
    }
    let path = "/v1/drains".to_owned();
    (path.clone(), vec![(Method::POST, path, body)])
}

const VMS: [Column; 7] =
    [("VM", 0), ("from", 0), ("to", 0), ("cores", 2), ("GB", 3), ("lives on", 1), ("move", 0)];
const HOSTS: [Column; 3] = [("host", 0), ("VMs", 0), ("free", 0)];

/// When a VM is moved for which no host has room, and when its host is free.
const NO_ROOM: &str = "not known: no room";

fn text(drain: &DrainAnswer, url: &str, fit: Fit) -> String {
    let DrainAnswer { order, limit, move_s, scheduled, moved, saved, other, .. } = drain;
    let of = |state: MoveState| drain.moves.iter().filter(|it| it.state == state).count();
    let ends = of(MoveState::EndsBefore);
    let (hosts, due) = (drain.hosts.len(), of(MoveState::Due));
    let plan = format!(
        "{hosts} hosts, {} VMs to move, {ends} expected to end before their turn; order {order}, at most \
         {limit} at a time, {} each",
        drain.moves.len() - ends,
        time(*move_s),
    );
    let short = match drain.without_room {
        0 => String::new(),
        vms => format!("\n{vms} of the VMs find no room as it is now: they wait until a host has it"),
    };
    let so_far = format!(
        "{moved} of {scheduled} VMs moved, {saved} ended before their turn, {other} ended or moved \
         otherwise; {due} due now"
    );
    let id = drain.id.map_or(String::new(), |id| format!("drain {id}: "));
    let first = match drain.state {
        DrainState::DryRun => format!("plan: {plan}{short}"),
        DrainState::Proposed => format!("{id}waits for approval: {plan}{short}"),
        DrainState::UnderWay => format!("{id}under way: {so_far}{short}"),
        DrainState::Done => format!("{id}done: {so_far}"),
        DrainState::Cancelled => format!("{id}cancelled: {so_far}"),
    };

    let mut parts = vec![first];
    if !drain.moves.is_empty() {
        parts.push(grid(&VMS, &drain.moves.iter().map(row).collect::<Vec<_>>(), fit));
    }
    parts.push(grid(&HOSTS, &drain.hosts.iter().map(|it| host(it, &drain.moves)).collect::<Vec<_>>(), fit));
    match (drain.state, drain.id) {
        (DrainState::DryRun, _) => parts.push("Nothing was changed: --approve begins it.".into()),
        (DrainState::Proposed, Some(id)) => {
            parts.push(format!("Begin it: ballast defrag {url} --id {id} --approve"));
        }
        (DrainState::UnderWay, Some(id)) => parts.push(format!(
            "Move what is due, and tell each: POST /v1/drains/{id}/moves/VM {{\"done\": true}}. End it: \
             ballast defrag {url} --id {id} --cancel"
        )),
        _ => {}
    }
    parts.join("\n")
}

fn row(it: &DrainMove) -> [String; 7] {
    let turn = match (it.state, it.starts_in_s) {
        (MoveState::Due, _) if it.late => "due, late".to_owned(),
        (MoveState::Due, _) => "due now".to_owned(),
        (MoveState::EndsBefore, _) => format!("ends before, in {}", time(it.ends_in_s)),
        (MoveState::Waiting, Some(starts_s)) => format!("in {}", time(starts_s)),
        (MoveState::Waiting, None) => NO_ROOM.to_owned(),
    };
    [
        it.vm_id.clone(),
        it.from.clone(),
        it.to.clone().unwrap_or_else(|| "–".into()),
        it.cores.to_string(),
        it.memory_gb.to_string(),
        it.remaining_s.map_or_else(|| "unknown".into(), time),
        turn,
    ]
}

fn host(it: &DrainHost, moves: &[DrainMove]) -> [String; 3] {
    let stays = |vm: &DrainMove| vm.from == it.host && vm.state == MoveState::Waiting;
    let free = match (it.free_in_s, it.vms) {
        (Some(free_s), _) => format!("in {}", time(free_s)),
        (None, Some(0)) => "now".into(),
        (None, Some(_)) if moves.iter().any(stays) => NO_ROOM.into(),
        (None, Some(_)) => "not drained".into(),
        (None, None) => "gone".into(),
    };
    [it.host.clone(), it.vms.map_or_else(|| "–".into(), |vms| vms.to_string()), free]
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(state: DrainState) -> DrainAnswer {
        let vm = |vm: &str, state, starts_in_s, ends_in_s| DrainMove {
            vm_id: vm.into(),
            from: "s1".into(),
            to: (state == MoveState::Due).then(|| "s2".into()),
            state,
            cores: 4.0,
            memory_gb: 16.0,
            remaining_s: Some(90_000.0),
            starts_in_s,
            ends_in_s,
            late: false,
        };
        DrainAnswer {
            id: (state != DrainState::DryRun).then_some(7),
            state,
            order: "global".into(),
            limit: 3,
            move_s: 1200.0,
            reopen: true,
            scheduled: 4,
            moved: 1,
            saved: 0,
            other: 0,
            without_room: u64::from(state == DrainState::DryRun),
            hosts: vec![
                DrainHost { host: "s1".into(), vms: Some(3), free_in_s: Some(2400.0) },
                DrainHost { host: "s9".into(), vms: None, free_in_s: None },
            ],
            moves: vec![
                vm("a", MoveState::Due, None, 600.0),
                vm("b", MoveState::Waiting, Some(600.0), 1800.0),
                vm("c", MoveState::EndsBefore, None, 60.0),
            ],
        }
    }

    #[test]
    fn a_plan_and_what_is_under_way_are_told_with_the_next_step() {
        let plan = text(&drain(DrainState::DryRun), "unix:/s", Fit::Pipe);
        assert!(
            plan.starts_with("plan: 2 hosts, 2 VMs to move, 1 expected to end before their turn"),
            "{plan}"
        );
        assert!(plan.contains("\n1 of the VMs find no room as it is now"), "{plan}");
        assert!(plan.ends_with("--approve begins it."), "{plan}");
        let under_way = text(&drain(DrainState::UnderWay), "unix:/s", Fit::Pipe);
        assert!(under_way.starts_with("drain 7: under way: 1 of 4 VMs moved"), "{under_way}");
        for line in ["due now", "in 10 min", "ends before, in 60 s", "in 40 min", "gone", "25.0 h"] {
            assert!(under_way.contains(line), "{line}\n{under_way}");
        }
        let mut stuck = drain(DrainState::UnderWay);
        stuck.without_room = 1;
        (stuck.moves[1].starts_in_s, stuck.hosts[0].free_in_s) = (None, None);
        let stuck = text(&stuck, "unix:/s", Fit::Pipe);
        assert!(
            stuck.contains("\n1 of the VMs find no room") && stuck.matches(NO_ROOM).count() == 2,
            "{stuck}"
        );
        let proposed = text(&drain(DrainState::Proposed), "unix:/s", Fit::Pipe);
        assert!(proposed.contains("ballast defrag unix:/s --id 7 --approve"), "{proposed}");
    }
}
