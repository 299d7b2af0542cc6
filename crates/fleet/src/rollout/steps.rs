//! Assigns each cluster to a step.

use std::collections::BTreeMap;

use super::{Policy, Reach, Resting};
use crate::placement::selects;

/// A cluster of a set, with what its step depends on.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// `namespace/name`
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub is_healthy: bool,
    /// `NotYet` keeps a canary's place: after the hub was away, no other cluster takes it before the hub has heard the
    /// canary.
    pub reach: Reach,
    /// It was a canary at the last decision.
    pub is_canary: bool,
    /// It is released for what it wants. A canary that has begun stays one, whatever happens to it.
    pub has_begun: bool,
}

/// The step of each cluster: 0 for canaries, the first of the policy's steps that selects it, and one more step for the
/// rest.
///
/// A cluster that was a canary stays one while it is healthy or has begun. Free places go to the first healthy clusters
/// by name. `resting` counts the members that are not in `clusters`.
pub fn place(policy: &Policy, clusters: &[Cluster<'_>], resting: &Resting) -> Vec<u16> {
    let mut steps: Vec<u16> = clusters.iter().map(|cluster| group(policy, cluster.labels)).collect();
    let Some(canary) = &policy.canary else { return steps };
    let first = steps
        .iter()
        .copied()
        .map(usize::from)
        .chain([resting.first_group()])
        .min();

    let mut able: Vec<usize> = (0..clusters.len())
        .filter(|index| match &canary.selector {
            Some(selector) => selects(selector, clusters[*index].labels),
            None => Some(usize::from(steps[*index])) == first,
        })
        .collect();
    if let Some(count) = canary.count {
        able.retain(|index| {
            let cluster = &clusters[*index];
            let may_be = match cluster.reach {
                Reach::Heard { .. } => cluster.is_healthy,
                Reach::NotYet => cluster.is_healthy && cluster.is_canary,
                Reach::Silent { .. } => false,
            };
            may_be || (cluster.is_canary && cluster.has_begun)
        });
        able.sort_by_key(|index| (!clusters[*index].is_canary, clusters[*index].name));
        able.truncate(count.saturating_sub(resting.canaries()));
    }

    for index in able {
        steps[index] = 0;
    }
    steps
}

/// The step of a cluster that is not a canary.
pub(super) fn group(policy: &Policy, labels: &BTreeMap<String, String>) -> u16 {
    let found = policy.steps.iter().position(|step| selects(&step.selector, labels));
    u16::try_from(found.unwrap_or(policy.steps.len()) + 1).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use farwater_api::RolloutPolicy;
    use serde_json::{Value, json};

    use super::*;

    /// Clusters as `name label…`, with `!` for unhealthy, `?` for silent, `~` for not yet heard by a hub that was away,
    /// `*` for a canary and `>` for begun.
    fn check(policy: Value, clusters: &[&str], expected: &[u16]) {
        let stated: RolloutPolicy = serde_json::from_value(policy).unwrap();
        let labels = |text: &str| {
            text.split(' ')
                .skip(1)
                .map(|label| (label.to_owned(), String::new()))
                .collect()
        };
        let labels: Vec<BTreeMap<String, String>> = clusters.iter().map(|text| labels(text)).collect();
        let read = |(text, labels)| {
            let text: &str = text;
            let marks = text.split(' ').next().unwrap();
            Cluster {
                name: marks.trim_end_matches(['!', '?', '~', '*', '>']),
                labels,
                is_healthy: !marks.contains('!'),
                reach: match () {
                    () if marks.contains('?') => Reach::Silent {
                        since: 0,
                        has_entry: false,
                    },
                    () if marks.contains('~') => Reach::NotYet,
                    () => Reach::Heard { at: 0 },
                },
                is_canary: marks.contains('*'),
                has_begun: marks.contains('>'),
            }
        };
        let clusters: Vec<Cluster<'_>> = clusters.iter().copied().zip(&labels).map(read).collect();
        assert_eq!(
            place(&Policy::of(&stated).unwrap(), &clusters, &Resting::default()),
            expected
        );
    }

    fn with(label: &str) -> Value {
        json!({"matchExpressions": [{"key": label, "operator": "Exists"}]})
    }

    #[test]
    fn the_first_healthy_cluster_by_name_is_the_canary_where_nobody_says_which() {
        check(json!({}), &["c", "a!", "b"], &[1, 1, 0]);
        check(json!({}), &["c", "a?", "b!"], &[0, 1, 1]);
        check(json!({}), &["a!"], &[1]);
        check(json!({"canary": {"count": 2}}), &["c", "a", "b"], &[1, 0, 0]);
        check(json!({"canary": {"count": 0}}), &["a"], &[1]);
    }

    #[test]
    fn the_canary_is_of_the_first_step_that_has_clusters() {
        let steps =
            json!([{"name": "none", "clusterSelector": with("none")}, {"name": "eu", "clusterSelector": with("eu")}]);
        check(json!({"steps": steps}), &["a", "b eu", "c eu"], &[3, 0, 2]);
    }

    #[test]
    fn all_that_are_selected_are_canaries_in_whatever_state() {
        let canary = json!({"clusterSelector": with("canary")});
        check(json!({"canary": canary}), &["a", "b canary", "c! canary"], &[1, 0, 0]);
        let one = json!({"clusterSelector": with("canary"), "count": 1});
        check(json!({"canary": one}), &["a", "b! canary", "c canary"], &[1, 1, 0]);
    }

    #[test]
    fn a_canary_stays_one_and_gives_its_place_up_only_before_it_has_begun() {
        check(json!({}), &["a", "b*"], &[1, 0]);
        check(json!({}), &["a", "b*!"], &[0, 1]);
        check(json!({}), &["a", "b*!>"], &[1, 0]);
        check(json!({}), &["a", "b*?>"], &[1, 0]);
        check(json!({}), &["a", "b*?"], &[0, 1]);
        check(json!({}), &["a", "b*~"], &[1, 0]);
        check(json!({}), &["a~", "b"], &[1, 0]);
    }

    #[test]
    fn a_cluster_is_of_the_first_step_that_selects_it() {
        let step = |name: &str| json!({"name": name, "clusterSelector": with(name)});
        let policy = json!({"canary": {"count": 0}, "steps": [step("eu"), step("us")]});
        check(policy, &["a us eu", "b us", "c", "d eu"], &[1, 2, 3, 1]);
    }
}
