//! systemd's manager over D-Bus: properties of units that are running.
//!
//! systemd is the single writer of the cgroups that it has made: what somebody else writes there is undone
//! by its next change of the unit or `daemon-reload`. So it is told, with `SetUnitProperties`; as runtime
//! properties, which end with the boot. On a machine that was not booted by systemd there is none.
//!
//! Everything is done on one thread of its own, and whoever asks waits no longer than [`DEADLINE`]. What he
//! does not wait for any more is not done any more.
//!
//! Source: org.freedesktop.systemd1(5); systemd's `CGROUP_DELEGATION.md`.

pub(crate) mod owner;
#[cfg(test)]
pub(crate) mod testing;
pub mod unit;

use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use zbus::connection::{Builder, Connection};
use zbus::{OwnedObjectPath, OwnedVariant, Variant, fdo};

use crate::Root;
use crate::cgroup::CpuMax;
use crate::error::{HwError, Operation};
use crate::lists::CpuList;
use crate::panics;

/// How long a call may take: the manager answers within milliseconds, unless it reloads.
pub const DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 1 });
/// The socket of the system bus, below the root.
pub(crate) const BUS: &str = "run/dbus/system_bus_socket";
const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const OBJECT: &str = "/org/freedesktop/systemd1";
const NO_BUS: &str = "a system bus at /run/dbus/system_bus_socket, and an answer of systemd's in time";
const RUNS: &str = "a unit of a running systemd (version 244 or newer)";
/// No limit, and the default period: `CGROUP_LIMIT_MAX`, `USEC_INFINITY`.
const INFINITY: u64 = u64::MAX;
/// The period of `cpu.max` that systemd takes when it is not told one.
const DEFAULT_PERIOD_US: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// Its cgroup, relative to the root; empty while it does not run.
    pub cgroup: String,
    /// `AllowedCPUs`: empty when it has none of its own.
    pub allowed: CpuList,
}

#[derive(Clone, Debug)]
enum Property {
    AllowedCpus(CpuList),
    Number(&'static str, u64),
}

enum Call {
    Get,
    Set(Vec<Property>),
}

struct Request {
    unit: String,
    call: Call,
    until: Instant,
    answer: SyncSender<Result<Option<UnitState>, HwError>>,
}

/// When nobody is waited for any more. At an end everything that is put back by others shares one span of
/// time, however many VMs there are: what does not come back in it is for the next life. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ShutdownDeadline(Arc<OnceLock<Instant>>);

impl ShutdownDeadline {
    /// From now on there is so much time left. A second call changes nothing.
    pub fn set(&self, within: Duration) {
        self.0.get_or_init(|| Instant::now() + within);
    }

    /// Whether the end has begun.
    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// How long to wait for something that may take up to `usual`.
    pub(crate) fn left(&self, usual: Duration) -> Duration {
        let left = |end: &Instant| end.saturating_duration_since(Instant::now()).min(usual);
        self.0.get().map_or(usual, left)
    }
}

/// The manager of this machine. Clones share a thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Systemd {
    requests: Sender<Request>,
    deadline: Duration,
    shutdown_deadline: ShutdownDeadline,
}

impl Systemd {
    /// Whether the machine was booted by systemd: `sd_booted(3)`.
    pub fn is_booted(root: &Root) -> bool {
        root.path("run/systemd/system").is_dir()
    }

    /// Starts the thread; the connection is made when it is first needed, and anew after it was lost.
    pub fn start(root: &Root) -> Result<Self, HwError> {
        Self::until(root, ShutdownDeadline::default())
    }

    /// The same; after the shutdown deadline nobody is waited for.
    pub fn until(root: &Root, shutdown_deadline: ShutdownDeadline) -> Result<Self, HwError> {
        Self::with_deadline(root, DEADLINE, shutdown_deadline)
    }

    fn with_deadline(root: &Root, deadline: Duration, shutdown: ShutdownDeadline) -> Result<Self, HwError> {
        let (requests, inbox) = mpsc::channel();
        let socket = root.path(BUS);
        let bus = socket.clone();
        thread::Builder::new()
            .name("systemd".into())
            .spawn(move || serve(&inbox, &bus, deadline))
            .map_err(|e| HwError::io(&socket, Operation::Read, "one more thread", e))?;
        Ok(Self { requests, deadline, shutdown_deadline: shutdown })
    }

    /// What a unit is like.
    ///
    /// # Errors
    /// `is_missing` if there is no such unit; a timeout may pass.
    pub fn unit(&self, unit: &str) -> Result<UnitState, HwError> {
        let state = self.ask(unit, Operation::Read, Call::Get)?;
        state.ok_or_else(|| failed(unit, Operation::Read, io::Error::other("no answer"), RUNS))
    }

