//! Counts how far a rollout has come: by step, and by step and version.

use std::{cmp::Reverse, collections::BTreeMap};

use farwater_api::service_set::{
    MAX_SURVEYED_VERSIONS, Progress, ProgressCounts, RolloutSurvey, Stage, VersionCounts, VersionStage,
};

use super::{Outlook, Policy};

/// One member, with what is counted of it.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// `namespace/name` of the Cluster.
    pub name: &'a str,
    pub step: u16,
    pub progress: Progress,
    /// Number of the rollout that released it. None: none has.
    pub released: Option<u64>,
    /// Revision assigned to it. Empty: none.
    pub revision: &'a str,
    /// Revision that its sources have for it. Empty: the same as `revision`.
    pub wanted: &'a str,
    /// Author of the wanted revision.
    pub author: &'a str,
}

impl<'a> Counted<'a> {
    fn wants(&self) -> &'a str {
        if self.wanted.is_empty() {
            self.revision
        } else {
            self.wanted
        }
    }
}

/// The members of one version.
#[derive(Default)]
struct Version<'a> {
    author: &'a str,
    /// The first rollout that a member got it by. None: no member has it.
    first: Option<u64>,
    stages: BTreeMap<u16, VersionStage>,
}

impl Version<'_> {
    fn stage(&mut self, policy: &Policy, step: u16) -> &mut VersionStage {
        let named = || VersionStage {
            step: policy.step_name(step).to_owned(),
            ..VersionStage::default()
        };
        self.stages.entry(step).or_insert_with(named)
    }

    /// Orders versions by age. A version that no member has is the newest, because Git revisions don't show which of
    /// two is newer.
    fn rank(&self) -> u64 {
        self.first.unwrap_or(u64::MAX)
    }
}

