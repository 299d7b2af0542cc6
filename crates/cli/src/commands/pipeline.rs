//! `farwater pipeline`: how far a revision is, and what it waits for.

use std::collections::BTreeMap;

use farwater_api::{Pipeline, PipelineStatus, pipeline::StageStatus};
use farwater_fleet::conditions::find;
use serde_json::json;

use crate::{
    connection::Session,
    exit,
    failure::Result,
    format::{self, Answer},
    scope::{NamespaceArgs, any_name},
    table::{Column, Table},
    terminal::{Terminal, print},
    text,
};

#[derive(Debug, clap::Args)]
pub struct PipelineArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Shows the revision of each stage, and why the next one is pending. Exits with 0 if nothing is pending.
    Status(StatusArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// The Pipeline: NAME or NAMESPACE/NAME.
    pipeline: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub async fn run(args: PipelineArgs, session: &Session) -> Result<u8> {
    let What::Status(args) = args.what;
    let (namespace, name) = any_name(&args.pipeline, args.namespace.or_default(session), "pipeline")?;
    let pipeline: Pipeline = session.get(namespace, name).await?;
    let status = pipeline.status.unwrap_or_default();
    match args.output {
        Answer::Json => print(&format::json(&json!(status))?)?,
        Answer::Yaml => print(&format::yaml(&json!(status))?)?,
        Answer::Text => print(&draw((namespace, name), &status, Terminal::detect()))?,
    }
    let is_settled = status.conditions.iter().any(|condition| condition.reason == "Settled");
    Ok(if is_settled { exit::YES } else { exit::NO })
}

fn draw((namespace, name): (&str, &str), status: &PipelineStatus, terminal: Terminal) -> String {
    let ready = find(&status.conditions, "Ready");
    let told = ready.map_or("the hub has not looked at it yet", |ready| ready.message.as_str());
    let mut drawn = format!("{namespace}/{name}: {}\n", text::short_commits(&text::plain(told)));
    if status.stages.is_empty() {
        return drawn;
    }
    let columns = vec![
        Column::fixed("stage"),
        Column::fixed("revision"),
        Column::fixed("next"),
        Column::elastic("state"),
    ];
    let mut table = Table::new(columns);
    for stage in &status.stages {
        let next = stage
            .candidate
            .as_ref()
            .map_or("-".to_owned(), |next| text::short_revision(&next.revision));
        let revision = stage.revision.as_deref().map_or("-".to_owned(), text::short_revision);
        let state = describe(stage).into_iter().next().unwrap_or_default();
        table.push([stage.name.clone(), revision, next, state]);
        for more in describe(stage).into_iter().skip(1) {
            table.push([String::new(), String::new(), String::new(), more]);
        }
    }
    drawn += &table.render(terminal);
    drawn
}

/// Health first, then each gate of the candidate.
fn describe(stage: &StageStatus) -> Vec<String> {
    let lacks = stage.lacks.as_deref().map(|lacks| text::plain(lacks).into_owned());
    let mut lines = vec![match (&stage.healthy_since, lacks) {
        (Some(since), _) => format!("healthy since {}", since.0),
        (None, Some(lacks)) => lacks,
        (None, None) => "-".to_owned(),
    }];
    lines.extend(texts(&stage.configuration).map(|texts| format!("with {texts}")));

    let refused = stage
        .refused
        .as_deref()
        .map(|refused| text::short_commits(&text::plain(refused)).into_owned());
    lines.extend(refused.map(|refused| format!("went back from {refused}")));
    let coming = stage
        .candidate
        .as_ref()
        .and_then(|candidate| texts(&candidate.configuration));
    lines.extend(coming.map(|texts| format!("next with {texts}")));

    for gate in stage.candidate.iter().flat_map(|candidate| &candidate.gates) {
        let mark = match (gate.holds, gate.failed) {
            (true, _) => "ok",
            (false, true) => "failed",
            (false, false) => "waits",
        };
        lines.push(format!("{}: {mark}: {}", gate.r#type, text::plain(&gate.message)));
    }
    if let Some(pull) = &stage.pull_request {
        let (revision, branch) = (text::short_revision(&pull.revision), text::plain(&pull.branch));
        lines.push(match (&pull.problem, &pull.commit) {
            (Some(problem), _) => format!("{revision}, by {branch}: {}", text::plain(problem)),
            (None, Some(_)) => format!("{revision} waits in {branch} to be merged"),
            (None, None) => format!("{revision} is pushed to {branch}"),
        });
    }
    lines
}

/// `imageTag=1.2.3`
fn texts(configuration: &BTreeMap<String, String>) -> Option<String> {
    let texts = configuration
        .iter()
        .map(|(name, text)| format!("{}={}", text::plain(name), text::plain(text)));
    Some(texts.collect::<Vec<_>>().join(", ")).filter(|texts| !texts.is_empty())
}

#[cfg(test)]
mod tests {
    use farwater_api::pipeline::{GateStatus, GateType, PromotionCandidate};

    use super::*;

    #[test]
    fn a_pipeline_is_drawn_with_what_each_stage_waits_for() {
        let revision = |digit: &str, branch: &str| format!("{branch}sha1:{}", digit.repeat(40));
        let held = |gate, (holds, failed), message: &str| {
            let message = message.to_owned();
            GateStatus {
                r#type: gate,
                holds,
                failed,
                message,
            }
        };
        let stages = vec![
            StageStatus {
                name: "staging".to_owned(),
                revision: Some(revision("b", "main@")),
                lacks: Some("ServiceSet web is not ready: healthy on 1 of 2".to_owned()),
                ..StageStatus::default()
            },
            StageStatus {
                name: "production".to_owned(),
                configuration: BTreeMap::from([("imageTag".to_owned(), "1.2.0".to_owned())]),
                candidate: Some(PromotionCandidate {
                    revision: revision("a", ""),
                    configuration: BTreeMap::from([("imageTag".to_owned(), "1.3.0".to_owned())]),
                    gates: vec![
                        held(
                            GateType::Soak,
                            (true, false),
                            "the stage before was healthy at it for 1h",
                        ),
                        held(GateType::Approval, (false, false), "1 of 2 have approved: ada"),
                        held(GateType::Webhook, (false, true), "it says fail: CHG-7 is rejected"),
                    ],
                    ..PromotionCandidate::default()
                }),
                ..StageStatus::default()
            },
        ];
        let status = PipelineStatus {
            stages,
            ..PipelineStatus::default()
        };
        assert_eq!(
            draw(("team-a", "web"), &status, Terminal::default()),
            "team-a/web: the hub has not looked at it yet\n\
             STAGE        REVISION            NEXT           STATE\n\
             staging      main@bbbbbbbbbbbb   -              ServiceSet web is not ready: healthy on 1 of 2\n\
             production   -                   aaaaaaaaaaaa   -\n\
             \u{20}                                               with imageTag=1.2.0\n\
             \u{20}                                               next with imageTag=1.3.0\n\
             \u{20}                                               Soak: ok: the stage before was healthy at it for 1h\n\
             \u{20}                                               Approval: waits: 1 of 2 have approved: ada\n\
             \u{20}                                               Webhook: failed: it says fail: CHG-7 is rejected\n"
        );
    }
}
