//! Approvals by two people: for a prune, or for changes that begin despite closed windows.
//!
//! The first person proposes a text, and another person states the same text as an approval. The API server checks this
//! when the approval is written, so a stored annotation needs no further check.

use std::collections::BTreeMap;

use farwater_api::{
    ADMIN_NAMESPACE, APPROVALS, APPROVE_PRUNE, OVERRIDE_FREEZE, PROPOSE_OVERRIDE, PROPOSE_PRUNE,
    cluster_grant::Approvals,
};
use jiff::{SignedDuration, Timestamp};

use crate::placement::{NamedGrant, selects};

/// How long after it was made another person can approve a proposal.
pub const PROPOSAL_LASTS: SignedDuration = SignedDuration::from_hours(24);

const ACCOUNT: &str = "system:serviceaccount:";

/// What is approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approved {
    Prune,
    FreezeOverride,
}

impl Approved {
    pub const ALL: [Self; 2] = [Self::Prune, Self::FreezeOverride];

    /// The annotation that holds the approval.
    pub fn annotation(self) -> &'static str {
        match self {
            Self::Prune => APPROVE_PRUNE,
            Self::FreezeOverride => OVERRIDE_FREEZE,
        }
    }

    /// The annotation that holds the proposal.
    pub fn proposal(self) -> &'static str {
        match self {
            Self::Prune => PROPOSE_PRUNE,
            Self::FreezeOverride => PROPOSE_OVERRIDE,
        }
    }

    fn people(self, approvals: &Approvals) -> u8 {
        match self {
            Self::Prune => approvals.prunes,
            Self::FreezeOverride => approvals.freeze_overrides,
        }
        .unwrap_or(1)
    }
}

/// The object that requires two people, for messages: `ClusterGrant team-a-production`. None: one person is enough.
///
/// `cluster_labels`: labels of the cluster that is concerned. None: it is unknown or there are several; then every
/// grant of the namespace counts. An unreadable annotation of the Namespace requires two.
pub fn asks_for_two(
    approved: Approved,
    namespace: (&str, &BTreeMap<String, String>),
    cluster_labels: Option<&BTreeMap<String, String>>,
    grants: &[NamedGrant],
) -> Option<String> {
    let (namespace, annotations) = namespace;
    if let Some(text) = annotations.get(APPROVALS)
        && text
            .parse::<Approvals>()
            .map_or(true, |approvals| approved.people(&approvals) > 1)
    {
        return Some(format!("Namespace {namespace}"));
    }
    let concerns = |(_, grant): &&NamedGrant| {
        grant.namespaces.iter().any(|name| name == namespace)
            && cluster_labels.is_none_or(|labels| selects(&grant.cluster_selector, labels))
            && grant.approvals.is_some_and(|approvals| approved.people(&approvals) > 1)
    };
    grants
        .iter()
        .find(concerns)
        .map(|(name, _)| format!("ClusterGrant {name}"))
}

/// A proposal, as the API server recorded it.
#[derive(Clone, Copy, Debug)]
pub struct Proposal<'a> {
    pub by: &'a str,
    pub at: Timestamp,
    pub text: &'a str,
}

/// A user who approves for an object in a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
}

/// Why an approval doesn't count as that of a second person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lacking {
    #[error("nothing is proposed yet")]
    Proposal,
    #[error("{by} proposed another one: {text:?}")]
    OtherText { by: String, text: String },
    #[error("the same write changes the spec, so it is not the proposed one")]
    Changed,
    #[error("the proposal of {by} is more than a day old")]
    Old { by: String },
    #[error("{by} proposed it, and another person approves")]
    SamePerson { by: String },
    #[error(
        "{name} is a service account, which editors of its namespace can use: only users count as people, and outside of {ADMIN_NAMESPACE} \
         its service accounts"
    )]
    NoPerson { name: String },
}

/// Checks that `person` approves what another person has proposed.
pub fn check(text: &str, person: Person<'_>, proposal: Option<Proposal<'_>>, now: Timestamp) -> Result<(), Lacking> {
    let by = person.name;
    let proposal = proposal.ok_or(Lacking::Proposal)?;
    if let Some(name) = [by, proposal.by]
        .into_iter()
        .find(|name| !is_person(name, person.namespace))
    {
        return Err(Lacking::NoPerson { name: name.to_owned() });
    }
    let proposer = || proposal.by.to_owned();
    if proposal.text.trim() != text.trim() {
        return Err(Lacking::OtherText {
            by: proposer(),
            text: proposal.text.to_owned(),
        });
    }
    if now.duration_since(proposal.at) >= PROPOSAL_LASTS {
        return Err(Lacking::Old { by: proposer() });
    }
    if proposal.by == by {
        return Err(Lacking::SamePerson { by: proposer() });
    }
    Ok(())
}

