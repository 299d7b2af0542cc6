//! `farwater wait`: waits until services are healthy or applied, or sets, clusters and sources are ready. Ends early if
//! they can't get there by themselves.

mod judge;
mod looks;
mod members;
mod others;
mod services;

use std::{collections::BTreeMap, time::Duration};

use farwater_fleet::why::{Finding, NextStep};

use crate::{
    commands::why,
    connection::Session,
    exit,
    failure::Result,
    scope::{NamespaceArgs, object_name},
    terminal::say,
    text,
};
pub use looks::Looks;
pub use services::until;

#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Services (NAME or NAMESPACE/NAME), serviceset/NAME, cluster/NAME, or sources such as gitrepository/NAME.
    #[arg(required_unless_present = "all", value_name = "SERVICE|KIND/NAME")]
    services: Vec<String>,
    /// Every service of the namespace.
    #[arg(long, conflicts_with = "services")]
    all: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// State to wait for.
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value_t)]
    goal: Goal,
    /// Fetches the sources of the services or sets first, as after a push. Fails if one is unreachable.
    #[arg(long)]
    fetch: bool,
    /// Time limit, for example 90s or 10m; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Goal {
    /// The agent has applied the assigned revision, and every object is healthy.
    #[default]
    Healthy,
    /// The agent has applied the assigned revision.
    Applied,
}

impl Goal {
    fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Applied => "applied",
        }
    }
}

/// An object must have been stuck for this long. A source that was just made and an agent that tries again are stuck
/// for a moment only.
pub const GRACE: Duration = Duration::from_secs(10);

/// The services of one namespace to wait for. No names: all that exist at the start.
pub struct Wanted {
    pub namespace: String,
    pub names: Vec<String>,
    /// Whether to fetch their sources first and wait for the newest version. False: the assigned version is enough.
    pub newest: bool,
}

/// Parses `90s`, `5m`, `1h30m`, or a number of seconds without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let wrong = || format!("{text:?} is no duration; for example 90s or 5m");
    let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

pub async fn run(args: WaitArgs, session: &Session) -> Result<u8> {
    let default = args.namespace.or_default(session);
    let mut by_namespace: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if args.all {
        by_namespace.insert(default.to_owned(), Vec::new());
    }
    let mut others = Vec::new();
    for argument in &args.services {
        let named = object_name(argument, default)?;
        match named.kind.plural.as_str() {
            "servicedeployments" => {
                by_namespace
                    .entry(named.namespace.to_owned())
                    .or_default()
                    .push(named.name.to_owned());
            }
            _ => others.push(others::Awaited::new(named, args.fetch)?),
        }
    }
    let waits = by_namespace.into_iter().map(|(namespace, names)| async move {
        let wanted = Wanted {
            namespace,
            names,
            newest: args.fetch,
        };
        until(session, &wanted, args.goal, args.timeout).await
    });
    let others = others
        .iter()
        .map(|awaited| others::until(session, awaited, args.goal, args.timeout));
    let (codes, more): (Vec<u8>, Vec<u8>) = futures::future::try_join(
        futures::future::try_join_all(waits),
        futures::future::try_join_all(others),
    )
    .await?;
    Ok(codes.into_iter().chain(more).max().unwrap_or(exit::YES))
}

/// Waits until the rollout of a set is complete and healthy.
pub async fn until_set((namespace, name): (&str, &str), timeout: Duration, session: &Session) -> Result<u8> {
    let argument = format!("serviceset/{namespace}/{name}");
    let awaited = others::Awaited::new(object_name(&argument, namespace)?, false)?;
    others::until(session, &awaited, Goal::Healthy, timeout).await
}

/// Prints the cause, unless `said` says it, and the next command, unless that is another `wait`.
fn print_finding(session: &Session, name: &str, finding: &Finding, said: &str) {
    if !said.contains(&finding.sentence) {
        say(&format!("  {name}: {}", text::plain(&finding.sentence)));
    }
    if let Some(first) = &finding.first {
        say(&format!("  first: {}", text::plain(&why::command(first, session))));
    }
    let next = finding
        .next
        .as_ref()
        .filter(|next| !matches!(next, NextStep::Farwater(next) if next.starts_with("wait ")));
    if let Some(next) = next {
        say(&format!("  next: {}", text::plain(&why::command(next, session))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("soon").is_err());
        assert!(parse_duration("-5s").is_err());
    }
}
