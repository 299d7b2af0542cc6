//! Checks of a cluster: its agent, the agent's hub, the agent's rights, and the cluster's clock.

use farwater_api::Digest;
use farwater_manifests::{
    names::agent as names,
    rules::{AGENT_IN_CLUSTER, AGENT_IN_NAMESPACE, Rule},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, api::PostParams};

use super::{
    Check, Checks, Finding, Part, certificate,
    local::{ask_client, compare_clocks},
};
use crate::{connection::Session, failure::Result, pods::Pods, target::Target, text};

/// Concurrent requests about rights.
const AT_ONCE: usize = 8;

pub fn add<'a>(checks: &mut Checks<'a>, target: &'a Target, session: Option<&'a Session>) {
    checks.add(Part::Cluster, "clock", clock(target));
    checks.add_many(Part::Cluster, "agent", agent(target, session));
    checks.add(Part::Cluster, "rights", rights(target));
}

async fn clock(target: &Target) -> Finding {
    match ask_client(&target.client, "/version").await {
        Ok(answered) => compare_clocks("the cluster's", answered.date, Timestamp::now()),
        Err(error) => target.failure("ask the cluster's version", &error).into(),
    }
}

async fn agent(target: &Target, session: Option<&Session>) -> Vec<Check> {
    let deployments: Api<Deployment> = Api::namespaced(target.client.clone(), names::NAMESPACE);
    let found = match deployments.get_opt(names::NAME).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let found = format!("there is no Deployment {} in {}", names::NAME, names::NAMESPACE);
            let remedy = format!("{{program}} cluster join NAME --context {}", target.context);
            return vec![Check::new(Part::Cluster, "agent", Finding::fail(found, remedy))];
        }
        Err(error) => {
            let failure = target.failure("read the agent's Deployment", &error);
            return vec![Check::new(Part::Cluster, "agent", failure)];
        }
    };
    let mut checks = vec![Check::new(Part::Cluster, "agent", readiness(target, &found).await)];
    if let Some(session) = session {
        checks.push(Check::new(Part::Cluster, "agent's hub", belongs(&found, session).await));
    }
    checks
}

async fn readiness(target: &Target, deployment: &Deployment) -> Finding {
    let status = deployment.status.clone().unwrap_or_default();
    if status.ready_replicas.unwrap_or(0) > 0 {
        let containers = deployment
            .spec
            .iter()
            .filter_map(|spec| spec.template.spec.as_ref())
            .flat_map(|pod| &pod.containers);
        let image = containers
            .filter_map(|container| container.image.clone())
            .next()
            .unwrap_or_default();
        return Finding::ok(format!("ready, {}", text::plain(&image)));
    }
    let logs = format!(
        "kubectl --context {} -n {} logs deployment/{}",
        target.context,
        names::NAMESPACE,
        names::NAME
    );
    if deployment.spec.as_ref().and_then(|spec| spec.replicas) == Some(0) {
        return Finding::fail("its Deployment is scaled to none", "scale it to one");
    }
    match (Pods {
        target,
        namespace: names::NAMESPACE,
        component: "agent",
    })
    .explain()
    .await
    {
        Ok(state) => Finding::fail(format!("not ready: {}", text::plain(&state)), logs),
        Err(failure) => failure.into(),
    }
}

/// Whether the agent belongs to this hub. The authority decides, because a hub may have several addresses.
async fn belongs(deployment: &Deployment, session: &Session) -> Finding {
    let variables = deployment
        .spec
        .iter()
        .filter_map(|spec| spec.template.spec.as_ref())
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| container.env.iter().flatten());
    let (mut hub, mut pin) = (String::new(), String::new());
    for variable in variables {
        match &*variable.name {
            "FARWATER_HUB" => hub = variable.value.clone().unwrap_or_default(),
            "FARWATER_CA_PIN" => pin = variable.value.clone().unwrap_or_default(),
            _ => {}
        }
    }
    let shown = certificate::look(&session.server).await;
    // The last one is the present authority; an agent that joined before a change pins one of the others.
    let own: Vec<String> = shown
        .map(|shown| shown.pins.iter().map(Digest::to_string).collect())
        .unwrap_or_default();
    judge_pin(&hub, &pin, &own)
}

fn judge_pin(hub: &str, pin: &str, own: &[String]) -> Finding {
    let hub = text::plain(hub);
    match own.last() {
        _ if pin.is_empty() => Finding::ok(format!(
            "it reaches its hub at {hub}, by the authorities of its CA file"
        )),
        Some(_) if own.iter().any(|own| own == pin) => {
            Finding::ok(format!("it trusts this hub and reaches it at {hub}"))
        }
        Some(own) => Finding::fail(
            format!(
                "it trusts another hub, at {hub}: its pin is {}, this hub's authority {own}",
                text::plain(pin)
            ),
            "sign in at that hub, or let the cluster leave there and join here",
        ),
        None => Finding::warn(
            format!("it reaches its hub at {hub}; this hub shows no authority to compare"),
            "compare FARWATER_CA_PIN of its Deployment with the hub's log, `ca_pin`",
        ),
    }
}

