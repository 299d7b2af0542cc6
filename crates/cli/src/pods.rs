//! Reports pods of Farwater that don't become ready: their state from the cluster, and the cause from their logs.

use std::time::{Duration, Instant};

use farwater_fleet::health;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api,
    api::{ListParams, LogParams},
};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::{
    failure::{Failure, Result},
    target::Target,
    terminal::say,
    text,
};

const PAUSE: Duration = Duration::from_millis(500);
/// Lines that are read from the end of a log. A program that retries every few seconds has printed the cause there.
const LINES: i64 = 50;
/// Longest wait for a log: a node that is down never sends it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most columns for a statement of the pod.
const MAX_WORDS: usize = 300;

/// The pods of one component.
#[derive(Clone, Copy)]
pub struct Pods<'a> {
    pub target: &'a Target,
    pub namespace: &'a str,
    pub component: &'a str,
}

impl Pods<'_> {
    /// Waits until `done` returns a value, and meanwhile prints each state of the pods once. After `longest`, `late`
    /// makes the failure from their last states and the causes.
    pub async fn wait<T>(
        self,
        longest: Duration,
        mut done: impl AsyncFnMut() -> Result<Option<T>>,
        late: impl FnOnce(String) -> Failure,
    ) -> Result<T> {
        let begun = Instant::now();
        let mut told = Vec::new();
        loop {
            if let Some(result) = done().await? {
                return Ok(result);
            }
            if begun.elapsed() > longest {
                return Err(late(self.explain().await?));
            }
            let state = summarize(self.list().await?.iter().map(|pod| describe(pod, self.component, &[])));
            if !told.contains(&state) {
                say(&format!("  {}", text::plain(&state)));
                told.push(state);
            }
            sleep(PAUSE).await;
        }
    }

    /// The state of each pod, with the line of its log that names the cause. Logs that the user may not read are left
    /// out.
    pub async fn explain(self) -> Result<String> {
        let mut described = Vec::new();
        for pod in self.list().await? {
            let logs = self.read_logs(&pod).await;
            described.push(describe(&pod, self.component, &logs));
        }
        Ok(summarize(described))
    }

    fn api(self) -> Api<Pod> {
        Api::namespaced(self.target.client.clone(), self.namespace)
    }

    async fn list(self) -> Result<Vec<Pod>> {
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/component={}", self.component));
        let pods = self.api().list(&selector).await;
        let pods = pods.map_err(|error| self.target.failure(&format!("list pods in {}", self.namespace), &error))?;
        Ok(pods.items)
    }

    /// The end of the current log and then, if the container was restarted, of the previous one.
    async fn read_logs(self, pod: &Pod) -> Vec<String> {
        let (Some(name), Some(container)) = (&pod.metadata.name, container_of(pod, self.component)) else {
            return Vec::new();
        };
        let api = self.api();
        let mut logs = Vec::new();
        let runs: &[bool] = if container.restart_count > 0 {
            &[false, true]
        } else {
            &[false]
        };
        for &previous in runs {
            let parameters = LogParams {
                container: Some(container.name.clone()),
                tail_lines: Some(LINES),
                previous,
                ..LogParams::default()
            };
            // A container that has not started has no log, and the user may lack the right to read it.
            if let Ok(Ok(log)) = timeout(PATIENCE, api.logs(name, &parameters)).await {
                logs.push(log);
            }
        }
        logs
    }
}

fn summarize(described: impl IntoIterator<Item = String>) -> String {
    let described: Vec<String> = described.into_iter().collect();
    if described.is_empty() {
        "waiting for its pod".to_owned()
    } else {
        described.join("; ")
    }
}

/// Describes one pod in a phrase. `logs`: the newest first. The termination message of the container counts as the last
/// of them.
fn describe(pod: &Pod, component: &str, logs: &[String]) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let (_, message) = health::evaluate(&serde_json::to_value(pod).unwrap_or_default());
    let state = if message.is_empty() { "ready" } else { message.as_str() };
    let end = container_of(pod, component).and_then(last_message);
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    match choose(logs.iter().map(String::as_str).chain(end)).filter(|_| !is_leaving) {
        Some(words) => format!(
            "pod {name}: {state}; it says: {}",
            text::fit(&text::plain(&words), MAX_WORDS)
        ),
        None => format!("pod {name}: {state}"),
    }
}

/// The component's own container. The pod may have others, such as injected sidecars.
fn container_of<'a>(pod: &'a Pod, component: &str) -> Option<&'a ContainerStatus> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers
        .iter()
        .find(|container| container.name == component)
        .or(containers.first())
}

/// The container's termination message: the end of its log if it failed (`terminationMessagePolicy:
/// FallbackToLogsOnError`), or why it could not be started.
fn last_message(container: &ContainerStatus) -> Option<&str> {
    [&container.state, &container.last_state]
        .into_iter()
        .find_map(|state| state.as_ref()?.terminated.as_ref()?.message.as_deref())
}

