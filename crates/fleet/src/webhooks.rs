//! Webhooks: what a Git host's delivery says has moved, and what is learnt from deliveries that come or don't.
//!
//! All of it decides when a source is asked, and nothing else: what a source then has, its remote says.

pub mod announcements;
pub mod hint;
