//! Draws a plan as text.

use farwater_api::{
    hooks::HookPhase,
    objects::SyncState,
    plan::{
        Effect, FieldChange, FieldOrigin, HookEffect, LeftOut, PlannedCause, PlannedChange, PlannedHook, ServicePlan,
    },
};
use farwater_fleet::words::counted;

use crate::{
    terminal::{Colour, Terminal},
    text,
};

pub fn draw(plan: &ServicePlan, title: &str, revision: &str, terminal: Terminal) -> String {
    let mut picture = Picture {
        terminal,
        text: String::new(),
    };
    let at = if revision.is_empty() {
        String::new()
    } else {
        format!(" at {revision}")
    };
    picture.line(0, None, &format!("{title}{at}"));
    if let Some(held) = &plan.held {
        picture.line(0, Some(Colour::Doubtful), &format!("held: {held}"));
    }
    for error in &plan.errors {
        picture.line(0, Some(Colour::Bad), &format!("can't be read: {error}"));
    }
    if let Some(namespace) = &plan.create_namespace {
        picture.line(1, Some(Colour::Good), &format!("+ Namespace {namespace}"));
    }

    let (first, later): (Vec<_>, Vec<_>) = plan.hooks.iter().partition(|hook| comes_first(hook));
    for hook in first {
        picture.hook(hook);
    }
    let has_waves = plan.changes.iter().any(|change| change.wave != plan.changes[0].wave);
    let mut wave = None;
    for change in &plan.changes {
        if has_waves && wave != Some(change.wave) {
            wave = Some(change.wave);
            picture.line(0, None, &format!("wave {}", change.wave));
        }
        picture.change(change);
    }

    for delete in &plan.deletes {
        let held = if delete.held { "  held" } else { "" };
        picture.line(1, Some(Colour::Bad), &format!("- {}{held}", delete.object));
    }
    if let Some(held) = &plan.held_prune {
        picture.line(
            0,
            Some(Colour::Doubtful),
            &format!("deletes wait for an approval: {}", held.reason),
        );
    }
    for hook in later {
        picture.hook(hook);
    }
    for left in &plan.left_out {
        picture.left_out(left);
    }

    picture.line(0, None, &summary(plan));
    picture.text
}

struct Picture {
    terminal: Terminal,
    text: String,
}

impl Picture {
    /// Adds one line, cut to the width of the terminal if there is one.
    fn line(&mut self, depth: usize, colour: Option<Colour>, line: &str) {
        let line = format!("{}{}", "  ".repeat(depth), text::plain(line));
        let line = self
            .terminal
            .width
            .map_or(line.clone(), |width| text::fit(&line, width).into_owned());
        let line = colour.map_or(line.clone(), |colour| self.terminal.paint(colour, &line));
        self.text += &line;
        self.text.push('\n');
    }

    fn change(&mut self, change: &PlannedChange) {
        let (sign, colour) = match change.effect {
            Effect::Create => ("+", Colour::Good),
            Effect::Untried if change.cause == PlannedCause::Create => ("+", Colour::Good),
            Effect::Change if change.is_made_up() => ("≈", Colour::Faint),
            Effect::Change => ("~", Colour::Doubtful),
            Effect::Nothing => ("=", Colour::Faint),
            Effect::Recreate => ("±", Colour::Bad),
            Effect::Refused => ("!", Colour::Bad),
            Effect::Untried | Effect::Unknown => ("?", Colour::Doubtful),
        };
        let why = why(change).map(|why| format!("  {why}")).unwrap_or_default();
        self.line(1, Some(colour), &format!("{sign} {}{why}", change.object));
        if !change.message.is_empty() {
            self.line(3, None, &change.message);
        }
        for field in &change.fields {
            self.line(3, None, &describe(field));
        }
        if change.more_fields > 0 {
            self.line(3, Some(Colour::Faint), &counted(change.more_fields, "more field"));
        }
    }

    fn hook(&mut self, hook: &PlannedHook) {
        let (sign, colour, what) = match hook.effect {
            HookEffect::Run => (">", Colour::Good, "runs"),
            HookEffect::RunOnFailure => (">", Colour::Faint, "runs if something fails"),
            HookEffect::Held => ("?", Colour::Doubtful, "is not begun"),
            HookEffect::Running => (">", Colour::Doubtful, "is running"),
            HookEffect::Failed => ("!", Colour::Bad, "failed"),
            HookEffect::End => ("-", Colour::Bad, "is ended"),
            HookEffect::Remove => ("-", Colour::Bad, "is deleted"),
            HookEffect::Unknown => ("?", Colour::Doubtful, "does what only a newer farwater knows"),
        };
        let name = match &hook.test {
            Some(test) => format!("test {test}"),
            None => format!("{} hook", hook.phase),
        };
        let why = if hook.message.is_empty() {
            String::new()
        } else {
            format!(": {}", hook.message)
        };
        self.line(1, Some(colour), &format!("{sign} {}  {name} {what}{why}", hook.object));
    }

