//! `farwater approve`: approves the promotion to a stage, or a held prune, exactly as it was shown.

use farwater_api::{
    APPROVE_PRUNE, Digest, GROUP, PROPOSE_PRUNE, Pipeline, ServiceDeployment, VERSION,
    pipeline::{APPROVAL_KIND, ApprovalRequest, GateType},
    service_deployment::HeldPrune,
};
use farwater_fleet::words::counted;
use http::Method;
use serde_json::json;

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result, suggest},
    scope::{NamespaceArgs, any_name, service_name},
    service,
    terminal::{self, print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    /// The Pipeline, with a stage, or the service whose prune is held: NAME or NAMESPACE/NAME.
    #[arg(value_name = "PIPELINE|SERVICE")]
    name: String,
    /// The stage that gets something.
    stage: Option<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Approves only this digest. See `pipeline status -o yaml`, or a service's `status.heldPrune` [default: the
    /// current one].
    #[arg(long)]
    digest: Option<Digest>,
    /// The reason of a promotion, for later readers. The approval of a prune records no reason.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Proposes the approval of a service that needs two people; another person then runs the same command without this option.
    #[arg(long, conflicts_with = "stage")]
    propose: bool,
}

pub async fn run(args: ApproveArgs, session: &Session) -> Result<u8> {
    let Some(stage) = args.stage.clone() else {
        return approve_prune(args, session).await;
    };
    let (namespace, name) = any_name(&args.name, args.namespace.or_default(session), "pipeline")?;
    let pipeline: Pipeline = session.get(namespace, name).await?;
    let names: Vec<&str> = pipeline.spec.stages.iter().map(|one| one.name.as_str()).collect();
    if !names.contains(&stage.as_str()) {
        return Err(no_stage((namespace, name), &stage, &names));
    }
    let stages = pipeline.status.unwrap_or_default().stages;
    let candidate = stages
        .into_iter()
        .find(|one| one.name == stage)
        .and_then(|stage| stage.candidate);
    let is_asked = candidate.as_ref().is_some_and(|candidate| {
        candidate.gates.iter().any(|gate| gate.r#type == GateType::Approval) && candidate.digest.is_some()
    });
    let Some((candidate, digest)) = candidate
        .filter(|_| is_asked)
        .and_then(|one| Some((one.clone(), one.digest?)))
    else {
        let told = format!("nothing waits to be approved for stage {stage} of {namespace}/{name}");
        return Err(
            Failure::new(exit::CONFLICT, told).next(format!("{{program}} pipeline status {name} -n {namespace}"))
        );
    };
    let request = ApprovalRequest {
        stage,
        digest: args.digest.unwrap_or(digest),
        reason: args.reason.unwrap_or_default(),
    };
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pipelines/{name}/approve");
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": APPROVAL_KIND, "spec": request});
    let attempt = format!("approve what gets to stage {} of {namespace}/{name}", request.stage);
    session
        .ask(&attempt, Method::POST, &path, "application/json", Some(&body))
        .await?;
    let revision = text::short_revision(&candidate.revision);
    print(&format!(
        "pipeline.farwater.dev/{name} approved, {revision} for stage {}\n",
        request.stage
    ))?;
    say(&format!(
        "next: {} pipeline status {name} -n {namespace}",
        session.program.name()
    ));
    Ok(exit::YES)
}

fn no_stage((namespace, name): (&str, &str), stage: &str, names: &[&str]) -> Failure {
    let failure = Failure::new(exit::MISSING, format!("{namespace}/{name} has no stage {stage:?}"))
        .next(format!("{{program}} pipeline status {name} -n {namespace}"));
    match suggest(stage, names.iter().copied()) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None => failure.evidence(format!("its stages are {}", names.join(", "))),
    }
}

