//! Requests for plans, on their way to the agent, and plans on their way back.
//!
//! They are few, short-lived and in memory alone: the person waits for the answer, and repeats the request if the hub
//! was restarted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::body::Bytes;
use farwater_api::{
    Digest,
    plan::{PlanAnswer, PlanPhase, PlanProblem},
    protocol::{Action, Deployment, Entry, Verbatim},
};
use farwater_fleet::conditions::cut;
use jiff::Timestamp;
use serde_json::Value;

use super::clusters::ClusterState;

/// How long a request is kept.
pub const LIFE: Duration = Duration::from_secs(300);
/// Maximum number of requests at the same time, and of one cluster: an agent makes one plan at a time.
const MOST: usize = 32;
const MOST_OF_CLUSTER: usize = 4;
/// An agent that knows about plans fetches the request as soon as it learns of it.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Maximum bytes of a plan's problem.
const MAX_PROBLEM: usize = 1024;

#[derive(Debug, Default)]
pub struct Plans(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    requests: BTreeMap<String, Request>,
    /// Number of the last request.
    number: u64,
}

/// A person's request.
#[derive(Debug)]
struct Request {
    number: u64,
    service_uid: String,
    cluster_uid: Arc<str>,
    agent_version: String,
    revision: String,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Preparing,
    /// `told`: when the agent first learned of it.
    Waiting {
        proposed: Proposed,
        told: Option<Instant>,
    },
    Planning {
        proposed: Proposed,
    },
    Done(Value),
    Failed(PlanProblem, String),
}

/// The plan that the agent has to make.
#[derive(Debug)]
pub struct Proposed {
    pub entry: Verbatim<Entry>,
    /// Revision, as people see it.
    pub revision: String,
    /// The bundle, if it exists only for this request.
    pub archive: Option<Bytes>,
}

/// The service of a plan, and the cluster whose agent makes it.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub service_uid: &'a str,
    pub cluster: &'a ClusterState,
    pub agent_version: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("{0} plans are being made for this cluster already; try again when they are done")]
    TooMany(usize),
    #[error("the hub keeps {0} plans already, each for {life} s; try again later", life = LIFE.as_secs())]
    Full(usize),
    #[error("the system's random source failed")]
    Random,
}

impl Progress {
    fn proposed(&self) -> Option<&Proposed> {
        match self {
            Self::Waiting { proposed, .. } | Self::Planning { proposed } => Some(proposed),
            Self::Preparing | Self::Done(_) | Self::Failed(..) => None,
        }
    }
}

impl Plans {
    fn state(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request and returns its id. The request expires by itself.
    pub fn open(&self, asked: &Asked<'_>) -> Result<String, AskError> {
        let mut bytes = [0; 16];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| AskError::Random)?;
        let id = hex::encode(bytes);

        let mut state = self.state();
        let cluster_uid = Arc::clone(&asked.cluster.uid);
        let is_open = |request: &&Request| {
            request.cluster_uid == cluster_uid && !matches!(request.progress, Progress::Done(_) | Progress::Failed(..))
        };
        let of_cluster = state.requests.values().filter(is_open).count();
        if of_cluster >= MOST_OF_CLUSTER {
            return Err(AskError::TooMany(of_cluster));
        }
        if state.requests.len() >= MOST {
            return Err(AskError::Full(MOST));
        }

        state.number += 1;
        let request = Request {
            number: state.number,
            service_uid: asked.service_uid.to_owned(),
            cluster_uid,
            agent_version: asked.agent_version.to_owned(),
            revision: String::new(),
            progress: Progress::Preparing,
        };
        state.requests.insert(id.clone(), request);
        Ok(id)
    }

    pub fn close(&self, id: &str) {
        self.state().requests.remove(id);
    }

    pub fn fail(&self, id: &str, problem: PlanProblem, message: &str) {
        if let Some(request) = self.state().requests.get_mut(id) {
            request.progress = Progress::Failed(problem, cut(message, MAX_PROBLEM));
        }
    }

    pub fn propose(&self, id: &str, proposed: Proposed) {
        if let Some(request) = self.state().requests.get_mut(id) {
            request.revision.clone_from(&proposed.revision);
            request.progress = Progress::Waiting { proposed, told: None };
        }
    }

    /// Number of the newest request that a cluster's agent has not taken; 0: there is none.
    pub fn waiting(&self, cluster_uid: &str) -> u64 {
        let state = self.state();
        let waiting = state.requests.values().filter(|request| {
            *request.cluster_uid == *cluster_uid && matches!(request.progress, Progress::Waiting { .. })
        });
        waiting.map(|request| request.number).max().unwrap_or(0)
    }

    /// Notes that the agent learned of its waiting requests from the answer to a poll.
    pub fn note_told(&self, cluster_uid: &str) {
        let now = Instant::now();
        for request in self
            .state()
            .requests
            .values_mut()
            .filter(|request| *request.cluster_uid == *cluster_uid)
        {
            if let Progress::Waiting { told, .. } = &mut request.progress {
                told.get_or_insert(now);
            }
        }
    }

