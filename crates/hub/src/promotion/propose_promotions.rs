//! propose_promotions: what was promoted to a stage with a pull request → a commit on a branch, for people to merge.
//!
//! This is apart from `advance_promotions`, because it waits for Git hosts. Its state is in the pipeline's row: a
//! commit is noted there before it is pushed. So a hub that is killed in between continues, and does not take its own
//! branch for another's.

use std::{path::PathBuf, sync::Arc, time::Duration};

use farwater_api::{
    GitRepository, GitRepositorySpec, Pipeline,
    pipeline::{PipelineStage, PullRequest, PullRequestStatus},
};
use farwater_bundle::{
    ObjectId, RelPath,
    yaml::edit::{FieldPath, FieldValue},
};
use farwater_fleet::{
    conditions::cut,
    promotion::{Promoted, StageState},
    proposals::{Phase, Problem, Proposal, Way},
};
use farwater_sources::{Edit, FileError, GitError, GitReason, Mirror, Push, PushedBranch, Reference, Retry};
use farwater_store::{
    Resource, StoreError,
    delivery::{Revision, load_pipeline, load_revision, save_pipeline},
};

use super::advance_promotions::read_state;
use crate::{
    errors::{SourceFailure, chain},
    memory::turns::{Asks, Turn},
    notify::events::{self, EventText},
    queue::Next,
    replica::Replica,
    resources::{self, Name},
    sources::{
        access::{self, store_failed},
        git::{self, format_revision},
    },
};

/// Maximum bytes of a problem.
const MAX_PROBLEM: usize = 512;
/// Wait before a retry if a person has to change something: a Secret, the branch, the file.
const RETRY_LASTING: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(15);
/// Maximum wait for a host's turn.
const TURN: Duration = Duration::from_secs(10);
/// How often the row is written again when another writer was faster.
const ATTEMPTS: usize = 8;
/// Reasons whose messages say what to change. For other reasons the first message is kept: a host's messages differ
/// each time, and each would be news.
const TOLD_ANEW: [&str; 3] = ["SpecInvalid", "FileInvalid", "BranchTaken"];

/// A stage with a pull request, and the promotion to propose.
struct Task<'a> {
    replica: &'a Replica,
    name: &'a Name,
    resource: &'a Resource,
    pipeline: &'a Pipeline,
    index: usize,
    pull: &'a PullRequest,
    branch: PushedBranch,
}

pub async fn propose_promotions(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let Some((resource, pipeline)) = resources::load::<Pipeline>(&replica.store, &name).await? else {
        return Ok(Next::OnChange);
    };
    if pipeline.metadata.deletion_timestamp.is_some() {
        return Ok(Next::OnChange);
    }

    let written = load_pipeline(&mut *replica.store.tables().await?, &resource.uid).await?;
    let state = read_state(&name, written.as_deref())?;

    let mut wait: Option<Duration> = None;
    for (index, stage) in pipeline.spec.stages.iter().enumerate().skip(1) {
        let Some(pull) = &stage.pull_request else { continue };
        let Some(known) = state.stages.get(&stage.name) else {
            continue;
        };
        let Some(promoted) = &known.promoted else { continue };
        // `advance_promotions` reports a branch name that is not valid.
        let Some(branch) = branch_of(&name.name, stage, pull) else {
            continue;
        };
        let (resource, pipeline) = (&resource, &pipeline);
        let task = Task {
            replica: &replica,
            name: &name,
            resource,
            pipeline,
            index,
            pull,
            branch,
        };
        if let Some(again) = task.advance(promoted, known).await? {
            wait = Some(wait.map_or(again, |wait| wait.min(again)));
        }
    }
    Ok(wait.map_or(Next::OnChange, Next::After))
}

