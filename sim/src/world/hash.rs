//! One number for everything that all machines wanted done, and when.

use core::hash::{Hash, Hasher};

use ballast_types::Instant;
use siphasher::sip128::{Hasher128, SipHasher13};

/// A 128-bit fingerprint of a run; the same on every machine, whatever its word size or byte order.
#[derive(Clone, Debug)]
pub struct OutputHash(Portable);

impl Default for OutputHash {
    fn default() -> Self {
        Self(Portable(SipHasher13::new()))
    }
}

impl OutputHash {
    /// Takes in one output of machine number `machine`.
    pub fn add<O: Hash>(&mut self, machine: u32, at: Instant, output: &O) {
        self.0.write_u32(machine);
        self.0.write_u64(at.as_nanos());
        output.hash(&mut self.0);
    }

    /// 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:032x}", self.0.0.finish128().as_u128())
    }
}

/// Writes every integer in one byte order and lengths in 64 bits: `Hash` alone promises neither.
#[derive(Clone, Debug)]
struct Portable(SipHasher13);

macro_rules! fixed {
    ($($name:ident: $from:ty => $to:ty),* $(,)?) => {
        $(fn $name(&mut self, n: $from) {
            self.0.write(&(n as $to).to_le_bytes());
        })*
    };
}

impl Hasher for Portable {
    fn finish(&self) -> u64 {
        self.0.finish()
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }
    fixed! {
        write_u8: u8 => u8, write_u16: u16 => u16, write_u32: u32 => u32, write_u64: u64 => u64,
        write_i8: i8 => i8, write_i16: i16 => i16, write_i32: i32 => i32, write_i64: i64 => i64,
        write_usize: usize => u64, write_isize: isize => i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instant_machine_and_output_all_count() {
        let hex = |machine, ms, output: &str| {
            let mut hash = OutputHash::default();
            hash.add(machine, Instant::from_millis(ms), &output);
            hash.hex()
        };
        assert_eq!(hex(1, 2, "x"), hex(1, 2, "x"));
        assert_ne!(hex(1, 2, "x"), hex(2, 2, "x"));
        assert_ne!(hex(1, 2, "x"), hex(1, 3, "x"));
        assert_ne!(hex(1, 2, "x"), hex(1, 2, "y"));
        assert_eq!(hex(1, 2, "x").len(), 32);
    }
}