/// One message of a log.
struct Statement {
    text: String,
    /// Whether it is a warning, an error, or a message of a program that ends.
    is_grave: bool,
}

/// The newest grave statement of the first log that has one, else the newest statement of the first log that has any.
fn choose<'a>(logs: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut newest = None;
    for log in logs {
        let mut statements = read_statements(log);
        if let Some(grave) = statements.iter().rposition(|statement| statement.is_grave) {
            return Some(statements.swap_remove(grave).text);
        }
        newest = newest.or(statements.pop());
    }
    newest.map(|statement| statement.text)
}

enum Line {
    Record(Statement),
    /// JSON that was cut off or is not a log record.
    Unreadable,
    /// Not written by a logger: the message of a program that ends, on one or more lines.
    Plain,
}

fn read_statements(log: &str) -> Vec<Statement> {
    let mut statements: Vec<Statement> = Vec::new();
    let mut goes_on = false;
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        let read = read_line(line);
        let is_plain = matches!(read, Line::Plain);
        match read {
            Line::Record(statement) => statements.push(statement),
            Line::Unreadable => {}
            Line::Plain => match statements.last_mut().filter(|_| goes_on) {
                Some(before) => {
                    // Evidence is printed below its cause and indented.
                    let is_evidence = line.starts_with(' ') && !before.text.ends_with(':');
                    before.text += if is_evidence { ": " } else { " " };
                    before.text += line.trim();
                }
                None => statements.push(Statement {
                    text: line.trim().to_owned(),
                    is_grave: true,
                }),
            },
        }
        goes_on = is_plain;
    }
    statements
}

fn read_line(line: &str) -> Line {
    if line.starts_with('{') {
        let record = serde_json::from_str::<Value>(line).ok();
        return record
            .and_then(|record| read_record(&record))
            .map_or(Line::Unreadable, Line::Record);
    }
    // A termination message may begin in the middle of a line.
    if line.ends_with('}') && line.contains("\":") {
        return Line::Unreadable;
    }
    read_text_record(line).map_or(Line::Plain, Line::Record)
}

/// A record of `--log-format json`. The agent puts the message into `fields`, and the hub next to the level.
fn read_record(record: &Value) -> Option<Statement> {
    let fields = if record["fields"].is_object() {
        &record["fields"]
    } else {
        record
    };
    let message = fields["message"].as_str()?;
    let text = match fields["error"].as_str() {
        Some(error) => format!("{message}: {error}"),
        None => message.to_owned(),
    };
    Some(Statement {
        text,
        is_grave: is_grave(record["level"].as_str().unwrap_or_default()),
    })
}

/// A line of `--log-format text`, such as `2026-11-23T02:58:59.123456Z  WARN farwater_agent::join: can't join yet`.
fn read_text_record(line: &str) -> Option<Statement> {
    let (time, rest) = line.split_once(' ')?;
    let (level, text) = rest.trim_start().split_once(' ')?;
    let is_record =
        time.ends_with('Z') && time.contains('T') && matches!(level, "TRACE" | "DEBUG" | "INFO" | "WARN" | "ERROR");
    is_record.then(|| Statement {
        text: text.trim().to_owned(),
        is_grave: is_grave(level),
    })
}

