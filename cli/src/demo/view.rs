//! The live view: power against budget, the servers, the alerts, the frequencies.

use ballast_types::wire::{AgentState, ChassisState, ChassisStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};

use crate::common::daemons;
use crate::common::scrolled_table::{AROUND, SERVER_COLUMNS, server_row, table};

/// What the view shows: the plant's truth, and what the chassis says.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Seconds since the load began.
    pub(crate) elapsed_s: f64,
    /// How long the load runs.
    pub(crate) seconds: f64,
    /// Whether the load begins anew then.
    pub(crate) hold: bool,
    /// For how long the chassis manager lets the draw be above the budget.
    pub(crate) trip_s: f64,
    pub(crate) budget_w: f64,
    /// Where the manager serves its web page.
    pub(crate) page: String,
    /// The chassis's true draw.
    pub(crate) power_w: f64,
    /// The batch VMs' mean frequency, as a share of the highest.
    pub(crate) batch_ratio: f64,
    /// Seconds above budget so far, and the longest stretch.
    pub(crate) over_s: (f64, f64),
    /// (seconds, watts), oldest first.
    pub(crate) history: Vec<(f64, f64)>,
    /// The chassis's status, once there is one.
    pub(crate) chassis: Option<ChassisStatus>,
}

impl Progress {
    /// Takes the newest power into the history.
    pub(crate) fn push(&mut self, elapsed_s: f64, power_w: f64) {
        self.elapsed_s = elapsed_s;
        self.power_w = power_w;
        self.history.push((elapsed_s, power_w));
        // The newest stretch as long as the load, where the load begins anew.
        self.history.retain(|(at, _)| *at >= elapsed_s - self.seconds);
    }

    fn alerts(&self) -> u64 {
        self.chassis.as_ref().map_or(0, |chassis| chassis.alerts)
    }

    fn states(&self) -> impl Iterator<Item = AgentState> {
        let servers = self.chassis.iter().flat_map(|chassis| &chassis.servers);
        servers.filter_map(|server| server.report.as_ref()).map(|report| report.state)
    }

    /// Servers whose low-priority cores are held down now.
    pub(crate) fn throttled(&self) -> usize {
        use AgentState::{Recovering, Shedding, Throttled};
        self.states().filter(|state| matches!(state, Throttled | Recovering | Shedding)).count()
    }

    /// One line, for those who have no terminal.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:5.1} s  {:7.1} W of {:.0} W ({:3.0} %)  {}  {} servers slowed  batch cores at {:3.0} %",
            self.elapsed_s,
            self.power_w,
            self.budget_w,
            100.0 * self.power_w / self.budget_w,
            capping_events(self.alerts()),
            self.throttled(),
            100.0 * self.batch_ratio,
        )
    }
}

/// Draws everything; `scrolled` is by how many servers the table is moved.
pub(crate) fn draw(frame: &mut Frame<'_>, live: &Progress, scrolled: &mut usize) {
    let servers = live.chassis.iter().flat_map(|chassis| &chassis.servers);
    let servers: Vec<_> =
        servers.map(|server| server_row(server.server.as_str(), server.report.as_ref())).collect();
    let rows = u16::try_from(servers.len() + AROUND).unwrap_or(u16::MAX);
    let [head, chart, table_area] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(9), Constraint::Max(rows)])
            .areas(frame.area());

    frame.render_widget(headline(live), head);
    draw_chart(frame, live, chart);
    table(frame, table_area, ("servers", false), &SERVER_COLUMNS, servers, scrolled);
}

fn headline(live: &Progress) -> Paragraph<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let over = live.power_w > live.budget_w;
    let power = bold.fg(if over { Color::Red } else { Color::Green });
    let state = live.chassis.as_ref().map_or(ChassisState::Boot, |chassis| chassis.state);
    let length = if live.hold { String::new() } else { format!(" of {:.0}", live.seconds) };

    Paragraph::new(vec![
        Line::from(vec![
            Span::styled(format!("{}/", live.page), bold),
            Span::raw("   a page for your browser   q ends, ↑ ↓ scroll"),
        ]),
        Line::from(vec![
            Span::raw(format!("{:5.1}{length} s   ", live.elapsed_s)),
            Span::styled(format!("{:.0} W", live.power_w), power),
            Span::raw(format!(
                " of {:.0} W{}   {}   {}",
                live.budget_w,
                if over { " OVER" } else { "" },
                daemons::state(&state),
                capping_events(live.alerts()),
            )),
        ]),
        Line::from(format!(
            "{} servers slowed   batch at {:.0} %   over {:.2} s: {}",
            live.throttled(),
            100.0 * live.batch_ratio,
            live.over_s.1,
            verdict(live.over_s.1, live.trip_s),
        )),
    ])
}

