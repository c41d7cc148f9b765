//! Tables that are drawn on a terminal again and again, and scrolled.

use ballast_types::Watts;
use ballast_types::wire::{AgentState, Report};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::{Block, Cell, Row, Table};

use crate::common::daemons::state;

/// Lines of a table's frame and head.
pub(crate) const AROUND: usize = 3;
/// Head and width of the columns of [`server_row`].
pub(crate) const SERVER_COLUMNS: [(&str, u16); 6] =
    [("server", 10), ("state", 14), ("power", 10), ("cap", 10), ("lowest", 10), ("can shed", 9)];

/// Moves what a table shows, by the rows that it has left out above.
pub(crate) fn scroll(scrolled: &mut usize, key: KeyCode) {
    *scrolled = match key {
        KeyCode::Down | KeyCode::Char('j') => scrolled.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => scrolled.saturating_sub(1),
        KeyCode::PageDown => scrolled.saturating_add(10),
        KeyCode::PageUp => scrolled.saturating_sub(10),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => *scrolled,
    };
}

/// Draws the rows that have room; the title says which they are.
pub(crate) fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    (name, has_keys): (&str, bool),
    columns: &[(&'static str, u16)],
    rows: Vec<Row<'static>>,
    scrolled: &mut usize,
) {
    if area.height == 0 {
        return;
    }
    let room = usize::from(area.height).saturating_sub(AROUND).max(1);
    let all = rows.len();
    *scrolled = (*scrolled).min(all.saturating_sub(room));
    let last = (*scrolled + room).min(all);
    let title = match all {
        0 => format!("no {name}"),
        _ => format!("{name} {} to {last} of {all}", *scrolled + 1),
    };

    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = if has_keys { Span::styled(title, bold) } else { Span::raw(title) };
    let head = Row::new(columns.iter().map(|(head, _)| *head)).style(bold);
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let shown = rows.into_iter().skip(*scrolled).take(room);
    frame.render_widget(Table::new(shown, widths).header(head).block(Block::bordered().title(title)), area);
}

/// A server as its agent reports it.
pub(crate) fn server_row(name: &str, report: Option<&Report>) -> Row<'static> {
    let Some(report) = report else {
        return Row::new([Cell::new(name.to_owned()), Cell::new("no report")]);
    };
    let colour = match report.state {
        AgentState::Uncapped => Color::Green,
        AgentState::Recovering | AgentState::Throttled => Color::Yellow,
        _ => Color::Red,
    };
    let watts = |watts: Option<Watts>, none: &str| watts.map_or_else(|| none.to_owned(), |w| w.to_string());
    let lowest = match (report.min_khz, report.min_share_percent) {
        (Some(khz), _) => format!("{} MHz", khz.get() / 1000),
        (None, Some(percent)) => format!("{percent} %"),
        (None, None) => "max".to_owned(),
    };

    Row::new([
        Cell::new(name.to_owned()),
        Cell::new(state(&report.state)).style(Style::new().fg(colour)),
        Cell::new(watts(report.power_w, "no reading")),
        Cell::new(watts(report.cap_w, "none")),
        Cell::new(lowest),
        Cell::new(report.sheddable_w.to_string()),
    ])
}
