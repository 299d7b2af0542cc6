//! `farwater suspend`: suspends a service, for a limited time and with a reason.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::{
    commands::wait,
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::{NamespaceArgs, service_name},
    service,
    terminal::{print, say},
};

#[derive(Debug, clap::Args)]
pub struct SuspendArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// The reason, for later readers.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// For how long. Then the service resumes by itself.
    #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = wait::parse_duration)]
    duration: Duration,
    /// Until a person resumes it.
    #[arg(long, conflicts_with = "duration")]
    indefinitely: bool,
}

pub async fn run(args: SuspendArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let end = Timestamp::now()
        .checked_add(args.duration)
        .map_err(|_| Failure::usage("--for is longer than the calendar goes"))?;
    // Whole seconds: Kubernetes writes times without fractions.
    let until = (!args.indefinitely).then(|| Timestamp::from_second(end.as_second()).unwrap_or(end));
    let spec = json!({"suspend": true, "suspension": {"reason": args.reason, "until": until}});
    service::change(session, namespace, name, "suspend", spec).await?;
    let told = until.map(|until| format!(" until {until}")).unwrap_or_default();
    print(&format!("{} suspended{told}\n", service::qualified(name)))?;
    say(&format!(
        "next: {} resume {name} -n {namespace}",
        session.program.name()
    ));
    Ok(exit::YES)
}