/// Checks in the cluster every right that the manifests give the agent.
async fn rights(target: &Target) -> Finding {
    let cluster = AGENT_IN_CLUSTER.iter().map(|rule| (rule, None));
    let namespace = AGENT_IN_NAMESPACE.iter().map(|rule| (rule, Some(names::NAMESPACE)));
    let questions: Vec<_> = cluster
        .chain(namespace)
        .flat_map(|(rule, namespace)| questions(rule, namespace))
        .collect();
    let number = questions.len();
    let answers = stream::iter(questions).map(async |(rule, attributes)| {
        let told = describe(&attributes);
        Ok::<_, crate::failure::Failure>((!may(target, attributes).await?).then(|| format!("{told}, to {}", rule.why)))
    });
    match answers.buffered(AT_ONCE).try_collect::<Vec<_>>().await {
        Ok(missing) => {
            let missing: Vec<String> = missing.into_iter().flatten().collect();
            if missing.is_empty() {
                return Finding::ok(format!("the agent has the {number} rights that it needs"));
            }
            let remedy = format!(
                "{{program}} cluster join NAME --context {} makes its roles again",
                target.context
            );
            Finding::fail(format!("the agent may not {}", missing.join("; nor ")), remedy)
        }
        Err(failure) if failure.is_denied() => {
            let found = format!("can't be asked: {}", failure.evidence.unwrap_or(failure.cause));
            Finding::warn(found, "ask an account with the right to create subjectaccessreviews")
        }
        Err(failure) => failure.into(),
    }
}

fn questions<'a>(rule: &'a Rule, namespace: Option<&str>) -> Vec<(&'a Rule, ResourceAttributes)> {
    let names: Vec<Option<&str>> = if rule.names.is_empty() {
        vec![None]
    } else {
        rule.names.iter().copied().map(Some).collect()
    };
    let mut questions = Vec::new();
    for group in rule.groups {
        for resource in rule.resources {
            for verb in rule.verbs {
                for name in &names {
                    let attributes = ResourceAttributes {
                        group: Some((*group).to_owned()),
                        resource: Some((*resource).to_owned()),
                        verb: Some((*verb).to_owned()),
                        name: name.map(str::to_owned),
                        namespace: namespace.map(str::to_owned),
                        ..ResourceAttributes::default()
                    };
                    questions.push((rule, attributes));
                }
            }
        }
    }
    questions
}

fn describe(attributes: &ResourceAttributes) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let place = attributes
        .namespace
        .as_ref()
        .map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("{} {}{place}", text(&attributes.verb), text(&attributes.resource))
}

async fn may(target: &Target, attributes: ResourceAttributes) -> Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{}:{}", names::NAMESPACE, names::NAME)),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", names::NAMESPACE),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(target.client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| target.failure("ask what the agent may do", &error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::{super::Grade, *};

    #[test]
    fn an_agent_of_another_hub_is_told_by_its_pin() {
        let own = ["sha256:0".to_owned(), "sha256:a".to_owned()];
        assert_eq!(judge_pin("https://hub", "sha256:a", &own).grade, Grade::Ok);
        assert_eq!(
            judge_pin("https://hub", "sha256:0", &own).grade,
            Grade::Ok,
            "an authority of before"
        );
        let other = judge_pin("https://hub", "sha256:b", &own);
        assert!(
            other.grade == Grade::Fail && other.found.contains("sha256:b"),
            "{other:?}"
        );
        assert_eq!(judge_pin("https://hub", "sha256:b", &[]).grade, Grade::Warn);
    }

    #[test]
    fn every_verb_of_every_rule_is_asked() {
        let all: Vec<_> = AGENT_IN_NAMESPACE
            .iter()
            .flat_map(|rule| questions(rule, Some("ns")))
            .collect();
        let told: Vec<String> = all.iter().map(|(_, attributes)| describe(attributes)).collect();
        assert!(told.contains(&"patch secrets in ns".to_owned()), "{told:?}");
        // Only for the object that the rule names.
        assert!(
            all.iter()
                .any(|(_, attributes)| attributes.name.as_deref() == Some("farwater-agent"))
        );
        let everywhere: Vec<_> = AGENT_IN_CLUSTER.iter().flat_map(|rule| questions(rule, None)).collect();
        assert!(
            everywhere
                .iter()
                .any(|(_, attributes)| attributes.verb.as_deref() == Some("impersonate"))
        );
    }
}