impl Task<'_> {
    fn stage(&self) -> &PipelineStage {
        &self.pipeline.spec.stages[self.index]
    }

    /// When to requeue, if that depends on time.
    async fn advance(&self, promoted: &Promoted, known: &StageState) -> Result<Option<Duration>, StoreError> {
        let place = (self.pull.url.as_str(), self.branch.as_str());
        let mut proposal = Proposal::of(promoted, known.proposal.as_ref(), place);
        if proposal.phase == Phase::Merged {
            return Ok(None);
        }
        match self.propose(&mut proposal).await {
            Ok(()) => Ok(None),
            Err(failure) => {
                let wait = if failure.lasting { RETRY_LASTING } else { RETRY };
                let (stage, message) = (&self.stage().name, cut(&failure.message, MAX_PROBLEM));
                tracing::info!(pipeline = %self.name, stage, problem = message, "the promotion is not pushed");
                let is_known = known
                    .proposed()
                    .and_then(|known| known.problem.as_ref())
                    .is_some_and(|problem| problem.reason == failure.reason && !TOLD_ANEW.contains(&failure.reason));
                if !is_known {
                    let reason = failure.reason.to_owned();
                    proposal.problem = Some(Problem {
                        reason,
                        message,
                        lasting: failure.lasting,
                    });
                    self.note(&proposal, None).await?;
                }
                Ok(Some(wait))
            }
        }
    }

    /// Pushes what was not pushed, and notes what was merged.
    async fn propose(&self, proposal: &mut Proposal) -> Result<(), SourceFailure> {
        let (uid, spec) = self.load_repository(&self.pull.source_ref.name).await?;
        let base = self.find_base(&uid, &spec).await?;
        let value = self.find_value(proposal, (&uid, &spec)).await?;
        let (path, field) = parse_place(&self.pull.path, &self.pull.field)?;

        let mirror = self.open_mirror(&uid).await?;
        let says = mirror.field_at(base, path.clone(), field.clone()).await;
        let says = says.map_err(|error| of_file(&spec.url, &error))?;

        if says.text == value.text {
            (proposal.phase, proposal.problem) = (Phase::Merged, None);
            return self.note(proposal, None).await.map(drop).map_err(store_failed);
        }
        if proposal.phase == Phase::Pushed {
            proposal.problem = None;
            return self.note(proposal, None).await.map(drop).map_err(store_failed);
        }

        let message = format!(
            "Promote {} to {}\n\nSets {field} of {path} to {}.\nOf commit {}, by Pipeline {}/{}.",
            self.name.name,
            self.stage().name,
            value.text,
            proposal.commit,
            self.name.namespace,
            self.name.name
        );

        let edit = Edit {
            path,
            field,
            value,
            message,
            time: proposal.at,
        };
        let made = mirror
            .commit_edit(base, edit)
            .await
            .map_err(|error| of_file(&spec.url, &error))?;
        let Some(made) = made else { return Ok(()) };
        self.push(proposal, (&uid, &spec), (&mirror, base, made)).await
    }

    async fn push(
        &self,
        proposal: &mut Proposal,
        (uid, spec): (&str, &GitRepositorySpec),
        (mirror, base, made): (&Mirror, ObjectId, ObjectId),
    ) -> Result<(), SourceFailure> {
        let (replica, url) = (self.replica, &self.pull.url);
        let own = GitRepositorySpec {
            secret_ref: Some(self.pull.secret_ref.clone()),
            ..spec.clone()
        };
        let way = access::Way::load(replica, &self.name.namespace, &own).await?;
        let remote = way.own(replica).await?;
        let path: PathBuf = git::mirror_path(&replica.access.mirrors, uid)?;
        let (git, branch) = (&replica.access.mirrors.git, &self.branch);

        let turn = replica
            .memory
            .checks
            .turns
            .wait_to_enter(url, Asks::Repository, TURN)
            .await?;
        let _place = replica.access.mirrors.git_place().await;
        let asked = git.ask_branch(&remote, branch, way.timeout).await;
        let (turn, is_at) = self.answer(turn, asked)?;

        let text = made.to_string();
        let is_merged = match is_at {
            Some(is_at) => mirror.merge_base(is_at, base).await == Some(is_at),
            None => false,
        };

        match proposal.judge(&text, is_at.map(|id| id.to_string()).as_deref(), is_merged) {
            Way::Taken => return Err(branch_taken(branch, url, is_at)),
            Way::Done => proposal.note_made(&text),
            Way::Free => {
                proposal.note_made(&text);
                if !self.note(proposal, None).await.map_err(store_failed)? {
                    // Another commit was promoted meanwhile.
                    return Ok(());
                }
                let push = Push {
                    branch,
                    commit: made,
                    from: is_at,
                };
                let pushed = git.push(&remote, &path, &push, way.timeout).await;
                self.answer(turn, pushed)?;
            }
        }

        self.note_pushed(proposal, made).await
    }

    async fn note_pushed(&self, proposal: &mut Proposal, made: ObjectId) -> Result<(), SourceFailure> {
        (proposal.phase, proposal.problem) = (Phase::Pushed, None);
        let (stage, at) = (&self.stage().name, made.short());
        let told = EventText {
            is_warning: false,
            reason: "Proposed".into(),
            message: format!(
                "stage {stage}: branch {} of {} is at {at}, to be merged",
                self.branch, self.pull.url
            ),
        };
        self.note(proposal, Some(told)).await.map(drop).map_err(store_failed)
    }

    /// Returns a host's answer. An error ends the turn, with its reason.
    fn answer<'t, T>(&self, turn: Turn<'t>, answer: Result<T, GitError>) -> Result<(Turn<'t>, T), SourceFailure> {
        match answer {
            Ok(answer) => Ok((turn, answer)),
            Err(error) => {
                turn.end(Some(error.reason.code()));
                Err(self.of_git(&error))
            }
        }
    }

    async fn load_repository(&self, name: &str) -> Result<(String, GitRepositorySpec), SourceFailure> {
        let source = Name::new(&self.name.namespace, name);
        let found = resources::load::<GitRepository>(&self.replica.store, &source).await;
        let missing = || SourceFailure::lasting("SourceMissing", format!("GitRepository {name} does not exist"));
        let (resource, repository) = found.map_err(store_failed)?.ok_or_else(missing)?;
        Ok((resource.uid, repository.spec))
    }

    /// Head of the branch that people merge into.
    async fn find_base(&self, uid: &str, spec: &GitRepositorySpec) -> Result<ObjectId, SourceFailure> {
        let name = &self.pull.source_ref.name;
        if spec.url != self.pull.url {
            let why = format!("pullRequest.url is not the url of GitRepository {name}: state the same");
            return Err(SourceFailure::lasting("SpecInvalid", why));
        }

        let revision = self.load_served(uid).await?;
        let not_ready = |branch: &str| {
            SourceFailure::passing(
                "SourceNotReady",
                format!("GitRepository {name} serves nothing of {branch} yet"),
            )
        };

        let branch = match Reference::parse(spec.r#ref.as_ref()) {
            Ok(Reference::Branch(branch)) => branch,
            // The branch that was followed last.
            Ok(Reference::Default) => match &revision {
                Some(revision) => revision.reference.clone(),
                None => return Err(not_ready("its default branch")),
            },
            _ => {
                let why = format!("GitRepository {name} must follow a branch, which the edit is merged into");
                return Err(SourceFailure::lasting("SpecInvalid", why));
            }
        };

        if branch == self.branch.as_str() {
            let why = format!("GitRepository {name} follows {branch}, which is the branch that the edit is pushed to");
            return Err(SourceFailure::lasting("SpecInvalid", why));
        }

        let served = revision.filter(|revision| revision.reference == branch);
        let base = served.and_then(|revision| revision.commit.parse::<ObjectId>().ok());
        base.ok_or_else(|| not_ready(&format!("branch {branch}")))
    }

    async fn load_served(&self, uid: &str) -> Result<Option<Revision>, SourceFailure> {
        let mut tables = self.replica.store.tables().await.map_err(store_failed)?;
        load_revision(&mut tables, uid).await.map_err(store_failed)
    }

    /// The reference that a repository follows. If it follows the default branch: the branch that was the default at
    /// the last fetch.
    async fn find_followed(&self, uid: &str, spec: &GitRepositorySpec) -> Result<Option<Reference>, SourceFailure> {
        Ok(match Reference::parse(spec.r#ref.as_ref()) {
            Ok(Reference::Default) => self
                .load_served(uid)
                .await?
                .map(|revision| Reference::Branch(revision.reference)),
            followed => followed.ok(),
        })
    }

    /// The value that the field is to have.
    async fn find_value(
        &self,
        proposal: &Proposal,
        (target_uid, target): (&str, &GitRepositorySpec),
    ) -> Result<FieldValue, SourceFailure> {
        let stages = &self.pipeline.spec.stages;
        let Some(from) = &self.pull.from else {
            let (uid, first) = self.load_repository(&stages[0].source_ref.name).await?;
            if first.url == target.url
                && self.find_followed(&uid, &first).await? == self.find_followed(target_uid, target).await?
            {
                let why = "the first stage follows what this is merged into, so that each merge would be one more commit to promote; \
                    copy a field of it with pullRequest.from, or keep the file in another repository or branch";
                return Err(SourceFailure::lasting("SpecInvalid", why));
            }
            return Ok(FieldValue {
                text: proposal.commit.clone(),
                is_string: true,
            });
        };

        let (uid, before) = self.load_repository(&stages[self.index - 1].source_ref.name).await?;
        let (path, field) = parse_place(&from.path, &from.field)?;
        let commit = proposal.commit.parse::<ObjectId>();
        let commit = commit.map_err(|error| SourceFailure::lasting("SourceNotReady", error.to_string()))?;
        let mirror = self.open_mirror(&uid).await?;
        mirror
            .field_at(commit, path, field)
            .await
            .map_err(|error| of_file(&before.url, &error))
    }

    async fn open_mirror(&self, uid: &str) -> Result<Mirror, SourceFailure> {
        let opened = git::open_mirror(&self.replica.access.mirrors, uid).await;
        opened.map_err(|error| SourceFailure::passing("MirrorFailed", error.to_string()))
    }

    /// The Secret to correct is the pull request's, not the source's.
    fn of_git(&self, error: &GitError) -> SourceFailure {
        let evidence = if error.evidence.is_empty() {
            String::new()
        } else {
            format!(" ({})", error.evidence)
        };
        let remedy = match error.reason {
            GitReason::PushRefused
            | GitReason::Unauthorized
            | GitReason::CredentialsMissing
            | GitReason::Forbidden
            | GitReason::NotFound => {
                let secret = &self.pull.secret_ref.name;
                format!(
                    "Secret {secret} must belong to an account with the right to push branch {}",
                    self.branch
                )
            }
            _ => "it will be tried again".to_owned(),
        };
        let message = format!("{} {}: {}{evidence}; {remedy}", error.what, error.url, error.reason);
        SourceFailure {
            reason: error.reason.code(),
            message,
            lasting: error.retry() == Retry::AfterChange,
        }
    }

    /// Saves what became of a promotion. False: another promotion has taken its place.
    async fn note(&self, proposal: &Proposal, told: Option<EventText>) -> Result<bool, StoreError> {
        let store = &self.replica.store;
        for _ in 0..ATTEMPTS {
            let written = load_pipeline(&mut *store.tables().await?, &self.resource.uid).await?;
            let mut state = read_state(self.name, written.as_deref())?;
            let Some(stage) = state.stages.get_mut(&self.stage().name) else {
                return Ok(false);
            };
            if !stage.promoted.as_ref().is_some_and(|promoted| proposal.is_of(promoted)) {
                return Ok(false);
            }

            if stage.proposal.as_ref() == Some(proposal) {
                return Ok(true);
            }

            stage.proposal = Some(proposal.clone());
            let text = serde_json::to_string(&state).map_err(StoreError::abort)?;
            let (resource, told) = (self.resource.clone(), told.clone());
            let saved = store.transact(move |tx| {
                Box::pin(async move {
                    if !save_pipeline(tx, &resource.uid, (written.as_deref(), &text)).await? {
                        return Ok(false);
                    }
                    if let Some(told) = &told {
                        events::write_event(tx, &resource, told).await?;
                    }
                    Ok(true)
                })
            });

            if saved.await? {
                self.replica.memory.pipelines.queue.add(self.name.clone());
                return Ok(true);
            }
        }

        let problem = "it keeps changing".to_owned();
        Err(StoreError::Row {
            what: format!("state of Pipeline {}", self.name),
            problem,
        })
    }
}

