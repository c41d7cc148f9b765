//! What is drawn: a line for each chassis, what is wrong, the servers, the VMs.

use std::cmp::Reverse;

use ballast_types::Watts;
use ballast_types::wire::{AgentStatus, ChassisState, ChassisStatus, ServerStatus, VmStatus};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row};

use crate::common::answers::{Answer, Said};
use crate::common::daemons::state;
use crate::common::scrolled_table::{AROUND, SERVER_COLUMNS, scroll, server_row, table};

/// So many lines of what is wrong are shown; the last one counts the others.
const PROBLEMS_MAX: usize = 4;
/// Characters of the bar that shows how much of its limit a chassis draws.
const BAR: usize = 20;

/// The newest answers, and how far each table is scrolled.
#[derive(Debug, Default)]
pub(super) struct View {
    answers: Option<Vec<Answer>>,
    /// Of servers and of VMs.
    scrolled: [usize; 2],
    /// Whether the keys move the table of VMs.
    on_vms: bool,
}

impl View {
    pub(super) fn take(&mut self, answers: Vec<Answer>) {
        self.answers = Some(answers);
    }

    /// Scrolls, or goes to the other table.
    pub(super) fn press(&mut self, key: KeyCode) {
        match key {
            KeyCode::Tab => self.on_vms = !self.on_vms,
            _ => scroll(&mut self.scrolled[usize::from(self.on_vms)], key),
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let Some(answers) = &self.answers else {
            frame.render_widget(Paragraph::new("asking the daemons … (q ends)"), frame.area());
            return;
        };
        let head = head(answers);
        let (servers, vms) = (server_rows(answers), vm_rows(answers));

        let room = usize::from(frame.area().height).saturating_sub(head.len());
        let (servers_room, vms_room) = shares(room, servers.len(), vms.len());
        let heights = [head.len(), servers_room, vms_room].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
        let [at_head, at_servers, at_vms] =
            Layout::vertical(heights.map(Constraint::Length)).areas(frame.area());

        frame.render_widget(Paragraph::new(head), at_head);
        let on_vms = self.on_vms && !vms.is_empty();
        let [of_servers, of_vms] = &mut self.scrolled;
        table(frame, at_servers, ("servers", !on_vms), &SERVER_COLUMNS, servers, of_servers);
        let columns = [
            ("VM", 14),
            ("server", 8),
            ("class", 15),
            ("now", 10),
            ("capped", 9),
            ("lost", 9),
            ("lowest", 7),
        ];
        table(frame, at_vms, ("VMs", on_vms), &columns, vms, of_vms);
    }
}

/// Both tables get the lines that they need; where there are too few, none gets less than half for the other.
fn shares(room: usize, servers: usize, vms: usize) -> (usize, usize) {
    if vms == 0 {
        return (room, 0);
    }
    let (servers, vms) = (servers + AROUND, vms + AROUND);
    let servers =
        if servers + vms <= room { servers } else { servers.min((room / 2).max(room.saturating_sub(vms))) };
    (servers, room.saturating_sub(servers))
}

fn head(answers: &[Answer]) -> Vec<Line<'static>> {
    let all = answers.len();
    let failed = answers.iter().filter(|answer| matches!(answer.said, Said::Error(_))).count();
    let mut lines = vec![Line::from(format!(
        "{} of {all} daemons answer    q ends, ↑ ↓ scroll, Tab: the other table",
        all - failed
    ))];

    for answer in answers {
        match &answer.said {
            Said::Chassis(chassis) => lines.push(chassis_line(chassis)),
            Said::Place(place) => {
                let hosts = &place.inventory;
                lines.push(Line::from(format!(
                    "place {}: {} hosts, {} VMs",
                    place.name, hosts.hosts, hosts.vms
                )));
            }
            Said::Agent(_) | Said::Error(_) => {}
        }
    }

    let alarms = answers.iter().flat_map(|answer| answer.said.alarms());
    let unanswered = answers.iter().filter_map(|answer| match &answer.said {
        Said::Error(why) => Some(format!("{}: {why}", answer.url)),
        _ => None,
    });
    let mut problems: Vec<_> = unanswered.chain(alarms).collect();
    if problems.len() > PROBLEMS_MAX {
        let more = problems.len() - (PROBLEMS_MAX - 1);
        problems.truncate(PROBLEMS_MAX - 1);
        problems.push(format!("and {more} more: see `ballast status`"));
    }

    let red = Style::new().fg(Color::Red);
    lines.extend(problems.into_iter().map(|problem| Line::styled(format!("! {problem}"), red)));
    lines
}

