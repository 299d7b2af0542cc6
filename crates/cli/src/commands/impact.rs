//! `farwater impact`: the changes that a revision of a repository would cause in the fleet, before it is merged.

use std::time::Duration;

use farwater_api::{
    GROUP, GitRepository, VERSION,
    impact::{IMPACT_KIND, Impact, ImpactCounts, ImpactEffect, ImpactGroup, ImpactQuery},
    plan::PlanQuery,
};
use farwater_fleet::words::{counted, verb};
use http::Method;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    commands::{plan, wait::parse_duration},
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    scope::NamespaceArgs,
    table::{Column, Table},
    terminal::{Terminal, print, say},
    text,
};

/// Most plans that are shown: one of each group, the largest groups first.
const MOST_PLANS: usize = 5;

#[derive(Debug, clap::Args)]
pub struct ImpactArgs {
    /// A branch, a tag or a whole commit id.
    #[arg(value_name = "REF")]
    reference: String,
    /// The GitRepository [default: the namespace's only one].
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Also plans the change on one cluster of each group.
    #[arg(long)]
    plan: bool,
    /// Time limit of one agent's plan.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration, requires = "plan")]
    timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: ImpactArgs, session: &Session) -> Result<u8> {
    let namespace = args.namespace.or_default(session);
    let source = match &args.source {
        Some(source) => source.clone(),
        None => only_source(session, namespace).await?,
    };
    let impact = measure(session, (namespace, &source), &args.reference).await?;
    match args.output {
        Answer::Json => print(&format::json(&document(session, namespace, &args, &impact).await)?)?,
        Answer::Yaml => print(&format::yaml(&document(session, namespace, &args, &impact).await)?)?,
        Answer::Text => {
            print(&render(&impact, Terminal::detect()))?;
            show_plans(session, namespace, &args, &impact).await?;
        }
    }
    let is_quiet = impact.changing.services == 0 && impact.failing.services == 0;
    Ok(if is_quiet { exit::YES } else { exit::NO })
}

async fn only_source(session: &Session, namespace: &str) -> Result<String> {
    let found: Vec<GitRepository> = session.list(Some(namespace)).await?;
    let mut names: Vec<String> = found.iter().map(|source| source.name_any()).collect();
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => Err(Failure::usage(format!(
            "there is no GitRepository in namespace {namespace}"
        ))),
        (Some(last), false) => {
            names.push(last);
            names.sort_unstable();
            Err(Failure::usage("say which repository with --source")
                .evidence(format!("there are {}", names.join(", "))))
        }
    }
}

pub async fn measure(session: &Session, (namespace, source): (&str, &str), reference: &str) -> Result<Impact> {
    let attempt = format!("compare {reference} of {namespace}/{source} with what is served");
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/gitrepositories/{source}/impact");
    let query = ImpactQuery {
        reference: reference.to_owned(),
    };
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": IMPACT_KIND, "spec": query});
    let sent = session
        .ask(&attempt, Method::POST, &path, "application/json", Some(&body))
        .await;
    let mut answer = match sent {
        // The typed lookup suggests similar names.
        Err(failure) if failure.is_missing() => {
            session.get::<GitRepository>(namespace, source).await?;
            return Err(failure);
        }
        sent => sent?,
    };
    serde_json::from_value(answer["status"].take())
        .map_err(|error| session.failure(&attempt, &kube::Error::SerdeError(error)))
}

/// Groups for which one service is planned.
struct Plans<'i> {
    services: Vec<&'i str>,
    /// Groups beyond the limit.
    left_out: usize,
    /// Groups without an agent that could answer.
    unheard: usize,
}

