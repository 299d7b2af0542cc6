//! Resources, their change log, blobs and the delivery tables, in one SQLite file.
//!
//! One counter row orders all writes; one write combiner owns the only writing connection. Everything that must be
//! atomic goes through it: resource writes in batches, and closures by [`Store::transact`].
//!
//! ```text
//!  write() ─┐                    ┌─ resources, counter, changes   (one transaction, synchronous=FULL)
//!  write() ─┼─ combiner ─ batch ─┤
//! transact()┘                    └─ after commit: answer, then the ring ── watch()
//! ```

mod resource;

pub use resource::{
    Change, Key, Kind, LabelRequirement, ListQuery, Operation, Page, Resource, Selector, WatchEvent, Write,
};
