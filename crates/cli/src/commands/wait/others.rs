//! Waits until sets, clusters and sources are ready.

use std::time::{Duration, Instant};

use farwater_api::{RolloutPhase, SourceKind, service_set::RolloutStatus};
use farwater_fleet::{summary::NO_CLUSTERS, why::Standing};
use http::Method;
use serde_json::{Value, json};

use super::{
    Goal,
    judge::Progress,
    looks::{Looks, Over},
    members, print_finding,
};
use crate::{
    commands::why,
    connection::{Session, missing},
    exit,
    failure::{Failure, Result},
    granted,
    kinds::Kind,
    scope::NamedObject,
    terminal::{print, say},
    text,
};

/// The object to wait for.
#[derive(Clone, Debug)]
pub struct Awaited {
    kind: Kind,
    namespace: String,
    name: String,
    form: Form,
    /// Whether to request a fetch first: of the source, or of the sources of the set's services.
    fetch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Set,
    Cluster,
    Source,
}

impl Awaited {
    pub fn new(named: NamedObject<'_>, fetch: bool) -> Result<Self> {
        let is_source = SourceKind::ALL
            .iter()
            .any(|source| source.plural() == named.kind.plural);
        let plural = named.kind.plural.as_str();
        let form = match plural {
            "servicesets" | "managednamespaces" => Form::Set,
            "clusters" | "grantedclusters" => Form::Cluster,
            _ if is_source => Form::Source,
            _ => {
                return Err(Failure::usage(format!("a {} can't be waited for", named.kind.kind))
                    .evidence("expected a service, or serviceset/NAME, cluster/NAME or a source"));
            }
        };
        if fetch && form != Form::Source && plural != "servicesets" {
            let kind = &named.kind.kind;
            return Err(
                Failure::usage(format!("--fetch fetches sources, and a {kind} has none")).next("leave --fetch out"),
            );
        }
        let (namespace, name) = (named.namespace.to_owned(), named.name.to_owned());
        Ok(Self {
            kind: named.kind,
            namespace,
            name,
            form,
            fetch,
        })
    }

    fn path(&self) -> String {
        self.kind.path(Some(&self.namespace), Some(&self.name))
    }

    /// For example `serviceset/site`.
    fn short(&self) -> String {
        format!("{}/{}", self.kind.singular, self.name)
    }
}

/// Returns exit code 0, 1 or 6, as for services.
pub async fn until(session: &Session, awaited: &Awaited, goal: Goal, timeout: Duration) -> Result<u8> {
    if awaited.fetch {
        ask(session, awaited).await?;
    }
    let mut looks = Looks::until(Instant::now() + timeout);
    let what = if awaited.form == Form::Set {
        goal.word()
    } else {
        "ready"
    };
    let over = loop {
        let progress = match look(session, awaited, goal).await {
            Ok(progress) => progress,
            // If the hub can't be reached for a moment, the wait goes on.
            Err(failure) if failure.code == exit::UNREACHABLE => Progress::NotYet(failure.cause),
            Err(failure) => return Err(failure),
        };
        let over = match &progress {
            Progress::Reached => {
                print(&format!("{} {what}\n", awaited.short()))?;
                return Ok(exit::YES);
            }
            Progress::NotYet(state) => looks.note(&awaited.short(), state, false),
            Progress::Refused(state) => looks.note(&awaited.short(), state, true),
        };
        if let Some(over) = over {
            break over;
        }
        looks.pause().await;
    };
    let (short, state) = (awaited.short(), looks.state());
    let (told, code) = match over {
        Over::Stuck => (
            format!("{short} is not going to be {what} by itself: {state}"),
            exit::NO,
        ),
        Over::TimedOut => (
            format!("timed out after {}s; {short} is not {what}: {state}", timeout.as_secs()),
            exit::TIMEOUT,
        ),
    };
    say(&text::plain(&told));
    match why::explain_named(session, &awaited.kind, &awaited.namespace, &awaited.name).await {
        Ok(finding) if finding.standing != Standing::Healthy => print_finding(session, &short, &finding, state),
        _ => {}
    }
    Ok(code)
}

/// Reads the object and judges it. With a fetch, a set also needs the newest version of its sources.
async fn look(session: &Session, awaited: &Awaited, goal: Goal) -> Result<Progress> {
    let progress = judge(&read(session, awaited).await?, awaited, goal);
    match progress {
        Progress::Reached if awaited.fetch && awaited.form == Form::Set => {
            members::judge_newest(session, &awaited.namespace, &awaited.name, goal).await
        }
        progress => Ok(progress),
    }
}

