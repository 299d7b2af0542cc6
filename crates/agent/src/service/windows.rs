//! Change windows by the agent's own clock: a change that the hub delivered but that has not begun when a window closes
//! waits for the window to open. A change that has begun continues, and drift is corrected.

use std::time::Duration;

use farwater_api::{
    Digest,
    protocol::{Action, Deployment},
};
use farwater_fleet::windows::Closed;
use tokio::time::Instant;

use super::{Assignment, Ended, Note, ServiceTask};

/// Longest time until a changed clock or changed windows are noticed.
const LONGEST_REST: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(200);

/// Whether two deployments are the same change. Values of Secrets and parameters, rights, and settings of prunes never
/// wait.
fn is_same_change(one: &Deployment, other: &Deployment) -> bool {
    // All fields are listed, so that a new field must be added here explicitly.
    let Deployment {
        bundle,
        path,
        renderers,
        patches,
        target_namespace,
        options,
        tests,
        bundle_bytes: _,
        prune: _,
        ceiling: _,
        secrets: _,
        parameters: _,
        configuration,
        approved_prune: _,
        hold_prune: _,
        origin: _,
        undo: _,
        retry_hook: _,
        turn: _,
        health: _,
    } = one;
    (bundle, path, configuration) == (&other.bundle, &other.path, &other.configuration)
        && (renderers, patches) == (&other.renderers, &other.patches)
        && (target_namespace, options, tests) == (&other.target_namespace, &other.options, &other.tests)
}

impl ServiceTask {
    /// Why the assignment may not begin now. None: it may, has begun, or changes nothing.
    pub(super) fn closed(&self, assignment: &Assignment) -> Option<Closed> {
        let Action::Apply(deployment) = &assignment.entry.action else {
            return None;
        };
        let known = self.stored.deployment.as_ref();
        if self.progress.begun == Some(assignment.digest)
            || known.is_some_and(|known| is_same_change(known, deployment))
        {
            return None;
        }
        self.agent
            .windows()
            .closed(self.uid(), &assignment.digest, self.agent.now())
    }

    /// Keeps the running version, with the rights that apply now.
    pub(super) async fn wait_for_window(&mut self, digest: Digest, newer: &Deployment, closed: &Closed) -> Ended {
        self.progress.window_at = Some(self.next_look(closed));
        let note = Note::waiting(&closed.to_string());
        match self.stored.deployment.clone() {
            Some(mut deployment) => {
                deployment.prune = false;
                deployment.hold_prune = None;
                deployment.ceiling.clone_from(&newer.ceiling);
                self.apply(digest, &deployment, Some(note)).await
            }
            None => {
                self.set_outcome(digest, note.outcome(), note.text);
                Ended::Settled { retry: false }
            }
        }
    }

    fn next_look(&self, closed: &Closed) -> Instant {
        let rest = closed
            .until
            .map(|until| Duration::try_from(until.duration_since(self.agent.now())).unwrap_or(SOON));
        Instant::now() + rest.map_or(LONGEST_REST, |rest| rest.clamp(SOON, LONGEST_REST))
    }

    /// Whether the waiting change may begin.
    pub(super) fn look_at_window(&mut self) -> bool {
        let closed = self.closed(&self.assignments.borrow());
        self.progress.window_at = closed.as_ref().map(|closed| self.next_look(closed));
        closed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::protocol::{Ceiling, ServiceAccount};

    use super::*;

    fn deployment() -> Deployment {
        Deployment {
            bundle: Digest::of("bundle"),
            bundle_bytes: 1,
            path: String::new(),
            renderers: Vec::new(),
            patches: Vec::new(),
            target_namespace: "web".to_owned(),
            prune: true,
            ceiling: Ceiling {
                service_account: ServiceAccount {
                    namespace: "a".to_owned(),
                    name: "b".to_owned(),
                },
                target_namespaces: None,
                allowed_kinds: None,
                denied_kinds: None,
            },
            secrets: None,
            parameters: None,
            configuration: Default::default(),
            approved_prune: None,
            options: Default::default(),
            hold_prune: None,
            origin: None,
            undo: None,
            retry_hook: None,
            turn: 0,
            tests: Vec::new(),
            health: Vec::new(),
        }
    }

    #[test]
    fn content_and_spec_are_a_change_and_values_and_rights_are_none() {
        let check = |edit: &dyn Fn(&mut Deployment), same: bool| {
            let mut other = deployment();
            edit(&mut other);
            assert_eq!(is_same_change(&deployment(), &other), same, "{other:?}");
        };
        check(&|d| d.bundle = Digest::of("other"), false);
        check(&|d| d.path = "app".to_owned(), false);
        check(&|d| d.target_namespace = "other".to_owned(), false);
        check(
            &|d| drop(d.configuration.insert("imageTag".to_owned(), "2".to_owned())),
            false,
        );
        check(&|d| d.turn = 7, true);
        check(&|d| d.secrets = Some(Digest::of("secret")), true);
        check(&|d| d.parameters = Some(Digest::of("parameters")), true);
        check(&|d| d.prune = false, true);
        check(&|d| d.approved_prune = Some(Digest::of("plan")), true);
        check(&|d| d.ceiling.allowed_kinds = Some(Vec::new()), true);
    }
}
