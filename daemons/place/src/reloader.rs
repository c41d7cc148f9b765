//! The thread that follows the model's file.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Between two looks at the model's file.
const LOOK: Duration = Duration::from_secs(1);

/// An order to the thread that follows the model's file.
#[derive(Clone, Copy)]
pub(super) enum ReloadOrder {
    /// Read the file now, whether it has changed or not.
    Reload,
    Stop,
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
