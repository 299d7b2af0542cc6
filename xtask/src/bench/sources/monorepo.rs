//! One repository with the folders of 10,000 services: what a commit costs the hub that touches one of them, and one that
//! touches all.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Digest, GitRepository, ServiceDeployment};
use farwater_testkit::{git::Repository, process::bare_command, wait_for_all};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::field::{BRANCH, Field, PATIENCE, config_map, folder};
use crate::bench::{
    Figure, milliseconds,
    simulated::{Poller, allow_files, digests},
};

const SOURCE: &str = "monorepo";
/// DESIGN, M10.
const GOAL: Duration = Duration::from_millis(50);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (services, clusters): (usize, usize) = if quick { (500, 5) } else { (10_000, 100) };
    allow_files()?;
    let mut field = Field::start().await?;
    let repository = field.git.create(SOURCE)?;
    let commit = change(&repository, services, "0")?;
    field.repository(SOURCE, "24h").await?;
    eprintln!("{clusters} clusters join, {services} services are made");
    let names: Vec<String> = (0..clusters).map(|n| format!("cluster-{n}")).collect();
    let mut pollers: Vec<Poller> =
        stream::iter(&names).map(|name| Poller::join(&field.hub, name)).buffered(32).try_collect().await?;
    field.services((0..services).map(|n| (service(n), names[n % clusters].clone(), folder(SOURCE, &path(n))))).await?;
    assigned(&field, services, &commit).await?;
    field.until_quiet().await?;
    let mirror = Mirror::new(&field)?;
    let mut known = all_digests(&mut pollers).await?;
    ensure!(known.len() == services, "{} of {services} services are told to clusters", known.len());

    let mut figures = Vec::new();
    for (round, touched) in [1, services].into_iter().enumerate() {
        let before = field.until_quiet().await?;
        let looks = field.reconciles().await?;
        let commit = change(&repository, touched, &(round + 1).to_string())?;
        let by_hand = mirror.look(&field, &commit)?;
        let begun = Instant::now();
        field.ask::<GitRepository>(SOURCE).await?;
        // The first service is of the first cluster, whose agent is waited for as it polls.
        let first = known.get(&service(0)).copied();
        loop {
            let news = pollers[0].poll().await?;
            if news.is_some_and(|desired| digests(&desired).get(&service(0)).copied() != first) {
                break;
            }
            ensure!(begun.elapsed() < PATIENCE, "the commit was never told to a cluster");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let told = begun.elapsed();
        let spent = field.until_quiet().await?.saturating_sub(before);
        let now = all_digests(&mut pollers).await?;
        let changed = now.iter().filter(|(name, digest)| known.get(*name) != Some(*digest)).count();
        ensure!(now.len() == services && changed >= touched, "{changed} of {touched} entries have changed");
        let workload =
            format!("a commit that touches {touched} of a repository's {services} services on {clusters} clusters");
        let cpu = Figure::new("hub_processor_time", &workload, milliseconds(spent), "ms")
            .compared("git fetch and git diff-tree, by the clock", milliseconds(by_hand));
        figures.push(if touched == 1 { cpu.at_most(milliseconds(GOAL)) } else { cpu });
        let looks = field.reconciles().await? - looks;
        figures.push(Figure::new("services_looked_at", &workload, looks as f64, "reconciles").at_most(touched as f64));
        figures.push(Figure::new("entries_that_change", &workload, changed as f64, "entries").at_most(touched as f64));
        figures.push(Figure::new("request_to_first_told", &workload, milliseconds(told), "ms"));
        known = now;
    }
    Ok(figures)
}

fn service(n: usize) -> String {
    format!("service-{n:05}")
}

/// As monorepos lie: teams, and their services.
fn path(n: usize) -> String {
    format!("teams/team-{}/{}", n % 50, service(n))
}

/// Writes the files of the first `count` services.
fn change(repository: &Repository, count: usize, text: &str) -> Result<String> {
    let files: Vec<(String, String)> =
        (0..count).map(|n| (format!("{}/map.yaml", path(n)), config_map(&format!("{n} {text}")))).collect();
    let files: Vec<(&str, Option<&str>)> =
        files.iter().map(|(path, text)| (path.as_str(), Some(text.as_str()))).collect();
    if repository.branch(BRANCH).is_none() {
        let all: Vec<(&str, &str)> = files.iter().filter_map(|(path, text)| Some((*path, (*text)?))).collect();
        return repository.commit(BRANCH, &all);
    }
    repository.change(BRANCH, &files)
}

async fn assigned(field: &Field, services: usize, commit: &str) -> Result<()> {
    let check = |service: &ServiceDeployment| {
        let assigned = service.status.as_ref().and_then(|status| status.assigned_revision.as_deref());
        ensure!(assigned.is_some_and(|revision| revision.ends_with(commit)), "{assigned:?} is assigned");
        Ok(())
    };
    wait_for_all(&format!("{services} services to be assigned"), PATIENCE, &field.api(), check).await
}

/// Of all clusters' entries.
async fn all_digests(pollers: &mut [Poller]) -> Result<BTreeMap<String, Digest>> {
    let mut all = BTreeMap::new();
    for poller in pollers {
        all.extend(digests(&poller.desired().await?));
    }
    Ok(all)
}

/// A mirror of git's own.
struct Mirror(PathBuf);

impl Mirror {
    fn new(field: &Field) -> Result<Self> {
        let mirror = Self(field.path().join("by-hand.git"));
        std::fs::create_dir(&mirror.0).context("make a mirror")?;
        mirror.git(&["init", "--quiet", "--bare", "."])?;
        mirror.fetch(field)?;
        Ok(mirror)
    }

    /// Until it is known what a commit touches.
    fn look(&self, field: &Field, commit: &str) -> Result<Duration> {
        let begun = Instant::now();
        self.fetch(field)?;
        self.git(&["diff-tree", "-r", &format!("{commit}~1"), commit])?;
        Ok(begun.elapsed())
    }

    fn fetch(&self, field: &Field) -> Result<()> {
        self.git(&["fetch", "--quiet", &field.git.url(SOURCE), &format!("{BRANCH}:{BRANCH}")])
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut git = bare_command("git");
        let output = git.arg("-C").arg(&self.0).args(arguments).output().context("run git")?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}
