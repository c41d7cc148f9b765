//! The second step of a start: the hardware caps that a previous instance has left on are taken over.

use anyhow::anyhow;
use ballast_chassis_core::Params;
use ballast_types::Instance;

use crate::dry;
use crate::open::Opened;
use crate::out_of_band::OutOfBand;

/// Every server's hardware cap is known, in the ledger too.
pub(crate) struct Adopted<'a> {
    pub(crate) opened: Opened<'a>,
    pub(crate) out_of_band: OutOfBand,
    pub(crate) params: Params,
}

impl<'a> Opened<'a> {
    /// Takes over the hardware caps that a previous instance has left on.
    pub(crate) fn adopt(mut self) -> anyhow::Result<Adopted<'a>> {
        let config = self.config;
        let (state_dir, ledger) = (&config.daemon.state_dir, &mut self.ledger);
        let out_of_band = OutOfBand::open(&config.servers, &config.redfish, &self.root, state_dir)?;
        out_of_band.complete(ledger);
        if config.dry_run {
            dry::leave_caps(ledger);
        }
        let params = dry::params(config);

        Ok(Adopted { opened: self, out_of_band, params: Params { instance: draw_instance()?, ..params } })
    }
}

/// A number for this start alone, above zero. Readers of JSON that hold numbers as floats keep 53 bits.
fn draw_instance() -> anyhow::Result<Instance> {
    let drawn = getrandom::u64().map_err(|error| anyhow!("no random number: {error}"))?;
    Ok(Instance((drawn >> 11).max(1)))
}
