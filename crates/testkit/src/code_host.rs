//! A fake of the parts of Git hosts' APIs that take commit statuses, as GitHub, GitLab and Gitea document them but
//! stricter. It refuses and records an unknown field, a wrong token or a wrong state.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Result;
use farwater_api::notification_provider::ProviderType;
use serde_json::{Value, json};

use crate::fake::{Asked, Fake, Said};

pub const TOKEN: &str = "glpat-only-for-tests-0123456789";
/// Name of the repository.
pub const PATH: &str = "team/infra";
/// Maximum number of statuses of a commit in one context.
const MAX_STATUSES: usize = 1000;

/// An accepted status.
#[derive(Clone, Debug)]
pub struct Status {
    pub commit: String,
    pub context: String,
    pub state: String,
    pub description: String,
    /// URL that a click on the status opens.
    pub target: String,
    pub at: Instant,
}

struct State {
    kind: ProviderType,
    commits: BTreeSet<String>,
    taken: Vec<Status>,
}

/// Ends when dropped.
pub struct CodeHost(Fake<State>);

impl CodeHost {
    pub async fn start(kind: ProviderType) -> Result<Self> {
        Ok(Self(
            Fake::start(
                State {
                    kind,
                    commits: BTreeSet::new(),
                    taken: Vec::new(),
                },
                answer,
            )
            .await?,
        ))
    }

    /// URL of the repository for people.
    pub fn url(&self) -> String {
        format!("{}/{PATH}", self.0.url())
    }

    /// Adds a commit to the repository.
    pub fn push(&self, commit: &str) {
        self.0.with(|state| state.commits.insert(commit.to_owned()));
    }

    pub fn taken(&self) -> Vec<Status> {
        self.0.with(|state| state.taken.clone())
    }

    /// The newest status of a commit in a context.
    pub fn status(&self, commit: &str, context: &str) -> Option<Status> {
        self.taken()
            .into_iter()
            .rfind(|status| status.commit == commit && status.context == context)
    }

    pub fn set_fault(&self, fault: Option<Said>) {
        self.0.set_fault(fault);
    }

    pub fn refused(&self) -> Vec<String> {
        self.0.refused()
    }
}

type Answer = Result<Said, (Said, String)>;

fn refuse(status: u16, why: impl Into<String>) -> Answer {
    let why = why.into();
    Err((Said::json(status, &json!({"message": why})), why))
}

fn answer(state: &mut State, asked: &Asked) -> Answer {
    let repository = match state.kind {
        ProviderType::GitHub => format!("/api/v3/repos/{PATH}"),
        ProviderType::GitLab => format!("/api/v4/projects/{}", PATH.replace('/', "%2F")),
        _ => format!("/api/v1/repos/{PATH}"),
    };
    if asked.header("authorization") != format!("Bearer {TOKEN}") {
        return refuse(401, "Bad credentials");
    }
    if state.kind == ProviderType::GitHub && asked.method == http::Method::POST {
        let version = asked.header("x-github-api-version");
        if version != "2022-11-28" {
            return refuse(400, format!("no version of the API: {version:?}"));
        }
    }
    let path = asked.uri.path();
    if asked.method == http::Method::GET && path == repository {
        return Ok(Said::json(200, &json!({"id": 1})));
    }
    let commit = path
        .strip_prefix(&repository)
        .and_then(|rest| rest.strip_prefix("/statuses/"));
    let Some(commit) = commit.filter(|_| asked.method == http::Method::POST) else {
        return refuse(404, format!("{} {path}", asked.method));
    };
    if !state.commits.contains(commit) {
        // The host may not know the commit yet. That is not a client's mistake.
        return Ok(match state.kind {
            ProviderType::GitHub => Said::json(422, &json!({"message": format!("No commit found for SHA: {commit}")})),
            _ => Said::json(404, &json!({"message": "404 Commit Not Found"})),
        });
    }
    match status(state, asked, commit) {
        Ok(Ok(status)) => {
            let said = json!({"id": state.taken.len() + 1, "state": status.state});
            state.taken.push(status);
            Ok(Said::json(201, &said))
        }
        Ok(Err(said)) => Ok(said),
        Err(why) => refuse(if state.kind == ProviderType::GitLab { 400 } else { 422 }, why),
    }
}

fn status(state: &State, asked: &Asked, commit: &str) -> Result<Result<Status, Said>, String> {
    let (fields, name, states, longest): (&[&str], _, &[&str], _) = match state.kind {
        ProviderType::GitLab => (
            &[
                "state",
                "ref",
                "name",
                "context",
                "target_url",
                "description",
                "coverage",
                "pipeline_id",
            ],
            "name",
            &["pending", "running", "success", "failed", "canceled", "skipped"],
            255,
        ),
        _ => (
            &["state", "target_url", "description", "context"],
            "context",
            &["error", "failure", "pending", "success"],
            if state.kind == ProviderType::GitHub { 140 } else { 255 },
        ),
    };
    let body = asked.object(fields)?;
    let text = |field: &str| body.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let status = Status {
        commit: commit.to_owned(),
        context: text(name),
        state: text("state"),
        description: text("description"),
        target: text("target_url"),
        at: Instant::now(),
    };
    if !status.target.is_empty() && !status.target.starts_with("https://") {
        return Err(format!("target_url is no address of a page: {:?}", status.target));
    }
    if !states.contains(&status.state.as_str()) {
        return Err(format!("no state: {:?}", status.state));
    }
    if status.context.is_empty() || status.description.chars().count() > longest {
        return Err(format!("no context, or too long a description: {status:?}"));
    }
    let mut same = state
        .taken
        .iter()
        .filter(|known| known.commit == commit && known.context == status.context);
    if state.kind == ProviderType::GitHub && same.clone().count() >= MAX_STATUSES {
        return Err("This SHA and context has reached the maximum number of statuses.".to_owned());
    }
    // A running status can only be ended.
    let is_stuck = state.kind == ProviderType::GitLab
        && matches!(status.state.as_str(), "running" | "pending")
        && same
            .next_back()
            .is_some_and(|known| matches!(known.state.as_str(), "running" | "pending"));
    if is_stuck {
        let why = "Cannot transition status via :run from :running (Reason(s): Status cannot transition via \"run\")";
        return Ok(Err(Said::json(400, &json!({"message": why}))));
    }
    Ok(Ok(status))
}
