//! Action of an agent for a service, as far as this version can read it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};
use serde_json::Value;

use super::Deployment;
use crate::{Digest, service_deployment::DeletionPolicy};

// "Self": the derived functions are inherent, and the traits below add what a derive cannot express.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", remote = "Self")]
#[expect(clippy::large_enum_variant, reason = "nearly every action is the large one")]
pub enum Action {
    /// Keep this version applied. The name in JSON is [`PROMOTED`] with promoted values, else [`WITH_PARAMETERS`] with
    /// parameters, else [`RENDERED`] with renderers or patches, else [`WITH_OPTIONS`] with options other than the
    /// defaults.
    Apply(Deployment),
    /// Change nothing; the agent keeps what it has. `reason` is for people.
    Hold { reason: String },
    /// The service was deleted. The entry stays until the agent confirms; absence alone deletes nothing.
    Remove {
        policy: DeletionPolicy,
        #[serde(default, rename = "approvedPrune", skip_serializing_if = "Option::is_none")]
        approved_prune: Option<Digest>,
    },
    /// Action of a newer version. The agent holds the service, and all others continue.
    #[serde(skip)]
    Unreadable(Unreadable),
}

/// An action that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    json: Value,
    problem: String,
}

/// Names of the readable actions.
const KNOWN: [&str; 7] = [
    "Apply",
    WITH_OPTIONS,
    RENDERED,
    WITH_PARAMETERS,
    PROMOTED,
    "Hold",
    "Remove",
];
/// Apply with options. Options are limits, so an agent without support must not apply without them.
const WITH_OPTIONS: &str = "ApplyWithOptions";
/// First version of the agent that supports all options.
const WITH_OPTIONS_SINCE: &str = "0.1.0";
/// Apply with renderers or patches, and optionally with options. An agent without support would create other objects.
const RENDERED: &str = "ApplyRendered";
/// First version of the agent that supports all renderers and their options.
const RENDERED_SINCE: &str = "0.1.0";
/// Apply with parameters, and optionally with all of the others. Without them, the objects would differ.
const WITH_PARAMETERS: &str = "ApplyWithParameters";
/// First version of the agent that supports parameters, and all renderers and options.
const WITH_PARAMETERS_SINCE: &str = "0.1.0";
/// Apply with promoted values, and optionally with all of the others. Without them, the objects would differ.
const PROMOTED: &str = "ApplyPromoted";
/// First version of the agent that supports promoted values.
const PROMOTED_SINCE: &str = "0.1.0";
/// Maximum length of a quoted part of an unreadable action.
const MAX_SHOWN: usize = 64;

impl Unreadable {
    /// Describes the problem, and names the agent version that supports the action.
    pub fn explain(&self, agent_version: &str) -> String {
        let text = |member: &str| {
            self.json[member].as_str().map(|text| {
                text.chars()
                    .filter(|c| !c.is_control())
                    .take(MAX_SHOWN)
                    .collect::<String>()
            })
        };
        let kind = text("type").unwrap_or_default();
        let problem = match KNOWN.contains(&kind.as_str()) {
            true => format!("can't read the action {kind} ({})", self.problem),
            false => format!("does not know the action {kind:?}"),
        };
        let needed = text("needsAgent").map_or_else(
            || "the hub's version".to_owned(),
            |version| format!("{version} or later"),
        );
        format!("agent {agent_version} {problem}; upgrade the agent to {needed}")
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unreadable(unreadable) => unreadable.json.serialize(serializer),
            Self::Apply(deployment) => match guard(deployment) {
                Some((name, since)) => {
                    let mut json = serde_json::to_value(deployment).map_err(S::Error::custom)?;
                    json["type"] = name.into();
                    json["needsAgent"] = since.into();
                    json.serialize(serializer)
                }
                None => Self::serialize(self, serializer),
            },
            known => Self::serialize(known, serializer),
        }
    }
}

/// The name of an action that an agent must not treat as a plain one, and the version that supports it.
fn guard(deployment: &Deployment) -> Option<(&'static str, &'static str)> {
    if !deployment.configuration.is_empty() {
        return Some((PROMOTED, PROMOTED_SINCE));
    }
    if deployment.parameters.is_some() {
        return Some((WITH_PARAMETERS, WITH_PARAMETERS_SINCE));
    }
    if !deployment.renderers.is_empty() || !deployment.patches.is_empty() {
        return Some((RENDERED, RENDERED_SINCE));
    }
    (!deployment.options.is_default()).then_some((WITH_OPTIONS, WITH_OPTIONS_SINCE))
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        if !json.is_object() {
            return Err(D::Error::custom("an action is an object"));
        }
        let is_guarded = [WITH_OPTIONS, RENDERED, WITH_PARAMETERS, PROMOTED]
            .iter()
            .any(|name| json["type"] == *name);
        let read = if is_guarded {
            read_guarded(&json).map(Self::Apply)
        } else {
            Self::deserialize(&json).map_err(|error: serde_json::Error| error.to_string())
        };
        Ok(read.unwrap_or_else(|problem| Self::Unreadable(Unreadable { problem, json })))
    }
}

