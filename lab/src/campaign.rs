//! `cargo xtask campaign NAME`: tests in rounds that take too long for every test run. The record under docs/campaigns
//! is written after each round, so that a stopped campaign continues where it was.

mod charts;
mod fleet_rollouts;
mod fuzz;
mod hostile_api;
mod hostile_clients;
mod hub_pod;
mod image_arm64;
mod image_digest;
mod informer;
mod k9s;
mod kill9;
mod node;
mod prune_chaos;
mod refusals;
mod rollout_histories;
mod steady;
mod watch_order;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use futures::future::{LocalBoxFuture, join_all};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::{
    machine::{self, Machine},
    repository, step,
};

/// Run a long test campaign; a record under docs/campaigns is resumed while commit and seed stay the same
#[derive(clap::Args)]
pub struct Arguments {
    /// Name of the campaign [default: list all campaigns]
    name: Option<String>,
    /// Stop after this time, between two rounds; the next run continues
    #[arg(long)]
    minutes: Option<u64>,
    /// Seed of all random numbers; another seed starts a new record
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Count to reach [default: the campaign's own]
    #[arg(long)]
    count: Option<u64>,
    /// Rounds to run at the same time, for campaigns that mostly wait
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    parallel: u64,
    /// The hub's database, for campaigns that run on both; each has its own record
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// List records that are older than the code they cover, with the commits since then; exit code 1 if there are any
    #[arg(long, conflicts_with = "name")]
    due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    Sqlite,
    Postgres,
}

/// The programs of ours that a campaign runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    /// None: it runs tests.
    None,
    /// Those of the tests, which check more, such as overflows. For counts in which speed does not matter.
    Tested,
    /// Those that users get.
    Released,
}

struct Campaign {
    name: &'static str,
    about: &'static str,
    goal: u64,
    /// Engines that the campaign runs on. The first one is the default.
    engines: &'static [Engine],
    programs: Programs,
    /// Folders whose later changes make the record outdated. Empty: each round records its commit, and the record
    /// continues across commits.
    vouches_for: &'static [&'static str],
    /// Runs one round with its own seed.
    round: fn(u64, Engine) -> LocalBoxFuture<'static, Result<Round>>,
}