/// Whether a user counts as a person. An editor of a namespace can act as each of its service accounts, and so would be
/// two people. Service accounts of the administrators' namespace count, but only in other namespaces.
fn is_person(name: &str, namespace: &str) -> bool {
    name.strip_prefix(ACCOUNT)
        .is_none_or(|account| namespace != ADMIN_NAMESPACE && account.starts_with(&format!("{ADMIN_NAMESPACE}:")))
}

#[cfg(test)]
mod tests {
    use farwater_api::ClusterGrantSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn grants_and_namespaces_ask_for_two() {
        let grant = |name: &str, env: &str, approvals: serde_json::Value| -> NamedGrant {
            let spec: ClusterGrantSpec = serde_json::from_value(json!({
                "clusterSelector": {"matchLabels": {"env": env}}, "namespaces": ["team-a"], "verbs": ["deploy"],
                "serviceAccountName": "a", "approvals": approvals,
            }))
            .unwrap();
            (name.to_owned(), spec)
        };
        let grants = [
            grant("dev", "dev", json!(null)),
            grant("one", "prod", json!({"prunes": 1})),
            grant("prod", "prod", json!({"prunes": 2})),
        ];
        let check = |approved, namespace: &str, stated: Option<&str>, env: Option<&str>, expected: Option<&str>| {
            let annotations = stated
                .map(|text| (APPROVALS.to_owned(), text.to_owned()))
                .into_iter()
                .collect();
            let labels = env.map(|env| BTreeMap::from([("env".to_owned(), env.to_owned())]));
            let asks = asks_for_two(approved, (namespace, &annotations), labels.as_ref(), &grants);
            assert_eq!(asks.as_deref(), expected, "{approved:?} {namespace} {stated:?} {env:?}");
        };
        check(Approved::Prune, "team-a", None, Some("dev"), None);
        check(Approved::Prune, "team-a", None, Some("prod"), Some("ClusterGrant prod"));
        check(Approved::FreezeOverride, "team-a", None, Some("prod"), None);
        // An unknown cluster, or all clusters of a set.
        check(Approved::Prune, "team-a", None, None, Some("ClusterGrant prod"));
        check(Approved::Prune, "team-b", None, None, None);
        check(
            Approved::Prune,
            "team-b",
            Some("prunes=2"),
            Some("dev"),
            Some("Namespace team-b"),
        );
        check(Approved::FreezeOverride, "team-b", Some("prunes=2"), Some("dev"), None);
        check(
            Approved::FreezeOverride,
            "team-b",
            Some("all"),
            Some("dev"),
            Some("Namespace team-b"),
        );
    }

    #[test]
    fn another_person_approves_what_was_proposed_within_a_day() {
        let now: Timestamp = "2026-12-24T12:00:00Z".parse().unwrap();
        let check_by = |by: &str, proposed_by: &str, hours: i64, text: &str| {
            let proposal = Proposal {
                by: proposed_by,
                at: now - SignedDuration::from_hours(hours),
                text,
            };
            check(
                " a hole",
                Person {
                    name: by,
                    namespace: "team-a",
                },
                Some(proposal),
                now,
            )
            .map_err(|lacking| lacking.to_string())
        };
        assert_eq!(check_by("bob", "ada", 23, "a hole"), Ok(()));
        let administrators = "system:serviceaccount:farwater-admin:ada";
        assert_eq!(check_by("bob", administrators, 1, "a hole"), Ok(()));
        let fails = |result: Result<(), String>, expected: &str| {
            let error = result.unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        fails(
            check(
                "a hole",
                Person {
                    name: "bob",
                    namespace: "team-a",
                },
                None,
                now,
            )
            .map_err(|lacking| lacking.to_string()),
            "nothing is proposed yet",
        );
        fails(check_by("ada", "ada", 1, "a hole"), "another person approves");
        fails(check_by("bob", "ada", 24, "a hole"), "more than a day old");
        fails(check_by("bob", "ada", 1, "a bug"), "proposed another one: \"a bug\"");
        let proposal = Proposal {
            by: administrators,
            at: now,
            text: "a hole",
        };
        let at_home = check(
            "a hole",
            Person {
                name: "bob",
                namespace: "farwater-admin",
            },
            Some(proposal),
            now,
        );
        fails(
            at_home.map_err(|lacking| lacking.to_string()),
            "ada is a service account",
        );
        for [by, proposed_by] in [
            ["system:serviceaccount:team-a:x", "ada"],
            ["ada", "system:serviceaccount:team-a:x"],
        ] {
            fails(
                check_by(by, proposed_by, 1, "a hole"),
                "system:serviceaccount:team-a:x is a service account",
            );
        }
    }
}