    /// Takes the oldest waiting request; it belongs to the agent from then on.
    pub fn take(&self, cluster_uid: &str) -> Option<(String, Verbatim<Entry>)> {
        let mut state = self.state();
        let waiting = state.requests.iter_mut().filter(|(_, request)| {
            *request.cluster_uid == *cluster_uid && matches!(request.progress, Progress::Waiting { .. })
        });
        let (id, request) = waiting.min_by_key(|(_, request)| request.number)?;
        let Progress::Waiting { proposed, .. } = std::mem::replace(&mut request.progress, Progress::Preparing) else {
            return None;
        };
        let entry = proposed.entry.clone();
        request.progress = Progress::Planning { proposed };
        Some((id.clone(), entry))
    }

    /// Saves the plan. `false`: no request waits for it.
    pub fn finish(&self, cluster_uid: &str, id: &str, report: Result<Value, String>) -> bool {
        let mut state = self.state();
        let request = state
            .requests
            .get_mut(id)
            .filter(|request| *request.cluster_uid == *cluster_uid);
        let Some(request) = request.filter(|request| matches!(request.progress, Progress::Planning { .. })) else {
            return false;
        };
        request.progress = match report {
            Ok(plan) => Progress::Done(plan),
            Err(problem) => Progress::Failed(PlanProblem::AgentFailed, cut(&problem, MAX_PROBLEM)),
        };
        true
    }

    /// Whether an open request of the cluster names a bundle. If so, also the bundle's bytes if it exists only for that
    /// request.
    pub fn bundle(&self, cluster_uid: &str, digest: &Digest) -> Option<Option<Bytes>> {
        self.find(cluster_uid, |proposed, deployment| {
            (deployment.bundle == *digest).then(|| proposed.archive.clone())
        })
    }

