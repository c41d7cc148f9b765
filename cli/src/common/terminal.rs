//! What a command says to the terminal, and how the terminal ends it.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a command that was ended by Ctrl-C: what shells use for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// A result, on stdout. A reader that has gone away is no failure.
pub fn say(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A result on stdout: one JSON object, or words.
pub fn answer(json: bool, result: &impl Serialize, words: impl FnOnce() -> String) -> anyhow::Result<()> {
    Ok(say(&if json { serde_json::to_string_pretty(result)? } else { words() })?)
}

/// Whether a result could not be written because its reader has gone away, which is no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let plain = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let in_csv = error.downcast_ref::<csv::Error>().and_then(|error| match error.kind() {
        csv::ErrorKind::Io(error) => Some(error.kind()),
        _ => None,
    });
    plain.or(in_csv) == Some(io::ErrorKind::BrokenPipe)
}

/// A progress bar of that length; shown only where stderr is a terminal.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A message, on stderr; there is nobody to tell when that fails.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Ends with the first SIGINT or SIGTERM, or when the terminal is closed.
pub fn stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Whether whoever looks wants colours: see <https://no-color.org>; dumb terminals have none.
pub fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}
