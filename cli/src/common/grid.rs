//! Tables for people: in a terminal as wide as it is, in a pipe all of it and without a frame.

use std::io::{self, IsTerminal as _};

use ratatui::crossterm::terminal;
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Modify, Style, Width};

/// The text of the last column is wrapped, but no narrower than this.
const TEXT_MIN: usize = 24;
/// A column's frame and the space around its text.
const AROUND: usize = 3;

/// How much of a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// All of it, without a frame: a program reads it.
    Pipe,
    /// All of it, however wide.
    Wide,
    /// What has room in so many columns of a terminal.
    Within(usize),
}

impl Fit {
    /// As stdout is; `wide` shows all of it in a terminal, too.
    pub(crate) fn stdout(wide: bool) -> Self {
        match terminal::size() {
            _ if !io::stdout().is_terminal() => Self::Pipe,
            Ok((width, _)) if !wide && width > 0 => Self::Within(width.into()),
            _ => Self::Wide,
        }
    }
}

/// A column's head, and its rank where there is no room: the highest is left out first, 0 never is.
pub(crate) type Column = (&'static str, u8);

/// A table. Its last column is text, which is wrapped before other columns are left out.
pub(crate) fn grid<const N: usize>(columns: &[Column; N], rows: &[[String; N]], fit: Fit) -> String {
    let kept = match fit {
        Fit::Within(room) => that_fit(columns, rows, room),
        Fit::Pipe | Fit::Wide => (0..N).collect(),
    };
    let mut table = Builder::new();
    table.push_record(kept.iter().map(|&i| columns[i].0));
    for row in rows {
        table.push_record(kept.iter().map(|&i| row[i].as_str()));
    }

    let mut table = table.build();
    match fit {
        Fit::Pipe => return table.with(Style::blank()).to_string(),
        Fit::Wide => return table.with(Style::rounded()).to_string(),
        Fit::Within(room) => {
            let others = kept.iter().filter(|i| **i != N - 1).map(|&i| AROUND + width(columns, rows, i));
            let text = room.saturating_sub(1 + AROUND + others.sum::<usize>()).max(TEXT_MIN);
            if kept.contains(&(N - 1)) {
                table.with(Modify::new(Columns::last()).with(Width::wrap(text).keep_words(true)));
            }
        }
    }

    let left_out: Vec<_> = (0..N).filter(|i| !kept.contains(i)).map(|i| columns[i].0).collect();
    let hint = match left_out.is_empty() {
        true => String::new(),
        false => format!("\nno room for: {}; --wide shows all", left_out.join(", ")),
    };
    format!("{}{hint}", table.with(Style::rounded()))
}

/// A table without a frame, in a terminal too.
pub(crate) fn plain<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Builder::new();
    table.push_record(head);
    rows.into_iter().for_each(|row| table.push_record(row));
    table.build().with(Style::blank()).to_string()
}

/// The columns that have room, in their order.
fn that_fit<const N: usize>(columns: &[Column; N], rows: &[[String; N]], room: usize) -> Vec<usize> {
    let needs = |i: usize| match i {
        _ if i == N - 1 => AROUND + width(columns, rows, i).min(TEXT_MIN),
        _ => AROUND + width(columns, rows, i),
    };
    let mut kept: Vec<usize> = (0..N).collect();
    while 1 + kept.iter().map(|&i| needs(i)).sum::<usize>() > room {
        let optional = kept.iter().copied().filter(|&i| columns[i].1 > 0);
        let Some(first_out) = optional.max_by_key(|&i| columns[i].1) else { break };
        kept.retain(|&i| i != first_out);
    }
    kept
}

fn width<const N: usize>(columns: &[Column; N], rows: &[[String; N]], i: usize) -> usize {
    let texts = rows.iter().map(|row| row[i].as_str()).chain([columns[i].0]);
    texts.flat_map(str::lines).map(|line| line.chars().count()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [("server", 0), ("power", 1), ("sheddable", 2), ("notes", 0)];

    fn rows() -> [[String; 4]; 2] {
        let long = "policy stepwise; 40 cores by acpi-cpufreq, 1 offline; hardware cap 204.0 W";
        [["s01", "201.5 W", "30.0 W", long], ["s02", "no reading", "0.0 W", ""]]
            .map(|row| row.map(str::to_owned))
    }

    #[test]
    fn a_terminal_gets_what_fits_and_is_told_what_does_not() {
        for room in 44..140 {
            let text = grid(&COLUMNS, &rows(), Fit::Within(room));
            let (table, hint) = text.split_at(text.rfind('╯').unwrap());
            assert!(table.lines().all(|line| line.chars().count() <= room), "{room}\n{text}");
            assert_eq!(table.contains("sheddable"), !hint.contains("sheddable"), "{room}\n{text}");
            assert!(table.contains("s01") && table.contains("stepwise"), "{room}\n{text}");
        }
    }

    #[test]
    fn columns_are_left_out_by_rank_and_never_those_of_rank_zero() {
        let shown = |room| {
            let text = grid(&COLUMNS, &rows(), Fit::Within(room));
            ["server", "power", "sheddable", "notes"].map(|head| text.lines().nth(1).unwrap().contains(head))
        };
        assert_eq!(shown(80), [true; 4]);
        assert_eq!(shown(55), [true, true, false, true]);
        assert_eq!(shown(40), [true, false, false, true]);
        assert_eq!(shown(1), [true, false, false, true]);
    }

    #[test]
    fn a_pipe_gets_one_line_for_each_row_without_a_frame() {
        let text = grid(&COLUMNS, &rows(), Fit::Pipe);
        assert_eq!(text.lines().count(), 3);
        assert!(!text.contains(['│', '╭']), "{text}");
        assert!(text.contains("hardware cap 204.0 W"), "{text}");
        assert!(grid(&COLUMNS, &rows(), Fit::Wide).contains('│'));
    }
}
