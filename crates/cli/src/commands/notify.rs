//! `farwater notify`: sends a test message, to see whether a provider accepts any.

use std::time::{Duration, Instant};

use farwater_api::{NotificationProvider, REQUESTED_AT};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    commands::wait,
    connection::Session,
    exit,
    failure::Result,
    scope::{NamespaceArgs, any_name},
    terminal::{print, say},
    text,
};

/// Pause between two looks at the result.
const LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
pub struct NotifyArgs {
    #[command(subcommand)]
    command: NotifyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NotifyCommand {
    /// Sends a test message to a provider. Exits with 0 if the provider accepts it.
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    /// The NotificationProvider: NAME or NAMESPACE/NAME.
    provider: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Time limit for the provider's answer; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = wait::parse_duration)]
    timeout: Duration,
}

pub async fn run(args: NotifyArgs, session: &Session) -> Result<u8> {
    let NotifyCommand::Test(args) = args.command;
    let default = args.namespace.or_default(session);
    let (namespace, name) = any_name(&args.provider, default, "notification provider")?;
    session.get::<NotificationProvider>(namespace, name).await?;
    let now = jiff::Timestamp::now().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {REQUESTED_AT: now}}}));
    let api: Api<NotificationProvider> = Api::namespaced(session.client.clone(), namespace);
    session
        .bounded("ask for a message", api.patch(name, &PatchParams::default(), &patch))
        .await?;
    let begun = Instant::now();
    while begun.elapsed() < args.timeout {
        let provider = session.get::<NotificationProvider>(namespace, name).await?;
        let status = provider.status.unwrap_or_default();
        if status.last_handled_reconcile_at.as_deref() == Some(&now) {
            let ready = status
                .conditions
                .into_iter()
                .find(|condition| condition.type_ == "Ready");
            let (is_ready, said) = ready.map_or((false, "it says nothing".to_owned()), |ready| {
                (ready.status == "True", ready.message)
            });
            let what = if is_ready {
                "took the message"
            } else {
                "did not take the message"
            };
            print(&format!("{namespace}/{name} {what}: {}\n", text::plain(&said)))?;
            return Ok(if is_ready { exit::YES } else { exit::NO });
        }
        tokio::time::sleep(LOOK).await;
    }
    say(&format!(
        "timed out after {}s; the hub has not tried yet",
        args.timeout.as_secs()
    ));
    Ok(exit::TIMEOUT)
}
