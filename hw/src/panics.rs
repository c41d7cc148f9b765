//! What becomes of a panic on this crate's own threads: the work has failed, the thread goes on, and whoever
//! supervises the process's threads is told.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Takes the thread's name, and why.
type Tell = fn(&str, &str);
static TELL: OnceLock<Tell> = OnceLock::new();

/// From here on panics are told to `tell`.
pub fn tell_panics(tell: Tell) {
    // A second call is a daemon inside a test.
    let _ = TELL.set(tell);
}

pub fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it has panicked: {}", text.unwrap_or("without a word"))
}

/// Does `work` of a thread's; why it has panicked, if it has.
pub(crate) fn caught<T>(thread: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let why = said(panic.as_ref());
        if let Some(tell) = TELL.get() {
            tell(thread, &why);
        }
        why
    })
}
