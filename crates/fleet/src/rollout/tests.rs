use farwater_api::Digest;

use super::*;

/// The change of a name.
pub fn id(name: &str) -> ChangeId {
    let bundle = Digest::of(name);
    ChangeId::of(&Content { template: bundle, bundle, path: "", origin: None, parameters: None })
}