impl<'i> Plans<'i> {
    fn of(args: &ImpactArgs, impact: &'i Impact) -> Self {
        let changing = impact
            .groups
            .iter()
            .filter(|group| args.plan && group.effect == ImpactEffect::Changes);
        let canaries: Vec<_> = changing.map(|group| group.canary.as_ref()).collect();
        let unheard = canaries.iter().filter(|canary| canary.is_none()).count();
        let mut services: Vec<&str> = canaries
            .into_iter()
            .flatten()
            .map(|target| target.service.as_str())
            .collect();
        let left_out = services.len().saturating_sub(MOST_PLANS);
        services.truncate(MOST_PLANS);
        Self {
            services,
            left_out,
            unheard,
        }
    }
}

async fn plan_one(session: &Session, namespace: &str, args: &ImpactArgs, service: &str) -> Result<plan::Planned> {
    let query = PlanQuery {
        reference: Some(args.reference.clone()),
        local: None,
    };
    plan::make(session, (namespace, service), &query, args.timeout).await
}

/// The document for programs, with plans if requested.
async fn document(session: &Session, namespace: &str, args: &ImpactArgs, impact: &Impact) -> Value {
    let mut document = json!(impact);
    let mut plans = Vec::new();
    for service in Plans::of(args, impact).services {
        let mut told = match plan_one(session, namespace, args, service).await {
            Ok(planned) => planned.document(),
            Err(failure) => json!({"error": failure.render(session.program.name())}),
        };
        told["service"] = service.into();
        plans.push(told);
    }
    if args.plan {
        document["plans"] = plans.into();
    }
    document
}

async fn show_plans(session: &Session, namespace: &str, args: &ImpactArgs, impact: &Impact) -> Result<()> {
    let Plans {
        services,
        left_out,
        unheard,
    } = Plans::of(args, impact);
    for service in services {
        // A failure of one plan says nothing about the others.
        match plan_one(session, namespace, args, service).await {
            Ok(planned) => print(&planned.draw((namespace, service)))?,
            Err(failure) => say(failure.render(session.program.name()).trim_end()),
        }
    }
    if unheard > 0 {
        say(&format!(
            "of {} nothing was planned: no agent of the clusters is heard",
            counted(unheard, "group")
        ));
    }
    if left_out > 0 {
        let program = session.program.name();
        say(&format!(
            "{} {} not planned; {program} plan SERVICE --ref {} does one",
            counted(left_out, "more group"),
            verb(&left_out, "was", "were"),
            args.reference
        ));
    }
    Ok(())
}

fn render(impact: &Impact, terminal: Terminal) -> String {
    let mut lines = describe_difference(impact) + &count_services(impact);
    if impact.groups.is_empty() {
        return lines;
    }

    lines += "\n";
    lines += &list_groups(&impact.groups, terminal);
    for group in impact.groups.iter().filter(|group| !group.message.is_empty()) {
        lines += &format!("\n{}: {}\n", text::plain(&group.path), text::plain(&group.message));
    }
    if impact.left_out > 0 {
        lines += &format!("{}\n", counted(impact.left_out, "more group"));
    }
    lines
}

/// `feature@0123456789ab against main@89abcdef0123: 3 paths differ`
fn describe_difference(impact: &Impact) -> String {
    let short = |revision: &str| text::short_revision(revision);
    let paths = match impact.paths {
        Some(count) => format!("{count} {}", verb(&count, "path differs", "paths differ")),
        None => "everything may differ".to_owned(),
    };
    let against = if impact.base.is_empty() {
        String::new()
    } else {
        format!(" against {}", short(&impact.base))
    };
    format!("{}{against}: {paths}\n", short(&impact.revision))
}

