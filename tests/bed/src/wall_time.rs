//! Tests that need wall time: real daemons, sockets and timers.
//!
//! They stand in one group, whatever test binary they are in. At most `AT_ONCE` of them run at once, and a
//! test that fails is tried once more, alone. The second failure counts. Every second try is a line on stderr
//! and in the file `retried` of the build's folder; `.ci/run` shows that file at its end.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::panic;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Daemons wait most of the time: such a test needs a third of a core, so that two cores carry three of them
/// beside other work.
const AT_ONCE: usize = 3;

/// Between two tries to take a lock.
const LOOK: Duration = Duration::from_millis(10);

/// Makes the functions that it names, which stand beside it, tests of the group.
#[macro_export]
macro_rules! wall_time {
    ($($test:ident),+ $(,)?) => {
        mod wall_time {
            $(#[test]
            fn $test() {
                $crate::wall_time::run(concat!(module_path!(), "::", stringify!($test)), super::$test);
            })+
        }
    };
}

/// Runs one test of the group, and once more if it fails.
/// This panics when both tries fail, or the locks of the group cannot be taken.
pub fn run(name: &str, test: fn()) {
    let folder = build_folder();
    let Err(failure) = first_try(&folder, test) else { return };

    // Past the capture of what a test prints.
    let line = format!("retried: {name}: {}\n", failure.lines().next().unwrap_or_default());
    let _ = io::stderr().write_all(line.as_bytes());
    let list = File::options().create(true).append(true).open(folder.join("retried"));
    let _ = list.and_then(|mut list| list.write_all(line.as_bytes()));

    alone(&folder, test);
}

/// Runs a test beside others; gives the message of its failure.
fn first_try(folder: &Path, test: fn()) -> Result<(), String> {
    let _lock = any_lock(folder);

    panic::catch_unwind(test).map_err(|failure| {
        let text = failure.downcast_ref::<String>().cloned();
        text.or_else(|| failure.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

/// Runs a test while no other of the group runs.
fn alone(folder: &Path, test: fn()) {
    // Always in the same order, so that no two second tries wait for each other.
    let locks: Vec<_> = (0..AT_ONCE).map(|n| lock_file(folder, n)).collect();
    for lock in &locks {
        lock.lock().expect("a test of the group can lock it");
    }
    test();
}

/// Waits for whichever lock is free first.
fn any_lock(folder: &Path) -> File {
    loop {
        for n in 0..AT_ONCE {
            let file = lock_file(folder, n);
            match file.try_lock() {
                Ok(()) => return file,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => panic!("cannot lock the group of tests: {error}"),
            }
        }
        thread::sleep(LOOK);
    }
}

fn lock_file(folder: &Path, n: usize) -> File {
    File::create(folder.join(format!("wall-time.{n}.lock"))).expect("a file in the build's folder")
}

/// The folder of the build that the running test belongs to: the test binary lies in its `deps`.
pub(crate) fn build_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a file");
    program.ancestors().nth(2).expect("a test binary lies in a folder of the build").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_first_failure_is_told_and_a_second_one_fails() {
        static TRIES: AtomicU32 = AtomicU32::new(0);
        let fails_once = || assert!(TRIES.fetch_add(1, Ordering::Relaxed) > 0, "the first try fails");
        let folder = tempfile::tempdir().unwrap();

        assert_eq!(first_try(folder.path(), fails_once), Err("the first try fails".to_owned()));
        alone(folder.path(), fails_once);
        assert_eq!(TRIES.load(Ordering::Relaxed), 2);
        assert!(panic::catch_unwind(|| alone(Path::new("/nonexistent"), || {})).is_err());
    }

    #[test]
    fn a_second_try_waits_for_the_others() {
        static RUNNING: AtomicU32 = AtomicU32::new(0);
        static SEEN: AtomicU32 = AtomicU32::new(9);
        let folder = tempfile::tempdir().unwrap();
        let lock = any_lock(folder.path());
        RUNNING.store(1, Ordering::SeqCst);

        thread::scope(|scope| {
            scope.spawn(|| {
                alone(folder.path(), || SEEN.store(RUNNING.load(Ordering::SeqCst), Ordering::SeqCst));
            });
            thread::sleep(5 * LOOK);
            RUNNING.store(0, Ordering::SeqCst);
            drop(lock);
        });

        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    }
}