    /// Sets `AllowedCPUs` until the next boot; an empty list takes it away, and then the kernel goes on with
    /// the CPUs that the unit has.
    ///
    /// # Errors
    /// As [`Systemd::unit`]. What the kernel granted stands in the unit's cgroup.
    pub fn allow_cpus(&self, unit: &str, cpus: &CpuList) -> Result<(), HwError> {
        self.set(unit, vec![Property::AllowedCpus(cpus.clone())])
    }

    /// Sets the unit's `cpu.max` until the next boot, by `CPUQuotaPerSecUSec` and `CPUQuotaPeriodUSec`.
    pub fn limit_cpu(&self, unit: &str, limit: CpuMax) -> Result<(), HwError> {
        let CpuMax { quota_us, period_us } = limit;
        // Rounded up: systemd rounds down on the way back, to the very quota.
        let per_second = |quota: u64| (quota * 1_000_000).div_ceil(period_us);
        let period = if period_us == DEFAULT_PERIOD_US { INFINITY } else { period_us };
        self.set(
            unit,
            vec![
                Property::Number("CPUQuotaPeriodUSec", period),
                Property::Number("CPUQuotaPerSecUSec", quota_us.map_or(INFINITY, per_second)),
            ],
        )
    }

    /// Sets the unit's `MemoryHigh` or `MemoryMax` until the next boot; `u64::MAX` is no limit.
    pub(crate) fn limit_memory(&self, unit: &str, property: &'static str, bytes: u64) -> Result<(), HwError> {
        self.set(unit, vec![Property::Number(property, bytes)])
    }

    fn set(&self, unit: &str, properties: Vec<Property>) -> Result<(), HwError> {
        self.ask(unit, Operation::Write, Call::Set(properties)).map(drop)
    }

    fn ask(&self, unit: &str, operation: Operation, call: Call) -> Result<Option<UnitState>, HwError> {
        let (answer, waiting) = mpsc::sync_channel(1);
        let within = self.shutdown_deadline.left(self.deadline);
        let until = Instant::now() + within;
        // Fails only when the thread has panicked, and then nobody answers either.
        let _ = self.requests.send(Request { unit: unit.to_owned(), call, until, answer });
        waiting.recv_timeout(within).map_err(|_| late(unit, operation))?
    }
}

/// Nobody has answered, or would.
pub(crate) fn late(unit: &str, operation: Operation) -> HwError {
    failed(unit, operation, io::ErrorKind::TimedOut.into(), "an answer of systemd's in time")
}

fn failed(unit: &str, operation: Operation, source: io::Error, allowed: &str) -> HwError {
    HwError::io(&PathBuf::from(SERVICE).join(unit), operation, allowed, source)
}

fn serve(inbox: &Receiver<Request>, socket: &std::path::Path, deadline: Duration) {
    let mut connection = None;
    for Request { unit, call, until, answer } in inbox {
        if Instant::now() >= until {
            continue;
        }
        let address = format!("unix:path={}", socket.display());
        let perform = || zbus::block_on(perform(&mut connection, &address, deadline, &unit, &call));
        // A panic is told to the one who asks, and the connection is made anew: nobody else would be answered.
        let done = panics::caught("systemd", perform);
        let done = done.unwrap_or_else(|why| Err(zbus::Error::Failure(why)));
        let operation = if matches!(call, Call::Get) { Operation::Read } else { Operation::Write };
        let done = done.map_err(|error| {
            let (source, allowed, is_lost) = match &connection {
                Some(_) => explained(&error),
                None => (io::Error::new(io::ErrorKind::NotConnected, error.to_string()), NO_BUS, true),
            };

            if is_lost {
                connection = None;
            }
            failed(&unit, operation, source, allowed)
        });

        // Fails only when nobody waits any more.
        let _ = answer.try_send(done);
    }
}

async fn perform(
    connection: &mut Option<Connection>,
    address: &str,
    deadline: Duration,
    unit: &str,
    call: &Call,
) -> zbus::Result<Option<UnitState>> {
    let bus = match connection {
        Some(bus) if !bus.is_closed() => bus,
        _ => {
            let builder = Builder::address(address).method_timeout(deadline);
            connection.insert(builder.build().await?)
        }
    };

    match call {
        Call::Get => state(bus, unit).await.map(Some),
        Call::Set(properties) => {
            let properties: Vec<_> = properties.iter().map(pair).collect();
            let body = (unit, true, properties);
            bus.call_method(Some(SERVICE), OBJECT, Some(MANAGER), "SetUnitProperties", &body).await?;
            Ok(None)
        }
    }
}

