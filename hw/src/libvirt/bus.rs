//! libvirt by `libvirt-dbus`, which serves it on the system bus.
//!
//! Source: the interfaces org.libvirt.Connect and org.libvirt.Domain of libvirt-dbus 1.4, which was asked about
//! libvirt's test driver.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use zbus::connection::{Builder, Connection};
use zbus::zvariant::{DynamicType, Type};
use zbus::{OwnedObjectPath, fdo};

use super::virsh::{TELLS, one_line};
use super::{Answers, Failure, Pins, Service};
use crate::lists::CpuList;

const SERVICE: &str = "org.libvirt";
const CONNECT: &str = "org.libvirt.Connect";
const DOMAIN: &str = "org.libvirt.Domain";
/// `VIR_DOMAIN_AFFECT_LIVE`: as it runs, not as it is defined.
const LIVE: u32 = 1;
/// No kernel knows more.
const CPUS_MAX: usize = 8192;
/// How often one who waits looks whether it is over.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether CPU `n` is one of them stands at `n`.
pub(super) type CpuMap = Vec<bool>;

pub(super) struct Bus {
    connection: Connection,
    /// The object that stands for the URI.
    connect: &'static str,
    /// How long one domain may take, so that the others are asked as well.
    patience: Duration,
}

impl Bus {
    /// libvirt-dbus, which the bus starts for this; `None` where it is not there, reaches no libvirt (it runs as a
    /// user of its own), or knows no such URI.
    pub(super) fn find(
        socket: &Path,
        uri: &str,
        patience: Duration,
        over: &dyn Fn() -> bool,
    ) -> Option<Self> {
        // Domains are of QEMU's alone: see `unit::domain_of`. The other is libvirt's own double.
        let connect = match uri {
            "qemu:///system" => "/org/libvirt/QEMU",
            "test:///default" => "/org/libvirt/Test",
            _ => return None,
        };
        let address = format!("unix:path={}", socket.display());
        let opened = async {
            let connection = Builder::address(address.as_str()).build().await?;
            let (bus, object) = (Some("org.freedesktop.DBus"), "/org/freedesktop/DBus");
            let started = (SERVICE, 0u32);
            connection.call_method(bus, object, bus, "StartServiceByName", &started).await?;
            // It connects to libvirt with the first question.
            let (service, properties) = (Some(SERVICE), Some("org.freedesktop.DBus.Properties"));
            connection.call_method(service, connect, properties, "Get", &(CONNECT, "LibVersion")).await?;
            Ok(Self { connection, connect, patience })
        };
        wait(opened, &within(patience, over)).ok()
    }

    fn pins(&self, id: u32, over: &dyn Fn() -> bool) -> Result<Pins, Failure> {
        let domain = self.domain(id, over)?;
        let vcpus: Vec<CpuMap> = self.call(&domain, DOMAIN, "GetVcpuPinInfo", &LIVE, over)?;
        let emulator: CpuMap = self.call(&domain, DOMAIN, "GetEmulatorPinInfo", &LIVE, over)?;
        let iothreads: Vec<(u32, CpuMap)> = self.call(&domain, DOMAIN, "GetIOThreadInfo", &LIVE, over)?;

        let unsound = || Failure::new(ErrorKind::InvalidData, &"no such answer", "CPUs for every thread");
        let maps = vcpus.iter().chain([&emulator]).chain(iothreads.iter().map(|(_, map)| map));
        if maps.map(Vec::len).any(|cpus| cpus > CPUS_MAX) {
            return Err(unsound());
        }

        let pins = Pins {
            vcpus: (0..).zip(vcpus.iter().map(list)).collect(),
            emulator: list(&emulator),
            iothreads: iothreads.iter().map(|(n, map)| (*n, list(map))).collect(),
        };
        pins.sound().ok_or_else(unsound)
    }