/// State, draw against the limit in numbers and as a bar, and what has happened so far.
fn chassis_line(chassis: &ChassisStatus) -> Line<'static> {
    let limit = chassis.limit_w.as_f64();
    let draw = chassis.reported_w.into_iter().chain(chassis.power_w).map(Watts::as_f64).fold(0.0, f64::max);
    let share = if limit > 0.0 { draw / limit } else { 0.0 };
    let filled = ((share * BAR as f64).round() as usize).min(BAR);
    let power = match chassis.power_w {
        None => "no reading".to_owned(),
        Some(_) => format!("{draw:.0} of {limit:.0} W {:3.0} %", 100.0 * share),
    };

    let over = share > 1.0;
    let colour = match chassis.state {
        ChassisState::Normal if !over => Color::Green,
        ChassisState::Normal | ChassisState::Alerting => Color::Yellow,
        _ => Color::Red,
    };
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
    Line::from(vec![
        Span::raw(format!("{}: ", chassis.chassis_id)),
        Span::styled(state(&chassis.state), Style::new().fg(colour).add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {power} ")),
        Span::styled(bar, Style::new().fg(colour)),
        Span::raw(if over { " OVER " } else { " " }),
        Span::raw(format!("{} capping events", chassis.alerts)),
    ])
}

/// Servers as their chassis sees them, and agents that were asked without their chassis.
fn server_rows(answers: &[Answer]) -> Vec<Row<'static>> {
    let chassis = answers.iter().filter_map(|answer| match &answer.said {
        Said::Chassis(chassis) => Some(chassis),
        _ => None,
    });
    let servers: Vec<&ServerStatus> = chassis.flat_map(|chassis| &chassis.servers).collect();
    let alone = agents(answers).filter(|agent| !servers.iter().any(|s| s.server == agent.report.server));

    let of_chassis = servers.iter().map(|server| server_row(server.server.as_str(), server.report.as_ref()));
    let of_agents = alone.map(|agent| server_row(agent.report.server.as_str(), Some(&agent.report)));
    of_chassis.chain(of_agents).collect()
}

fn agents(answers: &[Answer]) -> impl Iterator<Item = &AgentStatus> {
    answers.iter().filter_map(|answer| match &answer.said {
        Said::Agent(agent) => Some(&**agent),
        _ => None,
    })
}

/// The VMs that are capped now come first, then those that have lost most.
fn vm_rows(answers: &[Answer]) -> Vec<Row<'static>> {
    let mut vms: Vec<(&str, &VmStatus)> =
        agents(answers).flat_map(|a| a.vms.iter().map(|vm| (a.report.server.as_str(), vm))).collect();
    let is_capped = |vm: &VmStatus| vm.min_khz.is_some() || vm.quota_millicores.is_some();
    vms.sort_by_key(|(server, vm)| {
        (Reverse(is_capped(vm)), Reverse(vm.impact.lost_core_ms), *server, vm.vm.clone())
    });
    vms.into_iter().map(|(server, vm)| vm_row(server, vm)).collect()
}

fn vm_row(server: &str, vm: &VmStatus) -> Row<'static> {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let mhz = |khz: ballast_types::KiloHertz| format!("{} MHz", khz.get() / 1000);
    let quota = vm.quota_millicores.map(|m| format!("{:.1} cores", f64::from(m) / 1000.0));
    let now = match vm.killed {
        true => "killed".to_owned(),
        false => quota.or(vm.min_khz.map(mhz)).unwrap_or_else(|| "free".to_owned()),
    };

    Row::new([
        vm.vm.to_string(),
        server.to_owned(),
        vm.class.name().to_owned(),
        now,
        seconds(vm.impact.throttled_core_ms),
        seconds(vm.impact.lost_core_ms),
        vm.impact.lowest_khz.map_or_else(|| "-".to_owned(), mhz),
    ])
}

#[cfg(test)]
mod tests {
    use ballast_types::wire::{Alarm, AlarmId};

    use super::*;
    use crate::common::answers::parse;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    fn report(server: &str, state: &str) -> Value {
        json!({
            "server": server, "boot_id": "b", "agent_ms": 10, "epoch_obeyed": 1, "seq_obeyed": 2,
            "enforced_seq": 2, "state": state, "power_w": 201.5, "cap_w": 204.0, "sheddable_w": 30.0,
            "restorable_w": 25.0, "low_cores": 24, "min_khz": 1_300_000, "server_limit": false,
            "leaving": false, "actuator_failures": 0, "dry_run": false, "classes": []
        })
    }

    fn said(status: &Value) -> Answer {
        let said = parse(&serde_json::to_vec(status).unwrap()).unwrap();
        Answer { url: "http://a".into(), said }
    }