async fn state(bus: &Connection, unit: &str) -> zbus::Result<UnitState> {
    let reply = bus.call_method(Some(SERVICE), OBJECT, Some(MANAGER), "GetUnit", &unit).await?;
    let object: OwnedObjectPath = reply.body().deserialize()?;
    let kind = match unit.rsplit('.').next() {
        Some("slice") => "org.freedesktop.systemd1.Slice",
        Some("scope") => "org.freedesktop.systemd1.Scope",
        _ => "org.freedesktop.systemd1.Service",
    };
    let get = async |name: &str| -> zbus::Result<OwnedVariant> {
        let (object, interface) = (object.clone(), Some("org.freedesktop.DBus.Properties"));
        let reply = bus.call_method(Some(SERVICE), object, interface, "Get", &(kind, name)).await?;
        reply.body().deserialize()
    };
    let cgroup: String = get("ControlGroup").await?.try_into()?;
    let mask: Vec<u8> = get("AllowedCPUs").await?.try_into()?;
    let allowed = CpuList::from_mask(&mask).ok_or(zbus::Error::InvalidReply)?;
    Ok(UnitState { cgroup: cgroup.trim_start_matches('/').to_owned(), allowed })
}

fn pair(property: &Property) -> (&'static str, Variant<'static>) {
    match property {
        Property::AllowedCpus(cpus) => ("AllowedCPUs", Variant::from(cpus.to_mask())),
        Property::Number(name, value) => (name, Variant::from(*value)),
    }
}

/// The kernel's way to say it, what would be right, and whether the connection is of no use any more.
fn explained(error: &zbus::Error) -> (io::Error, &'static str, bool) {
    use io::ErrorKind as Kind;
    let text = error.to_string();
    let (kind, allowed, is_lost) = match error {
        zbus::Error::InputOutput(io) => {
            let is_late = io.kind() == Kind::TimedOut;
            (if is_late { Kind::TimedOut } else { Kind::NotConnected }, NO_BUS, !is_late)
        }
        zbus::Error::MethodError(name, ..) => match name.as_str() {
            "org.freedesktop.systemd1.NoSuchUnit" => (Kind::NotFound, RUNS, false),
            _ => (Kind::Other, RUNS, false),
        },
        zbus::Error::FDO(error) => match &**error {
            fdo::Error::AccessDenied(_) | fdo::Error::InteractiveAuthorizationRequired(_) => {
                let allowed = "leave to manage units: the agent runs as root, or polkit lets it";
                (Kind::PermissionDenied, allowed, false)
            }
            fdo::Error::UnknownProperty(_) | fdo::Error::PropertyReadOnly(_) => {
                (Kind::Unsupported, RUNS, false)
            }
            fdo::Error::NoReply(_) | fdo::Error::TimedOut(_) | fdo::Error::Timeout(_) => {
                (Kind::TimedOut, "an answer in time", false)
            }
            fdo::Error::Disconnected(_) => (Kind::NotConnected, RUNS, true),
            _ => (Kind::Other, RUNS, false),
        },
        _ => (Kind::Other, RUNS, true),
    };

    (io::Error::new(kind, text), allowed, is_lost)
}

#[cfg(test)]
mod tests {
    use super::testing::Mock;
    use super::*;
    use crate::testing::Tree;

    const UNIT: &str = "a.service";

    fn started(tree: &Tree) -> (Mock, Systemd) {
        let mock = Mock::start(tree.root());
        mock.unit("batch.slice/a.service");
        (mock, Systemd::start(tree.root()).unwrap())
    }
    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn properties_arrive_as_systemd_reads_them() {
        let tree = Tree::new();
        let (mock, systemd) = started(&tree);
        let state = systemd.unit(UNIT).unwrap();
        assert_eq!((state.cgroup.as_str(), state.allowed), ("batch.slice/a.service", list("")));
        systemd.allow_cpus(UNIT, &list("1,8-9")).unwrap();
        assert_eq!(mock.get(UNIT).allowed, [2, 3]);
        assert_eq!(systemd.unit(UNIT).unwrap().allowed, list("1,8-9"));
        systemd.allow_cpus(UNIT, &list("")).unwrap();
        assert!(mock.get(UNIT).allowed.is_empty());
    }

