//! The report for people.

use tabled::builder::Builder;
use tabled::settings::Style;

use super::report::Report;
use super::state::{Finding, State};
use crate::common::grid::Fit;

/// A column with sentences is no wider than this.
const WIDTH: usize = 60;
/// What the frame, the probe's name and its verdict take of a terminal beside two columns of sentences.
const BESIDE: usize = 45;

/// The probe's name in a terminal.
const ID_WIDTH: usize = 22;

/// Tables of functions and findings, and the fragment; colours where a terminal shows them.
pub(super) fn text(report: &Report, colours: bool, fit: Fit) -> String {
    let width = sentence(fit);
    let mut functions = Builder::new();
    functions.push_record(["function", "", "because"]);
    for function in &report.functions {
        let reason = wrapped(&function.reason, width);
        functions.push_record([name(function.id), mark(function.state), &reason]);
    }

    let mut text = format!("{}\n{}\n", table(functions), findings(&report.findings, width));

    for written in report.write_test.iter().flatten() {
        let result = written.error.as_deref().unwrap_or("obeyed, and put back");
        text.push_str(&format!("write test: {}: {result}\n", written.what));
    }

    text.push_str(&format!("\n{}\n{}", report.agent_toml, verdict(report.exit_code)));
    if colours { coloured(&text) } else { text }
}

/// The table of findings alone, and what they come to.
pub(super) fn of_findings(all: &[Finding], verdict: &str, colours: bool, fit: Fit) -> String {
    let mut all = all.to_vec();
    if matches!(fit, Fit::Within(_)) {
        // An address has no spaces to break at.
        all.iter_mut().for_each(|it| it.id = broken(&it.id, ID_WIDTH));
    }
    let text = format!("{}\n{verdict}", findings(&all, sentence(fit)));
    if colours { coloured(&text) } else { text }
}

fn sentence(fit: Fit) -> usize {
    match fit {
        Fit::Within(room) => (room.saturating_sub(BESIDE) / 2).clamp(16, WIDTH),
        Fit::Pipe | Fit::Wide => WIDTH,
    }
}

fn findings(all: &[Finding], width: usize) -> String {
    let mut findings = Builder::new();
    findings.push_record(["probe", "", "found", "why, and what to do"]);
    for finding in all {
        let remedy = finding.remedy.as_ref().map(|remedy| format!("→ {remedy}"));
        let advice: Vec<_> = finding.reason.iter().chain(&remedy).map(|line| wrapped(line, width)).collect();
        let (found, advice) = (wrapped(&finding.found, width), advice.join("\n"));
        findings.push_record([&finding.id, mark(finding.state), &found, &advice]);
    }
    table(findings)
}

fn table(builder: Builder) -> String {
    builder.build().with(Style::rounded()).to_string()
}

/// The text in lines of `width` characters, broken anywhere.
fn broken(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(width).map(String::from_iter).collect::<Vec<_>>().join("\n")
}

/// The text in lines of at most `width` characters, broken between words; longer words, too, where there is little room.
fn wrapped(text: &str, width: usize) -> String {
    let pieces =
        |word| if width < WIDTH { broken(word, width).replace('\n', " ") } else { String::from(word) };
    let text = text.split(' ').map(pieces).collect::<Vec<_>>().join(" ");
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map(|line| line.chars().count()).unwrap_or_default();
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

fn verdict(exit_code: u8) -> &'static str {
    match exit_code {
        0 => "All that is needed works (exit code 0).",
        1 => "It will do, with the drawbacks above (exit code 1).",
        _ => "Something needed is missing: a way to throttle, or a meter (exit code 2).",
    }
}

fn name(function: &str) -> &str {
    match function {
        "pstate" => "throttle by p-state",
        "cpu_max" => "throttle by cpu.max",
        "uclamp" => "throttle by cpu.uclamp.max",
        "meter" => "server's meter",
        "server_limit" => "server's own limit",
        "core_groups" => "core groups",
        other => other,
    }
}

fn mark(state: State) -> &'static str {
    match state {
        State::Works => "works",
        State::Degraded => "degraded",
        State::Missing => "missing",
        State::Untested => "untested",
    }
}

/// Colours the verdicts, each of which stands alone in its cell.
fn coloured(text: &str) -> String {
    let states = [State::Works, State::Degraded, State::Missing, State::Untested];
    let colours = ["32", "33", "31", "36"];
    states.into_iter().zip(colours).fold(text.to_owned(), |text, (state, colour)| {
        let word = mark(state);
        text.replace(&format!("│ {word} "), &format!("│ \x1b[{colour}m{word}\x1b[0m "))
    })
}
