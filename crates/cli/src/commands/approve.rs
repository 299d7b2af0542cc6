//! `farwater approve`: a person's word for exactly what would be promoted.

use farwater_api::{
    Digest, GROUP, Pipeline, VERSION,
    pipeline::{APPROVAL_KIND, ApprovalRequest, GateType},
};
use http::Method;
use serde_json::json;

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, any_name},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    /// The Pipeline: NAME or NAMESPACE/NAME.
    pipeline: String,
    /// The stage that gets something.
    stage: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Of what is approved, as `pipeline status -o yaml` shows it; nothing else then is [default: what waits now].
    #[arg(long)]
    digest: Option<Digest>,
    /// Why, for whoever reads it later.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

pub async fn run(args: ApproveArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = any_name(&args.pipeline, args.namespace.or_default(session), "pipeline")?;
    let pipeline: Pipeline = session.get(namespace, name).await?;
    let stages = pipeline.status.unwrap_or_default().stages;
    let candidate = stages.into_iter().find(|stage| stage.name == args.stage).and_then(|stage| stage.candidate);
    let is_asked = candidate.as_ref().is_some_and(|candidate| {
        candidate.gates.iter().any(|gate| gate.r#type == GateType::Approval) && candidate.digest.is_some()
    });
    let Some((candidate, digest)) = candidate.filter(|_| is_asked).and_then(|one| Some((one.clone(), one.digest?)))
    else {
        let told = format!("nothing waits to be approved for stage {} of {namespace}/{name}", args.stage);
        return Err(
            Failure::new(exit::CONFLICT, told).next(format!("{{program}} pipeline status {name} -n {namespace}"))
        );
    };
    let request = ApprovalRequest { stage: args.stage, digest: args.digest.unwrap_or(digest), reason: args.reason };
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pipelines/{name}/approve");
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": APPROVAL_KIND, "spec": request});
    let attempt = format!("approve what gets to stage {} of {namespace}/{name}", request.stage);
    session.ask(&attempt, Method::POST, &path, "application/json", Some(&body)).await?;
    let revision = text::short_revision(&candidate.revision);
    print(&format!("pipeline.farwater.dev/{name} approved, {revision} for stage {}\n", request.stage))?;
    say(&format!("next: {} pipeline status {name} -n {namespace}", session.program.name()));
    Ok(exit::YES)
}
