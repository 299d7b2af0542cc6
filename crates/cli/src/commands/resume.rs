//! `farwater resume`: ends the suspension of a service.

use farwater_api::ServiceDeployment;
use serde_json::json;

use crate::{
    connection::Session,
    exit,
    failure::Result,
    scope::{NamespaceArgs, service_name},
    service,
    terminal::print,
};

#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

pub async fn run(args: ResumeArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let before: ServiceDeployment = session.get(namespace, name).await?;
    let told = if before.spec.suspend {
        "resumed"
    } else {
        "unchanged: it is not suspended"
    };
    if before.spec.suspend {
        let spec = json!({"suspend": false, "suspension": null});
        service::change(session, namespace, name, "resume", spec).await?;
    }
    print(&format!("{} {told}\n", service::qualified(name)))?;
    Ok(exit::YES)
}
