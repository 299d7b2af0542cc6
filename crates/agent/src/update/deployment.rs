//! The agent's own Deployment: reads the parts that matter, and writes each step of a change.

use farwater_api::{AGENT_NAMESPACE, Digest};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Attempt, Refused, Seen, Template};
use crate::{
    kubernetes::{ApiError, Kubernetes, Resource},
    messages::shorten,
};

/// Digest of the settings in force.
const APPLIED: &str = "farwater.dev/agent-settings";

/// The change in progress.
pub(super) const ATTEMPT: &str = "farwater.dev/agent-update";

/// The last change that did not work.
pub(super) const REFUSED: &str = "farwater.dev/agent-refused";

/// Name of the agent's container in its pod.
const CONTAINER: &str = "agent";

/// Tells a new agent with which settings it is the first to run.
const SETTINGS_VARIABLE: &str = "FARWATER_AGENT_SETTINGS";

pub(super) const LOG_VARIABLE: &str = "FARWATER_LOG";

pub(super) async fn adopt(kubernetes: &Kubernetes, path: &str, seen: &Seen, digest: Digest) -> Result<(), ApiError> {
    let annotations = [(APPLIED, Some(digest.to_string())), (REFUSED, None)];
    write(kubernetes, path, seen, None, &annotations).await
}

pub(super) async fn begin(
    kubernetes: &Kubernetes,
    path: &str,
    seen: &Seen,
    template: &Template,
    attempt: &Attempt,
) -> Result<(), ApiError> {
    tracing::info!(
        from = seen.template.image,
        to = template.image,
        "changing the agent's own Deployment"
    );
    let annotations = [(ATTEMPT, Some(to_text(attempt))), (REFUSED, None)];
    let changed = Some((template, Some(attempt.settings)));
    write(kubernetes, path, seen, changed, &annotations).await
}

pub(super) async fn confirm(
    kubernetes: &Kubernetes,
    path: &str,
    seen: &Seen,
    mine: Option<Digest>,
) -> Result<(), ApiError> {
    let applied = mine.map(|digest| digest.to_string());
    let annotations = [(APPLIED, applied), (ATTEMPT, None), (REFUSED, None)];
    write(kubernetes, path, seen, None, &annotations).await?;
    tracing::info!(image = seen.template.image, "the new version of the agent is confirmed");
    Ok(())
}

/// Changes the Deployment back, and records why the settings are refused.
pub(super) async fn go_back(
    kubernetes: &Kubernetes,
    path: &str,
    seen: &Seen,
    attempt: &Attempt,
    why: &str,
) -> Result<Refused, ApiError> {
    let state = describe_pods(kubernetes).await;
    let refused = Refused {
        settings: attempt.settings,
        reason: shorten(&format!("{}: {why}{state}", seen.template.image)),
    };

    let annotations = [(ATTEMPT, None), (REFUSED, Some(to_text(&refused)))];
    let changed = Some((&attempt.previous, seen.applied));
    write(kubernetes, path, seen, changed, &annotations).await?;
    tracing::warn!(
        reason = refused.reason,
        image = attempt.previous.image,
        "going back to the agent's version before"
    );
    Ok(refused)
}

pub(super) fn deployments() -> Resource {
    Resource {
        group: "apps".into(),
        version: "v1".into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
        namespaced: true,
    }
}

pub(super) fn to_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("an annotation is plain JSON")
}

pub(super) async fn read(kubernetes: &Kubernetes, path: &str) -> Result<Seen, ApiError> {
    parse(&kubernetes.get(None, path, false).await?)
}

/// An unreadable annotation is not ours, and is ignored.
pub(super) fn parse(deployment: &Value) -> Result<Seen, ApiError> {
    let containers = deployment["spec"]["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten();
    let container = containers.into_iter().find(|container| container["name"] == CONTAINER);
    let container = container
        .ok_or_else(|| ApiError::Unusable(format!("the agent's Deployment has no container named {CONTAINER}")))?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let variables = container["env"].as_array().into_iter().flatten();
    let log = variables.into_iter().find(|variable| variable["name"] == LOG_VARIABLE);
    let annotations = &deployment["metadata"]["annotations"];
    Ok(Seen {
        version: text(&deployment["metadata"]["resourceVersion"]).unwrap_or_default(),
        template: Template {
            image: text(&container["image"]).unwrap_or_default(),
            log: log.and_then(|variable| text(&variable["value"])),
            memory_limit: text(&container["resources"]["limits"]["memory"]),
        },
        applied: annotations[APPLIED].as_str().and_then(|digest| digest.parse().ok()),
        attempt: from_text(&annotations[ATTEMPT]),
        refused: from_text(&annotations[REFUSED]),
    })
}

fn from_text<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_str(value.as_str()?).ok()
}

/// Writes if the Deployment is unchanged since `seen`. `template`: with the settings that its process is the first to
/// run with.
pub(super) async fn write(
    kubernetes: &Kubernetes,
    path: &str,
    seen: &Seen,
    template: Option<(&Template, Option<Digest>)>,
    annotations: &[(&str, Option<String>)],
) -> Result<(), ApiError> {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let mut patch = json!({"metadata": {"resourceVersion": seen.version, "annotations": annotations}});
    if let Some((template, settings)) = template {
        let variable = |name: &str, value: Option<String>| match value {
            Some(value) => json!({"name": name, "value": value}),
            None => json!({"name": name, "$patch": "delete"}),
        };
        patch["spec"] = json!({"template": {"spec": {"containers": [{
            "name": CONTAINER,
            "image": template.image,
            "env": [
                variable(LOG_VARIABLE, template.log.clone()),
                variable(SETTINGS_VARIABLE, settings.map(|digest| digest.to_string())),
            ],
            "resources": {"limits": {"memory": template.memory_limit}},
        }]}}});
    }
    kubernetes.patch_strategic(path, &patch).await.map(drop)
}

/// The messages of the agent's pods that are not ready. Empty if the agent may not read pods.
async fn describe_pods(kubernetes: &Kubernetes) -> String {
    let mut found = String::new();
    let collection = format!("/api/v1/namespaces/{AGENT_NAMESPACE}/pods");
    let each = |pod: Value| {
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        for status in statuses.into_iter().filter(|status| status["ready"] != true) {
            let ended = &status["lastState"]["terminated"]["message"];
            let waiting = &status["state"]["waiting"];
            let words = [ended, &waiting["reason"], &waiting["message"]];
            let words: Vec<&str> = words.iter().filter_map(|word| word.as_str()).map(str::trim).collect();
            if !words.is_empty() {
                found = format!("; its pod says: {}", words.join(": "));
            }
        }
    };
    let selector = "app.kubernetes.io/name=farwater,app.kubernetes.io/component=agent";
    if let Err(error) = kubernetes.list(None, &collection, selector, false, each).await {
        tracing::debug!(error = crate::hub::chain(&error), "can't look at the agent's own pods");
    }
    found
}
