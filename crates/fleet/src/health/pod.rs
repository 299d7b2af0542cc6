//! Pods: what is wrong with a pod, as its scheduler and its kubelet report it.

use serde_json::Value;

use super::{Verdict, condition, current, failed, progress};
use crate::conditions::cut;

/// Most bytes of a kubelet's message: a registry may have answered with a whole page.
const MAX_QUOTED: usize = 400;
const LOOPING: &str = "CrashLoopBackOff";

pub(super) fn evaluate_pod(object: &Value) -> Verdict {
    let status = &object["status"];
    match status["phase"].as_str().unwrap_or_default() {
        "Succeeded" => current(),
        "Failed" => failed(explain_failure(status)),
        "Running" if condition(object, "Ready").is_some_and(|c| c.holds) => current(),
        "Running" => match trouble(status) {
            Some(trouble) if trouble.is_loop => failed(trouble.text),
            Some(trouble) => progress(trouble.text),
            None => progress("running, not yet ready"),
        },
        _ => match condition(object, "PodScheduled").filter(|c| c.reason == "Unschedulable") {
            Some(scheduled) => progress(scheduled.text()),
            None => progress(trouble(status).map_or_else(|| "pending".to_owned(), |trouble| trouble.text)),
        },
    }
}

/// Whether the pod itself says why it is not ready.
pub(super) fn tells(object: &Value) -> bool {
    let unschedulable = condition(object, "PodScheduled").is_some_and(|c| c.reason == "Unschedulable");
    object["status"]["phase"] == "Failed" || unschedulable || trouble(&object["status"]).is_some()
}

fn explain_failure(status: &Value) -> String {
    let quoted = |field: &str| status[field].as_str().map(|text| cut(text, MAX_QUOTED));
    match (quoted("reason"), quoted("message")) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => {
            trouble(status).map_or_else(|| "a container exited with an error".to_owned(), |trouble| trouble.text)
        }
    }
}

/// What keeps a container from running. The lowest rank explains most.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Trouble {
    rank: u8,
    text: String,
    is_loop: bool,
}

/// The trouble of the container that explains most, otherwise of the first.
fn trouble(status: &Value) -> Option<Trouble> {
    let lists = [&status["initContainerStatuses"], &status["containerStatuses"]];
    let all = lists
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(trouble_of);
    all.min_by_key(|trouble| trouble.rank)
}

fn trouble_of(container: &Value) -> Option<Trouble> {
    let name = container["name"].as_str().unwrap_or("?");
    let (state, last) = (&container["state"], &container["lastState"]["terminated"]);
    let trouble = |rank, text| {
        Some(Trouble {
            rank,
            text,
            is_loop: false,
        })
    };
    match state["waiting"]["reason"].as_str() {
        // The back-off time of the kubelet changes all the time, so it is left out.
        Some(LOOPING) => {
            let end = explain_end(last).map(|end| format!(", {end}")).unwrap_or_default();
            return Some(Trouble {
                rank: 0,
                text: format!("container {name}: {LOOPING}{end}"),
                is_loop: true,
            });
        }
        Some("ContainerCreating" | "PodInitializing") | None => {}
        Some(reason) => {
            let message = state["waiting"]["message"]
                .as_str()
                .filter(|message| !message.is_empty());
            let message = message
                .map(|message| format!(": {}", cut(message, MAX_QUOTED)))
                .unwrap_or_default();
            return trouble(0, format!("container {name}: {reason}{message}"));
        }
    }
    if let Some(end) = explain_end(&state["terminated"]) {
        return trouble(1, format!("container {name}: {end}"));
    }
    let is_back = state["running"].is_object() && container["ready"] != true;
    match explain_end(last).filter(|_| is_back) {
        Some(end) => trouble(2, format!("container {name} runs again after {end}")),
        None => None,
    }
}

/// `exit code 137 (OOMKilled)`. None: it ended well. The container's own message may hold anything and is not quoted.
fn explain_end(terminated: &Value) -> Option<String> {
    let code = terminated["exitCode"].as_i64().filter(|code| *code != 0)?;
    let reason = terminated["reason"]
        .as_str()
        .filter(|reason| !matches!(*reason, "" | "Error" | "Completed"));
    Some(format!(
        "exit code {code}{}",
        reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
    ))
}
