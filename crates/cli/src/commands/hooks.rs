//! `farwater hooks`: the hooks and tests of a service, and their output.

use farwater_api::{
    RETRY_HOOK, ServiceDeployment,
    history::HistoryEntry,
    hooks::{HookPhase, HookRun, HookState},
};
use serde_json::json;

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result, suggest},
    format::{self, Format},
    scope::{NamespaceArgs, service_name},
    service,
    table::{Column, Table},
    terminal::{Terminal, print, say},
};

#[derive(Debug, clap::Args)]
pub struct HooksArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    /// A test, or a hook by the name of its object.
    hook: Option<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Version of the history [default: the newest with hooks].
    #[arg(long, value_name = "NUMBER")]
    version: Option<u64>,
    /// Prints the end of the hook's log.
    #[arg(long, requires = "hook", conflicts_with = "junit")]
    log: bool,
    /// Prints the hook's JUnit file.
    #[arg(long, requires = "hook")]
    junit: bool,
    /// Runs a failed hook or test again, once and for the assigned version, if the failure was not its own fault.
    #[arg(long, value_name = "HOOK", conflicts_with_all = ["hook", "output"])]
    retry: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub async fn run(args: HooksArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    if let Some(hook) = &args.retry {
        return retry(hook, args.version, session, (namespace, name)).await;
    }
    let mut runs: Vec<HookRun> = service::items(session, namespace, name, "hooks").await?;
    let version = args.version.or_else(|| runs.iter().map(|run| run.number).max());
    runs.retain(|run| Some(run.number) == version);
    if let Some(hook) = &args.hook {
        let ran = describe_runs(&runs);
        runs.retain(|run| is_named(run, hook));
        if runs.is_empty() {
            return Err(missing((namespace, name), hook, version, &ran));
        }
    }
    if args.log || args.junit {
        return print_output(&args, session, (namespace, name), &runs).await;
    }

    match args.output {
        Format::Json => print(&format::json(&runs)?)?,
        Format::Yaml => print(&format::yaml(&runs)?)?,
        Format::Name => print(
            &runs
                .iter()
                .map(|run| format!("{}\n", run.report.name()))
                .collect::<String>(),
        )?,
        Format::Table | Format::Wide if runs.is_empty() => say(&format!(
            "no hook or test of {} was run; next: {} why {name} -n {namespace}",
            describe_version(name, args.version),
            session.program.name()
        )),
        Format::Table | Format::Wide => print(&table(&runs).render(Terminal::detect()))?,
    }
    Ok(exit::YES)
}

async fn retry(hook: &str, version: Option<u64>, session: &Session, (namespace, name): (&str, &str)) -> Result<u8> {
    let service: ServiceDeployment = session.get(namespace, name).await?;
    let runs: Vec<HookRun> = service::items(session, namespace, name, "hooks").await?;
    let history: Vec<HistoryEntry> = service::items(session, namespace, name, "history").await?;
    let newest = history.iter().map(|entry| entry.number).max().unwrap_or_default();
    let show = || format!("{} hooks {name} -n {namespace}", session.program.name());
    let chosen = choose(&runs, (newest, version), hook);
    let run = chosen.map_err(|refusal| {
        let code = match refusal {
            Refusal::Unknown { .. } => exit::MISSING,
            _ => exit::CONFLICT,
        };
        Failure::new(code, format!("{hook} of {name} is not run again: {refusal}")).next(show())
    })?;
    if service.spec.suspend {
        let told = format!("{hook} of {name} is not run again: {namespace}/{name} is suspended");
        return Err(
            Failure::new(exit::CONFLICT, told).next(format!("{} resume {name} -n {namespace}", session.program.name()))
        );
    }
    service::annotate(
        session,
        (namespace, name),
        &format!("run {hook} again for"),
        json!({RETRY_HOOK: run.report.run}),
    )
    .await?;
    let what = format!("{} of version {newest} runs again", run.report.name());
    print(&format!(
        "{} {what}, as soon as cluster {} asks\n",
        service::qualified(name),
        service.spec.cluster_ref.name
    ))?;
    say(&format!("next: {}", show()));
    Ok(exit::YES)
}

/// Why no hook is run again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("version {asked} is not the one that is assigned, which is {newest}")]
    OtherVersion { asked: u64, newest: u64 },
    #[error("it was not run for version {newest}, which is assigned; its last run was for version {last}")]
    NotRun { newest: u64, last: u64 },
    #[error("no hook or test has this name{near}; version {newest} {ran}")]
    Unknown { near: String, newest: u64, ran: String },
    #[error("it did not fail: it is {0:?}")]
    NotFailed(HookState),
    #[error("it is of a deletion, and runs again when {0} is deleted in the cluster")]
    OfDeletion(String),
}

