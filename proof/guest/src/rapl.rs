//! RAPL's registers behind `recipe/guest_rapl.c`, as hardware plays them: energy counted, limits obeyed.
//! Layout: Intel SDM, volume 3B, section 15.10.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use crate::machine::METER_AT;

/// The registers, by the numbers in `recipe/guest_rapl.c`.
const UNIT: u64 = METER_AT + 0x100;
const PACKAGE_LIMIT: u64 = METER_AT + 0x108;
const PACKAGE_ENERGY: u64 = METER_AT + 0x110;
const PACKAGE_INFO: u64 = METER_AT + 0x118;
const CORE_ENERGY: u64 = METER_AT + 0x128;
const DRAM_ENERGY: u64 = METER_AT + 0x138;

/// Watts are counted in eighths, and energy in 2^-22 J: a counter of 32 bits wraps every 1024 J.
const UNITS: u64 = 3 | 22 << 8 | 0xA << 16;
const PER_WATT: f64 = 8.0;
const PER_JOULE: f64 = (1 << 22) as f64;
/// In a register of limits: the long one's watts and its switch; the short one's lie 32 bits higher.
const LIMIT: u64 = 0x7FFF;
const ENABLED: u64 = 1 << 15;
/// 280 W over the long window and 350 W over the short one, both on.
const FACTORY_LIMITS: u64 = (280 * 8) | ENABLED | 0x6E << 17 | ((350 * 8) | ENABLED | 0x21 << 17) << 32;
/// 300 W by its data sheet, 100 W at least, 400 W at most.
const INFO: u64 = (300 * 8) | (100 * 8) << 16 | (400 * 8) << 32;
/// Close to the first wrap.
const FIRST_JOULES: f64 = 900.0;

/// What no counter sees of the server's draw, in watts.
pub(crate) const REST_W: f64 = 45.0;
/// Memory's part of the draw; cores have half of the package's.
const DRAM: f64 = 0.1;
const CORES: f64 = 0.5;

/// What the packages and memory have used, in joules.
#[derive(Debug)]
pub(crate) struct Rapl {
    package: f64,
    dram: f64,
}

impl Rapl {
    /// Registers as firmware leaves them.
    pub(crate) fn start(ram: &File) -> std::io::Result<Self> {
        for (at, value) in [(UNIT, UNITS), (PACKAGE_LIMIT, FACTORY_LIMITS), (PACKAGE_INFO, INFO)] {
            ram.write_all_at(&value.to_le_bytes(), at)?;
        }
        let rapl = Self { package: FIRST_JOULES, dram: 1.0 };
        rapl.show(ram)?;
        Ok(rapl)
    }

    /// Counts what a server that draws `watts` uses in `dt`.
    pub(crate) fn count(&mut self, ram: &File, watts: f64, dt: Duration) -> std::io::Result<()> {
        self.package += (watts * (1.0 - DRAM) - REST_W) * dt.as_secs_f64();
        self.dram += watts * DRAM * dt.as_secs_f64();
        self.show(ram)
    }

    fn show(&self, ram: &File) -> std::io::Result<()> {
        let counters =
            [(PACKAGE_ENERGY, self.package), (CORE_ENERGY, self.package * CORES), (DRAM_ENERGY, self.dram)];
        for (at, joules) in counters {
            let wrapped = (joules * PER_JOULE) as u64 & u64::from(u32::MAX);
            ram.write_all_at(&wrapped.to_le_bytes(), at)?;
        }
        Ok(())
    }

    /// The server's draw that the package's limits allow, in watts.
    pub(crate) fn cap_w(ram: &File) -> std::io::Result<f64> {
        let mut bytes = [0; 8];
        ram.read_exact_at(&mut bytes, PACKAGE_LIMIT)?;
        let limits = u64::from_le_bytes(bytes);
        let on = [limits, limits >> 32].into_iter().filter(|limit| limit & ENABLED != 0);
        let package = on.map(|limit| (limit & LIMIT) as f64 / PER_WATT).fold(f64::INFINITY, f64::min);
        Ok((package + REST_W) / (1.0 - DRAM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(METER_AT + 0x1000).unwrap();
        file
    }

    fn register(ram: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        ram.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn counters_of_32_bits_wrap_and_add_up_to_what_was_drawn() {
        let ram = ram();
        let mut rapl = Rapl::start(&ram).unwrap();
        let read = |at| register(&ram, at);
        let mut joules = 0.0;
        let mut wraps = 0;
        for _ in 0..100 {
            let before = [PACKAGE_ENERGY, DRAM_ENERGY].map(read);
            rapl.count(&ram, 250.0, Duration::from_millis(500)).unwrap();
            for (at, before) in [PACKAGE_ENERGY, DRAM_ENERGY].into_iter().zip(before) {
                let now = read(at);
                wraps += u32::from(now < before);
                joules += f64::from((now as u32).wrapping_sub(before as u32)) / PER_JOULE;
            }
        }
        assert_eq!(wraps, 10);
        assert!((joules / 50.0 - (250.0 - REST_W)).abs() < 0.01, "{joules}");
    }

    #[test]
    fn the_least_limit_that_is_on_is_obeyed() {
        let ram = ram();
        Rapl::start(&ram).unwrap();
        let allowed = |long: u64, short: u64| {
            ram.write_all_at(&(long | short << 32).to_le_bytes(), PACKAGE_LIMIT).unwrap();
            Rapl::cap_w(&ram).unwrap() * 0.9 - REST_W
        };
        let on = |watts: u64| (watts * 8) | ENABLED;
        assert!((allowed(on(280), on(350)) - 280.0).abs() < 1e-6);
        assert!((allowed(on(280), on(100)) - 100.0).abs() < 1e-6);
        assert!((allowed(280 * 8, on(350)) - 350.0).abs() < 1e-6);
        assert!(allowed(0, 0).is_infinite());
    }
}
