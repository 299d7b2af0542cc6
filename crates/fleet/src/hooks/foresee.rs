//! What would happen to hooks, for a preview. By the same rules as [`next`](super::next).

use farwater_api::{
    Digest,
    hooks::{HookPhase, HookState},
    plan::{HookEffect, PlannedHook},
    protocol::Deployment,
};

use super::{Record, ResolvedHook, Run, due, is_new, terms_of};
use crate::{incomplete::UNREADABLE, plan::Resolved};

/// The hooks of a version: those of the previous one that end, and its own that run or have not succeeded. Hooks that
/// succeeded are left out. `held`: why nothing begins; none: nothing holds it.
pub fn foresee_hooks(
    last: Option<Record>,
    deployment: &Deployment,
    resolved: &Resolved,
    established: bool,
    held: Option<&str>,
) -> Vec<PlannedHook> {
    if last.is_none() && resolved.hooks.is_empty() {
        return Vec::new();
    }
    let mut record = Record::of_version(last, deployment, resolved, established);
    let departing = record.take_departing(deployment, resolved);
    let mut told: Vec<PlannedHook> = departing.iter().map(tell_departing).collect();
    let (terms, obstacle) = (terms_of(deployment), held.map(str::to_owned));
    let mut view = Foresight {
        hooks: &resolved.hooks,
        record: &record,
        terms,
        obstacle,
    };
    for phase in [
        HookPhase::PreSync,
        HookPhase::Sync,
        HookPhase::PostSync,
        HookPhase::Test,
    ] {
        if matches!(phase, HookPhase::PostSync | HookPhase::Test) && !resolved.complete {
            view.obstacle.get_or_insert_with(|| UNREADABLE.to_owned());
        }
        told.extend(view.tell(phase));
    }
    // These hooks run because of the obstacle of the others.
    view.obstacle = held.map(str::to_owned);
    told.extend(view.tell(HookPhase::SyncFail));
    told
}

/// The hooks of a removal.
pub fn foresee_farewell(record: &Record, deployment: &Deployment, held: Option<&str>) -> Vec<PlannedHook> {
    let terms = terms_of(deployment);
    let mut view = Foresight {
        hooks: &record.farewell,
        record,
        terms,
        obstacle: held.map(str::to_owned),
    };
    let mut told = view.tell(HookPhase::PreDelete);
    told.extend(view.tell(HookPhase::PostDelete));
    told
}

struct Foresight<'a> {
    hooks: &'a [ResolvedHook],
    record: &'a Record,
    terms: Digest,
    /// Why the hooks that are to run don't begin. None: they do.
    obstacle: Option<String>,
}

impl Foresight<'_> {
    fn tell(&mut self, phase: HookPhase) -> Vec<PlannedHook> {
        let mut told = Vec::new();
        let due = due(self.hooks, self.record, phase);
        for wave in due.chunk_by(|(a, _), (b, _)| a.wave == b.wave) {
            let mut failed = None;
            for (hook, run) in wave {
                let (effect, message) = match run {
                    _ if is_new(*run, self.terms) => match &self.obstacle {
                        Some(obstacle) => (HookEffect::Held, obstacle.clone()),
                        None if phase == HookPhase::SyncFail => (HookEffect::RunOnFailure, String::new()),
                        None => (HookEffect::Run, String::new()),
                    },
                    Some(run) if run.state == HookState::Running => (HookEffect::Running, run.message.clone()),
                    Some(run) if run.state != HookState::Succeeded => {
                        failed.get_or_insert_with(|| format!("{} failed", run.describe()));
                        (HookEffect::Failed, run.message.clone())
                    }
                    _ => continue,
                };
                told.push(PlannedHook {
                    object: hook.object.clone(),
                    phase,
                    wave: hook.wave,
                    test: hook.test.clone(),
                    effect,
                    message,
                });
            }
            self.obstacle = self.obstacle.take().or(failed);
        }

        told
    }
}

