//! VMs' bandwidth. It is limited on a thread of its own, because systemd takes its time.
//!
//! ```text
//!   control ── order ──▶ worker ──▶ bandwidth ◀── VMs that come and go, looks at what others write
//!    ▲ └── alarms ◀──── copy ◀──────┘
//!    └───── Applied ──────┘
//! ```
//! The control thread never takes the lock that is held while systemd answers.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;

use ballast_agent_core::{ActuatorError, Input};
use ballast_hw::Bandwidth;
use ballast_types::wire::Alarm;
use ballast_types::{ActionId, VmId};

use super::message::Message;
use super::refused::refused;
use ballast_runtime::lock;
use ballast_runtime::threads::supervise;

/// The bandwidth of every VM, for all who have to do with it.
pub(super) struct Quotas {
    bandwidth: Mutex<Bandwidth>,
    alarms: Mutex<Vec<Alarm>>,
}

impl Quotas {
    pub(super) fn new(bandwidth: Bandwidth) -> Arc<Self> {
        let alarms = Mutex::new(bandwidth.alarms());
        Arc::new(Self { bandwidth: Mutex::new(bandwidth), alarms })
    }

    /// Does something with it; may wait for systemd.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Bandwidth) -> T) -> T {
        self.act(&mut lock(&self.bandwidth), act)
    }

    /// The same, unless somebody waits for systemd with it: then nothing is done.
    pub(super) fn try_with<T>(&self, act: impl FnOnce(&mut Bandwidth) -> T) -> Option<T> {
        let mut bandwidth = match self.bandwidth.try_lock() {
            Ok(bandwidth) => bandwidth,
            Err(TryLockError::Poisoned(panicked)) => panicked.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.act(&mut bandwidth, act))
    }

    fn act<T>(&self, bandwidth: &mut Bandwidth, act: impl FnOnce(&mut Bandwidth) -> T) -> T {
        let done = act(bandwidth);
        *lock(&self.alarms) = bandwidth.alarms();
        done
    }

    /// One for every VM whose limit somebody else has changed; waits for nobody.
    pub(super) fn alarms(&self) -> Vec<Alarm> {
        lock(&self.alarms).clone()
    }
}

/// A quota in thousandths of a core, or its end.
type Order = (ActionId, VmId, Option<u32>);

