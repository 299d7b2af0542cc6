//! `farwater rollout`: shows the progress of a set's rollout, and gives orders to it.

mod picture;

use std::time::Duration;

use farwater_api::{
    GROUP, ManagedNamespace, RolloutPhase, RolloutPolicy, ServiceSet, VERSION,
    rollout::{Promote, RolloutOrder},
    service_set::{Member, Progress, RolloutStatus, SetVersion},
};
use farwater_fleet::{conditions::find, summary::NO_CLUSTERS, words::listed};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result, suggest},
    format::{self, Answer},
    scope::{NamedSet, NamespaceArgs, any_name, set_name},
    terminal::{Terminal, print, say},
};
use picture::draw;

const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct RolloutArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Shows the progress of the rollout, and why each cluster waits.
    Status(StatusArgs),
    /// Starts a held rollout, or skips the current soak, step or halt.
    Promote(PromoteArgs),
    /// Pauses the rollout.
    Pause(OrderArgs),
    /// Resumes a paused rollout.
    Resume(NamedArgs),
    /// Aborts the rollout and rolls back the clusters that it has changed.
    Abort(OrderArgs),
    /// Leaves clusters out of this rollout. They keep their version and get the next one.
    Skip(SkipArgs),
}

#[derive(Debug, clap::Args)]
struct NamedArgs {
    /// The set: NAME or NAMESPACE/NAME; or managednamespace/NAME.
    set: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Shows the progress until the rollout is complete or stopped.
    #[arg(short, long)]
    watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

#[derive(Debug, clap::Args)]
struct OrderArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The reason, for later readers.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

#[derive(Debug, clap::Args)]
struct PromoteArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// The condition that the rollout no longer waits for.
    #[arg(long, value_enum, default_value_t = Past::Soak)]
    past: Past,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Past {
    /// The soak of the clusters that are healthy now.
    Soak,
    /// The current step.
    Step,
    /// The halt after a failure. The clusters that failed stay as they are.
    Halt,
}

#[derive(Debug, clap::Args)]
struct SkipArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// NAMESPACE/NAME of a cluster; repeatable.
    #[arg(long = "cluster", value_name = "NS/NAME", required = true)]
    clusters: Vec<String>,
}

pub async fn run(args: RolloutArgs, session: &Session) -> Result<u8> {
    match args.what {
        What::Status(args) => status(args, session).await,
        What::Pause(OrderArgs { named, reason }) => pause(named, Some(reason), session).await,
        What::Resume(named) => pause(named, None, session).await,
        What::Promote(PromoteArgs { order, past }) => {
            let promote = match past {
                Past::Soak => Promote::Soak,
                Past::Step => Promote::Step,
                Past::Halt => Promote::Halt,
            };
            give(
                order,
                RolloutOrder {
                    promote: Some(promote),
                    ..RolloutOrder::default()
                },
                session,
            )
            .await
        }
        What::Abort(order) => {
            give(
                order,
                RolloutOrder {
                    abort: true,
                    ..RolloutOrder::default()
                },
                session,
            )
            .await
        }
        What::Skip(SkipArgs { order, clusters }) => {
            give(
                order,
                RolloutOrder {
                    skip: clusters,
                    ..RolloutOrder::default()
                },
                session,
            )
            .await
        }
    }
}

impl NamedArgs {
    async fn find<'a>(&'a self, session: &'a Session) -> Result<NamedSet<'a>> {
        let default = self.namespace.or_default(session);
        let plain = || any_name(&self.set, default, "set").map(|(namespace, name)| NamedSet::plain(namespace, name));
        let named = set_name(&self.set, default).unwrap_or_else(plain)?;
        if let Some(maker) = named.maker {
            session.get::<ManagedNamespace>(named.namespace, maker).await?;
        }
        Ok(named)
    }
}

pub fn path(namespace: &str, name: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/servicesets/{name}")
}

