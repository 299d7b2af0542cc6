//! The version that a service would run if nothing held it back.

use super::{Candidate, Decision, Inputs, Why};

/// The version that is held back by a pin, a suspension, a dependency, a rollout or a closed window. None: nothing is
/// held back, or the status gives another reason, e.g. a missing right.
///
/// A pinned version that is not assigned yet takes precedence over a newer one of the source, because it comes next.
pub fn held_version<'a>(inputs: Inputs<'a>, decision: &Decision) -> Option<&'a Candidate> {
    let (runs, waits) = match decision {
        Decision::Assign(candidate) => (Some(&**candidate), false),
        Decision::Keep(why) => {
            let waits = matches!(why, Why::Suspended | Why::Waiting(_) | Why::Rollout | Why::Frozen(_));
            (inputs.assigned, waits)
        }
    };
    let is_other = |candidate: &&Candidate| runs.is_none_or(|runs| !runs.is_same_content(candidate));

    let pinned = inputs.pinned.and_then(Result::ok).filter(|_| waits).filter(is_other);
    let newest = inputs.candidate.ok().filter(|_| waits || inputs.pinned.is_some());
    pinned.or_else(|| newest.filter(is_other))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{candidate, ceiling, denied},
        *,
    };
    use crate::{
        assignment::{Trouble, decide},
        windows::Closed,
    };

    #[test]
    fn a_version_is_held_whatever_holds_it() {
        let (old, new, newest) = (candidate("1", "a"), candidate("2", "b"), candidate("3", "c"));
        let (ceiling, denied) = (ceiling(), denied());
        let closed = Closed {
            by: "ops/holidays".to_owned(),
            reason: String::new(),
            until: None,
        };
        let waits = ["database is failing".to_owned()];
        let base = Inputs {
            suspended: false,
            pinned: None,
            candidate: Ok(&newest),
            waits: &[],
            ceiling: Ok(&ceiling),
            assigned: Some(&new),
            held: false,
            closed: None,
            restated: false,
        };
        let check = |inputs: Inputs<'_>, expected: Option<&Candidate>| {
            assert_eq!(held_version(inputs, &decide(inputs)), expected, "{inputs:?}");
        };
        let pinned = Inputs {
            pinned: Some(Ok(&old)),
            ..base
        };
        check(base, None);
        for (suspended, held, closed, waits) in [
            (true, false, None, &[][..]),
            (false, true, None, &[]),
            (false, false, Some(&closed), &[]),
            (false, false, None, &waits[..]),
        ] {
            let held = Inputs {
                suspended,
                held,
                closed,
                waits,
                ..base
            };
            check(held, Some(&newest));
            check(
                Inputs {
                    candidate: Ok(&new),
                    ..held
                },
                None,
            );
        }

        // Nothing holds the pin, so it holds the newest version back. A window or a suspension holds the pin itself.
        check(pinned, Some(&newest));
        check(
            Inputs {
                assigned: Some(&old),
                ..pinned
            },
            Some(&newest),
        );
        check(
            Inputs {
                candidate: Ok(&old),
                ..pinned
            },
            None,
        );
        check(
            Inputs {
                suspended: true,
                ..pinned
            },
            Some(&old),
        );
        check(
            Inputs {
                closed: Some(&closed),
                ..pinned
            },
            Some(&old),
        );
        check(
            Inputs {
                closed: Some(&closed),
                candidate: Ok(&new),
                ..pinned
            },
            Some(&old),
        );

        // The status says that the right or the pinned version is missing.
        let lost = Trouble::Pin { message: String::new() };
        check(
            Inputs {
                ceiling: Err(&denied),
                ..base
            },
            None,
        );
        check(
            Inputs {
                pinned: Some(Err(&lost)),
                candidate: Ok(&new),
                ..base
            },
            None,
        );
    }
}
