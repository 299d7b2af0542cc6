//! One repository with the folders of 10,000 services: the hub's cost of a commit that touches one of them, and of one
//! that touches all.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Digest, GitRepository, ServiceDeployment};
use farwater_fleetsim::{Poller, allow_files, digests};
use farwater_testkit::{git::Repository, process::bare_command, wait_for_all};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::field::{BRANCH, Field, PATIENCE, config_map, folder};
use crate::bench::{Figure, median, milliseconds};

const SOURCE: &str = "monorepo";
/// Limit for the hub's own processor time: M10 of the design, as ADR 29 defines it.
const GOAL: Duration = Duration::from_millis(50);
/// Poll interval. Agents poll every 30 s. This shorter one shows when a change arrives, and costs little.
const POLL: Duration = Duration::from_millis(20);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (services, clusters): (usize, usize) = if quick { (500, 5) } else { (10_000, 100) };
    allow_files()?;
    let mut field = Field::start().await?;
    let repository = field.git.create(SOURCE)?;
    let commit = change(&repository, 0..services, "0")?;
    field.repository(SOURCE, "24h").await?;
    eprintln!("joining {clusters} clusters, creating {services} services");
    let names: Vec<String> = (0..clusters).map(|n| format!("cluster-{n}")).collect();
    let mut pollers: Vec<Poller> = stream::iter(&names)
        .map(|name| Poller::join(&field.hub, name))
        .buffered(32)
        .try_collect()
        .await?;
    field
        .services((0..services).map(|n| (service(n), names[n % clusters].clone(), folder(SOURCE, &path(n)))))
        .await?;
    assigned(&field, services, &commit).await?;
    field.until_quiet().await?;
    let mirror = Mirror::new(&field)?;
    let mut known = all_digests(&mut pollers).await?;
    ensure!(
        known.len() == services,
        "clusters got {} of {services} services",
        known.len()
    );

    let mut figures = Vec::new();
    // Use the mean of several commits that touch one service each. A single one takes only a few ticks of the clock.
    let singles: Vec<_> = (0..if quick { 5 } else { 20 }).map(|n| n..n + 1).collect();
    for commits in [singles, std::iter::once(0..services).collect()] {
        let (share, looks, begun) = (field.share_at_rest().await?, field.reconciles().await?, Instant::now());
        let (before, programs) = (field.processor_time()?, field.processor_time_of_programs()?);
        let (mut told, mut by_hand) = (Vec::new(), Vec::new());
        for touched in &commits {
            let commit = change(&repository, touched.clone(), &format!("of {}", touched.len()))?;
            by_hand.push(mirror.look(&field, &commit)?.as_secs_f64());
            let first = service(touched.start);
            told.push(
                commit_to_told(
                    &field,
                    &mut pollers[touched.start % clusters],
                    &first,
                    known.get(&first),
                )
                .await?,
            );
        }
        let after = field.until_quiet().await?;
        let spent = after
            .saturating_sub(before)
            .saturating_sub(begun.elapsed().mul_f64(share));
        let programs = field.processor_time_of_programs()?.saturating_sub(programs);
        let now = all_digests(&mut pollers).await?;
        let changed = now
            .iter()
            .filter(|(name, digest)| known.get(*name) != Some(*digest))
            .count();
        let (count, touched) = (commits.len(), commits[0].len());
        ensure!(
            now.len() == services && changed >= count * touched,
            "{changed} of {count} x {touched} have changed"
        );
        let workload = format!(
            "a commit that touches {touched} of a repository's {services} services on {clusters} clusters, mean of {count}"
        );
        let each = |total: f64| total / count as f64;
        let own = milliseconds(spent.saturating_sub(programs));
        let own = Figure::new("hub_processor_time", &workload, each(own), "ms");
        figures.push(if touched == 1 {
            own.at_most(milliseconds(GOAL))
        } else {
            own
        });
        let whole = Figure::new(
            "hub_processor_time_with_git",
            &workload,
            each(milliseconds(spent)),
            "ms",
        );
        figures.push(whole.compared("git fetch and git diff-tree, by the clock", median(by_hand) * 1e3));
        let looks = each((field.reconciles().await? - looks) as f64);
        figures.push(Figure::new("services_looked_at", &workload, looks, "reconciles").at_most(touched as f64));
        let changed = each(changed as f64);
        figures.push(Figure::new("entries_that_change", &workload, changed, "entries").at_most(touched as f64));
        figures.push(Figure::new(
            "request_to_first_told",
            &workload,
            median(told) * 1e3,
            "ms",
        ));
        known = now;
    }
    Ok(figures)
}

