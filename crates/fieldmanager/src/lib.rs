//! Field management: the owners of an object's fields, and the result of an apply.
//!
//! ```text
//!  schema ── Type ─┬─ validate ── the value fits its type
//!                  ├─ to_set ──── the fields that a value mentions
//!                  ├─ compare ─── removed, modified, added
//!                  ├─ merge ───── a configuration over an object
//!                  └─ remove ──── an object without some fields
//!  managedFields ── Managers ── FieldManager { update, apply }
//! ```
//!
//! The rules are those of `sigs.k8s.io/structured-merge-diff/v6` and `k8s.io/apimachinery/pkg/util/managedfields`, with
//! one served version per kind. Pure: the time is an argument.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compare;
mod field_manager;
mod fields_v1;
mod last_applied;
mod managers;
mod merge;
mod path;
mod remove;
mod schema;
mod set;
mod typed;
mod updater;
mod value;

pub use compare::{Comparison, compare};
pub use field_manager::{Applied, ApplyError, FieldManager};
pub use fields_v1::FieldsError;
pub use managers::{ManagedFieldsError, Manager, Managers, Operation, Owned};
pub use merge::merge;
pub use path::{Element, Path};
pub use remove::remove;
pub use schema::Type;
pub use set::Set;
pub use typed::{Duplicates, Mismatches, to_set, validate};
pub use updater::{Conflict, Conflicts};

#[cfg(test)]
mod tests;
