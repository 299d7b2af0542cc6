//! What may stop a change or a deletion: windows, approvals, and the brake of the whole fleet.

pub mod approvals;
pub mod follow_windows;
pub mod freeze_prunes;