/// Merges fields into the spec of a set, or of the ManagedNamespace that makes it.
pub async fn change(session: &Session, named: &NamedSet<'_>, spec: Value) -> Result<()> {
    let (namespace, (plural, _, name)) = (named.namespace, named.stated());
    let query = "fieldManager=farwater-cli&fieldValidation=Strict";
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{name}?{query}");
    let patch = json!({"spec": spec});
    let attempt = format!("change the rollout of {namespace}/{name}");
    session
        .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
        .await
        .map(drop)
}

/// Pauses the rollouts of a set. `reason`: None resumes them.
async fn pause(named: NamedArgs, reason: Option<String>, session: &Session) -> Result<u8> {
    let named = named.find(session).await?;
    let (namespace, name) = named.names();
    let set: ServiceSet = session.get(namespace, name).await?;
    let (told, is_change) = describe_pause(&set.spec.rollout, reason.as_deref());
    if is_change {
        let policy = json!({"paused": reason.is_some(), "pauseReason": reason});
        change(session, &named, json!({"rollout": policy})).await?;
    }
    print(&format!("{} {told}\n", qualified(&named)))?;
    Ok(exit::YES)
}

/// What a pause or a resumption does to a rollout, and whether that is a change. `reason`: None resumes.
fn describe_pause(policy: &RolloutPolicy, reason: Option<&str>) -> (&'static str, bool) {
    match (policy.paused, reason) {
        (false, Some(_)) => ("paused", true),
        (true, Some(reason)) if policy.pause_reason.as_deref() == Some(reason) => {
            ("unchanged: it is paused for this reason already", false)
        }
        (true, Some(_)) => ("stays paused, with the new reason", true),
        (true, None) => ("resumed", true),
        (false, None) => ("unchanged: it is not paused", false),
    }
}

/// Gives an order, which holds only for the rollout that is under way now.
async fn give(args: OrderArgs, order: RolloutOrder, session: &Session) -> Result<u8> {
    let named = args.named.find(session).await?;
    let (namespace, name) = named.names();
    let set: ServiceSet = session.get(namespace, name).await?;
    let argument = named.argument();
    let rollout = set.status.and_then(|status| status.rollout).unwrap_or_default();
    if rollout.number == 0 || rollout.phase == RolloutPhase::Complete {
        let told = format!("nothing of {namespace}/{name} is being rolled out");
        return Err(
            Failure::new(exit::CONFLICT, told).next(format!("{{program}} rollout status {argument} -n {namespace}"))
        );
    }

    if !order.skip.is_empty() {
        let members = members(session, (namespace, name)).await?;
        if let Some(unknown) = order.skip.iter().find(|cluster| !is_member(cluster, &members)) {
            return Err(no_member((namespace, name), unknown, &members));
        }
    }
    if let Some(promote) = order.promote
        && let Some(why) = too_early(promote, &rollout, &members(session, (namespace, name)).await?)
    {
        let told = format!("{why} in rollout {} of {namespace}/{name}", rollout.number);
        return Err(
            Failure::new(exit::CONFLICT, told).next(format!("{{program}} rollout status {argument} -n {namespace}"))
        );
    }

    let what = match (order.promote, order.abort) {
        (Some(_), _) => "promotion",
        (None, true) => "abort",
        (None, false) => "skip",
    };
    let order = RolloutOrder {
        number: rollout.number,
        reason: args.reason,
        requested_at: Timestamp::now().to_string(),
        ..order
    };

    change(session, &named, json!({"rollout": {"order": whole(&order)?}})).await?;
    print(&format!(
        "{}: {what} recorded for rollout {}\n",
        qualified(&named),
        rollout.number
    ))?;
    say(&format!(
        "next: {} rollout status {argument} -n {namespace} --watch",
        session.program.name()
    ));
    Ok(exit::YES)
}

fn is_member(cluster: &str, members: &[Member]) -> bool {
    members.iter().any(|member| member.cluster == cluster)
}

