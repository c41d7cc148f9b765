//! The log: lines to stderr, which systemd's journal reads.
//!
//! When the journal stalls, a write to stderr blocks. The control thread logs too, and must not wait for
//! that: lines go through a bounded queue to a thread that writes them. Where there is no room a line is
//! dropped and counted, and the next that is written says how many.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;
use std::{env, fs, mem};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

use crate::config::allowed::choice;
use crate::config::reader::Section;
use crate::threads::supervise;

/// How many lines may wait: what a daemon that logs all it can writes in seconds.
const LINES: usize = 1024;
/// How long an ending process waits for its last lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 1 });

/// Lines dropped since the process began.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// How many lines found no room.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Reads `log_level` of a daemon's file.
pub fn read_level(root: &mut Section<'_, '_>) -> Level {
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let names = ["error", "warn", "info", "debug", "trace"];
    let help = "What is logged; `RUST_LOG` in the daemon's environment comes before this key.";
    root.key("log_level", help).or(Level::INFO, choice(names.into_iter().zip(levels)))
}

type SetLevel = Box<dyn Fn(Level) + Send + Sync>;
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Logs so much from here on, unless `RUST_LOG` says how much.
pub fn set_level(level: Level) {
    if let Some(set) = SET_LEVEL.get() {
        set(level);
    }
}

/// Logs to stderr from here on. `RUST_LOG` chooses the level, and `level` where that is not set. With
/// `BALLAST_LOG=json` every line is an object. Keep what it gives until the end: it waits for the last lines.
pub fn start(level: Level) -> Flush {
    let style =
        Style { json: env::var_os("BALLAST_LOG").is_some_and(|it| it == "json"), journal: is_journal() };
    let of_environment = EnvFilter::try_from_default_env().ok();
    let is_settable = of_environment.is_none();
    let filter = of_environment.unwrap_or_else(|| EnvFilter::new(level.as_str()));
    let (filter, handle) = reload::Layer::new(filter);
    let (lines, flush) = queue(io::stderr(), &DROPPED, style);
    let log = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(false).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);

    // Fails only when a logger is there already, as in tests.
    let _ = if style.json {
        registry.with(log.json().flatten_event(true)).try_init()
    } else {
        registry.with(log).try_init()
    };
    if is_settable {
        // Fails only when the process ends.
        let set = move |level: Level| drop(handle.reload(EnvFilter::new(level.as_str())));
        let _ = SET_LEVEL.set(Box::new(set));
    }
    flush
}

#[derive(Clone, Copy, Default)]
struct Style {
    json: bool,
    /// The journal takes a line's priority from what stands before it: sd-daemon(3).
    journal: bool,
}

impl Style {
    /// A line, or several, as they are written.
    fn dress(self, text: Vec<u8>, level: Level) -> Vec<u8> {
        if !self.journal {
            return text;
        }
        let priority: &[u8] = match level {
            Level::ERROR => b"<3>",
            Level::WARN => b"<4>",
            Level::INFO => b"<6>",
            _ => b"<7>",
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        lines.flat_map(|line| priority.iter().chain(line)).copied().collect()
    }

    fn missing(self, count: u64) -> Vec<u8> {
        let what = "log lines dropped, stderr stalled";
        let line = if self.json {
            format!("{{\"level\":\"WARN\",\"message\":\"{what}\",\"count\":{count}}}\n")
        } else {
            format!(" WARN {what} count={count}\n")
        };
        self.dress(line.into_bytes(), Level::WARN)
    }
}

/// Whether stderr goes to the system's journal: then it is what `JOURNAL_STREAM` names.
fn is_journal() -> bool {
    let named = env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|it| named == format!("{}:{}", it.dev(), it.ino()))
}

/// What waits for the last lines when it is dropped.
pub struct Flush {
    lines: SyncSender<LogMessage>,
    done: Receiver<()>,
}

impl Drop for Flush {
    fn drop(&mut self) {
        // With no room there is a stall: nothing is waited for.
        if self.lines.try_send(LogMessage::End).is_ok() {
            let _ = self.done.recv_timeout(FLUSH_WITHIN);
        }
    }
}

enum LogMessage {
    Line(Vec<u8>),
    End,
}

fn queue(to: impl Write + Send + 'static, dropped: &'static AtomicU64, style: Style) -> (LogQueue, Flush) {
    let (lines, inbox) = sync_channel(LINES);
    let (ended, done) = channel();
    let mut writer = LogWriter { to, reported: 0, dropped, style };
    let work = move |(): &mut ()| {
        while let Ok(message) = inbox.recv() {
            match message {
                LogMessage::Line(line) => writer.write(&line),
                LogMessage::End => {
                    writer.write(b"");
                    let _ = ended.send(());
                }
            }
        }
    };
    // Without a thread nothing is logged, and all of it counts as dropped.
    let _ = supervise("log", (), work);
    (LogQueue { lines: lines.clone(), dropped, style }, Flush { lines, done })
}

/// The thread's own. What a panic has kept from being written is lost; the rest goes on.
struct LogWriter<W> {
    to: W,
    /// How many missing lines it has told of.
    reported: u64,
    dropped: &'static AtomicU64,
    style: Style,
}