/// Requests that the hub fetches the source, or those of a set, now.
async fn ask(session: &Session, awaited: &Awaited) -> Result<()> {
    if awaited.form == Form::Set {
        read(session, awaited).await?;
        return members::ask(session, &awaited.namespace, &awaited.name).await;
    }
    let now = jiff::Timestamp::now().to_string();
    let patch = json!({"metadata": {"annotations": {farwater_api::REQUESTED_AT: now}}});
    let attempt = format!("ask {}", awaited.short());
    let path = format!("{}?fieldManager=farwater-cli", awaited.path());
    let asked = session
        .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
        .await;
    found(awaited, asked).map(drop)
}

async fn read(session: &Session, awaited: &Awaited) -> Result<Value> {
    let attempt = format!("read {}", awaited.short());
    let answer = match session.read(&attempt, &awaited.path()).await {
        Err(failure) if awaited.form == Form::Cluster && granted::is_hidden(session, &awaited.name, &failure).await => {
            let tenants = [awaited.namespace.as_str(), &session.namespace];
            let found = granted::find(session, &tenants, (&awaited.namespace, &awaited.name)).await?;
            found.map_or(Err(failure), |granted| Ok(json!(granted)))
        }
        answer => answer,
    };
    found(awaited, answer)
}

fn found(awaited: &Awaited, answer: Result<Value>) -> Result<Value> {
    match answer {
        Err(failure) if failure.is_missing() => Err(missing(
            &awaited.kind.kind,
            &awaited.kind.plural,
            &awaited.namespace,
            &awaited.name,
            &[],
        )),
        answer => answer,
    }
}