/// One line for each effect that services have: they change, fail, or keep their version.
fn count_services(impact: &Impact) -> String {
    let Impact {
        changing,
        failing,
        standing,
        ..
    } = impact;
    let mut lines = format!(
        "{} of {} {}, on {}\n",
        changing.services,
        counted(impact.services, "service"),
        verb(&changing.services, "changes", "change"),
        clusters(changing)
    );
    if impact.uncompared > 0 {
        lines += &format!(
            "{} of them by their paths: their content was not compared\n",
            impact.uncompared
        );
    }
    if failing.services > 0 {
        lines += &format!(
            "{} {}, on {}, and {}\n",
            failing.services,
            verb(&failing.services, "fails", "fail"),
            clusters(failing),
            verb(&failing.services, "keeps its version", "keep their versions")
        );
    }
    if standing.services > 0 {
        let are = verb(&standing.services, "is", "are");
        lines += &format!("{} {are} suspended or pinned to another version\n", standing.services);
    }
    lines
}

/// The table of the groups, one line each.
fn list_groups(groups: &[ImpactGroup], terminal: Terminal) -> String {
    let mut table = Table::new(vec![
        Column::fixed("effect"),
        Column::fixed("set"),
        Column::fixed("path"),
        Column::fixed("services"),
        Column::fixed("clusters"),
        Column::elastic("first"),
    ]);
    for group in groups {
        table.push(row(group));
    }
    table.render(terminal)
}

fn row(group: &ImpactGroup) -> [String; 6] {
    let effect = match group.effect {
        ImpactEffect::Changes => "changes",
        ImpactEffect::Fails => "fails",
        ImpactEffect::Stands => "is suspended or pinned",
        ImpactEffect::Unknown => "-",
    };
    let names: Vec<&str> = group.first.iter().map(|target| target.service.as_str()).collect();
    let more = group.services.saturating_sub(names.len() as u64);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    [
        effect.to_owned(),
        group.set.clone().unwrap_or_else(|| "-".to_owned()),
        if group.path.is_empty() {
            "/".to_owned()
        } else {
            group.path.clone()
        },
        group.services.to_string(),
        group.clusters.to_string(),
        names.join(", ") + &more,
    ]
}

fn clusters(counts: &ImpactCounts) -> String {
    counted(counts.clusters, "cluster")
}

#[cfg(test)]
mod tests {
    use farwater_api::impact::ImpactTarget;

    use super::*;

    #[test]
    fn the_blast_radius_is_told_in_counts_first_and_in_names_then() {
        let target = |n: u32| ImpactTarget {
            service: format!("web-{n}"),
            cluster: format!("farwater-admin/c{n}"),
        };
        let impact = Impact {
            revision: "feature@sha1:0123456789abcdef0123456789abcdef01234567".to_owned(),
            base: "main@sha1:89abcdef0123456789abcdef0123456789abcdef".to_owned(),
            paths: Some(3),
            services: 400,
            changing: ImpactCounts {
                services: 12,
                clusters: 12,
            },
            failing: ImpactCounts {
                services: 1,
                clusters: 1,
            },
            groups: vec![
                ImpactGroup {
                    set: Some("web".to_owned()),
                    path: "apps/web".to_owned(),
                    services: 12,
                    clusters: 12,
                    first: (1..=2).map(target).collect(),
                    ..ImpactGroup::default()
                },
                ImpactGroup {
                    path: "apps/db".to_owned(),
                    effect: ImpactEffect::Fails,
                    message: "apps/db: the source has no such folder".to_owned(),
                    services: 1,
                    clusters: 1,
                    first: vec![target(9)],
                    ..ImpactGroup::default()
                },
            ],
            ..Impact::default()
        };
        let shown = render(
            &impact,
            Terminal {
                colour: false,
                width: Some(100),
                height: 40,
            },
        );
        assert_eq!(
            shown,
            "feature@0123456789ab against main@89abcdef0123: 3 paths differ\n\
             12 of 400 services change, on 12 clusters\n\
             1 fails, on 1 cluster, and keeps its version\n\
             \n\
             EFFECT    SET   PATH       SERVICES   CLUSTERS   FIRST\n\
             changes   web   apps/web   12         12         web-1, web-2 and 10 more\n\
             fails     -     apps/db    1          1          web-9\n\
             \n\
             apps/db: apps/db: the source has no such folder\n"
        );
    }
}