/// Requests a fetch, and polls until the service's entry changes. Returns the seconds.
async fn commit_to_told(field: &Field, poller: &mut Poller, service: &str, known: Option<&Digest>) -> Result<f64> {
    let begun = Instant::now();
    field.ask::<GitRepository>(SOURCE).await?;
    loop {
        let news = poller.poll().await?;
        if news.is_some_and(|desired| digests(&desired).get(service) != known) {
            return Ok(begun.elapsed().as_secs_f64());
        }
        ensure!(begun.elapsed() < PATIENCE, "the commit never reached a cluster");
        tokio::time::sleep(POLL).await;
    }
}

fn service(n: usize) -> String {
    format!("service-{n:05}")
}

/// Path of a service, as usual in monorepos: by team and service.
fn path(n: usize) -> String {
    format!("teams/team-{}/{}", n % 50, service(n))
}

/// Writes the files of some services.
fn change(repository: &Repository, services: Range<usize>, text: &str) -> Result<String> {
    let files: Vec<(String, String)> = services
        .map(|n| (format!("{}/map.yaml", path(n)), config_map(&format!("{n} {text}"))))
        .collect();
    let files: Vec<(&str, Option<&str>)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), Some(text.as_str())))
        .collect();
    if repository.branch(BRANCH).is_none() {
        let all: Vec<(&str, &str)> = files
            .iter()
            .filter_map(|(path, text)| Some((*path, (*text)?)))
            .collect();
        return repository.commit(BRANCH, &all);
    }
    repository.change(BRANCH, &files)
}

async fn assigned(field: &Field, services: usize, commit: &str) -> Result<()> {
    let check = |service: &ServiceDeployment| {
        let assigned = service
            .status
            .as_ref()
            .and_then(|status| status.assigned_revision.as_deref());
        ensure!(
            assigned.is_some_and(|revision| revision.ends_with(commit)),
            "{assigned:?} is assigned"
        );
        Ok(())
    };
    wait_for_all(
        &format!("{services} services to be assigned"),
        PATIENCE,
        &field.api(),
        check,
    )
    .await
}

/// Entries of all clusters.
async fn all_digests(pollers: &mut [Poller]) -> Result<BTreeMap<String, Digest>> {
    let mut all = BTreeMap::new();
    for poller in pollers {
        all.extend(digests(&poller.desired().await?));
    }
    Ok(all)
}

/// A mirror that git itself keeps.
struct Mirror(PathBuf);

impl Mirror {
    fn new(field: &Field) -> Result<Self> {
        let mirror = Self(field.path().join("by-hand.git"));
        std::fs::create_dir(&mirror.0).context("make a mirror")?;
        mirror.git(&["init", "--quiet", "--bare", "."])?;
        mirror.fetch(field)?;
        Ok(mirror)
    }

    /// Time until git has fetched a commit and listed the files that it touches.
    fn look(&self, field: &Field, commit: &str) -> Result<Duration> {
        let begun = Instant::now();
        self.fetch(field)?;
        self.git(&["diff-tree", "-r", &format!("{commit}~1"), commit])?;
        Ok(begun.elapsed())
    }

    fn fetch(&self, field: &Field) -> Result<()> {
        self.git(&[
            "fetch",
            "--quiet",
            &field.git.url(SOURCE),
            &format!("{BRANCH}:{BRANCH}"),
        ])
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut git = bare_command("git");
        let output = git.arg("-C").arg(&self.0).args(arguments).output().context("run git")?;
        ensure!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}
