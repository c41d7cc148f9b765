//! A libvirt-dbus for tests, on a real socket below a root. As in `virsh.sh`, the threads of a domain are the groups
//! below its scope.

use std::fs;
use std::future;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use zbus::connection::Builder;
use zbus::{Guid, ObjectServer, OwnedObjectPath, fdo, interface};

use super::bus::{CpuMap, list, map};
use crate::Root;
use crate::systemd::BUS;

/// Runs until the test's process ends.
pub(crate) fn serve(root: &Root) {
    serve_with(root, true);
}

/// It is on the bus, and reaches no libvirt.
pub(crate) fn serve_without_libvirt(root: &Root) {
    serve_with(root, false);
}

fn serve_with(root: &Root, has_libvirt: bool) {
    fs::create_dir_all(root.path("run/dbus")).unwrap();
    let listener = UnixListener::bind(root.path(BUS)).unwrap();
    let root = root.clone();
    thread::spawn(move || {
        let mut connections = vec![];
        for stream in listener.incoming() {
            let builder = Builder::unix_stream(stream.unwrap()).server(Guid::generate()).p2p();
            let mut built = builder.serve_at("/org/freedesktop/DBus", Bus);
            if has_libvirt {
                built = built.serve_at("/org/libvirt/QEMU", Connect { root: root.clone() });
            }
            connections.extend(zbus::block_on(built.build()));
        }
    });
}

struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> String {
        ":1.1".into()
    }
    fn start_service_by_name(&self, name: &str, _flags: u32) -> u32 {
        assert_eq!(name, "org.libvirt");
        1
    }
}

struct Connect {
    root: Root,
}

#[interface(name = "org.libvirt.Connect")]
impl Connect {
    #[zbus(property)]
    fn lib_version(&self) -> u64 {
        9_000_000
    }
    #[zbus(name = "DomainLookupByID")]
    async fn lookup(
        &self,
        id: i32,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> fdo::Result<OwnedObjectPath> {
        let slice = fs::read_dir(self.root.path("sys/fs/cgroup/machine.slice")).unwrap();
        let start = format!(r"machine-qemu\x2d{id}\x2d");
        let mut scopes = slice.map(|entry| entry.unwrap().path());
        let scope = scopes.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&start));
        let ended = || fdo::Error::Failed(format!("Domain not found: no domain with matching id '{id}'"));
        let dir = scope.ok_or_else(ended)?.join("libvirt");

        let path = OwnedObjectPath::try_from(format!("/org/libvirt/QEMU/domain/_{id}")).unwrap();
        let hangs = self.root.path(&format!("virsh.hangs.{id}"));
        server.at(&path, Domain { dir, hangs }).await?;
        Ok(path)
    }
}

struct Domain {
    dir: PathBuf,
    /// While this is there.
    hangs: PathBuf,
}

impl Domain {
    fn file(&self, thread: &str) -> PathBuf {
        self.dir.join(thread).join("cpuset.cpus.effective")
    }
    fn get(&self, thread: &str) -> CpuMap {
        map(fs::read_to_string(self.file(thread)).unwrap().trim())
    }
    fn set(&self, thread: &str, cpus: &CpuMap, flags: u32) {
        assert_eq!(flags, 1, "of the domain that runs");
        fs::write(self.file(thread), list(cpus)).unwrap();
    }
    /// Those of one kind, by their numbers.
    fn all(&self, kind: &str) -> Vec<(u32, CpuMap)> {
        let numbers = (0..100).filter(|n| Path::new(&self.file(&format!("{kind}{n}"))).exists());
        numbers.map(|n| (n, self.get(&format!("{kind}{n}")))).collect()
    }
}

#[interface(name = "org.libvirt.Domain")]
#[allow(clippy::needless_pass_by_value, reason = "what comes over the wire is one's own")]
impl Domain {
    async fn get_vcpu_pin_info(&self, _flags: u32) -> Vec<CpuMap> {
        if self.hangs.exists() {
            future::pending::<()>().await;
        }
        self.all("vcpu").into_iter().map(|(_, cpus)| cpus).collect()
    }
    fn get_emulator_pin_info(&self, _flags: u32) -> CpuMap {
        self.get("emulator")
    }
    #[zbus(name = "GetIOThreadInfo")]
    fn get_iothread_info(&self, _flags: u32) -> Vec<(u32, CpuMap)> {
        self.all("iothread")
    }
    fn pin_vcpu(&self, vcpu: u32, cpus: CpuMap, flags: u32) {
        self.set(&format!("vcpu{vcpu}"), &cpus, flags);
    }
    fn pin_emulator(&self, cpus: CpuMap, flags: u32) {
        self.set("emulator", &cpus, flags);
    }
    #[zbus(name = "PinIOThread")]
    fn pin_iothread(&self, thread: u32, cpus: CpuMap, flags: u32) {
        self.set(&format!("iothread{thread}"), &cpus, flags);
    }
}
