//! Power sensors that a BMC has, by Redfish: supplies of a chassis, and a server's draw.
//!
//! One client for each BMC, however many of its sensors are used: BMCs have room for few sessions, and
//! answer one question at a time.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ballast_bmc::BmcError;
use ballast_bmc::redfish::{Redfish, SupplyReading};
use ballast_hw::{Sampled, Sensor, SensorError, SupplySensor};
use ballast_types::{Instant, Supply, SupplyState, Watts};

use crate::config::{BmcAddress, RedfishConfig};
use crate::lock;

/// How long an ending daemon waits for sessions to be ended.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The BMCs that are read. A session ends with the last sensor that uses it; when this is dropped all sessions
/// are ended, and their sensors fail.
#[derive(Debug)]
pub struct Bmcs {
    config: RedfishConfig,
    open: Vec<(BmcAddress, Weak<Bmc>)>,
}

#[derive(Debug)]
struct Bmc(Mutex<State>);

struct State {
    /// `None` at the end.
    client: Option<Redfish>,
    /// What it said of its supplies when it was last asked, and when that was.
    supplies: Option<(Instant, Result<Vec<SupplyReading>, String>)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("supplies", &self.supplies).finish_non_exhaustive()
    }
}

/// One power supply as its BMC tells of it.
#[derive(Debug)]
pub struct RedfishSupply {
    bmc: Arc<Bmc>,
    id: String,
}

/// A server's draw as its BMC tells it. There is no time stamp: only a value that moves is a new one.
#[derive(Debug)]
pub struct RedfishMeter(Arc<Bmc>);

impl Bmcs {
    /// None yet; all are reached as `config` says.
    pub fn new(config: &RedfishConfig) -> Self {
        Self { config: config.clone(), open: vec![] }
    }

    /// The supply `id` of the BMC at `address`; it is asked at the first read.
    pub fn supply(&mut self, address: &BmcAddress, id: &str) -> anyhow::Result<RedfishSupply> {
        Ok(RedfishSupply { bmc: self.bmc(address)?, id: id.to_owned() })
    }

    /// The draw of the server that the BMC at `address` is of; it is asked at the first read.
    pub fn meter(&mut self, address: &BmcAddress) -> anyhow::Result<RedfishMeter> {
        Ok(RedfishMeter(self.bmc(address)?))
    }

    fn bmc(&mut self, address: &BmcAddress) -> anyhow::Result<Arc<Bmc>> {
        self.open.retain(|(_, bmc)| bmc.strong_count() > 0);
        let known = self.open.iter().find(|(open, _)| open == address);
        if let Some(bmc) = known.and_then(|(_, bmc)| bmc.upgrade()) {
            return Ok(bmc);
        }
        let client = Some(self.config.client(address)?);
        let bmc = Arc::new(Bmc(Mutex::new(State { client, supplies: None })));
        self.open.push((address.clone(), Arc::downgrade(&bmc)));
        Ok(bmc)
    }
}

impl Drop for Bmcs {
    fn drop(&mut self) {
        let open = self.open.drain(..).filter_map(|(_, bmc)| bmc.upgrade());
        wait_for_end(
            &open.map(|bmc| thread::spawn(move || drop(bmc.lock().client.take()))).collect::<Vec<_>>(),
        );
    }
}

/// Waits a little for threads that end sessions: a BMC that does not answer must not hold up an end.
pub fn wait_for_end(threads: &[JoinHandle<()>]) {
    let until = std::time::Instant::now() + END_WITHIN;
    while std::time::Instant::now() < until && !threads.iter().all(JoinHandle::is_finished) {
        thread::sleep(Duration::from_millis(20));
    }
}

impl Bmc {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn ask<T>(&mut self, what: impl FnOnce(&mut Redfish) -> Result<T, BmcError>) -> Result<T, String> {
        let client = self.client.as_mut().ok_or("its session was ended")?;
        what(client).map_err(|error| error.to_string())
    }
}

impl Sensor for RedfishMeter {
    fn read(&mut self, _: Instant) -> Result<Sampled, SensorError> {
        let watts = self.0.lock().ask(Redfish::power).map_err(SensorError::Device)?;
        Ok(watts.into())
    }
}

impl SupplySensor for RedfishSupply {
    /// Supplies of one BMC that are asked for at once share its answer.
    fn read(&mut self, now: Instant) -> Result<(Supply, Option<u64>), SensorError> {
        let mut bmc = self.bmc.lock();
        let all = match bmc.supplies.take() {
            Some((at, all)) if at >= now => bmc.supplies.insert((at, all)),
            _ => {
                let all = bmc.ask(Redfish::supplies);
                bmc.supplies.insert((now, all))
            }
        };
        let all = all.1.as_ref().map_err(|why| SensorError::Device(why.clone()))?;
        let Some(supply) = all.iter().find(|supply| supply.id == self.id) else {
            // One that is not listed may have another name, or not be found yet: not "draws nothing".
            let ids: Vec<_> = all.iter().map(|supply| supply.id.as_str()).collect();
            let why = format!("the BMC has no supply {:?}, but {}", self.id, ids.join(", "));
            return Err(SensorError::Device(why));
        };
        Ok((read(supply)?, None))
    }
}

fn read(reading: &SupplyReading) -> Result<Supply, SensorError> {
    let missing = |why: &str| Err(SensorError::Device(why.to_owned()));
    let input = match reading.state {
        SupplyState::Failed if reading.input.is_none() => {
            return missing("it has failed and has no input power: it may carry load all the same");
        }
        SupplyState::Absent => Some(Watts::ZERO),
        SupplyState::Unknown => return missing("its Status does not tell how it is"),
        _ => reading.input,
    };
    Ok(Supply { state: reading.state, input })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use ballast_bmc::redfish::Auth;

    use super::*;

    #[test]
    fn a_session_ends_with_the_last_sensor_that_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        fs::write(&file, "username = \"u\"\npassword = \"p\"\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let (timeout, auth) = (Duration::from_secs(1), Auth::Basic);
        let config = RedfishConfig { credentials_file: Some(file), ca_file: None, timeout, auth };
        let address = |n: u8| BmcAddress { url: format!("https://192.0.2.{n}"), chassis: None, pin: None };
        let mut bmcs = Bmcs::new(&config);

        let one = bmcs.supply(&address(1), "PSU1").unwrap();
        let other = bmcs.supply(&address(1), "PSU2").unwrap();
        assert!(Arc::ptr_eq(&one.bmc, &other.bmc), "one session for both");
        let session = Arc::downgrade(&one.bmc);
        drop((one, other));
        assert_eq!(session.strong_count(), 0);

        drop(bmcs.supply(&address(2), "PSU1").unwrap());
        assert_eq!(bmcs.open.len(), 1, "what has ended is not kept");
    }
}