    fn chassis(servers: usize, power_w: f64, alarms: &[&str]) -> Answer {
        let alarms: Vec<_> =
            alarms.iter().map(|message| Alarm::new(AlarmId::ServerSilent, *message)).collect();
        let servers: Vec<_> = (1..=servers)
            .map(|n| {
                let server = format!("s{n:02}");
                let report = if n == 3 { Value::Null } else { report(&server, "throttled") };
                json!({"server": server, "slot": "managed", "report": report, "report_age_ms": 120,
                       "granted_w": 204.0, "reserved_w": 204.0, "hardware_cap_w": null, "last_error": null})
            })
            .collect();
        said(&json!({
            "role": "chassis", "chassis_id": "c1", "epoch": 3, "state": "alerting", "now_ms": 5,
            "power_w": power_w, "budget_w": 2450.0, "limit_w": 2450.0, "shared_w": 0.0, "sharable_w": 2450.0,
            "dry_run": false, "shares": "even", "sensors": [],
            "alerts": 2, "hardware_caps_ms": 0, "refused_inputs": 0, "alarms": alarms, "servers": servers
        }))
    }

    fn agent(vms: usize) -> Answer {
        let vm = |n: usize| {
            json!({"vm": format!("vm-{n:02}"), "class": "non-user-facing", "throttle_order": 1, "cores": 2,
                   "killed": false, "on_extreme": "none",
                   "min_khz": (n == 7).then_some(1_300_000), "throttled_core_ms": 1500,
                   "lost_core_ms": 100 * n})
        };
        said(&json!({
            "role": "agent", "chassis_id": "c1", "policy": "stepwise", "policy_effective": "stepwise",
            "last_vm_kills": [], "sensors": [], "report": report("s01", "throttled"),
            "fallback_w": 190.0, "lease_ms": null, "refused_alerts": 0, "power_faults": 0, "vm_kills": 0,
            "vms": (1..=vms).map(vm).collect::<Vec<_>>(), "alarms": []
        }))
    }

    fn screen(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn eighty_columns_and_24_lines_show_chassis_alarms_servers_and_vms() {
        let mut view = View::default();
        assert!(screen(&mut view, 80, 24).contains("asking the daemons"));
        let dead = Answer { url: "http://b".into(), said: Said::Error("nothing listens there".into()) };
        view.take(vec![chassis(12, 2500.0, &["s03 is silent"]), agent(3), dead]);
        let screen = screen(&mut view, 80, 24);
        for part in [
            "2 of 3 daemons answer",
            "c1: alerting  2500 of 2450 W 102 % ████████████████████ OVER 2 capping events",
            "! http://b: nothing listens there",
            "! c1: s03 is silent",
            "servers 1 to 11 of 12",
            "s01        throttled      201.5 W    204.0 W    1300 MHz",
            "s03        no report",
            "VMs 1 to 3 of 3",
            "vm-03          s01      non-user-facing free       1.5 s     0.3 s     -",
        ] {
            assert!(screen.contains(part), "{part}\n{screen}");
        }
    }

    #[test]
    fn tables_scroll_to_their_end_and_no_further() {
        let mut view = View::default();
        view.take(vec![chassis(40, 100.0, &[]), agent(40)]);
        assert!(screen(&mut view, 80, 24).contains("vm-07 "), "what is capped now comes first");
        view.press(KeyCode::End);
        let text = screen(&mut view, 80, 24);
        assert!(text.contains("to 40 of 40") && text.contains("s40"), "{text}");
        view.press(KeyCode::PageUp);
        view.press(KeyCode::Up);
        assert!(!screen(&mut view, 80, 24).contains("s40"));
        view.press(KeyCode::Tab);
        view.press(KeyCode::Down);
        assert!(screen(&mut view, 80, 24).contains("VMs 2 to"));
        for key in [KeyCode::Home, KeyCode::Char('x')] {
            view.press(key);
        }
        assert!(screen(&mut view, 80, 24).contains("VMs 1 to"));
    }

    #[test]
    fn any_terminal_and_any_number_of_alarms_will_do() {
        let alarms: Vec<_> = (0..30).map(|n| format!("alarm {n}")).collect();
        let alarms: Vec<_> = alarms.iter().map(String::as_str).collect();
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            for vms in [0, 1, 500] {
                let mut view = View::default();
                screen(&mut view, width, height);
                view.take(vec![chassis(12, 0.0, &alarms), agent(vms)]);
                screen(&mut view, width, height);
            }
        }
        let mut view = View::default();
        view.take(vec![chassis(1, 0.0, &alarms)]);
        assert!(screen(&mut view, 80, 24).contains("and 27 more"));
    }
}
