//! `ballast check --fleet`: whether daemons answer, and whether they agree with each other.

mod agreement;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;

use ballast_runtime::VERSION;
use ballast_runtime::tls::Tls;
use ballast_types::wire::TlsStatus;
use serde::Serialize;

use super::state::State::{Degraded, Missing, Untested, Works};
use super::state::{Finding, finding};
use super::text;
use crate::common::answers::{Answer, Clock, Said, ask_all_timed, unready, version};
use crate::common::daemons::UrlArgs;
use crate::common::grid::Fit;
use crate::common::terminal::say;

/// Certificates that end sooner should have been replaced: the daemons' own default.
const WARN_S: i64 = 14 * 86_400;
/// Clocks that differ by more make certificates, budgets for a time and outside readings end at the wrong time.
const CLOCK_MS: i64 = 2_000;

struct Daemon {
    answer: Answer,
    clock: Option<Clock>,
    version: Result<String, String>,
    unready: Result<Vec<String>, String>,
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    findings: &'a [Finding],
    daemons: Vec<DaemonReport<'a>>,
    exit_code: u8,
}

/// The bare facts of one daemon; `null` is not known.
#[derive(Serialize)]
struct DaemonReport<'a> {
    url: &'a str,
    role: Option<String>,
    version: Option<&'a str>,
    clock: Option<Clock>,
    certificate_ends_unix_s: Option<u64>,
}

/// Asks, and prints the findings; the exit code is that of the worst one.
pub(super) fn run(args: &UrlArgs, json: bool, colours: bool) -> anyhow::Result<ExitCode> {
    let tls = args.tls.open()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut urls = args.urls.clone();
    let mut seen = BTreeSet::new();
    urls.retain(|url| seen.insert(url.clone()));
    let daemons = runtime.block_on(ask(urls, tls))?;
    let findings = findings(&daemons);
    let exit_code = exit_code(&findings);

    if json {
        let daemons = daemons.iter().map(DaemonReport::of).collect();
        say(&serde_json::to_string_pretty(&Report { version: 1, findings: &findings, daemons, exit_code })?)?;
    } else {
        let verdict = match exit_code {
            0 => "What was asked answers and agrees (exit code 0).",
            1 => "All answer, with the drawbacks above (exit code 1).",
            _ => "A daemon does not answer or cannot do its work (exit code 2).",
        };
        say(&text::of_findings(&findings, verdict, colours, Fit::stdout(false)))?;
    }
    Ok(exit_code.into())
}

async fn ask(urls: Vec<String>, tls: Option<Arc<Tls>>) -> anyhow::Result<Vec<Daemon>> {
    let mut asked = vec![];
    for (answer, clock) in ask_all_timed(urls, tls.clone()).await? {
        let (url, tls) = (answer.url.clone(), tls.clone());
        let is_there = !matches!(answer.said, Said::Error(_));
        let more = tokio::spawn(async move {
            // A daemon of another version has a version, even if its status cannot be read.
            let version = version(&url, tls.as_deref()).await;
            let unready = if is_there { unready(&url, tls.as_deref()).await } else { Ok(vec![]) };
            (version, unready)
        });
        asked.push((answer, clock, more));
    }

    let mut daemons = vec![];
    for (answer, clock, more) in asked {
        let (version, unready) = more.await?;
        daemons.push(Daemon { answer, clock, version, unready });
    }
    Ok(daemons)
}

/// 2 if a daemon is missing or of no use, 1 if something is degraded, else 0.
fn exit_code(findings: &[Finding]) -> u8 {
    let has = |state| findings.iter().any(|finding| finding.state == state);
    if has(Missing) { 2 } else { u8::from(has(Degraded)) }
}

fn findings(daemons: &[Daemon]) -> Vec<Finding> {
    let mut found: Vec<_> = daemons.iter().map(Daemon::answers).collect();
    let answering: Vec<_> = daemons.iter().filter(|daemon| daemon.has_status()).collect();
    let mut running =
        daemons.iter().filter(|daemon| daemon.has_status() || daemon.version.is_ok()).peekable();
    if running.peek().is_some() {
        found.push(versions(running.map(|daemon| (daemon.name(), daemon.version.as_deref()))));
    }
    for daemon in &answering {
        found.push(certificate(daemon.name(), daemon.tls()));
        found.push(clock(daemon.name(), daemon.clock));
        found.extend(daemon.dry_run());
        found.extend(daemon.alarms());
    }
    let said: Vec<_> = answering.iter().map(|daemon| &daemon.answer.said).collect();
    found.extend(agreement::all(&said));
    found
}