/// Refuses unknown fields. An ignored option would be a limit that is not enforced, and an ignored renderer would
/// change the objects.
fn read_guarded(json: &Value) -> Result<Deployment, String> {
    let deployment = Deployment::deserialize(json).map_err(|error| error.to_string())?;
    if json["type"] == WITH_PARAMETERS && deployment.parameters.is_none() {
        return Err("it names no parameters".to_owned());
    }
    if json["type"] == PROMOTED && deployment.configuration.is_empty() {
        return Err("it has no texts that were promoted".to_owned());
    }
    let known = serde_json::to_value(&deployment).map_err(|error| error.to_string())?;
    for (member, what) in [
        ("options", "an option"),
        ("renderers", "a renderer's option"),
        ("patches", "a patch's option"),
    ] {
        if known[member] != json[member] {
            return Err(format!("it has {what} of a newer version"));
        }
    }
    Ok(deployment)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(json: Value, expected: &str) {
        let action: Action = serde_json::from_value(json.clone()).unwrap();
        let Action::Unreadable(unreadable) = &action else {
            panic!("{action:?}")
        };
        assert_eq!(unreadable.explain("0.1.0"), expected);
        assert_eq!(serde_json::to_value(&action).unwrap(), json);
    }

    #[test]
    fn an_action_of_a_newer_version_is_kept_and_names_the_version() {
        check(
            json!({"type": "Migrate", "needsAgent": "0.3.0", "to": {"cluster": "west"}}),
            "agent 0.1.0 does not know the action \"Migrate\"; upgrade the agent to 0.3.0 or later",
        );
        check(
            json!({"type": "Migrate"}),
            "agent 0.1.0 does not know the action \"Migrate\"; upgrade the agent to the hub's version",
        );
        check(
            json!({}),
            "agent 0.1.0 does not know the action \"\"; upgrade the agent to the hub's version",
        );
    }

    #[test]
    fn an_action_that_has_changed_is_not_read_as_another() {
        check(
            json!({"type": "Remove", "policy": "Archive", "needsAgent": "0.2.0"}),
            "agent 0.1.0 can't read the action Remove (unknown variant `Archive`, expected `Orphan` or `Delete`); \
             upgrade the agent to 0.2.0 or later",
        );
        check(
            json!({"type": "Hold"}),
            "agent 0.1.0 can't read the action Hold (missing field `reason`); upgrade the agent to the hub's version",
        );
    }

    #[test]
    fn options_are_an_action_of_their_own_and_an_unknown_one_is_not_left_out() {
        let apply = json!({"bundle": Digest::of("b"), "bundleBytes": 1, "path": "app", "targetNamespace": "web", "prune": true,
            "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}}});
        let mut with = apply.clone();
        with["type"] = json!("ApplyWithOptions");
        with["needsAgent"] = json!("0.1.0");
        with["options"] = json!({"drift": "Report", "ignoreDifferences": [{"kind": "Deployment", "jsonPointers": ["/spec/replicas"]}]});
        let action: Action = serde_json::from_value(with.clone()).unwrap();
        assert!(
            matches!(&action, Action::Apply(deployment) if !deployment.options.is_default()),
            "{action:?}"
        );
        assert_eq!(serde_json::to_value(&action).unwrap(), with);
        let mut plain = apply;
        plain["type"] = json!("Apply");
        let action: Action = serde_json::from_value(plain.clone()).unwrap();
        assert_eq!(serde_json::to_value(&action).unwrap(), plain);

        with["needsAgent"] = json!("0.4.0");
        with["options"] = json!({"drift": "Report", "retries": 3});
        check(
            with,
            "agent 0.1.0 can't read the action ApplyWithOptions (it has an option of a newer version); \
             upgrade the agent to 0.4.0 or later",
        );
    }

    #[test]
    fn renderers_are_an_action_of_their_own_and_an_unknown_one_is_not_left_out() {
        let mut rendered = json!({"type": "ApplyRendered", "needsAgent": "0.1.0", "bundle": Digest::of("b"), "bundleBytes": 1,
            "path": "app", "targetNamespace": "web", "prune": true, "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}},
            "options": {"drift": "Report"}, "patches": [{"patch": "{}"}],
            "renderers": [{"type": "Helm", "helm": {"values": {"replicas": 3, "ratio": 1.5}}}]});
        let action: Action = serde_json::from_value(rendered.clone()).unwrap();
        assert!(
            matches!(&action, Action::Apply(deployment) if deployment.renderers.len() == 1),
            "{action:?}"
        );
        assert_eq!(serde_json::to_value(&action).unwrap(), rendered);

        rendered["needsAgent"] = json!("0.5.0");
        rendered["renderers"][0]["helm"]["atomic"] = json!(true);
        check(
            rendered.clone(),
            "agent 0.1.0 can't read the action ApplyRendered (it has a renderer's option of a newer version); \
             upgrade the agent to 0.5.0 or later",
        );
        rendered["renderers"] = json!([{"type": "Timoni"}]);
        check(
            rendered,
            "agent 0.1.0 can't read the action ApplyRendered (unknown variant `Timoni`, expected one of `Auto`, `Raw`, `Helm`, \
             `Kustomize`, `Plugin`); upgrade the agent to 0.5.0 or later",
        );
    }

    #[test]
    fn parameters_are_an_action_of_their_own_also_beside_options_and_renderers() {
        let plain = json!({"type": "ApplyWithParameters", "needsAgent": "0.1.0", "bundle": Digest::of("b"), "bundleBytes": 1, "path": "app",
            "targetNamespace": "web", "prune": true, "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}},
            "parameters": Digest::of("p")});
        let mut with_options = plain.clone();
        with_options["options"] = json!({"drift": "Report"});
        let mut rendered = with_options.clone();
        rendered["renderers"] = json!([{"type": "Helm", "helm": {"values": {"replicas": 3}}}]);
        rendered["patches"] = json!([{"patch": "{}"}]);
        for json in [&plain, &with_options, &rendered] {
            let action: Action = serde_json::from_value(json.clone()).unwrap();
            assert!(
                matches!(&action, Action::Apply(deployment) if deployment.parameters == Some(Digest::of("p"))),
                "{action:?}"
            );
            assert_eq!(serde_json::to_value(&action).unwrap(), *json);
        }
        with_options["options"]["retries"] = json!(3);
        with_options["needsAgent"] = json!("0.4.0");
        check(
            with_options,
            "agent 0.1.0 can't read the action ApplyWithParameters (it has an option of a newer version); \
             upgrade the agent to 0.4.0 or later",
        );
        rendered["needsAgent"] = json!("0.4.0");
        rendered["renderers"][0]["helm"]["atomic"] = json!(true);
        check(
            rendered,
            "agent 0.1.0 can't read the action ApplyWithParameters (it has a renderer's option of a newer version); \
             upgrade the agent to 0.4.0 or later",
        );
        let mut without = plain;
        without.as_object_mut().unwrap().remove("parameters");
        check(
            without,
            "agent 0.1.0 can't read the action ApplyWithParameters (it names no parameters); \
             upgrade the agent to 0.1.0 or later",
        );
    }

    #[test]
    fn what_was_promoted_is_an_action_of_its_own_and_is_not_left_out() {
        let mut promoted = json!({"type": "ApplyPromoted", "needsAgent": "0.1.0", "bundle": Digest::of("b"), "bundleBytes": 1, "path": "app",
            "targetNamespace": "web", "prune": true, "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}},
            "parameters": Digest::of("p"), "renderers": [{"type": "Helm"}], "configuration": {"imageTag": "1.2.3"}});
        let action: Action = serde_json::from_value(promoted.clone()).unwrap();
        assert!(
            matches!(&action, Action::Apply(deployment) if deployment.configuration.len() == 1),
            "{action:?}"
        );
        assert_eq!(serde_json::to_value(&action).unwrap(), promoted);
        promoted.as_object_mut().unwrap().remove("configuration");
        check(
            promoted,
            "agent 0.1.0 can't read the action ApplyPromoted (it has no texts that were promoted); \
             upgrade the agent to 0.1.0 or later",
        );
    }

    #[test]
    fn known_actions_are_written_as_ever() {
        for json in [
            json!({"type": "Hold", "reason": "x"}),
            json!({"type": "Remove", "policy": "Delete"}),
            json!({"type": "Remove", "policy": "Orphan", "approvedPrune": Digest::of("p")}),
        ] {
            let action: Action = serde_json::from_value(json.clone()).unwrap();
            assert!(!matches!(action, Action::Unreadable(_)));
            assert_eq!(serde_json::to_value(&action).unwrap(), json);
        }
        assert!(serde_json::from_value::<Action>(json!("Hold")).is_err());
    }
}