/// The thread that sets quotas.
pub(super) struct Worker {
    quotas: Arc<Quotas>,
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts it; it ends when dropped, or when the control thread has ended.
    pub(super) fn start(quotas: Arc<Quotas>, messages: Sender<Message>) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let of_thread = Arc::clone(&quotas);
        let thread = supervise("quotas", VecDeque::new(), move |due| {
            while let Some((id, vm, millicores)) = next(&inbox, due) {
                let done = of_thread.with(|bandwidth| match millicores {
                    Some(millicores) => bandwidth.set(&vm, millicores),
                    None => bandwidth.release(&vm),
                });
                let result = done.map_err(|error| refused(&error));
                if messages.send(Message::Input(Input::Applied { id, result })).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { quotas, orders, thread })
    }

    /// Orders a VM's quota, or its end. Answered by [`Input::Applied`], unless a later order for that VM
    /// takes its place.
    pub(super) fn order(&self, id: ActionId, vm: VmId, millicores: Option<u32>) -> Result<(), ActuatorError> {
        self.orders.send((id, vm, millicores)).map_err(|_| ActuatorError::Permanent)
    }

    pub(super) fn alarms(&self) -> Vec<Alarm> {
        self.quotas.alarms()
    }

    /// Ends it, whatever is still ordered, and puts back what every VM had; names what could not be.
    pub(super) fn put_back(self) -> Vec<String> {
        drop(self.orders);
        let panicked = self.thread.join().is_err().then(|| "the quotas' thread has panicked".into());
        let failed = self.quotas.with(Bandwidth::release_all);
        panicked.into_iter().chain(failed.iter().map(ToString::to_string)).collect()
    }
}

/// The next order, of each VM the newest, in the turn of its oldest; `None` once nobody orders any more:
/// then what is left is not wanted either.
fn next(inbox: &Receiver<Order>, due: &mut VecDeque<Order>) -> Option<Order> {
    if due.is_empty() {
        due.push_back(inbox.recv().ok()?);
    }
    loop {
        match inbox.try_recv() {
            Ok(order) => match due.iter_mut().find(|it| it.1 == order.1) {
                // Nobody waits for the answer to the older one.
                Some(older) => *older = order,
                None => due.push_back(order),
            },
            Err(TryRecvError::Empty) => return due.pop_front(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::Duration;

    use ballast_hw::Root;

    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    fn vm(name: &str) -> VmId {
        VmId::new(name).unwrap()
    }
    /// A server with these VMs, each in a group of its own name.
    fn server(vms: &[&str]) -> (tempfile::TempDir, Bandwidth) {
        let folder = tempfile::tempdir().unwrap();
        let mut bandwidth = Bandwidth::new(&Root::at(folder.path()), Duration::from_millis(20));
        for name in vms {
            let dir = folder.path().join("sys/fs/cgroup").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cpu.max"), "max 100000\n").unwrap();
            bandwidth.know(&vm(name), name, 4).unwrap();
        }
        (folder, bandwidth)
    }
    fn quota(folder: &tempfile::TempDir, name: &str) -> String {
        let file = folder.path().join("sys/fs/cgroup").join(name).join("cpu.max");
        fs::read_to_string(file).unwrap().trim().to_owned()
    }
    fn answer(inbox: &Receiver<Message>) -> (u64, Result<(), ActuatorError>) {
        match inbox.recv_timeout(WAIT).unwrap() {
            Message::Input(Input::Applied { id, result }) => (id.0, result),
            _ => panic!("no answer"),
        }
    }

    #[test]
    fn the_newest_order_of_each_vm_counts_in_the_turn_of_its_first() {
        let (orders, inbox) = mpsc::channel();
        let mut due = VecDeque::new();
        for (id, name, quota) in
            [(1, "a", Some(4000)), (2, "b", Some(3000)), (3, "a", Some(2000)), (4, "c", None)]
        {
            orders.send((ActionId(id), vm(name), quota)).unwrap();
        }
        assert_eq!(next(&inbox, &mut due), Some((ActionId(3), vm("a"), Some(2000))));
        orders.send((ActionId(5), vm("b"), None)).unwrap();
        assert_eq!(next(&inbox, &mut due), Some((ActionId(5), vm("b"), None)));
        drop(orders);
        assert_eq!(next(&inbox, &mut due), None, "at an end nothing more is set");
    }

    #[test]
    fn orders_are_obeyed_and_all_is_put_back() {
        let (folder, bandwidth) = server(&["a", "b"]);
        let (messages, inbox) = mpsc::channel();
        let worker = Worker::start(Quotas::new(bandwidth), messages).unwrap();
        worker.order(ActionId(1), vm("a"), Some(2000)).unwrap();
        assert_eq!(answer(&inbox), (1, Ok(())));
        assert_eq!(quota(&folder, "a"), "40000 20000");
        worker.order(ActionId(2), vm("b"), Some(1000)).unwrap();
        assert_eq!(answer(&inbox), (2, Ok(())));
        worker.order(ActionId(3), vm("a"), None).unwrap();
        assert_eq!(answer(&inbox), (3, Ok(())));
        assert_eq!(["a", "b"].map(|vm| quota(&folder, vm)), ["max 100000", "20000 20000"]);
        assert!(worker.put_back().is_empty());
        assert_eq!(quota(&folder, "b"), "max 100000");
    }

    #[test]
    fn nobody_waits_for_a_lock_that_is_held_while_systemd_answers() {
        let (folder, bandwidth) = server(&["a"]);
        let quotas = Quotas::new(bandwidth);
        let (messages, inbox) = mpsc::channel();
        let worker = Worker::start(Arc::clone(&quotas), messages).unwrap();
        let (held, hold) = (mpsc::channel(), mpsc::channel::<()>());
        let slow = {
            let quotas = Arc::clone(&quotas);
            thread::spawn(move || {
                quotas.with(|_| {
                    held.0.send(()).unwrap();
                    hold.1.recv().unwrap();
                });
            })
        };

        held.1.recv_timeout(WAIT).unwrap();

        // Were one of these to wait, the lock would never be let go.
        worker.order(ActionId(1), vm("a"), Some(2000)).unwrap();
        worker.order(ActionId(2), vm("a"), Some(1000)).unwrap();
        assert!(worker.alarms().is_empty());
        assert!(quotas.try_with(Bandwidth::look).is_none(), "as samples do");
        assert_eq!(quota(&folder, "a"), "max 100000");
        hold.0.send(()).unwrap();
        slow.join().unwrap();
        while answer(&inbox).0 != 2 {}
        assert_eq!(quota(&folder, "a"), "20000 20000");
    }
}
