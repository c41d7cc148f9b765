//! Both bind a thread and those that it starts, so that each test has one of its own to bind.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use super::*;

/// What a bound thread gives, and what could not be made; `None` where the kernel has no Landlock.
#[expect(clippy::print_stderr, reason = "a test that was not run must say so")]
fn bound<T: Send>(needs: &Needs, work: impl FnOnce() -> T + Send) -> Option<(T, Vec<Option<PathBuf>>)> {
    let bound = || {
        let mut elsewhere = vec![];
        let status = bound_files(needs, &mut elsewhere).expect("rules");
        if status == RulesetStatus::NotEnforced {
            eprintln!("NOT RUN: this kernel has no Landlock");
            return None;
        }
        system_calls::bound(needs.commands).expect("a filter");
        Some((work(), elsewhere.into_iter().map(|(_, instead)| instead).collect()))
    };
    thread::scope(|scope| scope.spawn(bound).join().expect("no panic"))
}

fn of(folder: &Path) -> Needs {
    Needs { folders: vec![folder.to_owned()], ..Needs::default() }
}

fn is_refused<T>(result: &std::io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[test]
fn nothing_is_written_outside_and_no_command_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let [own, kernel, other] = ["state", "sys", "other"].map(|name| folder.path().join(name));
    for path in [&kernel, &other] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("there"), "1").unwrap();
    }
    std::os::unix::fs::symlink(&other, kernel.join("link")).unwrap();

    let needs = Needs { kernel: vec![kernel.clone()], ..of(&own) };
    let work = || {
        // Its own folder, which was made; and all that a file in it goes through.
        durable::replace(&own.join("ledger.json"), b"1").unwrap();
        durable::replace(&own.join("ledger.json"), b"2").unwrap();
        fs::create_dir(own.join("usage")).unwrap();
        fs::remove_dir(own.join("usage")).unwrap();
        // What the kernel shows is written, and nothing is made there.
        fs::write(kernel.join("there"), "2").unwrap();
        assert!(is_refused(&fs::write(kernel.join("new"), "2")));

        assert!(is_refused(&fs::write(other.join("there"), "2")));
        assert!(is_refused(&fs::write(kernel.join("link/there"), "2")), "a link leads nowhere");
        assert!(is_refused(&fs::remove_file(other.join("there"))));
        assert!(is_refused(&fs::rename(own.join("ledger.json"), other.join("ledger.json"))));
        assert_eq!(fs::read_to_string(other.join("there")).unwrap(), "1", "reading is not bounded");
        assert!(is_refused(&Command::new("/bin/true").status()));
        assert!(thread::spawn(move || is_refused(&fs::write(other.join("there"), "2"))).join().unwrap());
    };
    let Some(((), elsewhere)) = bound(&needs, work) else { return };
    assert_eq!(elsewhere, []);
}

#[test]
fn what_cannot_be_made_yet_may_be_made_beneath_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("recording");
    fs::write(&in_the_way, "").unwrap();
    let needs = Needs { kernel: vec!["/ballast/nowhere".into()], ..of(&in_the_way) };
    let work = || {
        fs::remove_file(&in_the_way).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        fs::write(in_the_way.join("1.zst"), "").unwrap();
    };
    let Some(((), elsewhere)) = bound(&needs, work) else { return };
    // Never the root: that would be everything.
    assert_eq!(elsewhere, [Some(folder.path().to_owned()), None]);
}

#[test]
fn only_the_ports_and_sockets_of_the_config_are_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("run/ballast.sock"), folder.path().join("other.sock"));
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (own, foreign): (SocketAddr, SocketAddr) = (free(), free());
    let sockets = vec![folder.path().join("run")];
    let needs = Needs { ports: vec![own.port()], sockets, ..Needs::default() };
    let work = || {
        TcpListener::bind(own).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(socket);
        fs::remove_file(&path).unwrap();
        assert!(is_refused(&std::os::unix::net::UnixListener::bind(&other)));
        assert!(is_refused(&fs::write(path.with_file_name("state.json"), "")), "no place for files");
        is_refused(&TcpListener::bind(foreign))
    };
    let Some((is_foreign_refused, _)) = bound(&needs, work) else { return };
    assert!(is_foreign_refused, "a kernel since 6.7");
}

#[test]
fn a_daemon_that_runs_commands_hands_its_bounds_on_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let needs = Needs { commands: true, ..Needs::default() };
    let file = folder.path().join("file");
    let work = || {
        let command = format!("echo x > {}; echo y > /dev/null && echo ran", file.display());
        Command::new("/bin/sh").args(["-c", &command]).output().unwrap()
    };
    let Some((output, _)) = bound(&needs, work) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ran\n");
    assert!(!file.exists(), "{}", String::from_utf8_lossy(&output.stderr));
}