/// What is to be thought of the longest time above the budget.
pub(super) fn verdict(over_s: f64, trip_s: f64) -> String {
    let kept = if over_s < trip_s { "kept" } else { "NOT KEPT" };
    format!("{kept} (breaker: {trip_s:.0} s)")
}

fn capping_events(count: u64) -> String {
    format!("{count} capping event{}", if count == 1 { "" } else { "s" })
}

fn draw_chart(frame: &mut Frame<'_>, live: &Progress, area: Rect) {
    let end = live.seconds.max(live.elapsed_s).max(1.0);
    let start = end - live.seconds.max(1.0).min(end);
    let powers = live.history.iter().map(|(_, watts)| *watts).chain([live.budget_w]);
    let (low, high) = powers.fold((f64::INFINITY, 0.0_f64), |(low, high), w| (low.min(w), high.max(w)));
    let (low, high) = ((low * 0.95 / 100.0).floor() * 100.0, (high * 1.05 / 100.0).ceil() * 100.0);
    let budget = [(start, live.budget_w), (end, live.budget_w)];
    // Two markers, for those who see no colours.
    let line = |name: &'static str, marker, color, data| {
        Dataset::default()
            .name(name)
            .marker(marker)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(color))
            .data(data)
    };

    let chart = Chart::new(vec![
        line("budget", Marker::Dot, Color::Red, &budget),
        line("power", Marker::Braille, Color::Green, &live.history),
    ])
    .block(Block::bordered().title("true power, W; the budget is dotted"))
    .x_axis(Axis::default().bounds([start, end]).labels([start, end].map(|at| format!("{at:.0} s"))))
    .y_axis(
        Axis::default()
            .bounds([low, high])
            .labels([low, f64::midpoint(low, high), high].map(|watts| format!("{watts:.0}"))),
    );

    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(live: &Progress, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, live, &mut 0)).unwrap();
        terminal.backend().to_string()
    }

    fn live() -> Progress {
        let report = |state: &str, khz: Option<u32>| {
            serde_json::json!({
                "server": "s01", "boot_id": "b", "agent_ms": 10, "epoch_obeyed": 1, "seq_obeyed": 2,
                "enforced_seq": 2, "state": state, "power_w": 201.5, "cap_w": 204.0,
                "sheddable_w": 30.0, "restorable_w": 25.0, "low_cores": 24, "min_khz": khz,
                "server_limit": false, "leaving": false, "actuator_failures": 0,
                "dry_run": false, "classes": []
            })
        };

        let server = |name: &str, report: serde_json::Value| {
            serde_json::json!({
                "server": name, "slot": "managed", "report": report, "report_age_ms": 120,
                "granted_w": 204.0, "reserved_w": 204.0, "hardware_cap_w": null, "last_error": null
            })
        };

        let chassis = serde_json::from_value(serde_json::json!({
            "role": "chassis", "chassis_id": "c1", "epoch": 3, "state": "alerting", "now_ms": 5,
            "power_w": 2300.0, "budget_w": 2450.0, "limit_w": 2450.0, "shared_w": 0.0,
            "sharable_w": 2450.0, "alerts": 2, "hardware_caps_ms": 0, "refused_inputs": 0, "alarms": [],
            "dry_run": false, "shares": "even", "sensors": [],
            "servers": [
                server("s01", report("throttled", Some(1_300_000))),
                server("s02", report("uncapped", None)),
                server("s03", serde_json::Value::Null),
            ]
        }))
        .unwrap();
        let mut live = Progress {
            seconds: 60.0,
            budget_w: 2450.0,
            batch_ratio: 0.5,
            over_s: (0.5, 0.3),
            trip_s: 5.0,
            chassis: Some(chassis),
            ..Progress::default()
        };

        live.push(0.0, 2000.0);
        live.push(12.5, 2470.0);

        live
    }

    #[test]
    fn the_view_shows_power_servers_alerts_and_frequencies() {
        let screen = screen(&live(), 80, 30);
        for part in [
            "12.5 of 60 s",
            "2470 W of 2450 W OVER   alerting   2 capping events",
            "1 servers slowed   batch at 50 %   over 0.30 s: kept (breaker: 5 s)",
            "s01        throttled",
            "1300 MHz",
            "s02        uncapped",
            "s03        no report",
            "servers 1 to 3 of 3",
        ] {
            assert!(screen.contains(part), "{part}\n{screen}");
        }
    }

    #[test]
    fn any_terminal_and_an_empty_view_will_do() {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(&live(), width, height);
            screen(&Progress::default(), width, height);
        }
    }

    #[test]
    fn one_line_holds_the_essentials() {
        assert_eq!(
            live().line(),
            " 12.5 s   2470.0 W of 2450 W (101 %)  2 capping events  1 servers slowed  batch cores at  50 %"
        );
    }
}