fn is_named(run: &HookRun, hook: &str) -> bool {
    run.report.name() == hook || run.report.object.name == hook
}

/// `has run migrate, notify`
fn describe_runs<'a>(runs: impl IntoIterator<Item = &'a HookRun>) -> String {
    let names: Vec<&str> = runs.into_iter().map(|run| run.report.name()).collect();
    match names.is_empty() {
        true => "has run none".to_owned(),
        false => format!("has run {}", names.join(", ")),
    }
}

/// `version 4 of web`
fn describe_version(name: &str, version: Option<u64>) -> String {
    version.map_or_else(|| name.to_owned(), |version| format!("version {version} of {name}"))
}

/// The failed run of the assigned version, or the reason why none is retried.
fn choose<'a>(runs: &'a [HookRun], (newest, asked): (u64, Option<u64>), hook: &str) -> Result<&'a HookRun, Refusal> {
    if let Some(asked) = asked.filter(|asked| *asked != newest) {
        return Err(Refusal::OtherVersion { asked, newest });
    }
    let of_version: Vec<&HookRun> = runs.iter().filter(|run| run.number == newest).collect();
    let meant: Vec<&HookRun> = of_version.iter().copied().filter(|run| is_named(run, hook)).collect();
    let Some(first) = meant.first() else {
        let older = runs.iter().filter(|run| is_named(run, hook)).map(|run| run.number);
        if let Some(last) = older.max() {
            return Err(Refusal::NotRun { newest, last });
        }
        let near = suggest(hook, of_version.iter().map(|run| run.report.name()));
        return Err(Refusal::Unknown {
            near: near
                .map(|near| format!(" (did you mean {near:?}?)"))
                .unwrap_or_default(),
            newest,
            ran: describe_runs(of_version.iter().copied()),
        });
    };
    let Some(failed) = meant
        .iter()
        .filter(|run| run.report.state == HookState::Failed)
        .min_by_key(|run| run.report.phase)
    else {
        return Err(Refusal::NotFailed(first.report.state));
    };
    if matches!(failed.report.phase, HookPhase::PreDelete | HookPhase::PostDelete) {
        return Err(Refusal::OfDeletion(failed.report.object.to_string()));
    }
    Ok(failed)
}

/// `ran`: what the version has run, as [`describe_runs`] says it.
fn missing((namespace, name): (&str, &str), hook: &str, version: Option<u64>, ran: &str) -> Failure {
    let of = describe_version(name, version);
    Failure::new(exit::MISSING, format!("no hook or test {hook:?} of {of} was run"))
        .evidence(format!("{of} {ran}"))
        .next(format!("{{program}} hooks {name} -n {namespace}"))
}

/// For a hook that runs in several phases, the failed run, otherwise the last.
async fn print_output(
    args: &HooksArgs,
    session: &Session,
    (namespace, name): (&str, &str),
    runs: &[HookRun],
) -> Result<u8> {
    let failed = runs.iter().find(|run| run.report.state == HookState::Failed);
    let Some(chosen) = failed.or_else(|| runs.iter().max_by_key(|run| run.report.phase)) else {
        return Ok(exit::NO);
    };
    let of_run = format!("hooks?run={}", chosen.report.run);
    let found: Vec<HookRun> = service::items(session, namespace, name, &of_run).await?;
    let report = found
        .into_iter()
        .find(|run| run.number == chosen.number)
        .map(|run| run.report);
    let (what, text) = match args.junit {
        true => ("JUnit file", report.and_then(|report| report.junit)),
        false => ("log", report.and_then(|report| report.log)),
    };
    let Some(text) = text else {
        let shown = chosen.report.name();
        let failure = Failure::new(exit::MISSING, format!("the hub has no {what} of {shown}"));
        return Err(match chosen.report.message.as_str() {
            "" => failure,
            message => failure.evidence(message),
        });
    };
    print(&text)?;
    Ok(exit::YES)
}