fn is_grave(level: &str) -> bool {
    matches!(level, "WARN" | "ERROR")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const JOINING: &str = r#"{"timestamp":"2026-11-23T02:58:59.1Z","level":"INFO","fields":{"message":"the hub is reached through a proxy","proxy":"http://proxy"},"target":"farwater_agent::hub"}
{"timestamp":"2026-11-23T02:58:59.2Z","level":"WARN","fields":{"message":"can't join yet; trying again","error":"reach the hub for join: tcp connect error: Connection refused (os error 111)"},"target":"farwater_agent::join"}
"#;
    const REFUSED: &str =
        "can't join yet; trying again: reach the hub for join: tcp connect error: Connection refused (os error 111)";
    const FULL: &str = r#"{"timestamp":"2026-11-23T02:58:59.1Z","level":"WARN","message":"listening on [::]:8443","target":"farwater_hub::start"}
farwater: the hub ended: write /var/lib/farwater/keys/ca.key
  No space left on device (os error 28)
"#;
    const NO_SPACE: &str =
        "farwater: the hub ended: write /var/lib/farwater/keys/ca.key: No space left on device (os error 28)";

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "agent-1"}, "status": status})).unwrap()
    }

    fn check(status: Value, logs: &[&str], expected: &str) {
        let logs: Vec<String> = logs.iter().map(|&log| log.to_owned()).collect();
        assert_eq!(describe(&pod(status), "agent", &logs), expected);
    }

    /// A pod with the agent's container only, in the given state.
    fn agent(state: Value, last_state: Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [
            {"name": "agent", "ready": false, "restartCount": 0, "state": state, "lastState": last_state},
        ]})
    }

    fn says(log: &str, expected: &str) {
        assert_eq!(choose([log].into_iter()).as_deref(), Some(expected));
    }

    #[test]
    fn a_pod_is_told_by_its_state() {
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"a:1\""}});
        let mut pulled = agent(waiting, json!({}));
        pulled["phase"] = json!("Pending");
        check(
            pulled,
            &[],
            "pod agent-1: container agent: ImagePullBackOff: Back-off pulling image \"a:1\"",
        );
        let scheduled = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient memory.",
        });
        check(
            json!({"phase": "Pending", "conditions": [scheduled]}),
            &[],
            "pod agent-1: Unschedulable: 0/1 nodes are available: 1 Insufficient memory.",
        );
        let running = json!({"running": {}});
        check(
            agent(running.clone(), json!({})),
            &[],
            "pod agent-1: running, not yet ready",
        );
        let mut ready = agent(running, json!({}));
        ready["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        check(ready, &[], "pod agent-1: ready");
    }

    #[test]
    fn a_pod_says_why_in_its_log() {
        let running = agent(json!({"running": {}}), json!({}));
        check(
            running,
            &[JOINING],
            &format!("pod agent-1: running, not yet ready; it says: {REFUSED}"),
        );
    }

    #[test]
    fn without_the_right_to_read_logs_the_end_of_a_container_says_why() {
        let ended = json!({"terminated": {"exitCode": 8, "reason": "Error", "message": FULL}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}});
        let looping = format!("pod agent-1: container agent: CrashLoopBackOff, exit code 8; it says: {NO_SPACE}");
        check(agent(waiting, ended.clone()), &[], &looping);
        let once = format!("pod agent-1: container agent: exit code 8; it says: {NO_SPACE}");
        check(agent(ended, json!({})), &[], &once);
    }

    #[test]
    fn what_others_put_into_a_pod_does_not_speak_for_it() {
        let ended = |message: &str| json!({"terminated": {"exitCode": 1, "message": message}});
        let mut status = agent(ended("ours"), json!({}));
        let beside = json!({"name": "proxy", "state": ended("theirs")});
        status["containerStatuses"].as_array_mut().unwrap().insert(0, beside);
        let told = describe(&pod(status), "agent", &[]);
        assert!(told.ends_with("it says: ours"), "{told}");
    }

    #[test]
    fn a_container_that_was_started_again_leaves_the_word_to_the_one_before() {
        let begun = JOINING.lines().next().unwrap();
        assert_eq!(choose(["", FULL].into_iter()).as_deref(), Some(NO_SPACE));
        assert_eq!(choose([begun, FULL].into_iter()).as_deref(), Some(NO_SPACE));
        assert_eq!(choose([JOINING, FULL].into_iter()).as_deref(), Some(REFUSED));
        assert_eq!(
            choose([begun, ""].into_iter()).as_deref(),
            Some("the hub is reached through a proxy")
        );
        assert_eq!(choose(["", "\n"].into_iter()), None);
    }

    #[test]
    fn the_newest_warning_or_error_is_what_a_log_says() {
        says(JOINING, REFUSED);
        says(FULL, NO_SPACE);
        let later = r#"{"timestamp":"2026-11-23T02:59:00Z","level":"INFO","fields":{"message":"standing by"}}"#;
        says(&format!("{JOINING}{later}\n"), REFUSED);
        says(later, "standing by");
        says(&format!("{FULL}{JOINING}"), REFUSED);
    }

    #[test]
    fn logs_that_are_text_are_read_too() {
        let log = "2026-11-23T02:58:59.1Z  WARN can't join yet; trying again error=\"Connection refused\"\n\
                   2026-11-23T02:58:59.2Z  INFO standing by\n";
        says(log, "can't join yet; trying again error=\"Connection refused\"");
        says(
            "error: wanted:\n  --hub <URL>\n\nUsage: agent\n",
            "error: wanted: --hub <URL> Usage: agent",
        );
    }

    #[test]
    fn json_is_never_shown() {
        for cut in [&JOINING[20..], &FULL[30..]] {
            let words = choose([cut].into_iter()).unwrap();
            assert!(!words.contains('{') && !words.contains('}'), "{words}");
        }
        assert_eq!(
            choose([r#"{"level":"WARN","fields":{"mess"#, r#"{"other": 1}"#].into_iter()),
            None
        );
    }

    #[test]
    fn long_words_are_cut() {
        let ended = json!({"terminated": {"exitCode": 1, "message": "a".repeat(1000)}});
        let told = describe(&pod(agent(ended, json!({}))), "agent", &[]);
        assert!(told.ends_with("a…") && text::width(&told) < MAX_WORDS + 60, "{told}");
    }
}
