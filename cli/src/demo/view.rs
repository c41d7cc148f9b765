//! The live view: power against budget, the servers, the alerts, the frequencies.

use ballast_types::wire::{AgentState, ChassisState, ChassisStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Cell, Chart, Dataset, GraphType, Paragraph, Row, Table};

use crate::common::daemons::{agent_state, chassis_state};

/// What the view shows: the plant's truth, and what the chassis says.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Seconds since the load began.
    pub(crate) elapsed_s: f64,
    /// How long it will run.
    pub(crate) seconds: f64,
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
            "{:5.1} s  {:7.1} W of {:.0} W ({:3.0} %)  {} alerts  {} servers throttled  batch cores at \
             {:3.0} %",
            self.elapsed_s,
            self.power_w,
            self.budget_w,
            100.0 * self.power_w / self.budget_w,
            self.chassis.as_ref().map_or(0, |chassis| chassis.alerts),
            self.throttled(),
            100.0 * self.batch_ratio,
        )
    }
}

pub(crate) fn draw(frame: &mut Frame<'_>, live: &Progress) {
    let servers = live.chassis.as_ref().map_or(0, |chassis| chassis.servers.len());
    let rows = u16::try_from(servers).unwrap_or(u16::MAX).saturating_add(3);
    let [head, chart, table] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(6), Constraint::Max(rows)])
            .areas(frame.area());
    frame.render_widget(headline(live), head);
    draw_chart(frame, live, chart);
    draw_servers(frame, live, table);
}

fn headline(live: &Progress) -> Paragraph<'static> {
    let over = live.power_w > live.budget_w;
    let power = Style::new().fg(if over { Color::Red } else { Color::Green }).add_modifier(Modifier::BOLD);
    let state = live.chassis.as_ref().map_or(ChassisState::Boot, |chassis| chassis.state);
    let alerts = live.chassis.as_ref().map_or(0, |chassis| chassis.alerts);

    Paragraph::new(vec![
        Line::from(vec![
            Span::raw(format!("{:5.1} of {:.0} s   ", live.elapsed_s, live.seconds)),
            Span::styled(format!("{:.0} W", live.power_w), power),
            Span::raw(format!(
                " of {:.0} W   chassis {}   {alerts} capping events",
                live.budget_w,
                chassis_state(state),
            )),
        ]),
        Line::from(format!(
            "{} servers throttled   batch cores at {:.0} %   \
             over budget {:.2} s, longest {:.2} s",
            live.throttled(),
            100.0 * live.batch_ratio,
            live.over_s.0,
            live.over_s.1,
        )),
    ])
    .block(Block::bordered().title(format!("Ballast demo (q ends it): {}/", live.page)))
}

fn draw_chart(frame: &mut Frame<'_>, live: &Progress, area: Rect) {
    let end = live.seconds.max(live.elapsed_s).max(1.0);
    let powers = live.history.iter().map(|(_, watts)| *watts).chain([live.budget_w]);
    let (low, high) = powers.fold((f64::INFINITY, 0.0_f64), |(low, high), w| (low.min(w), high.max(w)));
    let (low, high) = ((low * 0.95 / 100.0).floor() * 100.0, (high * 1.05 / 100.0).ceil() * 100.0);
    let budget = [(0.0, live.budget_w), (end, live.budget_w)];
    let line = |name: &'static str, color, data| {
        Dataset::default()
            .name(name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(color))
            .data(data)
    };

    let chart =
        Chart::new(vec![line("budget", Color::Red, &budget), line("power", Color::Green, &live.history)])
            .block(Block::bordered().title("true power, W"))
            .x_axis(Axis::default().bounds([0.0, end]).labels(["0 s".to_owned(), format!("{end:.0} s")]))
            .y_axis(
                Axis::default()
                    .bounds([low, high])
                    .labels([low, f64::midpoint(low, high), high].map(|watts| format!("{watts:.0}"))),
            );

    frame.render_widget(chart, area);
}

fn draw_servers(frame: &mut Frame<'_>, live: &Progress, area: Rect) {
    let head = Row::new(["server", "state", "power", "cap", "min MHz", "sheddable"])
        .style(Style::new().add_modifier(Modifier::BOLD));
    let servers = live.chassis.iter().flat_map(|chassis| &chassis.servers);
    let rows = servers.map(|server| {
        let name = server.server.to_string();
        let Some(report) = &server.report else {
            return Row::new([Cell::new(name), Cell::new("no report")]);
        };
        let color = match report.state {
            AgentState::Uncapped => Color::Green,
            AgentState::Recovering => Color::Yellow,
            AgentState::Throttled | AgentState::Shedding => Color::Red,
            AgentState::Boot | AgentState::Blind | AgentState::Unknown => Color::Magenta,
        };

        Row::new([
            Cell::new(name),
            Cell::new(agent_state(report.state)).style(Style::new().fg(color)),
            Cell::new(report.power_w.map_or_else(|| "-".to_owned(), |w| w.to_string())),
            Cell::new(report.cap_w.map_or_else(|| "-".to_owned(), |w| w.to_string())),
            Cell::new(match (report.min_khz, report.min_share_percent) {
                (Some(khz), _) => (khz.get() / 1000).to_string(),
                (None, Some(percent)) => format!("{percent} %"),
                (None, None) => "max".to_owned(),
            }),
            Cell::new(report.sheddable_w.to_string()),
        ])
    });

    let widths = [10, 11, 10, 10, 9, 10].map(Constraint::Length);
    let table = Table::new(rows, widths).header(head).block(Block::bordered().title("servers"));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(live: &Progress, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, live)).unwrap();
        terminal.backend().to_string()
    }

    fn live() -> Progress {
        let report = |state: &str, khz: Option<u32>| {
            serde_json::json!({
                "server": "s01", "boot_id": "b", "agent_ms": 10, "epoch_obeyed": 1, "seq_obeyed": 2,
                "enforced_seq": 2, "state": state, "power_w": 201.5, "cap_w": 204.0,
                "sheddable_w": 30.0, "restorable_w": 25.0, "low_cores": 24, "min_khz": khz,
                "server_limit": false, "leaving": false, "actuator_failures": 0
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
            "2470 W of 2450 W   chassis alerting   2 capping events",
            "1 servers throttled   batch cores at 50 %",
            "longest 0.30 s",
            "s01        throttled",
            "1300",
            "s02        uncapped",
            "s03        no report",
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
            " 12.5 s   2470.0 W of 2450 W (101 %)  2 alerts  1 servers throttled  batch cores at  50 %"
        );
    }
}
