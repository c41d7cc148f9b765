//! `ballast status`: what the daemons say of themselves, for people and for programs.

mod place;
mod vms;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use ballast_types::wire::{AgentStatus, ChassisStatus, CoresStatus, Report, ServerStatus};
use ballast_types::{KiloHertz, ServerId, Watts};
use clap::Args;

use crate::common::answers::{Answer, Said, ask_all, unready};
use crate::common::daemons::{UrlArgs, state};
use crate::common::grid::{Column, Fit, grid};
use crate::common::terminal::{say, tell};

/// With `--check`: an alarm is on, or a daemon is not ready.
const EXIT_ALARM: u8 = 1;
/// With `--check`: a daemon did not answer, or could not be asked.
const EXIT_UNREACHABLE: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    daemons: UrlArgs,
    /// Print a JSON array with one object per URL: {url, status} or {url, error}
    #[arg(long, conflicts_with = "check")]
    json: bool,
    /// Only say whether all is well, in one line and by the exit code: 0 it is, 1 an alarm is on or a daemon is
    /// not ready, 2 a daemon does not answer or cannot be asked
    #[arg(long)]
    check: bool,
    /// Show every column, however wide the terminal is
    #[arg(long)]
    wide: bool,
}

/// Asks every URL and prints the answers; exit code 1 if one of them gave none, or as `--check` says.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if args.check {
        let asked = check(args);
        let (line, code) = asked.unwrap_or_else(|why| (format!("UNREACHABLE: {why:#}"), EXIT_UNREACHABLE));
        // The code says it too.
        let _ = say(&line);
        return Ok(code.into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(ask_all(args.daemons.urls.clone(), args.daemons.tls.open()?))?;
    let failed: Vec<_> = answers.iter().filter_map(unanswered).collect();
    if args.json {
        say(&serde_json::to_string_pretty(&answers)?)?;
    } else {
        if failed.len() < answers.len() {
            say(&for_people(&answers, Fit::stdout(args.wide)))?;
        }
        failed.iter().for_each(|line| tell(&format!("error: {line}")));
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

fn unanswered(answer: &Answer) -> Option<String> {
    match &answer.said {
        Said::Error(why) => Some(format!("{}: {why}", answer.url)),
        _ => None,
    }
}

/// Asks every URL whether all is well there.
fn check(args: &StatusArgs) -> anyhow::Result<(String, u8)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tls = args.daemons.tls.open()?;
    let mut answers = runtime.block_on(ask_all(args.daemons.urls.clone(), tls.clone()))?;

    let asked: Vec<_> = answers
        .iter()
        .map(|answer| {
            let (url, tls) = (answer.url.clone(), tls.clone());
            let is_there = !matches!(answer.said, Said::Error(_));
            runtime
                .spawn(async move { if is_there { unready(&url, tls.as_deref()).await } else { Ok(vec![]) } })
        })
        .collect();
    let mut all = vec![];
    for (answer, asked) in answers.iter_mut().zip(asked) {
        all.push(runtime.block_on(asked)?.unwrap_or_else(|why| {
            answer.said = Said::Error(why);
            vec![]
        }));
    }
    Ok(checked(&answers, &all))
}

/// One line for a monitoring system, and the exit code: what is worst comes first. `unready`: why the daemon of each
/// answer does not do its work.
fn checked(answers: &[Answer], unready: &[Vec<String>]) -> (String, u8) {
    let failed: Vec<_> = answers.iter().filter_map(unanswered).collect();
    let problems = answers.iter().zip(unready).map(|(answer, unready)| answer.said.problems(unready));
    let problems: Vec<_> = problems.flatten().collect();
    let (word, code) = match (failed.is_empty(), problems.is_empty()) {
        (false, _) => ("UNREACHABLE", EXIT_UNREACHABLE),
        (true, false) => ("ALARM", EXIT_ALARM),
        (true, true) => return (format!("OK: {} answered, no alarm", answers.len()), 0),
    };
    let all: Vec<_> = failed.into_iter().chain(problems).collect();
    (format!("{word}: {}", all.join("; ")), code)
}

/// A server's line. Where there is no room, the age of a report goes first.
const COLUMNS: [Column; 10] = [
    ("server", 0),
    ("agent", 3),
    ("state", 0),
    ("power", 0),
    ("cap", 0),
    ("lowest frequency", 1),
    ("batch cores", 4),
    ("can shed", 2),
    ("age", 5),
    ("notes", 0),
];

fn for_people(answers: &[Answer], fit: Fit) -> String {
    let mut lines = vec![];
    for answer in answers {
        match &answer.said {
            Said::Chassis(chassis) => lines.push(chassis_line(chassis)),
            Said::Place(place) => lines.push(place::line(place)),
            Said::Agent(_) | Said::Error(_) => {}
        }
    }

    let servers = server_rows(answers);
    if !servers.is_empty() {
        lines.push(grid(&COLUMNS, &servers, fit));
    }
    let agents = answers.iter().filter_map(|answer| match &answer.said {
        Said::Agent(agent) => Some(&**agent),
        _ => None,
    });
    lines.extend(vms::table(agents, fit));
    lines.extend(
        answers.iter().flat_map(|answer| answer.said.alarms()).map(|alarm| format!("alarm: {alarm}")),
    );

    lines.join("\n")
}

/// One row for each server. What an agent says itself is newer than what its chassis has of it; whether it
/// answers, and the hardware cap, the chassis knows.
fn server_rows(answers: &[Answer]) -> Vec<[String; 10]> {
    let mut own: BTreeMap<&ServerId, &AgentStatus> = BTreeMap::new();
    for answer in answers {
        if let Said::Agent(agent) = &answer.said {
            own.insert(&agent.report.server, agent);
        }
    }

    let mut rows = vec![];
    for answer in answers {
        if let Said::Chassis(chassis) = &answer.said {
            let row = |server: &ServerStatus| server_row(server, own.remove(&server.server));
            rows.extend(chassis.servers.iter().map(row));
        }
    }
    rows.extend(own.into_values().map(agent_row));
    rows
}

fn chassis_line(chassis: &ChassisStatus) -> String {
    let (read, reported) = (chassis.power_w, chassis.reported_w);
    let more = reported.filter(|reported| read.is_some_and(|read| read < *reported));
    let share = more
        .or(read)
        .filter(|_| chassis.limit_w > Watts::ZERO)
        .map_or_else(String::new, |w| format!(" ({:.0} %)", 100.0 * w.as_f64() / chassis.limit_w.as_f64()));
    let more = more.map_or_else(String::new, |w| format!(" read, {w} reported,"));
    format!(
        "chassis {}: {}, {}{more} of {}{share}, {} capping events, hardware caps {:.1} s, epoch {}",
        chassis.chassis_id,
        state(&chassis.state),
        read.map_or_else(|| "no reading".to_owned(), |w| w.to_string()),
        chassis.limit_w,
        chassis.alerts,
        Duration::from_millis(chassis.hardware_caps_ms).as_secs_f64(),
        chassis.epoch,
    )
}

fn server_row(server: &ServerStatus, own: Option<&AgentStatus>) -> [String; 10] {
    let mut notes: Vec<_> =
        server.hardware_cap_w.map(|watts| format!("hardware cap {watts}")).into_iter().collect();
    let report = own.map(|agent| &agent.report).or(server.report.as_ref());
    match own {
        Some(agent) => notes.extend(agent_notes(agent)),
        None => notes.extend(report.map(report_notes).unwrap_or_default()),
    }
    notes.extend(server.last_error.clone());

    let mut row = row(server.server.as_str(), &state(&server.slot), report, notes.join("; "));
    if let Some(age_ms) = server.report_age_ms {
        row[8] = format!("{:.1} s", Duration::from_millis(age_ms).as_secs_f64());
    }
    row
}

fn agent_row(agent: &AgentStatus) -> [String; 10] {
    row(agent.report.server.as_str(), "-", Some(&agent.report), agent_notes(agent).join("; "))
}

fn agent_notes(agent: &AgentStatus) -> Vec<String> {
    let mut notes = report_notes(&agent.report);
    notes.push(format!("policy {}", agent.policy_effective));
    notes.extend(agent.cores.as_ref().map(cores));
    if agent.vm_kills > 0 {
        notes.push(format!("{} VMs killed", agent.vm_kills));
    }
    notes
}

/// What can be capped, and what stands against that.
fn cores(cores: &CoresStatus) -> String {
    let mut text = format!("{} cores by {}", cores.cores, cores.driver);
    for (count, what) in
        [(cores.offline, "offline"), (cores.raised, "raised by others"), (cores.limited, "limited by others")]
    {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

fn report_notes(report: &Report) -> Vec<String> {
    let mut notes = vec![];
    if report.server_limit {
        notes.push("server limit on".to_owned());
    }
    if report.dry_run {
        notes.push("dry run".to_owned());
    }
    if report.leaving {
        notes.push("leaving".to_owned());
    }
    if report.actuator_failures > 0 {
        notes.push(format!("{} actions given up", report.actuator_failures));
    }
    notes
}

fn row(name: &str, slot: &str, report: Option<&Report>, notes: String) -> [String; 10] {
    let cell = |f: &dyn Fn(&Report) -> String| report.map_or_else(|| "-".to_owned(), f);
    let watts = |w: Option<Watts>, none: &str| w.map_or_else(|| none.to_owned(), |w| w.to_string());
    [
        name.to_owned(),
        slot.to_owned(),
        cell(&|r| state(&r.state)),
        cell(&|r| watts(r.power_w, "no reading")),
        cell(&|r| watts(r.cap_w, "uncapped")),
        cell(&|r| match (r.min_khz, r.min_share_percent) {
            (Some(khz), _) => mhz(khz),
            (None, Some(percent)) => format!("{percent} % of CPU"),
            (None, None) => "max".to_owned(),
        }),
        cell(&|r| r.low_cores.to_string()),
        cell(&|r| r.sheddable_w.to_string()),
        "-".to_owned(),
        notes,
    ]
}

fn mhz(khz: KiloHertz) -> String {
    format!("{} MHz", khz.get() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::answers::parse;
    use ballast_types::wire::{AgentsStatus, Alarm, AlarmId, InventoryStatus};

    fn report() -> serde_json::Value {
        serde_json::json!({
            "server": "s01", "boot_id": "b", "agent_ms": 10, "epoch_obeyed": 1, "seq_obeyed": 2,
            "enforced_seq": 2, "state": "throttled", "power_w": 201.5, "cap_w": 204.0,
            "sheddable_w": 30.0, "restorable_w": 25.0, "low_cores": 24, "min_khz": 1_300_000,
            "server_limit": false, "leaving": false, "actuator_failures": 0, "dry_run": false, "classes": []
        })
    }
    fn chassis() -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({
            "role": "chassis", "chassis_id": "c1", "epoch": 3, "state": "alerting", "now_ms": 5,
            "power_w": 2300.0, "budget_w": 2450.0, "limit_w": 2450.0, "shared_w": 0.0,
            "sharable_w": 2450.0, "alerts": 1, "hardware_caps_ms": 0, "refused_inputs": 0,
            "dry_run": false, "shares": "even", "sensors": [],
            "alarms": [Alarm::about(AlarmId::ServerSilent, "s02", "s02 is silent")],
            "servers": [
                {"server": "s01", "slot": "managed", "report": report(), "report_age_ms": 120,
                 "granted_w": 204.0, "reserved_w": 204.0, "hardware_cap_w": null, "last_error": null},
                {"server": "s02", "slot": "silent", "report": null, "report_age_ms": null,
                 "granted_w": null, "reserved_w": 204.0, "hardware_cap_w": 204.0,
                 "last_error": "connection refused"}
            ]
        }))
        .unwrap()
    }

    #[test]
    fn a_chassis_whose_servers_report_more_than_its_supplies_read_shows_both() {
        let mut status: serde_json::Value = serde_json::from_slice(&chassis()).unwrap();
        (status["power_w"], status["limit_w"]) = (152.0.into(), 408.0.into());
        for (reported_w, shown) in [
            (423.0, "alerting, 152.0 W read, 423.0 W reported, of 408.0 W (104 %), 1 capping"),
            (140.0, "alerting, 152.0 W of 408.0 W (37 %), 1 capping"),
        ] {
            status["reported_w"] = reported_w.into();
            let said = parse(&serde_json::to_vec(&status).unwrap()).unwrap();
            let text = for_people(&[Answer { url: "http://a".into(), said }], Fit::Wide);
            assert!(text.contains(shown), "{text}");
        }
    }

    #[test]
    fn a_chassis_and_its_agent_share_one_table_that_fits() {
        let agent = serde_json::to_vec(&serde_json::json!({
            "role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
            "last_vm_kills": [], "sensors": [], "report": report(),
            "fallback_w": 190.0, "lease_ms": null, "refused_alerts": 0, "power_faults": 0,
            "vms": [], "vm_kills": 0, "alarms": []
        }))
        .unwrap();
        let answers = [
            Answer { url: "http://a".into(), said: parse(&chassis()).unwrap() },
            Answer { url: "http://b".into(), said: parse(&agent).unwrap() },
            Answer { url: "http://c".into(), said: Said::Error("Connection refused".into()) },
        ];

        let text = for_people(&answers, Fit::Wide);
        let line = |with: &str| text.lines().find(|l| l.contains(with)).unwrap().to_owned();
        assert!(text.starts_with(
            "chassis c1: alerting, 2300.0 W of 2450.0 W (94 %), 1 capping events, hardware caps 0.0 s"
        ));

        for part in ["managed", "throttled", "201.5 W", "1300 MHz", "24", "0.1 s", "policy stepwise"] {
            assert!(line("s01").contains(part), "{part}: {}", line("s01"));
        }
        assert_eq!(text.matches("s01").count(), 1, "one row for what chassis and agent say of it\n{text}");
        assert!(line("│ s02").contains("hardware cap 204.0 W; connection refused"));
        assert!(text.ends_with("alarm: c1: s02 is silent (server_silent)"));

        let narrow = for_people(&answers, Fit::Within(80));
        let table = narrow.lines().filter(|line| line.contains('│'));
        assert!(
            table.clone().count() > 3 && table.clone().all(|line| line.chars().count() <= 80),
            "{narrow}"
        );
        assert!(narrow.contains("throttled") && narrow.contains("204.0 W"), "{narrow}");
    }

    #[test]
    fn the_vms_of_an_agent_follow_with_what_capping_did_to_them() {
        let agent = |vms: serde_json::Value| {
            let status = serde_json::json!({
                "role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
            "last_vm_kills": [], "sensors": [], "report": report(),
                "fallback_w": 190.0, "lease_ms": null, "refused_alerts": 0, "power_faults": 0,
                "vms": vms, "vm_kills": 1, "alarms": [],
                "cores": {"driver": "acpi-cpufreq", "cores": 40, "offline": 1, "raised": 2,
                          "limited": 0, "foreign_writes": 3}
            });

            let said = parse(&serde_json::to_vec(&status).unwrap()).unwrap();
            for_people(&[Answer { url: "http://a".into(), said }], Fit::Wide)
        };

        let text = agent(serde_json::json!([
            {"vm": "web", "class": "user-facing", "throttle_order": 0, "cores": 4, "killed": false,
             "on_extreme": "none",
             "min_khz": null,
             "throttled_core_ms": 0, "origin": "found by machine-qemu-*.scope"},
            {"vm": "batch", "class": "non-user-facing", "throttle_order": 2, "cores": 6,
             "min_khz": 1_300_000, "killed": true, "on_extreme": "kill", "throttled_core_ms": 61_500,
             "lost_core_ms": 30_700, "floor_core_ms": 12_000, "throttled_periods": 3,
             "longest_throttled_ms": 8_200, "lowest_khz": 1_200_000, "limited_core_ms": 600},
        ]));
        let row = |vm: &str| -> Vec<String> {
            let is_its = |line: &&str| line.starts_with("│ s01") && line.contains(&format!("│ {vm} "));
            let line = text.lines().find(is_its).unwrap();
            line.split('│').map(|cell| cell.trim().to_owned()).collect()
        };

        assert_eq!(
            row("web")[2..12],
            ["web", "user-facing", "4", "-", "-", "0.0 s", "0.0 s", "0.0 s", "0.0 s", "0 (0.0 s)"]
        );

        assert_eq!(row("web")[13], "found by machine-qemu-*.scope");
        assert_eq!(
            row("batch")[2..14],
            [
                "batch",
                "non-user-facing",
                "6",
                "2",
                "1300 MHz",
                "61.5 s",
                "30.7 s",
                "12.0 s",
                "0.6 s",
                "3 (8.2 s)",
                "1200 MHz",
                "killed"
            ]
        );

        let notes = "policy stepwise; 40 cores by acpi-cpufreq, 1 offline, 2 raised by others; 1 VMs killed";
        assert!(text.contains(notes), "{text}");
        assert!(!agent(serde_json::json!([])).contains("how long"));
    }

    #[test]
    fn a_placement_daemon_has_a_line_of_its_own() {
        let place = |model: serde_json::Value| {
            let status = serde_json::json!({
                "role": "place", "name": "p1", "now_ms": 5,
                "alarms": [Alarm::new(AlarmId::ModelOld, "the model is old")],
                "inventory": InventoryStatus::default(), "agents": AgentsStatus::default(),
                "predict": {
                    "model": model, "loads": 1, "failed_loads": 0,
                    "requests": 12, "refused_requests": 1, "predictions": 40, "conservative": 3
                }
            });

            let said = parse(&serde_json::to_vec(&status).unwrap()).unwrap();
            for_people(&[Answer { url: "http://a".into(), said }], Fit::Wide)
        };

        assert_eq!(
            place(serde_json::json!({
                "file": "m", "version": 1, "checksum": "0123456789abcdef", "subscriptions": 7,
                "history_until_s": 9, "age_s": 7300,
                "class": {"vms": 9, "confident": 1.0, "accuracy": 0.5},
                "p95": {"vms": 9, "confident": 0.0, "accuracy": null}
            })),
            "place p1: model 0123456789ab of 7 subscriptions, 2 h old; 12 requests, 1 refused; \
             40 VMs, 3 conservative\nalarm: p1: the model is old (model_old)"
        );

        assert!(place(serde_json::Value::Null).contains("no model (every answer is conservative)"));
    }

    #[test]
    fn a_check_names_what_is_worst_in_its_exit_code() {
        let mut fine: serde_json::Value = serde_json::from_slice(&chassis()).unwrap();
        fine["alarms"] = serde_json::json!([]);
        let fine = || parse(&serde_json::to_vec(&fine).unwrap()).unwrap();
        let alarm = || parse(&chassis()).unwrap();
        let dead = || Said::Error("connection refused".into());
        let silent = "c1: s02 is silent (server_silent)";
        for (said, unready, code, line) in [
            (vec![fine()], "", 0, "OK: 1 answered, no alarm"),
            (vec![fine(), alarm()], "", 1, &*format!("ALARM: {silent}")),
            (vec![fine()], "no live lease", 1, "ALARM: c1: not ready: no live lease"),
            // An alarm says so already.
            (vec![alarm()], "s02 is silent", 1, &format!("ALARM: {silent}")),
            (vec![alarm(), dead()], "", 2, &format!("UNREACHABLE: http://a: connection refused; {silent}")),
        ] {
            let unready: Vec<String> =
                Some(unready.to_owned()).filter(|it| !it.is_empty()).into_iter().collect();
            let unready = vec![unready; said.len()];
            let answers: Vec<_> =
                said.into_iter().map(|said| Answer { url: "http://a".into(), said }).collect();
            assert_eq!(checked(&answers, &unready), (line.to_owned(), code));
        }
    }

    #[test]
    fn json_keeps_the_daemons_own_words() {
        let answers = [Answer { url: "http://a".into(), said: parse(&chassis()).unwrap() }];
        let json: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&answers).unwrap()).unwrap();
        assert_eq!(json[0]["url"], "http://a");
        assert_eq!(json[0]["status"]["servers"][0]["report"]["low_cores"], 24);
    }
}