    /// The entry of an open request that names these Secrets.
    pub fn entry_with_secrets(&self, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Option<Verbatim<Entry>> {
        self.find(cluster_uid, |proposed, deployment| {
            let is_it = deployment.secrets == Some(*mac) && proposed.entry.service.uid == service_uid;
            is_it.then(|| proposed.entry.clone())
        })
    }

    /// The entry of an open request that names these parameters.
    pub fn entry_with_parameters(&self, cluster_uid: &str, service_uid: &str, mac: &Digest) -> Option<Verbatim<Entry>> {
        self.find(cluster_uid, |proposed, deployment| {
            let is_it = deployment.parameters == Some(*mac) && proposed.entry.service.uid == service_uid;
            is_it.then(|| proposed.entry.clone())
        })
    }

    fn find<T>(&self, cluster_uid: &str, look: impl Fn(&Proposed, &Deployment) -> Option<T>) -> Option<T> {
        let state = self.state();
        let open = state
            .requests
            .values()
            .filter(|request| *request.cluster_uid == *cluster_uid);
        let mut proposed = open.filter_map(|request| request.progress.proposed());
        proposed.find_map(|proposed| match &proposed.entry.action {
            Action::Apply(deployment) => look(proposed, deployment),
            _ => None,
        })
    }

    /// Progress of a service's request; None: there is no such request.
    pub fn look(
        &self,
        id: &str,
        service_uid: &str,
        cluster: impl Fn(&str) -> Option<Arc<ClusterState>>,
    ) -> Option<PlanAnswer> {
        let mut state = self.state();
        let of = Arc::clone(&state.requests.get(id)?.cluster_uid);

        // An agent that is making another plan fetches this request after that one.
        let is_busy = state
            .requests
            .values()
            .any(|other| other.cluster_uid == of && matches!(other.progress, Progress::Planning { .. }));
        let request = state
            .requests
            .get_mut(id)
            .filter(|request| request.service_uid == service_uid)?;
        let cluster = cluster(&request.cluster_uid);
        let name = cluster
            .as_ref()
            .map(|cluster| cluster.name.to_string())
            .unwrap_or_default();

        if let Progress::Waiting { told: Some(told), .. } = &request.progress
            && !is_busy
            && told.elapsed() >= TAKEN_WITHIN
        {
            let message = format!(
                "the agent of cluster {name} (version {}) has heard of the request and does not ask for it: its version is older \
                 than plans are; upgrade it, by an AgentPolicy or with farwater cluster join --context",
                request.agent_version
            );
            request.progress = Progress::Failed(PlanProblem::AgentTooOld, message);
        }

        let (phase, reason, message, plan) = match &request.progress {
            Progress::Preparing => (PlanPhase::Preparing, None, String::new(), None),
            Progress::Waiting { .. } => (PlanPhase::Waiting, None, describe_wait(&name, cluster.as_deref()), None),
            Progress::Planning { .. } => {
                let message = format!("the agent of cluster {name} is making the plan");
                (PlanPhase::Planning, None, message, None)
            }
            Progress::Done(plan) => (PlanPhase::Done, None, String::new(), Some(plan.clone())),
            Progress::Failed(problem, message) => (PlanPhase::Failed, Some(*problem), message.clone(), None),
        };

        let revision = request.revision.clone();
        Some(PlanAnswer {
            id: id.to_owned(),
            phase,
            reason,
            message,
            cluster: name,
            revision,
            plan,
        })
    }
}

fn describe_wait(name: &str, cluster: Option<&ClusterState>) -> String {
    let Some(cluster) = cluster else {
        return format!("cluster {name} is gone");
    };
    let every = cluster.poll_interval.as_secs();
    let heard = match (cluster.connection(), cluster.heard()) {
        (Some(_), _) => "it is connected".to_owned(),
        (None, None) => "it was never heard".to_owned(),
        (None, Some(heard)) => {
            let ago = Timestamp::now().as_second().saturating_sub(heard).max(0);
            format!("it was heard {ago} s ago and polls every {every} s")
        }
    };
    format!("the agent of cluster {name} has not asked for the request yet: {heard}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farwater_api::protocol::ServiceIdentity;
    use serde_json::json;

    use super::*;

    fn cluster(uid: &str) -> Arc<ClusterState> {
        Arc::new(ClusterState::new(
            uid,
            "farwater-admin",
            "east",
            Duration::from_secs(30),
        ))
    }

    pub fn open(plans: &Plans, cluster: &ClusterState, service: &str) -> Result<String, AskError> {
        plans.open(&Asked {
            service_uid: service,
            cluster,
            agent_version: "0.1.0",
        })
    }

    fn proposed(service: &str) -> Proposed {
        let service = ServiceIdentity {
            uid: service.into(),
            namespace: "n".into(),
            name: "web".into(),
        };
        let action = Action::Hold { reason: "x".into() };
        Proposed {
            entry: Entry { service, action }.into(),
            revision: "main@sha1:1".into(),
            archive: None,
        }
    }

    fn phase(plans: &Plans, id: &str, service: &str) -> Option<PlanPhase> {
        plans
            .look(id, service, |uid| Some(cluster(uid)))
            .map(|answer| answer.phase)
    }

    #[test]
    fn a_request_goes_to_its_own_cluster_and_its_answer_to_who_knows_its_id() {
        let plans = Plans::default();
        let (east, west) = (cluster("east"), cluster("west"));
        let id = open(&plans, &east, "web").unwrap();
        assert_eq!(
            (phase(&plans, &id, "web"), plans.waiting("east")),
            (Some(PlanPhase::Preparing), 0)
        );
        plans.propose(&id, proposed("web"));
        assert_eq!((plans.waiting("east"), plans.waiting("west")), (1, 0));
        assert!(plans.take(&west.uid).is_none());
        let (taken, entry) = plans.take("east").unwrap();
        assert_eq!((&taken, entry.service.uid.as_str()), (&id, "web"));
        assert!(plans.take("east").is_none() && plans.waiting("east") == 0);
        // Another cluster's agent, another id, or the same plan a second time.
        assert!(!plans.finish("west", &id, Ok(json!({}))) && !plans.finish("east", "other", Ok(json!({}))));
        assert_eq!(phase(&plans, &id, "web"), Some(PlanPhase::Planning));
        assert!(plans.finish("east", &id, Ok(json!({"unchanged": 1}))));
        assert!(!plans.finish("east", &id, Err("late".into())));
        assert_eq!(
            (phase(&plans, &id, "web"), phase(&plans, &id, "other")),
            (Some(PlanPhase::Done), None)
        );
        plans.close(&id);
        assert_eq!(phase(&plans, &id, "web"), None);
    }

    #[test]
    fn there_are_few_at_a_time_and_what_is_done_is_no_load() {
        let plans = Plans::default();
        let east = cluster("east");
        let ids: Vec<_> = (0..MOST_OF_CLUSTER)
            .map(|_| open(&plans, &east, "web").unwrap())
            .collect();
        assert!(matches!(
            open(&plans, &east, "web"),
            Err(AskError::TooMany(MOST_OF_CLUSTER))
        ));
        plans.fail(&ids[0], PlanProblem::Refused, "x");
        assert!(open(&plans, &east, "web").is_ok());
        let rest = (1..100)
            .filter(|n| open(&plans, &cluster(&n.to_string()), "web").is_ok())
            .count();
        assert_eq!(rest, MOST - MOST_OF_CLUSTER - 1);
        assert!(matches!(
            open(&plans, &cluster("other"), "web"),
            Err(AskError::Full(MOST))
        ));
    }

    #[test]
    fn an_agent_that_hears_and_does_not_ask_is_too_old() {
        let plans = Plans::default();
        let id = open(&plans, &cluster("east"), "web").unwrap();
        plans.propose(&id, proposed("web"));
        plans.note_told("east");
        assert_eq!(phase(&plans, &id, "web"), Some(PlanPhase::Waiting));
        if let Some(Request {
            progress: Progress::Waiting { told, .. },
            ..
        }) = plans.state().requests.get_mut(&id)
        {
            *told = Instant::now().checked_sub(TAKEN_WITHIN);
        }
        let answer = plans.look(&id, "web", |uid| Some(cluster(uid))).unwrap();
        assert_eq!(
            (answer.phase, answer.reason),
            (PlanPhase::Failed, Some(PlanProblem::AgentTooOld))
        );
        assert!(answer.message.contains("version 0.1.0"), "{}", answer.message);
    }
}