impl Daemon {
    fn has_status(&self) -> bool {
        !matches!(self.answer.said, Said::Error(_))
    }

    /// The chassis, server or site; the URL if the status cannot be read.
    fn name(&self) -> &str {
        if self.has_status() { self.answer.said.own_alarms().0 } else { &self.answer.url }
    }

    fn tls(&self) -> Option<&TlsStatus> {
        match &self.answer.said {
            Said::Chassis(chassis) => chassis.tls.as_ref(),
            Said::Agent(agent) => agent.tls.as_ref(),
            Said::Place(place) => place.tls.as_ref(),
            Said::Error(_) => None,
        }
    }

    fn answers(&self) -> Finding {
        let url = &self.answer.url;
        let id = format!("answer.{url}");
        let what = match &self.answer.said {
            Said::Error(why) => {
                let found = if self.version.is_ok() { "its status cannot be read" } else { "no answer" };
                return finding(id, Missing, found).because(why);
            }
            Said::Chassis(chassis) => format!("manager of chassis {}", chassis.chassis_id),
            Said::Agent(agent) => format!("agent of server {}", agent.report.server),
            Said::Place(place) => format!("placement daemon {}", place.name),
        };
        let why = match &self.unready {
            Ok(reasons) if reasons.is_empty() => return finding(id, Works, what),
            Ok(reasons) => format!("not ready: {}", reasons.join("; ")),
            Err(why) => why.clone(),
        };
        finding(id, Degraded, what).because(why).remedy(format!("ballast status {url}"))
    }

    fn dry_run(&self) -> Option<Finding> {
        let why = match &self.answer.said {
            Said::Chassis(chassis) if chassis.dry_run => "the manager alerts nobody and caps nothing",
            Said::Agent(agent) => agent.dry_run.as_deref()?,
            _ => return None,
        };
        let found = finding(format!("dry_run.{}", self.name()), Degraded, "only watches").because(why);
        Some(found.remedy("to act: dry_run = false in its config file, where nothing else stands against it"))
    }

    fn alarms(&self) -> Vec<Finding> {
        let (of, alarms) = self.answer.said.own_alarms();
        let found = alarms.iter().map(|alarm| {
            finding(format!("alarm.{of}"), Degraded, alarm.id.to_string())
                .because(&alarm.message)
                .remedy(format!("docs/{}", alarm.id.link()))
        });
        found.collect()
    }
}

/// Compares the versions of this program and of the named daemons, and says what to upgrade.
fn versions<'a>(daemons: impl Iterator<Item = (&'a str, Result<&'a str, &'a String>)>) -> Finding {
    let mut by_version: BTreeMap<(Vec<u64>, &str), Vec<&str>> = BTreeMap::new();
    by_version.entry((release(VERSION), VERSION)).or_default().push("this program");
    let mut silent = vec![];
    for (name, version) in daemons {
        match version {
            Ok(version) => by_version.entry((release(version), version)).or_default().push(name),
            Err(why) => silent.push(format!("{name}: {why}")),
        }
    }

    let users = by_version.iter().map(|((_, version), names)| format!("{version} ({})", names.join(", ")));
    let found = users.collect::<Vec<_>>().join(", ");
    let Some(((newest, version), _)) = by_version.last_key_value().filter(|_| by_version.len() > 1) else {
        return match silent.is_empty() {
            true => finding("versions", Works, found),
            false => finding("versions", Untested, found).because(silent.join("; ")),
        };
    };
    let older = by_version.iter().filter(|((release, _), _)| release < newest);
    let older = older.flat_map(|(_, names)| names.iter().copied()).collect::<Vec<_>>().join(", ");
    let (why, remedy) = match older.is_empty() {
        true => ("builds of one version from different commits".to_owned(), "install one build".to_owned()),
        false => (
            format!("older than {version}: {older}. What only the newer version has is not used"),
            format!("upgrade {older}"),
        ),
    };
    let why = silent.iter().fold(why, |why, silent| format!("{why}; {silent}"));
    finding("versions", Degraded, found)
        .because(why)
        .remedy(format!("{remedy}: docs/operate/operations.md#install-upgrade-remove"))
}