fn branch_taken(branch: &PushedBranch, url: &str, is_at: Option<ObjectId>) -> SourceFailure {
    let at = is_at.map(|id| id.short()).unwrap_or_default();
    let message = format!(
        "branch {branch} of {url} is at {at}, which the hub has not put there, and stays as it is; merge it or delete it, or state another pullRequest.branch"
    );
    SourceFailure::lasting("BranchTaken", message)
}

/// A file and a value in it, as a pull request states them.
fn parse_place(path: &str, field: &str) -> Result<(RelPath, FieldPath), SourceFailure> {
    let invalid = |why: String| SourceFailure::lasting("SpecInvalid", format!("pullRequest: {why}"));
    let path = RelPath::parse(path).map_err(|error| invalid(error.to_string()))?;
    let field = field.parse::<FieldPath>().map_err(|error| invalid(error.to_string()))?;
    Ok((path, field))
}

/// A failure of a file of a repository, or of its mirror.
fn of_file(url: &str, error: &FileError) -> SourceFailure {
    let message = format!("{url}: {}", chain(error));
    match error.is_of_mirror() {
        true => SourceFailure::passing("MirrorFailed", message),
        false => SourceFailure::lasting("FileInvalid", message),
    }
}

/// Whether the promotion to a stage is not merged yet.
pub fn is_open(stage: &PipelineStage, state: &StageState) -> bool {
    let is_merged = || state.proposed().is_some_and(|proposal| proposal.phase == Phase::Merged);
    stage.pull_request.is_some() && state.promoted.is_some() && !is_merged()
}