    fn left_out(&mut self, left: &LeftOut) {
        let (sign, colour) = match left.sync {
            SyncState::Refused => ("!", Colour::Bad),
            SyncState::Synced => ("·", Colour::Faint),
            _ => ("?", Colour::Doubtful),
        };
        self.line(1, Some(colour), &format!("{sign} {}  {}", left.object, left.reason));
    }
}

fn comes_first(hook: &PlannedHook) -> bool {
    matches!(hook.phase, HookPhase::PreSync | HookPhase::PreDelete)
        || matches!(hook.effect, HookEffect::End | HookEffect::Remove)
}

/// Why the change happens or what it does, where its sign and fields don't show that.
fn why(change: &PlannedChange) -> Option<&'static str> {
    match (change.cause, change.effect) {
        (_, Effect::Refused) => Some("would be refused"),
        (_, Effect::Recreate) => Some("deleted and recreated"),
        (PlannedCause::Restore, _) => Some("was deleted in the cluster"),
        (PlannedCause::Drift, _) => Some("was changed in the cluster"),
        (PlannedCause::Adopt, _) => Some("exists, and becomes this service's"),
        (_, Effect::Nothing) => Some("is sent, and nothing changes"),
        _ if change.is_made_up() => Some("only generated values change"),
        _ if change.made_up => Some("the chart generates its name"),
        _ => None,
    }
}

fn describe(field: &FieldChange) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "(none)".to_owned());
    let origin = match field.origin {
        FieldOrigin::Cluster => "  changed in the cluster".to_owned(),
        FieldOrigin::Both => format!("  changed in the cluster too; applied was {}", text(&field.applied)),
        FieldOrigin::Source | FieldOrigin::Unknown => String::new(),
    };
    if field.made_up {
        return format!("{}: generated by the chart{origin}", field.path);
    }
    format!(
        "{}: {} → {}{origin}",
        field.path,
        text(&field.live),
        text(&field.planned)
    )
}

