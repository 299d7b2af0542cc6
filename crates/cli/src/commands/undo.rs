//! `farwater undo`: restores the objects that were deleted with a service's last deletion.

use std::time::Duration;

use farwater_api::{
    ServiceDeployment, UNDO,
    deletion::{LastDeletion, Undone, undo_request},
};
use farwater_fleet::words::counted;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    commands::wait::parse_duration,
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, service_name},
    terminal::{print, say},
    text,
};

/// Pause between two reads of the service. The agent answers at its next poll, which is seconds away at least.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub struct UndoArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Time limit of the agent, for example 90s or 10m; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

pub async fn run(args: UndoArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let Some(deletion) = last_deletion(&service) else {
        say(&format!("nothing to undo: no recorded deletion for {namespace}/{name}"));
        return Ok(exit::NO);
    };
    if let Some(undone) = deletion.undone.as_ref().filter(|undone| undone.failed == 0) {
        print(&format!(
            "{namespace}/{name} {} restored already\n",
            counted(undone.restored, "object")
        ))?;
        return Ok(exit::YES);
    }
    if service.spec.suspend {
        return Err(Failure::new(
            exit::CONFLICT,
            format!("{namespace}/{name} is suspended: its agent changes nothing"),
        )
        .next(format!("{{program}} resume {name} -n {namespace}")));
    }

    let request = undo_request(&deletion.digest, &jiff::Timestamp::now().to_string());
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), namespace);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {UNDO: request}}}));
    session
        .bounded("ask for it", api.patch(name, &PatchParams::default(), &patch))
        .await?;
    say(&format!(
        "asked the agent of cluster {} for {}",
        service.spec.cluster_ref.name,
        counted(deletion.count, "object")
    ));
    match tokio::time::timeout(args.timeout, answered(session, (namespace, name), &request)).await {
        Ok(undone) => print_result(&format!("{namespace}/{name}"), &undone?),
        Err(_) => {
            say(&format!(
                "timed out after {}s; the request stays, and the agent will answer it",
                args.timeout.as_secs()
            ));
            say(&format!("  next: {} why {name} -n {namespace}", session.program.name()));
            Ok(exit::TIMEOUT)
        }
    }
}

fn last_deletion(service: &ServiceDeployment) -> Option<&LastDeletion> {
    service.status.as_ref()?.last_deletion.as_ref()
}

/// Waits until the agent has reported the outcome. If the hub can't be reached for a moment, the wait goes on.
async fn answered(session: &Session, (namespace, name): (&str, &str), request: &str) -> Result<Undone> {
    loop {
        match session.get::<ServiceDeployment>(namespace, name).await {
            Ok(service) => {
                let undone = last_deletion(&service).and_then(|deletion| deletion.undone.clone());
                if let Some(undone) = undone.filter(|undone| undone.request == request) {
                    return Ok(undone);
                }
            }
            Err(failure) if failure.code == exit::UNREACHABLE => {}
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn print_result(service: &str, undone: &Undone) -> Result<u8> {
    print(&format!("{service} {} restored\n", counted(undone.restored, "object")))?;
    if undone.restored > 0 {
        say(
            "no service manages the restored objects: add them to a source again, or delete them when they are no longer needed",
        );
    }
    if undone.failed == 0 {
        return Ok(exit::YES);
    }
    say(&format!("{} could not be restored:", counted(undone.failed, "object")));
    for one in &undone.failures {
        say(&format!(
            "  {}: {}",
            text::plain(&one.object.to_string()),
            text::plain(&one.message)
        ));
    }
    Ok(exit::NO)
}