impl<W: Write> LogWriter<W> {
    fn write(&mut self, line: &[u8]) {
        let missing = self.dropped.load(Ordering::Relaxed);
        // A log that cannot be written has nobody to tell.
        if missing > self.reported {
            let _ = self.to.write_all(&self.style.missing(missing - self.reported));
            self.reported = missing;
        }
        let _ = self.to.write_all(line);
    }
}

/// Where lines are left.
#[derive(Clone)]
struct LogQueue {
    lines: SyncSender<LogMessage>,
    dropped: &'static AtomicU64,
    style: Style,
}

/// One line; it is left when it is dropped.
struct LogLine {
    text: Vec<u8>,
    level: Level,
    to: LogQueue,
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { text: vec![], level: Level::INFO, to: self.clone() }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LogLine {
        LogLine { text: vec![], level: *meta.level(), to: self.clone() }
    }
}

impl Write for LogLine {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let text = self.to.style.dress(mem::take(&mut self.text), self.level);
        if !text.is_empty() && self.to.lines.try_send(LogMessage::Line(text)).is_err() {
            self.to.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex, MutexGuard};
    use std::thread;

    use super::*;
    use crate::{clock, lock};

    /// A journal that stalls while somebody holds its listener.
    #[derive(Clone, Default)]
    struct Journal {
        listener: Arc<Mutex<()>>,
        text: Arc<Mutex<String>>,
        /// Whether a write has begun.
        is_written: Arc<AtomicBool>,
    }

    impl Journal {
        fn stall(&self) -> MutexGuard<'_, ()> {
            lock(&self.listener)
        }
        fn text(&self) -> String {
            lock(&self.text).clone()
        }
    }

    impl Write for Journal {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.is_written.store(true, Ordering::Relaxed);
            let _open = lock(&self.listener);
            lock(&self.text).push_str(&String::from_utf8_lossy(text));
            Ok(text.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(lines: &LogQueue, n: usize) {
        let mut line = lines.make_writer();
        writeln!(line, "line {n}").unwrap();
    }

    #[test]
    fn a_stalled_journal_holds_nobody_up_and_what_is_lost_is_told() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let journal = Journal::default();
        let (lines, flush) = queue(journal.clone(), &DROPPED, Style::default());
        let stalled = journal.stall();

        // The writer holds the first line before others are lost: otherwise it may report them in two parts.
        log(&lines, 0);
        while !journal.is_written.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        // Would never return, were a line waited for: the listener is ours.
        for n in 1..LINES + 100 {
            log(&lines, n);
        }
        let lost = DROPPED.load(Ordering::Relaxed);

        // The writer may hold one.
        assert!(lost == 100 || lost == 99, "{lost}");
        drop(stalled);

        // There is room again.
        while !journal.text().contains("line 9\n") {
            thread::yield_now();
        }
        log(&lines, 7777);
        drop(flush);
        let text = journal.text();
        assert!(text.contains(&format!("count={lost}")), "{text}");
        assert!(text.contains("line 0\n") && text.ends_with("line 7777\n"), "{text}");
        assert_eq!(text.matches("line ").count(), LINES + 100 - lost as usize + 1);
    }

    #[test]
    fn the_journal_gets_every_lines_priority_and_json_stays_json() {
        let journal = Style { journal: true, json: false };
        let two = b"one\ntwo\n".to_vec();
        for (level, text) in [(Level::ERROR, "<3>one\n<3>two\n"), (Level::DEBUG, "<7>one\n<7>two\n")] {
            assert_eq!(String::from_utf8(journal.dress(two.clone(), level)).unwrap(), text);
        }
        assert_eq!(Style::default().dress(two.clone(), Level::WARN), two);
        assert_eq!(journal.missing(3), b"<4> WARN log lines dropped, stderr stalled count=3\n");
        let json = Style { json: true, journal: false }.missing(3);
        let said: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert!(said["count"] == 3 && json.ends_with(b"\n"), "{said}");
    }

    #[test]
    fn after_a_panic_the_log_goes_on() {
        /// What is to be written must not be this.
        struct Fragile(Journal);
        impl Write for Fragile {
            fn write(&mut self, text: &[u8]) -> io::Result<usize> {
                assert!(text != b"line 1\n", "it breaks");
                self.0.write(text)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let journal = Journal::default();
        let (lines, flush) = queue(Fragile(journal.clone()), &DROPPED, Style::default());
        for n in 0..3 {
            log(&lines, n);
        }
        let began = clock::now();
        while !journal.text().contains("line 2") && clock::since(began) < Duration::from_secs(60) {
            thread::yield_now();
        }
        drop(flush);
        assert_eq!(journal.text(), "line 0\nline 2\n");
        let ended = crate::threads::ended();
        assert!(ended.iter().any(|(name, count)| name == "log" && *count > 0), "{ended:?}");
    }

    #[test]
    fn an_end_waits_for_the_last_line_but_not_for_ever() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let journal = Journal::default();
        let (lines, flush) = queue(journal.clone(), &DROPPED, Style::default());
        log(&lines, 1);
        drop(flush);
        assert_eq!(journal.text(), "line 1\n");
        let (lines, flush) = queue(journal.clone(), &DROPPED, Style::default());
        let _stalled = journal.stall();
        log(&lines, 2);
        drop(flush);
    }
}
