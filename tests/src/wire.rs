//! Messages between daemons, and what the command line reads of them.

use axum::body::Bytes;
use ballast_runtime::http::{self, Refused};
use ballast_types::wire::{
    AgentStatus, Alert, BudgetAnswer, BudgetRequest, ChassisStatus, ErrorBody, Event, PlaceStatus,
    PowerReading, Refusal, Report, VmSpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::says_something;

/// A body, read as every message there is.
pub fn wire(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);

    message::<Alert>(&body);
    message::<Report>(&body);
    message::<Refusal>(&body);
    message::<ErrorBody>(&body);
    message::<BudgetRequest>(&body);
    message::<BudgetAnswer>(&body);
    message::<PowerReading>(&body);
    message::<Event>(&body);
    message::<AgentStatus>(&body);
    message::<ChassisStatus>(&body);
    message::<PlaceStatus>(&body);
    if let Some(spec) = message::<VmSpec>(&body)
        && let Err(why) = spec.check()
    {
        says_something(why);
    }
}

/// What the daemons' own check makes of a body. A message that is written again reads the same.
fn message<T: Serialize + DeserializeOwned>(body: &Bytes) -> Option<T> {
    let message = match http::json::<T>(body) {
        Ok(message) => message,
        Err(Refused(status, why)) => {
            assert!(status == 400 && why.len() > "body is not valid: ".len(), "{status}: {why}");
            return None;
        }
    };

    let text = serde_json::to_string(&message).expect("a message is JSON");
    let again: T = serde_json::from_str(&text).expect("what is written is read");
    assert_eq!(serde_json::to_string(&again).expect("a message is JSON"), text);
    Some(message)
}