    #[test]
    fn every_quota_comes_back_as_it_was_told() {
        let tree = Tree::new();
        let (_mock, systemd) = started(&tree);
        for text in ["10000 20000", "3333 20000", "1000 30000", "2999 7000", "16000 100000", "max 100000"] {
            systemd.limit_cpu(UNIT, text.parse().unwrap()).unwrap();
            let file = "sys/fs/cgroup/batch.slice/a.service/cpu.max";
            assert_eq!(tree.read(file).trim(), text);
        }
    }

    /// What D-Bus says, what the operator reads, whether it may pass, whether the unit is gone.
    #[test]
    fn every_refusal_says_what_to_do() {
        type Error = fn(String) -> fdo::Error;
        let refusals: [(Error, &str, bool); 7] = [
            (fdo::Error::AccessDenied, "runs as root", false),
            (fdo::Error::InteractiveAuthorizationRequired, "polkit", false),
            (fdo::Error::UnknownProperty, "version 244", false),
            (fdo::Error::PropertyReadOnly, "version 244", false),
            (fdo::Error::NoReply, "in time", true),
            (fdo::Error::Timeout, "in time", true),
            (fdo::Error::ServiceUnknown, "running systemd", false),
        ];

        let tree = Tree::new();
        let (mock, systemd) = started(&tree);

        for (error, says, transient) in refusals {
            mock.refuse(Some(error("why".into())));
            let error = systemd.allow_cpus(UNIT, &list("1")).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!((error.is_transient(), error.is_missing()), (transient, false), "{error}");
        }

        mock.refuse(None);
        systemd.allow_cpus(UNIT, &list("1")).unwrap();

        for error in [
            systemd.allow_cpus("other.service", &list("1")).unwrap_err(),
            systemd.unit("other.slice").unwrap_err(),
        ] {
            assert!(error.is_missing() && error.to_string().contains("other."), "{error}");
        }
    }

    #[test]
    fn a_bus_that_is_not_there_is_no_vm_that_has_ended() {
        let tree = Tree::new();
        let systemd = Systemd::start(tree.root()).unwrap();
        let error = systemd.unit(UNIT).unwrap_err();
        assert!(error.to_string().contains("system bus"), "{error}");
        assert!(!error.is_missing());
        // It comes later.
        let mock = Mock::start(tree.root());
        mock.unit("batch.slice/a.service");
        systemd.unit(UNIT).unwrap();
    }

    #[test]
    fn a_connection_that_was_lost_is_made_anew() {
        let tree = Tree::new();
        let (mock, systemd) = started(&tree);
        systemd.unit(UNIT).unwrap();
        mock.hang_up();
        // The first call may still be on the old one.
        let _ = systemd.unit(UNIT);
        systemd.unit(UNIT).unwrap();
    }

    /// It takes connections and says nothing.
    #[test]
    fn after_the_shutdown_deadline_nobody_waits_however_many_units_there_are() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.root().path("run/dbus")).unwrap();
        let socket = tree.root().path("run/dbus/system_bus_socket");
        let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let (shutdown_deadline, hour) = (ShutdownDeadline::default(), Duration::from_secs(3600));
        let systemd = Systemd::with_deadline(tree.root(), hour, shutdown_deadline.clone()).unwrap();
        shutdown_deadline.set(Duration::from_millis(100));
        shutdown_deadline.set(hour);
        let (done, all) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..100 {
                let error = systemd.allow_cpus(UNIT, &list("1")).unwrap_err();
                assert!(error.is_transient() && !error.is_missing(), "{error}");
            }
            done.send(()).unwrap();
        });
        all.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn nobody_waits_longer_than_the_deadline_and_what_is_late_is_not_begun() {
        let tree = Tree::new();
        let mock = Mock::start(tree.root());
        mock.unit("batch.slice/a.service");
        let systemd =
            Systemd::with_deadline(tree.root(), Duration::from_secs(2), ShutdownDeadline::default());

        let systemd = systemd.unwrap();

        // Nobody waits for this one when its turn comes; the next answer comes after it.
        let hurried = Systemd { deadline: Duration::ZERO, ..systemd.clone() };
        let error = hurried.allow_cpus(UNIT, &list("1")).unwrap_err();
        assert!(error.is_transient() && !error.is_missing(), "{error}");
        systemd.unit(UNIT).unwrap();
        assert!(mock.log().is_empty());
        mock.slow(Duration::from_secs(8));
        let began = Instant::now();
        let error = systemd.allow_cpus(UNIT, &list("1")).unwrap_err();
        assert!(error.is_transient() && !error.is_missing(), "{error}");
        assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
        assert!(mock.log().is_empty());
    }
}