fn table(runs: &[HookRun]) -> Table {
    let mut table = Table::new(vec![
        Column::fixed("Version"),
        Column::fixed("Phase"),
        Column::fixed("Hook"),
        Column::fixed("Result"),
        Column::fixed("Took"),
        Column::elastic("Message"),
    ]);

    let mut runs: Vec<&HookRun> = runs.iter().collect();
    runs.sort_by_key(|run| (std::cmp::Reverse(run.number), run.report.phase, &run.report.started));
    for run in runs {
        let report = &run.report;
        let took = match (&report.started, &report.ended) {
            (Some(started), Some(ended)) => {
                format!("{}s", ended.0.as_second().saturating_sub(started.0.as_second()).max(0))
            }
            _ => String::new(),
        };
        let state = match report.state {
            HookState::Running => "Running",
            HookState::Succeeded => "Succeeded",
            HookState::Failed => "Failed",
            HookState::Unknown => "Unknown",
        };
        table.push(vec![
            run.number.to_string(),
            report.phase.to_string(),
            report.name().to_owned(),
            state.to_owned(),
            took,
            report.message.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use farwater_api::Digest;
    use serde_json::json;

    use super::*;

    fn ran(number: u64, name: &str, phase: &str, state: &str) -> HookRun {
        let report = json!({"group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": name,
            "phase": phase, "run": Digest::of(format!("{number} {name} {phase}")), "state": state});
        HookRun {
            number,
            report: serde_json::from_value(report).unwrap(),
        }
    }

    /// docs/hooks.md prints the first line, and `why` the second.
    #[test]
    fn the_printed_lines_retry_a_hook() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: HooksArgs,
        }
        for line in ["hooks web --retry migrate", "hooks web -n team-a --retry migrate"] {
            let parsed: Line = clap::Parser::try_parse_from(line.split(' ')).unwrap();
            let HooksArgs {
                service, hook, retry, ..
            } = parsed.args;
            assert_eq!(
                (service.as_str(), hook, retry.as_deref()),
                ("web", None, Some("migrate")),
                "{line}"
            );
        }
        assert!(include_str!("../../../../docs/hooks.md").contains("\nfarwater hooks web --retry migrate\n"));
    }

    #[test]
    fn what_failed_for_the_assigned_version_is_retried_and_nothing_else() {
        let runs = [
            ran(3, "seed", "PreSync", "Failed"),
            ran(4, "migrate", "PreSync", "Failed"),
            ran(4, "notify", "PostSync", "Succeeded"),
            ran(4, "bye", "PreDelete", "Failed"),
        ];
        let check = |hook: &str, asked: Option<u64>, expected: Result<usize, &str>| {
            let chosen = choose(&runs, (4, asked), hook).map_err(|refusal| refusal.to_string());
            assert_eq!(chosen, expected.map(|at| &runs[at]).map_err(str::to_owned), "{hook}");
        };
        check("migrate", None, Ok(1));
        check("migrate", Some(4), Ok(1));
        check(
            "migrate",
            Some(3),
            Err("version 3 is not the one that is assigned, which is 4"),
        );
        check(
            "seed",
            None,
            Err("it was not run for version 4, which is assigned; its last run was for version 3"),
        );
        check("notify", None, Err("it did not fail: it is Succeeded"));
        check(
            "bye",
            None,
            Err("it is of a deletion, and runs again when Job.batch web/bye is deleted in the cluster"),
        );
        let known = "version 4 has run migrate, notify, bye";
        check(
            "migrat",
            None,
            Err(&format!(
                "no hook or test has this name (did you mean \"migrate\"?); {known}"
            )),
        );
        check(
            "payments",
            None,
            Err(&format!("no hook or test has this name; {known}")),
        );
        assert_eq!(
            choose(&runs, (5, None), "migrate"),
            Err(Refusal::NotRun { newest: 5, last: 4 })
        );
    }

    #[test]
    fn a_hook_that_was_not_run_is_missing_and_those_that_were_run_are_named() {
        let runs = [
            ran(4, "migrate", "PreSync", "Failed"),
            ran(4, "notify", "PostSync", "Succeeded"),
        ];
        let told = missing(("team-a", "web"), "nope", Some(4), &describe_runs(&runs));
        assert_eq!(told.code, exit::MISSING);
        assert_eq!(
            told.render("farwater"),
            "farwater: no hook or test \"nope\" of version 4 of web was run\n  version 4 of web has run migrate, notify\n  next: farwater \
             hooks web -n team-a\n"
        );
        assert_eq!(describe_runs(&[]), "has run none");
    }

    #[test]
    fn hooks_are_shown_in_the_order_in_which_they_run() {
        let report = |phase: &str, name: &str, more: serde_json::Value| {
            let mut report = json!({"group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": name,
                "phase": phase, "run": Digest::of(name), "state": "Succeeded"});
            report
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            HookRun {
                number: 4,
                report: serde_json::from_value(report).unwrap(),
            }
        };
        let times = json!({"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:05Z"});
        let failed = json!({"state": "Failed", "test": "smoke", "message": "exit code 3"});
        let runs = [
            report("Test", "web-test-smoke", failed),
            report("PreSync", "migrate", times),
        ];
        let expected = "\
VERSION   PHASE     HOOK      RESULT      TOOK   MESSAGE
4         PreSync   migrate   Succeeded   65s
4         Test      smoke     Failed             exit code 3
";
        assert_eq!(table(&runs).render(Terminal::default()), expected);
    }
}