/// The promotion that people have to merge, until the stage's source shows it. None: there is none.
pub fn describe(
    pipeline: &str,
    stage: &PipelineStage,
    state: &StageState,
    serves: Option<&str>,
) -> Option<PullRequestStatus> {
    let (pull, promoted) = (stage.pull_request.as_ref()?, state.promoted.as_ref()?);
    // Without `from` the edit is the commit's own id, so nothing is left to merge if that commit is served.
    let is_served = pull.from.is_none() && serves == Some(promoted.what.commit.as_str());
    if !is_open(stage, state) || is_served {
        return None;
    }
    let revision = format_revision("", &promoted.what.commit);
    let Some(proposal) = state.proposed() else {
        let branch = branch_of(pipeline, stage, pull)?.to_string();
        return Some(PullRequestStatus {
            revision,
            url: pull.url.clone(),
            branch,
            ..PullRequestStatus::default()
        });
    };
    Some(PullRequestStatus {
        revision,
        url: proposal.url.clone(),
        branch: proposal.branch.clone(),
        commit: proposal.pushed().map(str::to_owned),
        problem: proposal.problem.as_ref().map(|problem| problem.message.clone()),
    })
}

/// The branch to push to; None: its name is not one that Git accepts.
pub fn branch_of(pipeline: &str, stage: &PipelineStage, pull: &PullRequest) -> Option<PushedBranch> {
    let default = || format!("{pipeline}/{}", stage.name);
    PushedBranch::new(&pull.branch.clone().unwrap_or_else(default)).ok()
}
