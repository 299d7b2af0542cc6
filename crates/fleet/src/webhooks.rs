//! Webhooks: what moved according to a Git host's delivery, and what can be learned from deliveries that arrive or
//! don't.
//!
//! Deliveries only decide when a source is fetched. What the source contains comes from its remote.

pub mod announcements;
pub mod hint;
