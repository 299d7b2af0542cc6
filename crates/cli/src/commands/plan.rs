//! `farwater plan`: shows what a service's agent would do, computed by the agent, or what a set would make. Nothing is
//! changed.

mod picture;
mod set;

use std::{path::PathBuf, time::Duration};

use farwater_api::{
    ServiceDeployment,
    plan::{MAX_LOCAL_ARCHIVE, PLAN_KIND, PlanAnswer, PlanPhase, PlanProblem, PlanQuery, ServicePlan},
    renderer::LocalFiles,
};
use farwater_fleet::why;
use serde_json::{Value, json};

use crate::{
    commands::wait::parse_duration,
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    local,
    scope::{NamespaceArgs, service_name, set_name},
    service,
    terminal::{Terminal, print, say},
    text,
};

/// Pause between two reads of the request. A connected agent answers within tenths of a second.
const PAUSE: Duration = Duration::from_millis(200);
/// Time without an answer after which the command prints what it waits for.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The service: NAME or NAMESPACE/NAME; or a set: serviceset/NAME or serviceset/NAMESPACE/NAME; managednamespace/NAME likewise.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Plans another revision of the service's source: a branch, a tag or a whole commit id.
    #[arg(long = "ref", value_name = "REF", conflicts_with = "local")]
    reference: Option<String>,
    /// Plans with the files of a local folder instead of the service's own.
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Plans the set or ManagedNamespace of this file instead of the one in the hub; - is standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["reference", "local"])]
    file: Option<PathBuf>,
    /// Time limit of the agent, for example 90s or 10m; then the exit code is 6.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: PlanArgs, session: &Session) -> Result<u8> {
    if let Some(named) = set_name(&args.service, args.namespace.or_default(session)) {
        return set::run(&named?, args.file.as_deref(), args.output, session).await;
    }
    if args.file.is_some() {
        return Err(
            Failure::usage("--file goes with a set").evidence("expected serviceset/NAME or managednamespace/NAME")
        );
    }

    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let stated: ServiceDeployment = session.get(namespace, name).await?;
    let local = args
        .local
        .as_deref()
        .map(|folder| read_files(folder, &stated.spec.path))
        .transpose()?;
    let query = PlanQuery {
        reference: args.reference.clone(),
        local,
    };
    let mut planned = make(session, (namespace, name), &query, args.timeout).await?;
    if query.reference.is_none() && query.local.is_none() {
        // The agent plans the version that the hub assigns, and doesn't know of newer versions that the hub holds back.
        let service: ServiceDeployment = session.get(namespace, name).await?;
        planned.hold(why::refused(&service));
    }

    match args.output {
        Answer::Json => print(&format::json(&planned.document())?)?,
        Answer::Yaml => print(&format::yaml(&planned.document())?)?,
        Answer::Text => {
            print(&planned.draw((namespace, name)))?;
            if let Some(held) = &planned.plan.held_prune {
                let program = session.program.name();
                say(&format!(
                    "approve the deletes: {program} approve {name} -n {namespace} --digest {}",
                    held.digest
                ));
            }
        }
    }
    Ok(if planned.plan.is_quiet() { exit::YES } else { exit::NO })
}

/// The plan that an agent made.
pub struct Planned {
    answer: PlanAnswer,
    /// The plan as the agent wrote it.
    raw: Value,
    plan: ServicePlan,
}

impl Planned {
    /// Notes why the service keeps its version, unless the agent gave a reason.
    fn hold(&mut self, why: Option<String>) {
        if let Some(why) = why.filter(|_| self.plan.held.is_none()) {
            self.raw["held"] = why.clone().into();
            self.plan.held = Some(why);
        }
    }

    /// The plan as JSON, for programs.
    pub fn document(&self) -> Value {
        json!({"cluster": self.answer.cluster, "revision": self.answer.revision, "plan": self.raw})
    }

    pub fn draw(&self, (namespace, name): (&str, &str)) -> String {
        let title = format!("{namespace}/{name} on {}", self.answer.cluster);
        picture::draw(
            &self.plan,
            &title,
            &text::short_revision(&self.answer.revision),
            Terminal::detect(),
        )
    }
}

