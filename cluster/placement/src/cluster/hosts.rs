//! Hosts that come, go, and are otherwise than before: each costs what that host has.

use super::{Cluster, Host, HostRecord, HostState};
use crate::units::Totals;
use crate::{HostId, PlacementError, Resources};

impl Cluster {
    /// A new host; who is there is told afterwards.
    pub(crate) fn add_host(&mut self, host: &Host, state: HostState) -> HostId {
        let id = self.vacant.pop().unwrap_or(HostId(self.hosts.len() as u32));
        let record = HostRecord {
            host: *host,
            state,
            present: true,
            taken: Totals::default(),
            free: host.room,
            vms: Vec::new(),
            held: 0,
        };

        match self.hosts.get_mut(id.0 as usize) {
            Some(old) => *old = record,
            None => self.hosts.push(record),
        }
        self.balance.set_host(id, Some(host));
        self.count(id, true);

        id
    }

    /// Forgets an empty host; says what it was.
    pub(crate) fn remove_host(&mut self, id: HostId) -> Result<Host, PlacementError> {
        self.check(id)?;
        let guests = self.record(id).guests();
        if guests > 0 {
            return Err(PlacementError::NotEmpty { host: id, guests });
        }

        self.count(id, false);
        self.balance.set_host(id, None);
        let record = self.record_mut(id);
        (record.present, record.free) = (false, Resources::ZERO);
        let before = record.host;
        self.vacant.push(id);

        Ok(before)
    }

    /// A host is otherwise than before, with the VMs that it has; says what it was.
    pub(crate) fn change_host(&mut self, id: HostId, after: &Host) -> Result<Host, PlacementError> {
        self.check(id)?;

        self.count(id, false);
        let record = self.record_mut(id);
        let before = core::mem::replace(&mut record.host, *after);
        record.free = after.room.less(record.taken);
        self.balance.set_host(id, Some(after));
        self.count(id, true);

        Ok(before)
    }

    /// Says whether VMs may come to a host.
    pub(crate) fn set_state(&mut self, host: HostId, state: HostState) -> Result<(), PlacementError> {
        self.check(host)?;
        self.count_open(host, false);
        self.record_mut(host).state = state;
        self.count_open(host, true);
        Ok(())
    }

    /// A host, as it is now, counts in the sums over all hosts; or no more.
    fn count(&mut self, id: HostId, counts: bool) {
        let record = self.record(id);
        let (room, is_used) = (record.host.room, record.guests() > 0);
        let size = self.sizes.iter().position(|(size, _)| *size == room);

        if counts {
            self.room += room;
            match size {
                Some(size) => self.sizes[size].1 += 1,
                None => self.sizes.push((room, 1)),
            }
        } else {
            self.room -= room;
            if let Some(size) = size {
                self.sizes[size].1 -= 1;
                self.sizes.retain(|(_, hosts)| *hosts > 0);
            }
        }
        if is_used {
            self.count_used(room, counts);
        }
        self.count_open(id, counts);
    }

    pub(super) fn count_used(&mut self, room: Resources, counts: bool) {
        if counts {
            self.used_hosts += 1;
            self.used_room += room;
        } else {
            self.used_hosts -= 1;
            self.used_room -= room;
        }
    }

    fn count_open(&mut self, id: HostId, counts: bool) {
        let record = self.record(id);
        if !record.is_open() {
            return;
        }

        let (free, domain) = (record.free, record.host.domain.0 as usize);
        if self.domains.len() <= domain {
            self.domains.resize(domain + 1, 0);
        }
        if counts {
            self.open += free;
            self.domains[domain] += 1;
        } else {
            self.open -= free;
            self.domains[domain] -= 1;
        }
    }
}