fn tell_departing(run: &Run) -> PlannedHook {
    PlannedHook {
        object: run.object.clone(),
        phase: run.phase,
        wave: 0,
        test: run.test.clone(),
        effect: if run.is_running() {
            HookEffect::End
        } else {
            HookEffect::Remove
        },
        message: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::apply_options::ApplyOptions;
    use serde_json::json;

    use super::*;
    use crate::{
        hooks::{
            Occasion,
            tests::{hook, run},
            version_of,
        },
        plan::{Render, Terms, resolve},
    };

    fn deployment(bundle: &str) -> Deployment {
        let ceiling = json!({"serviceAccount": {"namespace": "team", "name": "deployer"}});
        let text = json!({
            "bundle": Digest::of(bundle), "bundleBytes": 1, "path": "", "targetNamespace": "web", "prune": true, "ceiling": ceiling,
        });
        serde_json::from_value(text).unwrap()
    }

    /// A source that contains only hooks.
    fn source(hooks: &[ResolvedHook], errors: &[&str]) -> Resolved {
        let render = Render {
            objects: Vec::new(),
            errors: errors.iter().map(|&error| error.to_owned()).collect(),
        };
        let Deployment { ceiling, .. } = deployment("1");
        let terms = Terms {
            target_namespace: "web",
            ceiling: &ceiling,
            options: &ApplyOptions::default(),
        };
        let mut resolved = resolve(render, "uid", terms, &Default::default());
        resolved.hooks = hooks.to_vec();
        resolved
    }

    fn ours() -> [ResolvedHook; 6] {
        [
            hook("migrate", HookPhase::PreSync, None, 0),
            hook("check", HookPhase::PreSync, None, 1),
            hook("post", HookPhase::PostSync, Some(Occasion::Install), 0),
            hook("smoke", HookPhase::Test, None, 0),
            hook("alarm", HookPhase::SyncFail, None, 0),
            hook("bye", HookPhase::PreDelete, None, 0),
        ]
    }

    fn lines(told: Vec<PlannedHook>) -> Vec<String> {
        let line = |hook: PlannedHook| {
            format!("{} {:?} {}", hook.object.name, hook.effect, hook.message)
                .trim_end()
                .to_owned()
        };
        told.into_iter().map(line).collect()
    }

    fn check(last: Option<&Record>, deployment: &Deployment, source: &Resolved, held: Option<&str>, expected: &[&str]) {
        assert_eq!(
            lines(foresee_hooks(last.cloned(), deployment, source, false, held)),
            expected
        );
    }

    /// The record of a first version with these runs.
    fn record_of(deployment: &Deployment, runs: &[(&ResolvedHook, HookState)]) -> Record {
        let mut record = Record::next(None, version_of(deployment), false);
        for (hook, state) in runs {
            let run = Run {
                terms: terms_of(deployment),
                ..run(&record, hook, *state)
            };
            record.note(run);
        }
        record
    }

    #[test]
    fn a_version_runs_its_hooks_and_what_follows_a_failure_is_held_back() {
        let (hooks, one) = (ours(), deployment("1"));
        let [migrate, check_hook, post, smoke, ..] = &hooks;
        let all = source(&hooks, &[]);
        check(None, &one, &source(&[], &[]), None, &[]);
        let fresh = [
            "migrate Run",
            "check Run",
            "post Run",
            "smoke Run",
            "alarm RunOnFailure",
        ];
        check(None, &one, &all, None, &fresh);
        let held = [
            "migrate Held why",
            "check Held why",
            "post Held why",
            "smoke Held why",
            "alarm Held why",
        ];
        check(None, &one, &all, Some("why"), &held);
        let unread = "Held the source can't be read completely";
        let (post_unread, smoke_unread) = (format!("post {unread}"), format!("smoke {unread}"));
        let torn = [
            "migrate Run",
            "check Run",
            &post_unread,
            &smoke_unread,
            "alarm RunOnFailure",
        ];
        check(None, &one, &source(&hooks, &["a.yaml"]), None, &torn);

        let running = record_of(&one, &[(migrate, HookState::Running)]);
        check(
            Some(&running),
            &one,
            &all,
            None,
            &[
                "migrate Running",
                "check Run",
                "post Run",
                "smoke Run",
                "alarm RunOnFailure",
            ],
        );
        let failed = record_of(&one, &[(migrate, HookState::Failed)]);
        let why = "Held PreSync hook Job.batch web/migrate failed";
        let (a, b, c) = (format!("check {why}"), format!("post {why}"), format!("smoke {why}"));
        check(
            Some(&failed),
            &one,
            &all,
            None,
            &["migrate Failed", &a, &b, &c, "alarm RunOnFailure"],
        );
        // Other Secrets change the terms.
        let rotated = Deployment {
            secrets: Some(Digest::of("new")),
            ..one.clone()
        };
        check(Some(&failed), &rotated, &all, None, &fresh);

        let done = [migrate, check_hook, post, smoke].map(|hook| (hook, HookState::Succeeded));
        let done = Record {
            complete: true,
            ..record_of(&one, &done)
        };
        check(Some(&done), &one, &all, None, &[]);
        let untested = Record {
            complete: true,
            ..record_of(&one, &[])
        };
        check(Some(&untested), &one, &all, None, &["smoke Run"]);
    }

    #[test]
    fn the_next_version_ends_what_runs_and_removes_what_it_does_not_state() {
        let (hooks, one, two) = (ours(), deployment("1"), deployment("2"));
        let [migrate, check_hook, post, ..] = &hooks;
        let states = [
            (migrate, HookState::Succeeded),
            (check_hook, HookState::Running),
            (post, HookState::Succeeded),
        ];
        let last = Record {
            complete: true,
            ..record_of(&one, &states)
        };
        let next = source(std::slice::from_ref(migrate), &[]);
        check(
            Some(&last),
            &two,
            &next,
            None,
            &["check End", "post Remove", "migrate Run"],
        );
        // `post` runs only at an install.
        let same = source(&hooks, &[]);
        check(
            Some(&last),
            &two,
            &same,
            None,
            &[
                "check End",
                "migrate Run",
                "check Run",
                "smoke Run",
                "alarm RunOnFailure",
            ],
        );
        let kept = Deployment { prune: false, ..two };
        check(Some(&last), &kept, &next, None, &["check End", "migrate Run"]);
    }

    #[test]
    fn a_removal_runs_the_hooks_of_the_last_version() {
        let one = deployment("1");
        let mut record = Record::of_version(None, &one, &source(&ours(), &[]), false);
        assert_eq!(lines(foresee_farewell(&record, &one, None)), ["bye Run"]);
        assert_eq!(lines(foresee_farewell(&record, &one, Some("why"))), ["bye Held why"]);
        let farewell = Run {
            terms: terms_of(&one),
            ..run(&record, &ours()[5], HookState::Succeeded)
        };
        record.note(farewell);
        assert!(foresee_farewell(&record, &one, None).is_empty());
    }
}
