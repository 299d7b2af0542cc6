//! `farwater hooks`: the hooks and tests of a service, and their output.

use farwater_api::hooks::{HookRun, HookState};

use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
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
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub async fn run(args: HooksArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let mut runs: Vec<HookRun> = service::items(session, namespace, name, "hooks").await?;
    let version = args.version.or_else(|| runs.iter().map(|run| run.number).max());
    runs.retain(|run| Some(run.number) == version);
    if let Some(hook) = &args.hook {
        runs.retain(|run| run.report.name() == hook || run.report.object.name == *hook);
        if runs.is_empty() {
            return Err(missing(session, namespace, name, hook, version));
        }
    }
    if args.log || args.junit {
        return print_output(&args, session, (namespace, name), &runs).await;
    }

    match args.output {
        Format::Json => print(&format::json(&runs)?)?,
        Format::Yaml => print(&format::yaml(&runs)?)?,
        Format::Name => print(&runs.iter().map(|run| format!("{}\n", run.report.name())).collect::<String>())?,
        Format::Table | Format::Wide => {
            print(&table(&runs).render(Terminal::detect()))?;
            if runs.is_empty() {
                let program = session.program.name();
                say(&format!("no hook or test of {name} was run yet; next: {program} why {name} -n {namespace}"));
            }
        }
    }
    Ok(exit::YES)
}

fn missing(session: &Session, namespace: &str, name: &str, hook: &str, version: Option<u64>) -> Failure {
    let of = version.map_or_else(|| name.to_owned(), |version| format!("version {version} of {name}"));
    Failure::new(exit::MISSING, format!("no hook or test {hook:?} of {of} was run"))
        .next(format!("{} hooks {name} -n {namespace}", session.program.name()))
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
    let report = found.into_iter().find(|run| run.number == chosen.number).map(|run| run.report);
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

    #[test]
    fn hooks_are_shown_in_the_order_in_which_they_run() {
        let report = |phase: &str, name: &str, more: serde_json::Value| {
            let mut report = json!({"group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": name,
                "phase": phase, "run": Digest::of(name), "state": "Succeeded"});
            report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            HookRun { number: 4, report: serde_json::from_value(report).unwrap() }
        };
        let times = json!({"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:05Z"});
        let failed = json!({"state": "Failed", "test": "smoke", "message": "exit code 3"});
        let runs = [report("Test", "web-test-smoke", failed), report("PreSync", "migrate", times)];
        let expected = "\
VERSION   PHASE     HOOK      RESULT      TOOK   MESSAGE
4         PreSync   migrate   Succeeded   65s
4         Test      smoke     Failed             exit code 3
";
        assert_eq!(table(&runs).render(Terminal::default()), expected);
    }
}