fn no_member((namespace, name): (&str, &str), cluster: &str, members: &[Member]) -> Failure {
    const SHOWN: usize = 5;
    let names: Vec<String> = members.iter().map(|member| member.cluster.clone()).collect();
    let failure = Failure::new(exit::MISSING, format!("{cluster} is no cluster of {namespace}/{name}"))
        .next(format!("{{program}} tree serviceset/{name} -n {namespace}"));
    match suggest(cluster, names.iter().map(String::as_str)) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None => failure.evidence(format!(
            "its clusters are {}",
            listed(&names[..names.len().min(SHOWN)], names.len())
        )),
    }
}

/// Why a promotion would change nothing now. The hub applies it once, when it is given.
fn too_early(promote: Promote, rollout: &RolloutStatus, members: &[Member]) -> Option<&'static str> {
    let soaks = || members.iter().any(|member| member.progress == Some(Progress::Soaking));
    match promote {
        // A promotion starts the rollout.
        _ if rollout.phase == RolloutPhase::OnHold => None,
        Promote::Soak => (!soaks()).then_some("no cluster soaks now"),
        Promote::Halt => {
            let is_stopped = matches!(
                rollout.phase,
                RolloutPhase::Halted | RolloutPhase::Aborted | RolloutPhase::RollingBack
            );
            (!is_stopped && rollout.failed == 0).then_some("nothing has failed")
        }
        Promote::Step => None,
    }
}

/// The order with every field, the absent ones as null: a merge patch would keep fields of an earlier order that this
/// one doesn't name.
fn whole(order: &RolloutOrder) -> Result<Value> {
    let mut fields = serde_json::to_value(order).map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    for field in ["promote", "abort", "skip", "reason"] {
        if fields.get(field).is_none() {
            fields[field] = Value::Null;
        }
    }
    Ok(fields)
}

/// `serviceset.farwater.dev/NAME`
fn qualified(named: &NamedSet<'_>) -> String {
    let (_, kind, name) = named.stated();
    format!("{}.{GROUP}/{name}", kind.to_lowercase())
}