/// Judges an object by its status. A status of an older generation or fetch request doesn't count.
fn judge(object: &Value, awaited: &Awaited, goal: Goal) -> Progress {
    let form = awaited.form;
    let (metadata, status) = (&object["metadata"], &object["status"]);
    // Of a granted cluster, a tenant sees no conditions.
    match status["ready"].as_str() {
        Some("True") if form == Form::Cluster => return Progress::Reached,
        Some(_) if form == Form::Cluster => return Progress::NotYet("the cluster is not ready".to_owned()),
        _ => {}
    }
    if metadata["deletionTimestamp"].is_string() {
        return Progress::Refused("it is being deleted".to_owned());
    }
    let observed = status["observedGeneration"].as_i64().unwrap_or_default();
    if form != Form::Cluster && observed < metadata["generation"].as_i64().unwrap_or_default() {
        return Progress::NotYet("the hub has not processed the new spec yet".to_owned());
    }
    let requested = &metadata["annotations"][farwater_api::REQUESTED_AT];
    if form == Form::Source && requested.is_string() && *requested != status["lastHandledReconcileAt"] {
        return Progress::NotYet("the source is being fetched".to_owned());
    }
    let condition = |type_: &str| {
        let mut all = status["conditions"].as_array().into_iter().flatten();
        all.find(|condition| condition["type"] == type_)
    };
    let text = |condition: &Value| {
        let part = |field: &str| {
            condition[field]
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        part("message").or_else(|| part("reason")).unwrap_or_default()
    };
    if let Some(stalled) = condition("Stalled").filter(|stalled| stalled["status"] == "True") {
        return Progress::Refused(text(stalled));
    }
    let ready = condition("Ready");
    // Whatever an earlier rollout came to: nothing is deployed anywhere.
    if let Some(none) = ready.filter(|ready| form == Form::Set && ready["reason"] == NO_CLUSTERS) {
        return Progress::NotYet(text(none));
    }
    if form == Form::Set
        && let Some(why) = open_rollout(status)
    {
        return why;
    }
    // A set is applied when all members have applied its version, even if they aren't healthy.
    if form == Form::Set && goal == Goal::Applied || ready.is_some_and(|ready| ready["status"] == "True") {
        return Progress::Reached;
    }
    match ready {
        None => Progress::NotYet("there is no status yet".to_owned()),
        // The request was answered, and this is the answer.
        Some(ready) if awaited.fetch && form == Form::Source && ready["status"] == "False" => {
            Progress::Refused(text(ready))
        }
        Some(ready) => Progress::NotYet(text(ready)),
    }
}

/// The rollout that keeps members of a set from its current version. None: all members have that version.
fn open_rollout(status: &Value) -> Option<Progress> {
    let rollout: RolloutStatus = serde_json::from_value(status["rollout"].clone()).unwrap_or_default();
    let so_far = rollout.so_far();
    match rollout.phase {
        RolloutPhase::Halted | RolloutPhase::Aborted => Some(Progress::Refused(so_far)),
        RolloutPhase::Complete if rollout.number > 0 && rollout.updated == rollout.clusters() => None,
        RolloutPhase::Complete if rollout.number == 0 => {
            Some(Progress::NotYet("nothing was rolled out yet".to_owned()))
        }
        _ => Some(Progress::NotYet(so_far)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(conditions: &[(&str, &str)], more: &Value) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status)| json!({"type": type_, "status": status, "reason": "R", "message": "m"}))
            .collect();
        let mut object =
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": conditions}});
        object["status"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        object
    }

    fn of(form: Form) -> Awaited {
        let kind = crate::kinds::find("gitrepositories").unwrap();
        Awaited {
            kind,
            namespace: "team-a".to_owned(),
            name: "infra".to_owned(),
            form,
            fetch: false,
        }
    }

    fn not_yet(why: &str) -> Progress {
        Progress::NotYet(why.to_owned())
    }

    #[test]
    fn a_source_is_ready_when_it_was_fetched_after_the_request() {
        let check =
            |object: Value, expected: Progress| assert_eq!(judge(&object, &of(Form::Source), Goal::Healthy), expected);
        check(object(&[("Ready", "True")], &json!({})), Progress::Reached);
        check(object(&[("Ready", "False")], &json!({})), not_yet("m"));
        check(
            object(&[("Ready", "False"), ("Stalled", "True")], &json!({})),
            Progress::Refused("m".to_owned()),
        );
        check(
            object(&[("Ready", "True")], &json!({"observedGeneration": 1})),
            not_yet("the hub has not processed the new spec yet"),
        );
        let mut asked = object(&[("Ready", "True")], &json!({"lastHandledReconcileAt": "1"}));
        asked["metadata"]["annotations"] = json!({farwater_api::REQUESTED_AT: "2"});
        check(asked, not_yet("the source is being fetched"));
        // A server that did not answer the request is a no; without a request it is waited for.
        let fetched = Awaited {
            fetch: true,
            ..of(Form::Source)
        };
        let unanswered = object(&[("Ready", "False")], &json!({}));
        assert_eq!(
            judge(&unanswered, &fetched, Goal::Healthy),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_set_is_ready_when_its_rollout_is_complete_on_all_clusters() {
        let check = |rollout: Value, goal, expected: Progress| {
            assert_eq!(
                judge(
                    &object(&[("Ready", "True")], &json!({"rollout": rollout})),
                    &of(Form::Set),
                    goal
                ),
                expected
            );
        };
        let rollout = |phase: &str, updated: i64| json!({"number": 3, "phase": phase, "updated": updated, "waiting": 2 - updated});
        check(rollout("Complete", 2), Goal::Healthy, Progress::Reached);
        check(
            rollout("Complete", 1),
            Goal::Healthy,
            not_yet("rollout 3 is Complete: 1 of 2 clusters are done"),
        );
        check(
            rollout("Progressing", 1),
            Goal::Applied,
            not_yet("rollout 3 is Progressing: 1 of 2 clusters are done"),
        );
        check(
            rollout("Halted", 1),
            Goal::Healthy,
            Progress::Refused("rollout 3 is Halted: 1 of 2 clusters are done".to_owned()),
        );
        check(
            json!({"number": 0, "phase": "Complete"}),
            Goal::Healthy,
            not_yet("nothing was rolled out yet"),
        );
        let mut none = object(&[("Ready", "False")], &json!({"rollout": rollout("Complete", 2)}));
        none["status"]["conditions"][0]["reason"] = NO_CLUSTERS.into();
        assert_eq!(judge(&none, &of(Form::Set), Goal::Applied), not_yet("m"));
        let complete = json!({"rollout": rollout("Complete", 2)});
        let ill = object(&[("Ready", "False")], &complete);
        assert_eq!(judge(&ill, &of(Form::Set), Goal::Healthy), not_yet("m"));
        assert_eq!(judge(&ill, &of(Form::Set), Goal::Applied), Progress::Reached);
    }

    #[test]
    fn sets_and_sources_have_something_to_fetch() {
        let refused = |argument: &str| {
            let named = crate::scope::object_name(argument, "team-a").unwrap();
            Awaited::new(named, true).err().map(|failure| failure.cause)
        };
        assert_eq!(refused("serviceset/site"), None);
        assert_eq!(refused("gitrepository/infra"), None);
        let none = |kind: &str| Some(format!("--fetch fetches sources, and a {kind} has none"));
        assert_eq!(refused("cluster/east"), none("Cluster"));
        assert_eq!(refused("managednamespace/shop"), none("ManagedNamespace"));
    }

    #[test]
    fn a_cluster_is_ready_when_its_agent_is_heard() {
        let cluster = |ready: &str| {
            judge(
                &object(&[("Ready", ready)], &json!({"observedGeneration": 0})),
                &of(Form::Cluster),
                Goal::Healthy,
            )
        };
        assert_eq!((cluster("True"), cluster("False")), (Progress::Reached, not_yet("m")));
        let granted = |ready: &str| judge(&json!({"status": {"ready": ready}}), &of(Form::Cluster), Goal::Healthy);
        let told = not_yet("the cluster is not ready");
        assert_eq!((granted("True"), granted("Unknown")), (Progress::Reached, told));
    }
}