const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "steady",
        about: "runs the tests again and again, as for every change: no test fails twice, and shaky ones are named",
        goal: 20,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &[],
        round: |seed, _| Box::pin(async move { steady::round(seed) }),
    },
    Campaign {
        name: "slow",
        about: "runs the tests that are too slow for every run (xtask/slow.toml)",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates", "tests", "xtask/slow.toml"],
        round: |seed, _| Box::pin(async move { steady::round_of_slow_tests(seed) }),
    },
    Campaign {
        name: "hub-engines",
        about: "runs the hub's black-box tests, each on the engine that it doesn't use in every run",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/hub", "crates/store"],
        round: |seed, _| Box::pin(async move { steady::round_of_other_engines(seed) }),
    },
    Campaign {
        name: "charts",
        about: "charts that others wrote, from their projects' Go modules, at many values: each object as `helm template` renders it, line by line",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/render", "crates/bundle", "render-helper"],
        round: |seed, _| Box::pin(charts::round(seed)),
    },
    Campaign {
        name: "kill9",
        about: "kills the hub under load: no acknowledged write is lost, no deleted object returns, no watch has a gap",
        goal: 100,
        engines: &[Engine::Sqlite, Engine::Postgres],
        programs: Programs::Released,
        vouches_for: &["crates/store", "crates/hub"],
        round: |seed, engine| Box::pin(kill9::round(seed, engine)),
    },
    Campaign {
        name: "watch-order",
        about: "three replicas write to one PostgreSQL database while 50 watchers switch between them: events have no \
                gaps, repeats or wrong order, and no watcher goes back in time",
        goal: 1_000_000,
        engines: &[Engine::Postgres],
        programs: Programs::None,
        vouches_for: &["crates/store"],
        round: |seed, _| Box::pin(async move { watch_order::round(seed) }),
    },
    Campaign {
        name: "informer",
        about: "runs client-go's informers and leader election for minutes while objects change and the hub is killed: \
                no cache goes back in time or differs from a list, no answer contradicts an earlier one, and no two \
                lead at once",
        goal: 60,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &["crates/hub", "crates/store"],
        round: |seed, _| Box::pin(informer::round(seed)),
    },
    Campaign {
        name: "k9s",
        about: "runs k9s in a terminal: it lists, follows, describes and deletes our kinds, and a reader of one \
                namespace sees only that namespace",
        goal: 2,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/hub/src"],
        round: |seed, _| Box::pin(async move { k9s::round(seed) }),
    },
    Campaign {
        name: "hub-pod",
        about: "deletes the hub's pod on a real node while two agents poll every 30 s: no agent misses more than one \
                poll, and no object of a service changes",
        goal: 20,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &["crates/hub", "crates/agent", "crates/manifests"],
        round: |seed, _| Box::pin(hub_pod::round(seed)),
    },
    Campaign {
        name: "node",
        about: "runs the shipped images on a real node: install, join, deploy, upgrade, two unavailable versions, \
                leave; then again with the cluster's own names",
        goal: 2,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/manifests", "crates/image", "crates/cli", "deploy"],
        round: |seed, _| Box::pin(node::round(seed)),
    },
    Campaign {
        name: "image-digest",
        about: "builds the images in a clone in another folder, without any downloads or earlier builds: the digests \
                are the same",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/image", "lab/src/image"],
        round: |seed, _| Box::pin(async move { image_digest::round(seed) }),
    },
    Campaign {
        name: "image-arm64",
        about: "builds the images for 64-bit ARM and emulates them: a hub and two agents follow a repository to a \
                second commit",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/image", "lab/src/image"],
        round: |seed, _| Box::pin(image_arm64::round(seed)),
    },
    Campaign {
        name: "prune-chaos",
        about: "causes random faults in Git, the hub and the API server: exactly the intended objects are deleted, by \
                their uids",
        goal: 2_000,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &[
            "crates/agent",
            "crates/fleet",
            "crates/hub/src/services",
            "crates/hub/src/guards",
        ],
        round: |seed, _| Box::pin(prune_chaos::round(seed)),
    },
    Campaign {
        name: "hostile-api",
        about: "applies objects through an API server that refuses 30 %, takes up to 2 s, forgets versions and cuts \
                watches: all arrive, none is reported as synced before, Retry-After is respected, and there are few \
                lists",
        goal: 5_000,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &["crates/agent"],
        round: |seed, _| Box::pin(hostile_api::round(seed)),
    },
    Campaign {
        name: "fuzz",
        about: "sends generated and damaged patches, selectors, protobuf and applied configurations: each gets an \
                answer, none is an internal error, and the hub keeps running",
        goal: 500_000,
        engines: &[Engine::Sqlite],
        programs: Programs::Tested,
        vouches_for: &[
            "crates/hub/src/apiserver",
            "crates/hub/src/kinds",
            "crates/fieldmanager",
        ],
        round: |seed, _| Box::pin(fuzz::round(seed)),
    },
    Campaign {
        name: "hostile-clients",
        about: "sends slow bodies, 10,000 idle connections, stalled watches, rapid resets and oversized heads from one \
                or many addresses while 200 agents poll: their p99 at most doubles, administrators get answers, memory \
                stays flat",
        goal: 10,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &["crates/hub/src"],
        round: |seed, _| Box::pin(hostile_clients::round(seed)),
    },
    Campaign {
        name: "refusals",
        about: "lets the hub answer before it has read a body, over HTTP/1.1 and HTTP/2, to curl, Python, Go and \
                hyper: no answer is lost",
        goal: 1,
        engines: &[Engine::Sqlite],
        programs: Programs::Tested,
        vouches_for: &[
            "crates/hub/src/server.rs",
            "crates/hub/src/server",
            "crates/hub/src/unread.rs",
        ],
        round: |seed, _| Box::pin(refusals::round(seed)),
    },
    Campaign {
        name: "rollout-histories",
        about: "plays random histories of commits, failures, silence, restarts and commands in a simulated fleet: an \
                oracle accepts each decision of a rollout, and each history ends with all clusters at the newest good \
                commit",
        goal: 1_000_000,
        engines: &[Engine::Sqlite],
        programs: Programs::None,
        vouches_for: &["crates/fleet"],
        round: |seed, _| Box::pin(async move { rollout_histories::round(seed) }),
    },
    Campaign {
        name: "fleet-rollouts",
        about: "rolls sets out to 3 real and 300 simulated clusters: a bad commit stays with the canaries, late \
                reports open no step, silent clusters catch up, two rollouts cross, the hub is killed, its clock jumps \
                around the end of a freeze, mistakes in labels and selectors trip the brake; compared with the \
                clusters' own records",
        goal: 20,
        engines: &[Engine::Sqlite],
        programs: Programs::Released,
        vouches_for: &["crates/fleet", "crates/hub/src/sets"],
        round: |seed, _| Box::pin(fleet_rollouts::round(seed)),
    },
];

impl Campaign {
    fn engine(&self, asked: Option<Engine>) -> Result<Engine> {
        let Some(asked) = asked else { return Ok(self.engines[0]) };
        if !self.engines.contains(&asked) {
            bail!("campaign {} does not run on {asked:?}", self.name);
        }
        Ok(asked)
    }