fn summary(plan: &ServicePlan) -> String {
    let of = |wanted: &[Effect]| {
        plan.changes
            .iter()
            .filter(|change| wanted.contains(&change.effect))
            .count()
    };
    let made = |change: &&PlannedChange| change.effect == Effect::Untried && change.cause == PlannedCause::Create;
    let namespace = usize::from(plan.create_namespace.is_some());
    let untried = plan.changes.iter().filter(made).count();
    let made_up = plan.changes.iter().filter(|change| change.is_made_up()).count();
    let hooks = |wanted: &[HookEffect]| plan.hooks.iter().filter(|hook| wanted.contains(&hook.effect)).count();
    let left = |wanted: SyncState| plan.left_out.iter().filter(|one| one.sync == wanted).count();

    let counts = [
        (of(&[Effect::Create]) + untried + namespace, "to create"),
        (
            of(&[Effect::Change, Effect::Recreate, Effect::Unknown, Effect::Untried]) - untried - made_up,
            "to change",
        ),
        (made_up, "with only generated values changed"),
        (
            plan.deletes.iter().filter(|delete| !delete.held).count() + hooks(&[HookEffect::Remove]),
            "to delete",
        ),
        (hooks(&[HookEffect::Run, HookEffect::Held]), "to run"),
        (hooks(&[HookEffect::Running]), "running"),
        (hooks(&[HookEffect::End]), "to end"),
        (hooks(&[HookEffect::Failed]), "failed"),
        (plan.deletes.iter().filter(|delete| delete.held).count(), "held"),
        (of(&[Effect::Refused]) + left(SyncState::Refused), "refused"),
        (left(SyncState::Waiting), "waiting"),
        (left(SyncState::Drifted), "drifted"),
        (plan.unchanged as usize + of(&[Effect::Nothing]), "unchanged"),
        (plan.unlisted as usize, "not listed"),
    ];

    let told: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    let told = if told.is_empty() {
        "nothing to do".to_owned()
    } else {
        told.join(", ")
    };
    match plan.hidden {
        0 => told,
        hidden => {
            let differences = counted(hidden, "difference");
            format!("{told}; {differences} hidden that stay: defaults, normalised values, fields of others")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str) -> serde_json::Value {
        json!({"version": "v1", "kind": kind, "namespace": "web", "name": name})
    }

    fn with(mut one: serde_json::Value, more: serde_json::Value) -> serde_json::Value {
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    }

    #[test]
    fn a_plan_is_read_from_top_to_bottom() {
        let plan: ServicePlan = serde_json::from_value(json!({
            "changes": [
                with(object("ConfigMap", "new"), json!({"cause": "Create", "effect": "Create"})),
                with(object("ConfigMap", "env"), json!({"cause": "Update", "effect": "Change", "wave": 1, "hidden": 4, "moreFields": 2, "fields": [
                    {"path": "data.a", "live": "\"1\"", "planned": "\"2\"", "applied": "\"1\"", "origin": "Source"},
                    {"path": "data.b", "live": "\"x\"", "origin": "Cluster"},
                    {"path": "data.c", "live": "\"y\"", "planned": "\"2\"", "applied": "\"1\"", "origin": "Both"},
                ]})),
                with(object("Secret", "password"), json!({"cause": "Update", "effect": "Change", "wave": 1, "fields": [
                    {"path": "data.a", "live": "hmac:1", "planned": "hmac:2", "origin": "Source", "madeUp": true}]})),
                with(object("Secret", "bad"), json!({"cause": "Update", "effect": "Refused", "message": "Invalid: \u{1b}[31mdata", "wave": 1})),
            ],
            "deletes": [with(object("ConfigMap", "old"), json!({"held": true}))],
            "heldPrune": {"digest": farwater_api::Digest::of("p"), "reason": "1 of 2 objects would be deleted", "count": 1, "objects": []},
            "hooks": [
                with(object("Job", "migrate"), json!({"phase": "PreSync", "effect": "Run"})),
                with(object("Job", "load"), json!({"phase": "PostSync", "effect": "End"})),
                with(object("Job", "app-test-smoke"), json!({"phase": "Test", "test": "smoke", "effect": "Run"})),
                with(object("Pod", "alarm"), json!({"phase": "SyncFail", "effect": "RunOnFailure"})),
            ],
            "leftOut": [with(object("ConfigMap", "theirs"), json!({"sync": "Refused", "reason": "owned by service team/b"}))],
            "unchanged": 12, "hidden": 4,
        }))
        .unwrap();
        let expected = "\
farwater-admin/app on east at main@1a2b3c4d5e6f
  > Job web/migrate  PreSync hook runs
  - Job web/load  PostSync hook is ended
wave 0
  + ConfigMap web/new
wave 1
  ~ ConfigMap web/env
      data.a: \"1\" → \"2\"
      data.b: \"x\" → (none)  changed in the cluster
      data.c: \"y\" → \"2\"  changed in the cluster too; applied was \"1\"
      2 more fields
  ≈ Secret web/password  only generated values change
      data.a: generated by the chart
  ! Secret web/bad  would be refused
      Invalid: [31mdata
  - ConfigMap web/old  held
deletes wait for an approval: 1 of 2 objects would be deleted
  > Job web/app-test-smoke  test smoke runs
  > Pod web/alarm  SyncFail hook runs if something fails
  ! ConfigMap web/theirs  owned by service team/b
1 to create, 1 to change, 1 with only generated values changed, 2 to run, 1 to end, 1 held, 2 refused, 12 unchanged; 4 differences hidden that stay: defaults, normalised values, fields of others
";
        let text = draw(
            &plan,
            "farwater-admin/app on east",
            "main@1a2b3c4d5e6f",
            Terminal::default(),
        );
        assert_eq!(text, expected);
        let narrow = draw(
            &plan,
            "farwater-admin/app",
            "",
            Terminal {
                width: Some(40),
                ..Terminal::default()
            },
        );
        assert!(narrow.lines().all(|line| text::width(line) <= 40), "{narrow}");
    }

    #[test]
    fn nothing_to_do_is_said() {
        let plan = ServicePlan {
            unchanged: 3,
            ..ServicePlan::default()
        };
        assert_eq!(
            draw(&plan, "a/b on c", "", Terminal::default()),
            "a/b on c\n3 unchanged\n"
        );
        let empty = ServicePlan::default();
        assert_eq!(
            draw(&empty, "a/b on c", "", Terminal::default()),
            "a/b on c\nnothing to do\n"
        );
    }
}