/// Counts without the names of members.
pub fn survey(policy: &Policy, outlook: &Outlook, members: &[Counted<'_>]) -> RolloutSurvey {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    // A step that selects no cluster is shown too, because that is often a mistake.
    let stated = 1..=u16::try_from(policy.steps.len()).unwrap_or(u16::MAX);
    let mut stages: BTreeMap<u16, ProgressCounts> = stated.map(|step| (step, ProgressCounts::default())).collect();
    let mut versions: BTreeMap<&str, Version<'_>> = BTreeMap::new();
    for member in members {
        stages.entry(member.step).or_default().add(member.progress);
        let wanted = versions.entry(member.wants()).or_default();
        wanted.stage(policy, member.step).counts.add(member.progress);
        if wanted.author.is_empty() {
            wanted.author = member.author;
        }
        if !member.wanted.is_empty() && !member.revision.is_empty() {
            versions
                .entry(member.revision)
                .or_default()
                .stage(policy, member.step)
                .kept += 1;
        }
        if let Some(version) = versions
            .get_mut(member.revision)
            .filter(|_| !member.revision.is_empty())
        {
            version.first = version.first.into_iter().chain(member.released).min();
        }
    }

    let mut versions: Vec<(&str, Version<'_>)> = versions.into_iter().collect();
    // Members that have no version and are offered none come last.
    versions.sort_by_key(|(revision, version)| (revision.is_empty(), Reverse(version.rank()), Reverse(*revision)));
    let others = versions.split_off(versions.len().min(MAX_SURVEYED_VERSIONS - 1));
    let mut told: Vec<VersionCounts> = versions.into_iter().map(tell).collect();
    let left = count(others.len());
    told.extend(others.into_iter().map(tell).reduce(add));

    RolloutSurvey {
        stages: stages
            .into_iter()
            .map(|(step, counts)| Stage {
                step: policy.step_name(step).to_owned(),
                counts,
            })
            .collect(),
        versions: told,
        others: if left > 1 { left } else { 0 },
        unavailable: count(outlook.unavailable),
        max_unavailable: count(outlook.max),
        ..RolloutSurvey::default()
    }
}

fn tell((revision, version): (&str, Version<'_>)) -> VersionCounts {
    VersionCounts {
        revision: revision.to_owned(),
        author: version.author.to_owned(),
        stages: version.stages.into_values().collect(),
    }
}

/// Merges several versions into one without a name.
fn add(one: VersionCounts, other: VersionCounts) -> VersionCounts {
    let mut stages = one.stages;
    for more in other.stages {
        let Some(known) = stages.iter_mut().find(|known| known.step == more.step) else {
            stages.push(more);
            continue;
        };
        let (counts, added) = (&mut known.counts, more.counts);
        counts.done += added.done;
        counts.soaking += added.soaking;
        counts.progressing += added.progressing;
        counts.failed += added.failed;
        counts.deferred += added.deferred;
        counts.waiting += added.waiting;
        counts.still += added.still;
        known.kept += more.kept;
    }
    VersionCounts {
        stages,
        ..VersionCounts::default()
    }
}

/// Indices of at most `most` members that are not done, the worst first and then by step and name.
pub fn worst(members: &[Counted<'_>], most: usize) -> Vec<usize> {
    let key = |index: &usize| {
        let member = &members[*index];
        (member.progress, member.step, member.name)
    };
    let mut open: Vec<usize> = (0..members.len())
        .filter(|index| members[*index].progress != Progress::Done)
        .collect();
    if open.len() > most {
        // Only the first `most` need an order.
        open.select_nth_unstable_by_key(most, |index| key(index));
        open.truncate(most);
    }
    open.sort_unstable_by_key(|index| key(index));
    open
}

#[cfg(test)]
mod tests {
    use farwater_api::RolloutPolicy;
    use serde_json::json;

    use super::*;

    /// `name step progress revision [wanted]`; the rollout number is the revision, e.g. 1 for `1`.
    fn read(line: &'static str) -> Counted<'static> {
        let words: Vec<&str> = line.split(' ').collect();
        let progress = serde_json::from_value(json!(words[2])).unwrap();
        let revision = if words[3] == "-" { "" } else { words[3] };
        let wanted = words.get(4).copied().unwrap_or_default();
        let (step, released) = (words[1].parse().unwrap(), revision.parse().ok());
        Counted {
            name: words[0],
            step,
            progress,
            released,
            revision,
            wanted,
            author: "ann",
        }
    }

    fn policy() -> Policy {
        let step = |name: &str| json!({"name": name, "clusterSelector": {}});
        let stated: RolloutPolicy = serde_json::from_value(json!({"steps": [step("eu"), step("us")]})).unwrap();
        Policy::of(&stated).unwrap()
    }

    /// Expects one line per version: its name, and for each stage
    /// `step=done/soaking/progressing/failed/deferred/waiting/still+kept`.
    fn check(members: &[&'static str], stages: &str, versions: &[&str]) -> RolloutSurvey {
        let members: Vec<Counted<'_>> = members.iter().map(|line| read(line)).collect();
        let survey = survey(&policy(), &Outlook::default(), &members);
        let text = |counts: &ProgressCounts| {
            let ProgressCounts {
                done,
                soaking,
                progressing,
                failed,
                deferred,
                waiting,
                still,
            } = counts;
            format!("{done}/{soaking}/{progressing}/{failed}/{deferred}/{waiting}/{still}")
        };
        let told: Vec<String> = survey
            .stages
            .iter()
            .map(|stage| format!("{}={}", stage.step, text(&stage.counts)))
            .collect();
        assert_eq!(told.join(" "), stages);
        let told: Vec<String> = survey
            .versions
            .iter()
            .map(|version| {
                let stages: Vec<String> = version
                    .stages
                    .iter()
                    .map(|one| format!("{}={}+{}", one.step, text(&one.counts), one.kept))
                    .collect();
                format!("{} {}", version.revision, stages.join(" "))
            })
            .collect();
        assert_eq!(told, versions);
        survey
    }

    #[test]
    fn each_member_counts_once_at_what_it_wants_and_is_told_where_it_is() {
        let survey = check(
            &[
                "a 0 Done 2",
                "b 1 Soaking 2",
                "c 1 Progressing 2",
                "d 1 Failed 1 2",
                "e 1 Deferred 1 2",
                "f 3 Waiting 1 2",
                "g 3 Still 1 2",
                "h 3 Waiting - 2",
            ],
            "canary=1/0/0/0/0/0/0 eu=0/1/1/1/1/0/0 us=0/0/0/0/0/0/0 rest=0/0/0/0/0/2/1",
            &[
                "2 canary=1/0/0/0/0/0/0+0 eu=0/1/1/1/1/0/0+0 rest=0/0/0/0/0/2/1+0",
                "1 eu=0/0/0/0/0/0/0+2 rest=0/0/0/0/0/0/0+2",
            ],
        );
        assert_eq!((survey.others, survey.versions[0].author.as_str()), (0, "ann"));
    }

    #[test]
    fn what_nobody_has_yet_is_the_newest_and_what_is_offered_nothing_comes_last() {
        check(
            &["a 0 Waiting 2 9a", "b 1 Done 3", "c 1 Waiting -"],
            "canary=0/0/0/0/0/1/0 eu=1/0/0/0/0/1/0 us=0/0/0/0/0/0/0",
            &[
                "9a canary=0/0/0/0/0/1/0+0",
                "3 eu=1/0/0/0/0/0/0+0",
                "2 canary=0/0/0/0/0/0/0+1",
                " eu=0/0/0/0/0/1/0+0",
            ],
        );
    }

    #[test]
    fn of_many_versions_the_oldest_are_one() {
        let revisions: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let member = |revision| Counted {
            name: "a",
            step: 1,
            progress: Progress::Done,
            released: None,
            revision,
            wanted: "",
            author: "",
        };
        let members: Vec<Counted<'_>> = revisions.iter().map(|revision| member(revision)).collect();
        let survey = survey(&policy(), &Outlook::default(), &members);
        let last = survey.versions.last().unwrap();
        assert_eq!(
            (survey.versions.len(), survey.others, last.stages.len()),
            (MAX_SURVEYED_VERSIONS, 29, 1)
        );
        let all: u64 = survey
            .versions
            .iter()
            .flat_map(|version| &version.stages)
            .map(|stage| stage.counts.done)
            .sum();
        assert_eq!(all, 40);
    }

    #[test]
    fn the_worst_come_first_and_who_is_done_does_not() {
        let lines = [
            "a 1 Done 1",
            "b 2 Waiting 1",
            "c 1 Waiting 1",
            "d 1 Failed 1",
            "e 0 Soaking 1",
            "f 1 Failed 1",
        ];
        let members: Vec<Counted<'_>> = lines.into_iter().map(read).collect();
        let names = |most| -> String {
            worst(&members, most)
                .into_iter()
                .map(|index| members[index].name)
                .collect()
        };
        assert_eq!(
            (names(10), names(3), names(0)),
            ("dfecb".to_owned(), "dfe".to_owned(), String::new())
        );
    }
}
