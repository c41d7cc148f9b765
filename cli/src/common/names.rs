//! Names that files and answers use.

use ballast_types::VmClass;

/// A class as files and answers have it.
pub(crate) fn class_name(class: VmClass) -> &'static str {
    match class {
        VmClass::UserFacing => "user-facing",
        VmClass::NonUserFacing => "non-user-facing",
    }
}
