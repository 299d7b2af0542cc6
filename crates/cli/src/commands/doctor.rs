//! `farwater doctor`: finds problems on this machine, in the hub and in a cluster, with a remedy for each.

mod certificate;
mod cluster;
mod figures;
mod hub;
mod local;
mod report;

use std::{path::PathBuf, time::Duration};

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use serde::Serialize;

use crate::{
    connection::{ConnectArgs, Session},
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    program::Program,
    target::Target,
    terminal::{Terminal, print},
};

/// `--context` names a cluster, whose side is looked at too.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// The kubeconfig with the context of --context [default: KUBECONFIG, as kubectl reads it].
    #[arg(long, value_name = "FILE")]
    cluster_kubeconfig: Option<PathBuf>,
    /// Time limit of each check, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    timeout: u64,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    /// Works now but not for ever, or could not be checked.
    Warn,
    /// Doesn't work, or a person must act.
    Fail,
}

/// The part that a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    Local,
    Hub,
    Cluster,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    grade: Grade,
    found: String,
    /// The remedy. None: there is no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(found: impl Into<String>) -> Self {
        Self {
            grade: Grade::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            grade: Grade::Warn,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            grade: Grade::Fail,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// An error of another command, as a finding.
impl From<Failure> for Finding {
    fn from(failure: Failure) -> Self {
        let found = match failure.evidence {
            Some(evidence) => format!("{}: {evidence}", failure.cause),
            None => failure.cause,
        };
        let remedy = failure
            .next
            .unwrap_or_else(|| "try again; if it fails again, see the log of the server that answered".to_owned());
        Self::fail(found, remedy)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    part: Part,
    name: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

impl Check {
    fn new(part: Part, name: &'static str, finding: impl Into<Finding>) -> Self {
        Self {
            part,
            name,
            finding: finding.into(),
        }
    }
}

/// Running checks. Each has its own time limit, so that one that hangs doesn't delay the others.
struct Checks<'a> {
    limit: Duration,
    running: Vec<LocalBoxFuture<'a, Vec<Check>>>,
}

impl<'a> Checks<'a> {
    fn add(&mut self, part: Part, name: &'static str, check: impl Future<Output = Finding> + 'a) {
        self.add_many(
            part,
            name,
            check.map(move |finding| vec![Check::new(part, name, finding)]),
        );
    }

    /// Adds several checks that depend on one request. `name`: the check to report if there is no answer.
    fn add_many(&mut self, part: Part, name: &'static str, checks: impl Future<Output = Vec<Check>> + 'a) {
        let limit = self.limit;
        let bounded = async move {
            tokio::time::timeout(limit, checks).await.unwrap_or_else(|_| {
                let found = format!("no answer within {} s", limit.as_secs());
                vec![Check::new(
                    part,
                    name,
                    Finding::fail(found, "try again with a longer --timeout"),
                )]
            })
        };
        self.running.push(bounded.boxed_local());
    }
}

pub async fn run(args: DoctorArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
    // `--context` is that of the cluster here; the hub is the current context of its own kubeconfig.
    let own = ConnectArgs {
        context: None,
        ..connect.clone()
    };
    let limit = Duration::from_secs(args.timeout);
    let context = connect.context.as_deref();
    let target = match context {
        Some(context) => Some(Target::open(args.cluster_kubeconfig.as_deref(), Some(context)).await),
        None => None,
    };
    let session = Session::open(&own, program).await;

    let mut found = Vec::new();
    let mut checks = Checks {
        limit,
        running: Vec::new(),
    };
    match &session {
        Ok(session) => {
            found.push(Check::new(
                Part::Local,
                "kubeconfig",
                Finding::ok(format!("the hub is {}", session.server)),
            ));
            local::add(&mut checks, session);
            hub::add(&mut checks, session);
        }
        Err(failure) => found.push(Check::new(Part::Local, "kubeconfig", failure.clone())),
    }
    match &target {
        Some(Ok(target)) => cluster::add(&mut checks, target, session.as_ref().ok()),
        Some(Err(failure)) => found.push(Check::new(Part::Cluster, "kubeconfig", failure.clone())),
        None => {}
    }

    found.extend(join_all(checks.running).await.into_iter().flatten());
    // Sort by part; within a part, keep the order of the checks.
    found.sort_by_key(|check| check.part);
    for remedy in found.iter_mut().filter_map(|check| check.finding.remedy.as_mut()) {
        *remedy = remedy.replace("{program}", program.name());
    }

    let worst = found.iter().map(|check| check.finding.grade).max().unwrap_or(Grade::Ok);
    let answer = serde_json::json!({"grade": worst, "checks": found});
    match args.output {
        Answer::Json => print(&format::json(&answer)?)?,
        Answer::Yaml => print(&format::yaml(&answer)?)?,
        Answer::Text => print(&report::render(&found, Terminal::detect()))?,
    }
    Ok(if worst == Grade::Fail { exit::NO } else { exit::YES })
}
