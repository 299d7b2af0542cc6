//! The picture of a rollout: a progress bar, the counts, and the members that are not done.

use farwater_api::{
    RolloutPolicy,
    service_set::{Member, Progress, RolloutStatus, SetPin},
};
use farwater_fleet::words::{counted, signed, verb};

use crate::{
    table::{Column, Table},
    terminal::Terminal,
    text,
};

/// Most members that are shown. Those that are not done come first.
const SHOWN: usize = 40;

pub fn draw(
    (namespace, name): (&str, &str),
    (policy, pin): (&RolloutPolicy, Option<(&SetPin, Option<&str>)>),
    rollout: &RolloutStatus,
    members: &[Member],
    terminal: Terminal,
) -> String {
    // Nothing has been rolled out yet.
    let phase = if rollout.number == 0 {
        "Pending".to_owned()
    } else {
        rollout.phase.to_string()
    };
    let step = if rollout.step.is_empty() {
        String::new()
    } else {
        format!(", step {}", rollout.step)
    };
    let mut picture = format!("{namespace}/{name}, rollout {}: {phase}{step}\n", rollout.number);
    if let Some((pin, by)) = pin {
        let signed = signed(by, pin.reason.as_deref());
        let signed = text::plain(&signed);
        picture += &format!(
            "pinned to version {}{signed}; rollback serviceset/{name} --clear unpins it\n",
            pin.version
        );
    }

    picture + &draw_progress(rollout) + &list_stops(policy, rollout) + &list_members(members, terminal)
}

/// The bar, and a line for each count of clusters that are not done.
fn draw_progress(rollout: &RolloutStatus) -> String {
    let all = rollout.clusters();
    let mut picture = format!(
        "{} {} of {}\n",
        bar(rollout.updated, all),
        rollout.updated,
        counted(all, "cluster")
    );
    for (count, what) in [
        (
            rollout.progressing,
            verb(&rollout.progressing, "on its way", "on their way"),
        ),
        (rollout.failed, "failed"),
        (rollout.waiting, "waiting"),
        (
            rollout.deferred,
            verb(
                &rollout.deferred,
                "silent, passed over until it is heard",
                "silent, passed over until they are heard",
            ),
        ),
    ] {
        if count > 0 {
            picture += &format!("  {count} {what}\n");
        }
    }
    picture
}

/// The reasons why the rollout does not continue, each with the way to continue it.
fn list_stops(policy: &RolloutPolicy, rollout: &RolloutStatus) -> String {
    let mut stops = String::new();
    if let Some(by) = &rollout.halted_by {
        stops += &format!("halted by {by}; continue with a newer version, or with promote --past halt\n");
    }
    if policy.paused {
        let why = policy
            .pause_reason
            .as_ref()
            .map(|reason| format!(": {}", text::plain(reason)))
            .unwrap_or_default();
        stops += &format!("paused{why}; continue with rollout resume\n");
    }
    stops
}

/// The members that are not done, by step.
fn list_members(members: &[Member], terminal: Terminal) -> String {
    let mut picture = String::new();
    let mut shown: Vec<&Member> = members
        .iter()
        .filter(|member| member.progress != Some(Progress::Done))
        .collect();
    shown.sort_by(|a, b| (&a.step, &a.cluster).cmp(&(&b.step, &b.cluster)));
    let more = shown.len().saturating_sub(SHOWN);
    shown.truncate(SHOWN);
    if !shown.is_empty() {
        let mut table = Table::new(vec![
            Column::fixed("cluster"),
            Column::fixed("step"),
            Column::elastic("state"),
        ]);
        for member in shown {
            let state = if member.message.is_empty() {
                member.standing.clone()
            } else {
                member.message.clone()
            };
            table.push([member.cluster.clone(), member.step.clone(), state]);
        }
        picture += &table.render(terminal);
    }
    if more > 0 {
        picture += &format!("and {more} more\n");
    }
    picture
}

/// A progress bar of 20 characters.
fn bar(done: i64, all: i64) -> String {
    const PLACES: i64 = 20;
    let full = if all > 0 {
        (done * PLACES / all).clamp(0, PLACES)
    } else {
        0
    };
    let places = |count: i64, sign: &str| sign.repeat(usize::try_from(count).unwrap_or_default());
    format!("[{}{}]", places(full, "#"), places(PLACES - full, "."))
}

#[cfg(test)]
mod tests {
    use farwater_api::RolloutPhase;

    use super::*;

    #[test]
    fn a_rollout_is_drawn_with_who_is_not_done() {
        let rollout = RolloutStatus {
            number: 7,
            phase: RolloutPhase::Halted,
            step: "canary".to_owned(),
            updated: 1,
            failed: 1,
            waiting: 2,
            halted_by: Some("farwater-admin/a".to_owned()),
            ..RolloutStatus::default()
        };
        let member = |cluster: &str, step: &str, progress, standing: &str| Member {
            cluster: cluster.to_owned(),
            step: step.to_owned(),
            progress: Some(progress),
            standing: standing.to_owned(),
            ..Member::default()
        };
        let members = [
            member("farwater-admin/b", "rest", Progress::Waiting, "waits for step canary"),
            member("farwater-admin/a", "canary", Progress::Failed, "failed: crashes"),
            member("farwater-admin/c", "rest", Progress::Done, "is done"),
        ];
        let pin = SetPin {
            version: 3,
            reason: Some("4 is slow".to_owned()),
        };
        let policy = (&RolloutPolicy::default(), Some((&pin, Some("ada"))));
        let drawn = draw(("team-a", "web"), policy, &rollout, &members, Terminal::default());
        assert_eq!(
            drawn,
            "team-a/web, rollout 7: Halted, step canary\n\
             pinned to version 3 by ada: 4 is slow; rollback serviceset/web --clear unpins it\n\
             [#####...............] 1 of 4 clusters\n  1 failed\n  2 waiting\n\
             halted by farwater-admin/a; continue with a newer version, or with promote --past halt\n\
             CLUSTER            STEP     STATE\n\
             farwater-admin/a   canary   failed: crashes\n\
             farwater-admin/b   rest     waits for step canary\n"
        );
        assert_eq!(
            (bar(0, 0), bar(3, 3)),
            ("[....................]".to_owned(), "[####################]".to_owned())
        );
    }
}