/// The numbers of a version, to compare by; without the commit that it was built from.
fn release(version: &str) -> Vec<u64> {
    let numbers = version.split_once('+').map_or(version, |(numbers, _)| numbers);
    numbers.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

fn certificate(name: &str, tls: Option<&TlsStatus>) -> Finding {
    let id = format!("certificate.{name}");
    let remedy = "a new pair: docs/operate/tls.md; it is taken without a restart";
    let Some(tls) = tls else { return finding(id, Works, "none: plain HTTP on loopback, and the socket") };
    let found = format!("{}, ends in {} days", tls.role, tls.expires_in_s.div_euclid(86_400));
    if tls.expires_in_s <= 0 {
        return finding(id, Missing, found).because("it has ended: nobody takes it").remedy(remedy);
    }
    if let Some(problem) = &tls.problem {
        let why = format!("newer files are not in force: {problem}");
        return finding(id, Degraded, found).because(why).remedy("mend the files that its config names");
    }
    match tls.expires_in_s < WARN_S {
        true => finding(id, Degraded, found).because("it ends soon").remedy(remedy),
        false => finding(id, Works, found),
    }
}

/// As far as the time that the answer took lets it be known.
fn clock(name: &str, clock: Option<Clock>) -> Finding {
    let id = format!("clock.{name}");
    let Some(Clock { ahead_ms, within_ms }) = clock else {
        return finding(id, Untested, "not told").because("its answer has no date");
    };
    let word = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let [off, within] = [ahead_ms.abs(), within_ms].map(|ms| format!("{}.{} s", ms / 1000, ms % 1000 / 100));
    let found = format!("{off} {word} this machine's, within {within}");
    match ahead_ms.abs() > within_ms + CLOCK_MS {
        true => finding(id, Degraded, found)
            .because("certificates and budgets for a time end by it, and events are told in it")
            .remedy("have both machines keep the time of one source: chronyc tracking"),
        false => finding(id, Works, found),
    }
}

impl<'a> DaemonReport<'a> {
    fn of(daemon: &'a Daemon) -> Self {
        Self {
            url: &daemon.answer.url,
            role: daemon.answer.said.role().map(|role| role.to_string()),
            version: daemon.version.as_deref().ok(),
            clock: daemon.clock,
            certificate_ends_unix_s: daemon.tls().map(|tls| tls.not_after_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(expires_in_s: i64, problem: Option<&str>) -> TlsStatus {
        let role = "ballast://agent/s01".parse().unwrap();
        TlsStatus { role, not_after_s: 1, expires_in_s, problem: problem.map(str::to_owned) }
    }

    #[test]
    fn a_certificate_is_judged_by_its_end() {
        let state = |tls: Option<TlsStatus>| certificate("s01", tls.as_ref()).state;
        assert_eq!(state(None), Works);
        assert_eq!(state(Some(tls(WARN_S, None))), Works);
        assert_eq!(state(Some(tls(WARN_S - 1, None))), Degraded);
        assert_eq!(state(Some(tls(WARN_S, Some("no such file")))), Degraded);
        assert_eq!(state(Some(tls(0, None))), Missing);
    }

    #[test]
    fn a_clock_counts_as_wrong_only_beyond_what_is_not_known() {
        let judged = |ahead_ms, within_ms| clock("s01", Some(Clock { ahead_ms, within_ms }));
        assert_eq!(judged(-2_500, 500).state, Works);
        assert_eq!(judged(-2_501, 500).state, Degraded);
        assert_eq!(judged(2_501, 500).state, Degraded);
        assert_eq!(judged(2_501, 1_000).state, Works);
        assert_eq!(judged(-61_240, 500).found, "61.2 s behind this machine's, within 0.5 s");
        assert_eq!(clock("s01", None).state, Untested);
    }
}