/// Shows what would be deleted and asks. With a digest, approves exactly that without a question, for scripts.
async fn approve_prune(args: ApproveArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.name, args.namespace.or_default(session))?;
    if args.reason.is_some() {
        return Err(Failure::usage("--reason goes with the stage of a pipeline")
            .evidence("the approval of a prune records no reason"));
    }
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let Some(held) = service.status.and_then(|status| status.held_prune) else {
        let told = format!("no prune of {namespace}/{name} waits for an approval");
        return Err(Failure::new(exit::CONFLICT, told).next(format!("{{program}} why {name} -n {namespace}")));
    };
    if let Some(digest) = args.digest.filter(|digest| !is_of(&held, *digest)) {
        let told = format!(
            "the prune of {namespace}/{name} that waits is another one: {}",
            held.digest
        );
        return Err(Failure::new(exit::CONFLICT, told)
            .evidence(format!("asked for: {digest}"))
            .next(format!("{{program}} plan {name} -n {namespace}")));
    }
    // An earlier plan held objects that are not shown here, so it needs to be named with --digest.
    let digest = args.digest.unwrap_or(held.digest);
    if args.digest.is_none() {
        say(&describe(&held));
        match terminal::confirm("Delete?")? {
            Some(true) => {}
            Some(false) => return Ok(exit::NO),
            None => {
                let told = format!("{namespace}/{name} was not approved: standard input is not a terminal");
                let next = format!("{{program}} approve {name} -n {namespace} --digest {digest}");
                return Err(Failure::usage(told).next(next));
            }
        }
    }
    if digest != held.digest {
        say(&format!("this is what is left of the plan {digest}, which is approved"));
    }
    annotate(session, (namespace, name), digest, args.propose).await?;
    let told = match args.propose {
        true => {
            format!("proposed: within a day another person can give the same command without --propose, for {digest}")
        }
        false => "approved: the agent deletes the held objects".to_owned(),
    };
    print(&format!("servicedeployment.{GROUP}/{name} {told}\n"))?;
    Ok(exit::YES)
}

/// Writes the approval of a plan, or its proposal, to the service.
async fn annotate(session: &Session, (namespace, name): (&str, &str), digest: Digest, propose: bool) -> Result<()> {
    let (verb, annotation) = match propose {
        true => ("propose the approval of the prune of", PROPOSE_PRUNE),
        false => ("approve the prune of", APPROVE_PRUNE),
    };
    service::annotate(session, (namespace, name), verb, json!({annotation: digest}))
        .await
        .map_err(|failure| match propose && failure.code == exit::CONFLICT {
            true => failure.next(format!(
                "without --propose: {{program}} approve {name} -n {namespace} --digest {digest}"
            )),
            false => failure,
        })
}

/// Whether an approval of this plan counts for what is held.
fn is_of(held: &HeldPrune, digest: Digest) -> bool {
    digest == held.digest || held.earlier.contains(&digest)
}

fn describe(held: &HeldPrune) -> String {
    let mut text = format!(
        "held: {}\nan approval deletes {}:",
        text::plain(&held.reason),
        counted(held.count, "object")
    );
    for object in &held.objects {
        text += &format!("\n  {}", text::plain(&object.to_string()));
    }
    let more = usize::try_from(held.count)
        .unwrap_or_default()
        .saturating_sub(held.objects.len());
    if more > 0 {
        text += &format!("\n  and {more} more");
    }
    for contents in &held.contents {
        let counts: Vec<_> = contents
            .counts
            .iter()
            .map(|one| format!("{} {}", one.count, one.kind))
            .collect();
        let counts = if counts.is_empty() {
            "nothing that is known".to_owned()
        } else {
            counts.join(", ")
        };
        text += &format!("\n  with {}: {counts}", text::plain(&contents.object.to_string()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_does_not_exist_is_missing_and_those_that_exist_are_named() {
        let refused = |stage: &str| no_stage(("team-a", "shop"), stage, &["dev", "production"]);
        assert_eq!(refused("qa").code, exit::MISSING);
        assert_eq!(refused("qa").evidence.unwrap(), "its stages are dev, production");
        assert_eq!(refused("prodution").evidence.unwrap(), "did you mean \"production\"?");
    }

    #[test]
    fn what_would_be_deleted_is_named_with_what_goes_with_it() {
        let held: HeldPrune = serde_json::from_value(json!({
            "digest": Digest::of("plan"), "reason": "Namespace web is of a protected kind", "count": 3,
            "objects": [{"version": "v1", "kind": "Namespace", "name": "web"}, {"version": "v1", "kind": "ConfigMap", "namespace": "a", "name": "b"}],
            "contents": [{"object": {"version": "v1", "kind": "Namespace", "name": "web"}, "counts": [{"kind": "Secret", "count": 2}]}],
        }))
        .unwrap();
        assert_eq!(
            describe(&held),
            "held: Namespace web is of a protected kind\nan approval deletes 3 objects:\n  Namespace web\n  ConfigMap a/b\n  and 1 more\n  \
             with Namespace web: 2 Secret"
        );
    }
}
