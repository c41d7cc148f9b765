//! What is read anew: the model's file by a thread that follows it, and on SIGHUP all that can be.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ballast_runtime::reload::Reload;

use crate::api::Api;
use crate::config::PlaceConfig;

/// Between two looks at the model's file.
const LOOK: Duration = Duration::from_secs(1);

/// An order to the thread that follows the model's file.
#[derive(Clone, Copy)]
pub(super) enum ReloadOrder {
    /// Read the file now, whether it has changed or not.
    Reload,
    Stop,
}

/// What follows the configuration: the level of the log. All else needs a restart.
pub(crate) struct ModelAndHosts {
    pub(crate) api: Api,
    /// To the thread that follows the model's file.
    pub(crate) orders: Sender<ReloadOrder>,
}

impl Reload for ModelAndHosts {
    type Config = PlaceConfig;
    const FOLLOWED: &'static [&'static str] = &[];

    /// Whatever the configuration is worth, the model's file, the file of priors and the file of hosts are read.
    fn begins(&mut self) {
        // Fails only when the daemon ends.
        let _ = self.orders.send(ReloadOrder::Reload);
        let api = self.api.clone();
        tokio::spawn(async move {
            api.reload_priors();
            api.reload_hosts().await;
        });
    }

    fn reload(&mut self, old: &PlaceConfig, new: PlaceConfig) -> anyhow::Result<(PlaceConfig, Vec<String>)> {
        Ok((PlaceConfig { log_level: new.log_level, ..old.clone() }, vec![]))
    }
}

/// Looks once a [`LOOK`], and with `true` when ordered to, until ordered to stop.
pub(super) fn run(inbox: &Receiver<ReloadOrder>, mut look: impl FnMut(bool)) {
    loop {
        match inbox.recv_timeout(LOOK) {
            Ok(ReloadOrder::Reload) => look(true),
            Err(RecvTimeoutError::Timeout) => look(false),
            Ok(ReloadOrder::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_looks_when_ordered_and_the_thread_ends_when_ordered() {
        use ReloadOrder::{Reload, Stop};
        let (orders, inbox) = mpsc::channel();
        for order in [Reload, Reload, Stop, Reload] {
            orders.send(order).unwrap();
        }
        let mut looks = vec![];
        run(&inbox, |ordered| looks.push(ordered));
        assert_eq!(looks, [true, true]);
    }
}
