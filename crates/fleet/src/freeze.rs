//! Detects that so many prunes are held, or that a set loses so many clusters, that one fault must be the cause. All
//! deletions of the fleet are then stopped.

use farwater_api::{ADMIN_NAMESPACE, FREEZE_PRUNES};
use jiff::SignedDuration;

use crate::conditions::cut;

/// Services whose prunes are held within this time are counted together.
pub const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Most held services that are normal: one bad commit, or the parallel work of teams. Each of them is held by itself
/// anyway.
pub const FEW_HELD: u64 = 4;
/// Most clusters that one set may lose.
pub const FEW_LOST: u64 = 2;
/// One in this many: 2 %. In a large fleet more than a few prunes are held on any day.
const SHARE: u64 = 50;
/// Most bytes of the annotation's text that every status repeats.
const MAX_SHOWN_BYTES: usize = 160;

/// Whether so many of all services are held that deletions must stop.
pub fn is_flood(held: u64, services: u64) -> bool {
    held > FEW_HELD.max(services / SHARE)
}

/// Whether a set that lost so many clusters within [`WINDOW`] lost them by mistake. `all`: its clusters before.
pub fn is_mass_loss(lost: u64, all: u64) -> bool {
    lost > FEW_LOST.max(all / SHARE)
}

/// Value of the annotation if a set is the reason. It does not name the set, because every tenant reads it.
pub fn describe_loss(lost: u64, all: u64) -> String {
    format!(
        "a ServiceSet has lost {lost} of its {all} clusters within {} minutes",
        WINDOW.as_mins()
    )
}

/// Value of the annotation if the hub sets it for held prunes. It names no service, because every tenant reads it.
pub fn describe(held: u64, services: u64) -> String {
    format!(
        "prunes of {held} of {services} services were held within {} minutes",
        WINDOW.as_mins()
    )
}

/// Why a service's prune waits while the annotation exists.
pub fn explain(annotation: &str) -> String {
    let why = match cut(annotation.trim(), MAX_SHOWN_BYTES) {
        why if why.is_empty() => String::new(),
        why => format!(": {why}"),
    };
    format!("all deletions are paused until an administrator reviews them{why}")
}

/// Advice shown with [`release`], because that affects every service and not only the current one.
pub const LOOK_FIRST: &str = "this pauses the deletions of the whole fleet: look at all that is held before you end it";

/// Arguments of kubectl that allow deletions again.
pub fn release() -> String {
    format!("annotate namespace {ADMIN_NAMESPACE} {FREEZE_PRUNES}-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_held_prunes_are_too_many_and_more_than_two_percent_of_many() {
        for (held, services, expected) in [
            (0, 0, false),
            (3, 5, false),
            (4, 4, false),
            (5, 5, true),
            (5, 249, true),
            (5, 250, false),
            (6, 250, true),
            (20, 1000, false),
            (21, 1000, true),
        ] {
            assert_eq!(is_flood(held, services), expected, "{held} of {services}");
        }
    }

    #[test]
    fn more_than_two_clusters_are_too_many_and_more_than_two_percent_of_many() {
        for (lost, all, expected) in [
            (2, 2, false),
            (3, 3, true),
            (3, 149, true),
            (3, 150, false),
            (4, 150, true),
            (6, 300, false),
            (7, 300, true),
        ] {
            assert_eq!(is_mass_loss(lost, all), expected, "{lost} of {all}");
        }
    }

    #[test]
    fn the_reason_is_told_with_who_ends_it() {
        assert_eq!(
            explain(&describe(4, 9)),
            "all deletions are paused until an administrator reviews them: prunes of 4 of 9 services were held within 10 minutes"
        );
        assert_eq!(
            explain(" "),
            "all deletions are paused until an administrator reviews them"
        );
        assert!(explain(&"x".repeat(1000)).len() < 250);
    }
}