    /// Gives what libvirt complained of.
    fn pin_one(&self, id: u32, pins: &Pins, over: &dyn Fn() -> bool) -> Result<Vec<String>, Failure> {
        let domain = self.domain(id, over)?;
        let mut complaints = vec![];
        let mut note = |done: Result<(), Failure>| match done {
            Err(why) if why.kind == ErrorKind::TimedOut => Err(why),
            done => {
                complaints.extend(done.err().map(|why| why.why));
                Ok(())
            }
        };

        let emulator = (map(&pins.emulator), LIVE);
        note(self.call(&domain, DOMAIN, "PinEmulator", &emulator, over))?;
        let vcpus = pins.vcpus.iter().map(|pin| ("PinVcpu", pin));
        for (method, (n, cpus)) in vcpus.chain(pins.iothreads.iter().map(|pin| ("PinIOThread", pin))) {
            note(self.call(&domain, DOMAIN, method, &(*n, map(cpus), LIVE), over))?;
        }
        Ok(complaints)
    }

    fn domain(&self, id: u32, over: &dyn Fn() -> bool) -> Result<OwnedObjectPath, Failure> {
        self.call(self.connect, CONNECT, "DomainLookupByID", &id.cast_signed(), over)
    }

    fn call<T: DeserializeOwned + Type>(
        &self,
        object: &str,
        interface: &str,
        method: &str,
        body: &(impl Serialize + DynamicType),
        over: &dyn Fn() -> bool,
    ) -> Result<T, Failure> {
        let reply = async {
            let called = self.connection.call_method(Some(SERVICE), object, Some(interface), method, body);
            called.await?.body().deserialize()
        };
        wait(reply, over)
    }
}

impl Service for Bus {
    fn name(&self) -> &Path {
        Path::new(SERVICE)
    }

    fn read(&self, domains: &[u32], over: &dyn Fn() -> bool) -> Answers {
        let read = |id: &u32, patience| (*id, self.pins(*id, &within(patience, over)));
        // Those that answer at once come first; the others get their time after them.
        let mut answers: Answers = domains.iter().map(|id| read(id, self.patience / 10)).collect();
        let is_late = |id: &&u32| matches!(&answers[*id], Err(why) if why.kind == ErrorKind::TimedOut);
        let late: Vec<_> = domains.iter().filter(is_late).collect();
        answers.extend(late.into_iter().map(|id| read(id, self.patience)));
        answers
    }

    fn pin(&self, goals: &BTreeMap<u32, Pins>, over: &dyn Fn() -> bool) -> Result<String, Failure> {
        let mut complaints = vec![];
        for (id, pins) in goals {
            match self.pin_one(*id, pins, &within(self.patience, over)) {
                Err(why) if over() => return Err(why),
                done => complaints.extend(done.unwrap_or_else(|why| vec![why.why])),
            }
        }
        Ok(one_line(&complaints.join("; ")))
    }
}

/// Whether it is over, or has taken so long from now on.
fn within(patience: Duration, over: &dyn Fn() -> bool) -> impl Fn() -> bool {
    let until = Instant::now() + patience;
    move || over() || Instant::now() >= until
}

/// Waits here while zbus works on a thread of its own; not longer than until it is `over`.
fn wait<T>(future: impl Future<Output = zbus::Result<T>>, over: &dyn Fn() -> bool) -> Result<T, Failure> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if over() {
            return Err(Failure::late());
        }
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done.map_err(|error| failure(&error));
        }
        thread::park_timeout(PAUSE);
    }
}

fn failure(error: &zbus::Error) -> Failure {
    let text = one_line(&error.to_string());
    // The words of libvirt's own VIR_ERR_NO_DOMAIN: libvirt-dbus has one name for all errors.
    if text.contains("Domain not found") {
        return Failure::ended();
    }
    let is_denied =
        matches!(error, zbus::Error::FDO(error) if matches!(**error, fdo::Error::AccessDenied(_)));
    Failure::new(if is_denied { ErrorKind::PermissionDenied } else { ErrorKind::Other }, &text, TELLS)
}

pub(super) fn list(map: &CpuMap) -> String {
    let cpus = (0..).zip(map).filter(|(_, is)| **is).map(|(cpu, _)| cpu);
    cpus.collect::<CpuList>().to_string()
}

/// What is no list is refused by libvirt, as no CPU at all.
pub(super) fn map(list: &str) -> CpuMap {
    let cpus: CpuList = list.parse().unwrap_or_default();
    (0..=cpus.iter().last().unwrap_or_default()).map(|cpu| cpus.contains(cpu)).collect()
}
