//! The reference of the command line, from the tree of commands.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// Every command that is shown, with its options, as Markdown.
pub(super) fn markdown(programs: Vec<Command>) -> String {
    let mut page = "| command | purpose |\n|---|---|\n".to_owned();
    for command in programs.iter().take(1).flat_map(shown) {
        let _ = writeln!(page, "| `{}` | {} |", command.get_name(), about(command));
    }
    page.push('\n');
    for mut program in programs {
        program.build();
        write_command(&mut page, program.get_name(), &program);
    }
    page
}

/// The commands below this one that are shown.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    escaped(about.trim_end_matches('.'))
}

fn write_command(page: &mut String, name: &str, command: &Command) {
    let _ = writeln!(page, "### {name}\n\n{}.\n", about(command));

    let options: Vec<_> = command.get_arguments().filter(|it| is_shown(it)).collect();
    if !options.is_empty() {
        page.push_str("| option | default | is |\n|---|---|---|\n");
    }
    for option in &options {
        let default =
            option.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
        let default = match default.collect::<Vec<_>>().join(" ") {
            none if none.is_empty() && option.is_required_set() => "needed".to_owned(),
            none if none.is_empty() => "–".to_owned(),
            some => some,
        };
        let _ =
            writeln!(page, "| `{}` | {default} | {} |", usage(option).replace('|', "\\|"), meaning(option));
    }
    if !options.is_empty() {
        page.push('\n');
    }

    for below in shown(command) {
        write_command(page, &format!("{name} {}", below.get_name()), below);
    }
}

fn is_shown(option: &Arg) -> bool {
    !option.is_hide_set() && !["help", "version"].contains(&option.get_id().as_str())
}

fn usage(option: &Arg) -> String {
    let names = option.get_value_names().unwrap_or_default();
    let value = match option.get_action() {
        ArgAction::Set | ArgAction::Append => {
            names.iter().map(|it| format!("<{it}>")).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    };
    match (option.get_long(), option.get_short()) {
        (Some(long), _) => format!("--{long} {value}").trim_end().to_owned(),
        (None, Some(short)) => format!("-{short} {value}").trim_end().to_owned(),
        (None, None) => value,
    }
}

/// The help, and the values where they are few.
fn meaning(option: &Arg) -> String {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let takes_value = option.get_action().takes_values();
    let values = option.get_possible_values().into_iter().filter(|value| takes_value && !value.is_hide_set());
    let values: Vec<_> = values.map(|value| format!("`{}`", value.get_name())).collect();
    let values = if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
    format!("{}{values}", escaped(help.trim_end_matches('.')))
}

/// As a cell of a table: one line, without what Markdown would take for a tag or a column.
fn escaped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