    /// Name of the record. If the campaign runs on both engines, that on PostgreSQL has a suffix.
    fn record(&self, engine: Engine) -> String {
        match engine {
            Engine::Postgres if self.engines.len() > 1 => format!("{}-postgres", self.name),
            _ => self.name.to_owned(),
        }
    }
}

/// Results of one round.
struct Round {
    count: u64,
    failures: Vec<String>,
    /// Figures of the round, stored unchanged.
    figures: Value,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    campaign: String,
    about: String,
    seed: u64,
    commit: String,
    machine: Machine,
    count: u64,
    goal: u64,
    minutes: f64,
    failures: Vec<String>,
    rounds: Vec<Value>,
}

impl Record {
    fn add(&mut self, round: Round) {
        self.count += round.count;
        self.failures.extend(round.failures);
        self.rounds.push(round.figures);
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.due {
        return show_due();
    }
    let Some(name) = &arguments.name else {
        for campaign in CAMPAIGNS {
            println!("{:<12} {} ({})", campaign.name, campaign.about, campaign.goal);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some(campaign) = CAMPAIGNS.iter().find(|campaign| campaign.name == name) else {
        let names: Vec<_> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
        bail!("there is no campaign {name:?}; choose one of {}", names.join(", "));
    };
    let engine = campaign.engine(arguments.engine)?;
    match campaign.programs {
        Programs::None => {}
        Programs::Tested => build_tested_programs()?,
        Programs::Released => build_programs()?,
    }
    let name = campaign.record(engine);
    let path = repository::root()?.join("docs/campaigns").join(format!("{name}.json"));
    let mut record = resume(&path, &name, campaign, arguments)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let start = Instant::now();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    while record.count < record.goal && record.failures.is_empty() && limit.is_none_or(|limit| start.elapsed() < limit)
    {
        let begun = Instant::now();
        let first = record
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(record.rounds.len() as u64);
        let seeds = (0..arguments.parallel).map(|nth| first.wrapping_add(nth));
        let rounds = join_all(seeds.map(|seed| (campaign.round)(seed, engine)));
        // Rounds before a broken one count. The next run continues with the broken one.
        let mut broken = None;
        for round in runtime.block_on(rounds) {
            match round {
                Ok(round) if broken.is_none() => record.add(round),
                Ok(_) => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        record.minutes += begun.elapsed().as_secs_f64() / 60.0;
        save(&path, &record)?;
        if let Some(error) = broken {
            return Err(error);
        }
        eprintln!(
            "{name}: {} of {}, {} failures",
            record.count,
            record.goal,
            record.failures.len()
        );
    }
    println!(
        "{} of {}, {} failures: {}",
        record.count,
        record.goal,
        record.failures.len(),
        path.display()
    );
    for failure in &record.failures {
        println!("  {failure}");
    }
    let done = record.failures.is_empty() && (record.count >= record.goal || limit.is_some());
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lists records that are missing, incomplete or older than the code that they cover.
fn show_due() -> Result<ExitCode> {
    let folder = repository::root()?.join("docs/campaigns");
    let mut are_due = false;
    for campaign in CAMPAIGNS {
        for engine in campaign.engines {
            let name = campaign.record(*engine);
            let Ok(text) = fs::read(folder.join(&name).with_extension("json")) else {
                println!("{name:<24} has no record");
                are_due = true;
                continue;
            };
            let record: Record = serde_json::from_slice(&text).with_context(|| format!("read the record of {name}"))?;
            for fault in faults_of(&record, campaign) {
                println!("{name:<24} {fault}");
                are_due = true;
            }
        }
    }
    Ok(if are_due { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reasons why a record does not cover the checked-out commit.
fn faults_of(record: &Record, campaign: &Campaign) -> Vec<String> {
    let mut faults = Vec::new();
    if !record.failures.is_empty() {
        faults.push(format!("{} failures", record.failures.len()));
    }
    if record.commit.ends_with("-dirty") {
        faults.push("recorded with uncommitted changes".to_owned());
    }
    if record.count < campaign.goal {
        faults.push(format!("{} of {}", record.count, campaign.goal));
    }
    let commits = match campaign.vouches_for {
        [] => 0,
        folders => match commits_since(record.commit.trim_end_matches("-dirty"), folders) {
            Ok(commits) => commits,
            Err(error) => {
                faults.push(format!("{error:#}"));
                0
            }
        },
    };
    if commits > 0 {
        faults.push(format!("{commits} commits behind"));
    }
    faults
}

/// Number of commits on either side, so that an older checkout counts too.
fn commits_since(commit: &str, folders: &[&str]) -> Result<usize> {
    let range = format!("{commit}...HEAD");
    let arguments = [&["rev-list", "--count", "--no-merges", &range, "--"], folders].concat();
    machine::git(&arguments)?
        .parse()
        .context("read the count of git rev-list")
}

/// Builds the programs as the tests do, so that they are built once for both. The testkit finds them beside this program.
fn build_tested_programs() -> Result<()> {
    let mut cargo = repository::cargo()?;
    cargo.args(["build", "--locked", "--workspace", "--bins", "--tests"]);
    step::run("cargo build", cargo, &repository::log("build")?)
}

/// Builds both programs with the release profiles, which make the hub fast and the agent small. The testkit then uses
/// them.
pub fn build_programs() -> Result<()> {
    let target = repository::target_directory()?;
    let (log, programs) = (repository::log("release-build")?, target.join("xtask/programs"));
    fs::create_dir_all(&programs)?;
    eprintln!("building release programs");
    for (profile, package, program) in [
        ("release", "farwater-cli", "farwater"),
        ("agent", "farwater-agent", "farwater-agent"),
    ] {
        let mut cargo = repository::cargo()?;
        cargo.args(["build", "--locked", "--profile", profile, "-p", package]);
        step::run(&format!("cargo build -p {package}"), cargo, &log)?;
        // Remove the old file first: it may still be running, so it can't be overwritten.
        let built = programs.join(program);
        if built.exists() {
            fs::remove_file(&built)?;
        }
        fs::copy(target.join(profile).join(program), built)?;
    }
    farwater_testkit::farwater::use_programs_of(programs);
    Ok(())
}

fn resume(path: &Path, name: &str, campaign: &Campaign, arguments: &Arguments) -> Result<Record> {
    let fresh = Record {
        campaign: name.to_owned(),
        about: campaign.about.to_owned(),
        seed: arguments.seed,
        commit: machine::commit()?,
        machine: machine::describe(),
        count: 0,
        goal: arguments.count.unwrap_or(campaign.goal),
        minutes: 0.0,
        failures: Vec::new(),
        rounds: Vec::new(),
    };
    let Ok(text) = fs::read(path) else { return Ok(fresh) };
    let mut old: Record = serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    // Later commits that change none of the covered folders don't matter, such as the commit of the record itself.
    let goes_on = || match campaign.vouches_for {
        [] => !fresh.commit.ends_with("-dirty") && old.failures.is_empty(),
        folders => commits_since(&old.commit, folders).is_ok_and(|count| count == 0),
    };
    if !old.commit.ends_with("-dirty") && goes_on() {
        old.commit.clone_from(&fresh.commit);
    }
    Ok(continued(old, fresh))
}

/// Continues the old record only with the same program, machine and seed. Other counts prove nothing about this one.
fn continued(old: Record, fresh: Record) -> Record {
    let same = old.seed == fresh.seed && old.commit == fresh.commit && old.machine == fresh.machine;
    if same && !old.commit.ends_with("-dirty") {
        Record {
            goal: fresh.goal,
            ..old
        }
    } else {
        fresh
    }
}

fn save(path: &PathBuf, record: &Record) -> Result<()> {
    let folder = path.parent().context("the record has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, record)?;
    std::io::Write::write_all(&mut file, b"\n")?;
    file.persist(path)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(commit: &str, seed: u64, count: u64) -> Record {
        let machine = Machine {
            processor: "x".to_owned(),
            cores: 2,
            memory_gib: 24,
            kernel: "6".to_owned(),
        };
        let (campaign, about) = ("kill9".to_owned(), String::new());
        Record {
            campaign,
            about,
            seed,
            commit: commit.to_owned(),
            machine,
            count,
            goal: 100,
            minutes: 1.0,
            failures: Vec::new(),
            rounds: Vec::new(),
        }
    }

    #[test]
    fn an_engine_that_a_campaign_does_not_run_on_is_refused() {
        let named = |name: &str| CAMPAIGNS.iter().find(|campaign| campaign.name == name).unwrap();
        assert_eq!(named("kill9").engine(None).unwrap(), Engine::Sqlite);
        assert_eq!(named("kill9").record(Engine::Postgres), "kill9-postgres");
        assert!(named("watch-order").engine(Some(Engine::Sqlite)).is_err());
        assert_eq!(named("watch-order").record(Engine::Postgres), "watch-order");
    }

    #[test]
    fn a_campaign_goes_on_only_with_the_same_program_and_seed() {
        assert_eq!(continued(record("a", 1, 40), record("a", 1, 0)).count, 40);
        assert_eq!(continued(record("a", 1, 40), record("b", 1, 0)).count, 0);
        assert_eq!(continued(record("a", 1, 40), record("a", 2, 0)).count, 0);
        assert_eq!(continued(record("a-dirty", 1, 40), record("a-dirty", 1, 0)).count, 0);
    }
}