async fn status(args: StatusArgs, session: &Session) -> Result<u8> {
    let named = args.named.find(session).await?;
    let (namespace, name) = named.names();
    let mut last = String::new();
    loop {
        let set: ServiceSet = session.get(namespace, name).await?;
        let (policy, pin) = (set.spec.rollout.clone(), set.spec.pin.clone());
        let pinned_by = set.status.as_ref().and_then(|status| status.pinned_by.clone());
        let no_clusters = describe_no_clusters(&set);
        let rollout = set.status.and_then(|status| status.rollout).unwrap_or_default();
        let members = members(session, (namespace, name)).await?;
        let stands =
            rollout.number > 0 && !matches!(rollout.phase, RolloutPhase::Progressing | RolloutPhase::RollingBack);
        match args.output {
            Answer::Json | Answer::Yaml => {
                let document = json!({"rollout": rollout, "members": members, "pin": pin, "pinnedBy": pinned_by});
                let yaml = matches!(args.output, Answer::Yaml);
                print(&if yaml {
                    format::yaml(&document)?
                } else {
                    format::json(&document)?
                })?;
            }
            Answer::Text => {
                let pin = pin.as_ref().map(|pin| (pin, pinned_by.as_deref()));
                let mut drawn = draw(
                    (namespace, name),
                    (&policy, pin),
                    &rollout,
                    &members,
                    Terminal::detect(),
                );
                drawn.extend(no_clusters.iter().map(|why| format!("{}\n", crate::text::plain(why))));
                if drawn != last {
                    print(&drawn)?;
                    last = drawn;
                }
            }
        }
        if !args.watch || stands {
            let is_through = rollout.phase == RolloutPhase::Complete && rollout.number > 0 && no_clusters.is_none();
            return Ok(if is_through && rollout.updated == rollout.clusters() {
                exit::YES
            } else {
                exit::NO
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The hub's message about a set that selects no cluster.
fn describe_no_clusters(set: &ServiceSet) -> Option<String> {
    let ready = find(&set.status.as_ref()?.conditions, "Ready")?;
    (ready.reason == NO_CLUSTERS).then(|| ready.message.clone())
}

/// The versions that a set has rolled out, the newest first.
pub async fn versions(session: &Session, (namespace, name): (&str, &str)) -> Result<Vec<SetVersion>> {
    let attempt = format!("read the versions of {namespace}/{name}");
    let mut answer = session
        .read(&attempt, &format!("{}/versions", path(namespace, name)))
        .await?;
    serde_json::from_value(answer["items"].take())
        .map_err(|error| session.failure(&attempt, &kube::Error::SerdeError(error)))
}

/// All members of a set, read page by page.
pub async fn members(session: &Session, (namespace, name): (&str, &str)) -> Result<Vec<Member>> {
    let (mut all, mut after) = (Vec::new(), String::new());
    let attempt = format!("read the members of {namespace}/{name}");
    loop {
        let mut page = session
            .read(&attempt, &format!("{}/members?continue={after}", path(namespace, name)))
            .await?;
        let items: Vec<Member> = serde_json::from_value(page["items"].take())
            .map_err(|error| session.failure(&attempt, &kube::Error::SerdeError(error)))?;
        all.extend(items);
        match page["metadata"]["continue"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_takes_the_place_of_all_that_an_earlier_one_said() {
        let order = RolloutOrder {
            number: 9,
            skip: vec!["fleet/a".to_owned()],
            ..RolloutOrder::default()
        };
        let sent = whole(&order).unwrap();
        assert_eq!(
            sent,
            json!({"number": 9, "promote": null, "abort": null, "skip": ["fleet/a"], "reason": null})
        );
    }

    #[test]
    fn a_pause_and_a_resumption_say_what_was_the_case() {
        let policy = |paused: bool| RolloutPolicy {
            paused,
            pause_reason: paused.then(|| "slow".to_owned()),
            ..RolloutPolicy::default()
        };
        let check = |paused, reason, expected| assert_eq!(describe_pause(&policy(paused), reason), expected);
        check(false, Some("slow"), ("paused", true));
        check(
            true,
            Some("slow"),
            ("unchanged: it is paused for this reason already", false),
        );
        check(true, Some("broken"), ("stays paused, with the new reason", true));
        check(true, None, ("resumed", true));
        check(false, None, ("unchanged: it is not paused", false));
    }

    #[test]
    fn a_cluster_that_the_set_does_not_have_is_missing_and_those_that_it_has_are_named() {
        let member = |cluster: &str| Member {
            cluster: cluster.to_owned(),
            ..Member::default()
        };
        let members = [member("fleet/east"), member("fleet/west")];
        assert!(is_member("fleet/east", &members) && !is_member("east", &members));
        let refused = |cluster: &str| no_member(("team-a", "web"), cluster, &members);
        assert_eq!(refused("east").code, exit::MISSING);
        assert_eq!(
            refused("x").evidence.unwrap(),
            "its clusters are fleet/east, fleet/west"
        );
        assert_eq!(refused("fleet/esat").evidence.unwrap(), "did you mean \"fleet/east\"?");
    }

    #[test]
    fn a_promotion_that_would_change_nothing_is_refused() {
        let check = |promote, phase, progress, expected| {
            let rollout = RolloutStatus {
                phase,
                ..RolloutStatus::default()
            };
            let member = Member {
                progress: Some(progress),
                ..Member::default()
            };
            assert_eq!(too_early(promote, &rollout, &[member]), expected);
        };
        let (progressing, soaking) = (Progress::Progressing, Progress::Soaking);
        check(
            Promote::Soak,
            RolloutPhase::Progressing,
            progressing,
            Some("no cluster soaks now"),
        );
        check(Promote::Soak, RolloutPhase::Progressing, soaking, None);
        check(Promote::Soak, RolloutPhase::OnHold, Progress::Waiting, None);
        check(
            Promote::Halt,
            RolloutPhase::Progressing,
            progressing,
            Some("nothing has failed"),
        );
        check(Promote::Halt, RolloutPhase::Halted, Progress::Failed, None);
        check(Promote::Step, RolloutPhase::Progressing, progressing, None);
    }
}
