//! Manual pages: of commands by their tree, of config files by what the code says of their keys.

use std::collections::BTreeMap;

use ballast_runtime::config::reference::{KeyReference, TableReference};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use jiff::fmt::rfc2822;

const SOURCE: &str = concat!("Ballast ", env!("CARGO_PKG_VERSION"));
const MANUAL: &str = "Ballast Manual";
/// The packages' own: its newest entry has the date of the release.
const CHANGELOG: &str = include_str!("../../../packaging/changelog");

/// What a line at the end of a help begins with, and the section of a manual page that it belongs to; in the order
/// of the sections. What begins otherwise are notes.
const SECTIONS: [(&str, &str); 6] = [
    ("Exit codes: ", "EXIT STATUS"),
    ("Environment: ", "ENVIRONMENT"),
    ("SIGHUP: ", "SIGNALS"),
    ("Files: ", FILES),
    ("", NOTES),
    (EXAMPLE, "EXAMPLES"),
];
const NOTES: &str = "NOTES";
const FILES: &str = "FILES";
const EXAMPLE: &str = "Example: ";

/// The day of the release.
fn date() -> String {
    let signed = CHANGELOG.lines().find_map(|line| line.strip_prefix(" -- ")?.rsplit_once("  "));
    let signed = signed.and_then(|(_, date)| rfc2822::parse(date).ok());
    signed.map_or_else(|| "undated".to_owned(), |signed| signed.date().to_string())
}

/// The page of one command, which is built; `also` are other pages, as `ballast(1)`.
pub(super) fn of_command(command: &Command, section: &str, also: &[String]) -> anyhow::Result<Vec<u8>> {
    let man = Man::new(command.clone()).section(section).date(date()).source(SOURCE).manual(MANUAL);
    let mut page = vec![];
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|it| !it.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }

    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::default();
    let sections = sections(&help);
    for (_, name) in SECTIONS {
        let Some(lines) = sections.get(name) else { continue };
        roff.control("SH", [name]);
        for (n, line) in lines.iter().enumerate() {
            if n > 0 {
                roff.control("PP", []);
            }
            match line.strip_prefix(EXAMPLE) {
                Some(example) => roff.text([bold(example)]),
                None => roff.text([roman(*line)]),
            };
        }
    }
    see_also(&mut roff, also);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// The lines of a help's end by section. A line that begins with no known word goes on with the section before
/// it, unless an empty line is between them.
fn sections(help: &str) -> BTreeMap<&'static str, Vec<&str>> {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = NOTES;
    for line in help.lines() {
        if line.trim().is_empty() {
            current = NOTES;
            continue;
        }
        let known = SECTIONS.iter().find(|(begins, _)| !begins.is_empty() && line.starts_with(begins));
        let Some((begins, name)) = known else {
            sections.entry(current).or_default().push(line);
            continue;
        };
        current = name;
        // A signal's and an example's word are part of what they say.
        let is_title = !["SIGHUP: ", EXAMPLE].contains(begins);
        let line = if is_title { &line[begins.len()..] } else { line };
        sections.entry(current).or_default().push(line);
    }
    sections
}

/// The page of a daemon's config file; `daemon` is `agent` for ballast-agent.
pub(super) fn of_config(daemon: &str, tables: &[TableReference]) -> Vec<u8> {
    let mut roff = Roff::default();
    let (file, program) = (format!("/etc/ballast/{daemon}.toml"), format!("ballast-{daemon}"));
    roff.control("TH", [&*format!("{program}.toml"), "5", &date(), SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{program}.toml - configuration of {program}"))]);

    roff.control("SH", ["DESCRIPTION"]);
    roff.text([bold(&*file), roman(" is the TOML file that "), bold(&*program), roman(" runs by.")]);
    roff.control("PP", []);
    let check = format!("{program} --check-config --config {file}");
    let says = " names every problem at once, with file and line. An unknown key is an error.";
    roff.text([bold(check), roman(says)]);
    roff.control("PP", []);
    roff.text(inline("A default that depends on another key is shown with that key; `–` is none."));

    for table in tables {
        let heading = if table.heading.is_empty() { "KEYS AT THE TOP" } else { &table.heading };
        roff.control("SH", [heading]);
        if !table.help.is_empty() {
            roff.text(inline(table.help));
        }
        table.keys.iter().for_each(|key| write_key(&mut roff, key));
    }

    roff.control("SH", [FILES]);
    roff.text([roman(format!("{file}; the pages of the book are below /usr/share/doc/{program}/docs."))]);
    see_also(&mut roff, &[format!("{program}(8)")]);
    roff.render().into_bytes()
}

fn write_key(roff: &mut Roff, it: &KeyReference) {
    roff.control("TP", []);
    roff.text([bold(it.key.key)]);
    roff.text(inline(&it.meaning()));
    roff.control("br", []);
    roff.text(inline(&format!("Allowed: {}. Default: {}.", it.key.allowed, it.default_text())));
}

fn see_also(roff: &mut Roff, pages: &[String]) {
    if !pages.is_empty() {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(pages.join(", "))]);
    }
}

/// Text in which what stands between backquotes is bold.
fn inline(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_help_is_sorted_into_sections() {
        let help = "It takes a minute.\n\nExample: a --b\nExample: c\n\nExit codes: 0 done; 1 not.\n\
                    With --d: 2.\n\nSIGHUP: reads anew.";
        let found = sections(help);
        assert_eq!(found["NOTES"], ["It takes a minute."]);
        assert_eq!(found["EXAMPLES"], ["Example: a --b", "Example: c"]);
        assert_eq!(found["EXIT STATUS"], ["0 done; 1 not.", "With --d: 2."]);
        assert_eq!(found["SIGNALS"], ["SIGHUP: reads anew."]);
        assert_eq!(found.len(), 4);
    }
}