/// Requests a plan of a service from its agent, and waits for it.
pub async fn make(
    session: &Session,
    (namespace, name): (&str, &str),
    query: &PlanQuery,
    timeout: Duration,
) -> Result<Planned> {
    let (id, mut last) = ask(session, (namespace, name), query).await?;
    let waited = tokio::time::timeout(timeout, finished(session, (namespace, name), &id, &mut last)).await;
    let mut answer = match waited {
        Ok(answer) => answer?,
        Err(_) => {
            let failure = Failure::new(
                exit::TIMEOUT,
                format!("there is no plan of {namespace}/{name} after {} s", timeout.as_secs()),
            );
            return Err(failure
                .evidence(last)
                .next(format!("{{program}} get clusters -n {namespace}")));
        }
    };
    if answer.phase == PlanPhase::Failed {
        return Err(failed((namespace, name), &answer));
    }
    let raw = answer.plan.take().unwrap_or_default();
    let plan: ServicePlan = serde_json::from_value(raw.clone())
        .map_err(|error| Failure::new(exit::INTERNAL, "the agent's plan can't be read").evidence(error.to_string()))?;
    Ok(Planned { answer, raw, plan })
}

fn read_files(folder: &std::path::Path, path: &str) -> Result<LocalFiles> {
    let packed = local::pack(folder, path)?;
    if packed.compressed.len() > MAX_LOCAL_ARCHIVE {
        return Err(
            Failure::usage(format!("the files of {} are too many for a plan", folder.display())).evidence(format!(
                "compressed they have {} bytes; at most {MAX_LOCAL_ARCHIVE} are sent",
                packed.compressed.len()
            )),
        );
    }
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    Ok(LocalFiles {
        digest: packed.digest,
        path: packed.path,
        archive: STANDARD.encode(&packed.compressed),
    })
}

/// Returns the request's id, and what the request waits for.
async fn ask(session: &Session, of: (&str, &str), query: &PlanQuery) -> Result<(String, String)> {
    let sent = service::send(session, of, "plan", PLAN_KIND, json!(query)).await;
    let answer = sent.map_err(|failure| match failure.is_missing() {
        // The service was read a moment ago, so it is the subresource that is missing.
        true => Failure::new(exit::UNREACHABLE, "can't plan: the hub does not know how")
            .evidence("it is of an older version than this program")
            .next("{program} version"),
        false => failure,
    })?;
    let answer = read(session, answer)?;
    Ok((answer.id, answer.message))
}

fn read(session: &Session, mut answer: Value) -> Result<PlanAnswer> {
    serde_json::from_value(answer["status"].take())
        .map_err(|error| session.failure("read the plan", &kube::Error::SerdeError(error)))
}

/// Waits until there is a plan, or until it is certain that there will be none. If the hub can't be reached for a
/// moment, the wait goes on. `last` is set to what the request waits for.
async fn finished(session: &Session, of: (&str, &str), id: &str, last: &mut String) -> Result<PlanAnswer> {
    let begun = tokio::time::Instant::now();
    let mut told = String::new();
    loop {
        match service::below(session, of, "plan", &format!("?id={id}")).await {
            Ok(answer) => {
                let answer = read(session, answer)?;
                if matches!(answer.phase, PlanPhase::Done | PlanPhase::Failed) {
                    return Ok(answer);
                }
                *last = match answer.phase {
                    PlanPhase::Preparing => "the hub is preparing the plan".to_owned(),
                    _ => answer.message,
                };
            }
            Err(failure) if failure.code == exit::UNREACHABLE => *last = failure.cause,
            Err(failure) => return Err(failure),
        }
        if begun.elapsed() >= PATIENCE && told.is_empty() {
            told.clone_from(last);
            say(&text::plain(&told));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn failed((namespace, name): (&str, &str), answer: &PlanAnswer) -> Failure {
    let code = match answer.reason {
        Some(PlanProblem::RefMissing) => exit::MISSING,
        Some(PlanProblem::Unavailable) => exit::UNREACHABLE,
        _ => exit::CONFLICT,
    };
    let failure =
        Failure::new(code, format!("there is no plan of {namespace}/{name}")).evidence(answer.message.clone());
    match answer.reason {
        Some(PlanProblem::RefMissing) => failure,
        Some(PlanProblem::Unavailable) => failure.next("try again"),
        _ => failure.next(format!("{{program}} why {name} -n {namespace}")),
    }
}
