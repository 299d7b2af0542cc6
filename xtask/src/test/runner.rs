//! Runs several jobs at a time, as many as the loads in `xtask/tests.toml` and the shared planes allow. Most tests wait
//! for clocks and other programs more than they compute.

use std::{
    collections::VecDeque,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use super::{
    jobs::Job,
    programs::TestProgram,
    results::{self, Outcome},
    usage::busy_seconds,
};
use crate::step::{self, Life, seconds};

/// Maximum sum of [`super::rules::Needs::load`] of the running jobs, for each processor.
const LOAD_PER_PROCESSOR: f64 = 1.5;
/// If this share of the processors was idle, one more job may start. The total load is at most twice the usual one.
const IDLE: f64 = 0.2;
const LOOK_AT_PROCESSORS: Duration = Duration::from_secs(1);
/// Pause of a plane between two processes. The watchdog of the first one kills its servers a moment after it ends.
const REST_OF_PLANES: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(20);

/// Limits after which a process is killed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Total time.
    pub time: Duration,
    /// Time without the end of a test.
    pub silence: Duration,
    /// Interval between two reads of its output.
    pub look: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [time, silence, look] = [12 * 60, 5 * 60, 2].map(Duration::from_secs);
        Self { time, silence, look }
    }
}

/// Servers that tests share.
pub struct Servers {
    /// Kubeconfigs of the shared planes. Each plane is used by one process at a time.
    pub planes: Vec<PathBuf>,
    pub prepare: Box<dyn Fn(&mut Command)>,
    /// Name of the variable for plane 1 or 2.
    pub plane_variable: fn(usize) -> String,
}

/// A process that has ended.
pub struct Ended {
    pub job: Job,
    pub outcome: Outcome,
    pub seconds: f64,
    /// Processor time of the process and of the children that it waited for.
    pub processor_seconds: f64,
}

pub struct Runner<'a> {
    programs: &'a [TestProgram],
    servers: &'a Servers,
    /// Log with the output of all processes, one after the other.
    log: &'a Path,
    limits: Limits,
    processors: f64,
    /// Load that is allowed beyond the usual.
    more_load: f64,
    /// Time of the last check of the processors, and their busy seconds at that time.
    busy: (Instant, f64),
    free_planes: Vec<PathBuf>,
    resting_planes: Vec<(Instant, PathBuf)>,
    running: Vec<Running>,
    next_file: usize,
}

struct Running {
    job: Job,
    group: step::Group,
    output: PathBuf,
    planes: Vec<PathBuf>,
    start: Instant,
    looked: Instant,
    /// Time when the last test ended.
    progressed: Instant,
    ended_tests: usize,
    /// Why it was killed.
    killed: Option<String>,
}

impl<'a> Runner<'a> {
    pub fn new(programs: &'a [TestProgram], servers: &'a Servers, log: &'a Path) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        Self {
            programs,
            servers,
            log,
            limits: Limits::default(),
            processors,
            more_load: 0.0,
            busy: (Instant::now(), busy_seconds()),
            free_planes: servers.planes.clone(),
            resting_planes: Vec::new(),
            running: Vec::new(),
            next_file: 0,
        }
    }

    /// Runs all jobs. Quiet ones run at the end, one at a time.
    pub fn run(&mut self, jobs: Vec<Job>) -> Result<Vec<Ended>> {
        let (quiet, beside): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.needs.quiet);
        let all = quiet.len() + beside.len();
        let mut ended = self.run_beside(beside.into(), all, 0)?;
        ended.extend(self.run_alone(quiet, all, ended.len())?);
        Ok(ended)
    }

    /// Runs jobs one at a time, with nothing else running.
    pub fn run_alone(&mut self, jobs: Vec<Job>, all: usize, done: usize) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        for job in jobs {
            ended.extend(self.run_beside(VecDeque::from([job]), all, done + ended.len())?);
        }
        Ok(ended)
    }

    fn run_beside(&mut self, mut waiting: VecDeque<Job>, all: usize, done: usize) -> Result<Vec<Ended>> {
        let mut ended: Vec<Ended> = Vec::new();
        let mut life = Life::new("tests");
        while !(waiting.is_empty() && self.running.is_empty()) {
            let rested = self
                .resting_planes
                .extract_if(.., |(since, _)| since.elapsed() > REST_OF_PLANES);
            self.free_planes.extend(rested.map(|(_, plane)| plane));
            self.look_at_processors();
            while let Some(index) = self.next(&waiting) {
                let job = waiting.remove(index).context("remove the chosen job")?;
                self.start(job)?;
                self.more_load = 0.0;
            }
            let is_stuck = self.running.is_empty() && self.resting_planes.is_empty();
            ensure!(
                !is_stuck,
                "{} needs more than this run has",
                self.title_of_first(&waiting)
            );
            thread::sleep(LOOK);
            ended.extend(self.collect()?);
            life.show(|| self.picture(all, done + ended.len()));
        }
        life.end();
        Ok(ended)
    }

    /// Allows one more job if the processors were idle.
    fn look_at_processors(&mut self) {
        let (since, before) = self.busy;
        let time = since.elapsed();
        if time < LOOK_AT_PROCESSORS {
            return;
        }
        let busy = busy_seconds();
        // 0 if the busy time can't be read. Then no extra job starts.
        let idle = if busy <= 0.0 {
            0.0
        } else {
            1.0 - (busy - before) / (time.as_secs_f64() * self.processors)
        };
        self.more_load = if idle >= IDLE {
            self.processors * LOAD_PER_PROCESSOR
        } else {
            0.0
        };
        self.busy = (Instant::now(), busy);
    }

    fn picture(&self, all: usize, done: usize) -> String {
        let longest = self.running.iter().min_by_key(|running| running.start);
        let longest = longest
            .map(|running| running.job.title(self.programs))
            .unwrap_or_default();
        format!("{done} of {all} ended, {} running, first {longest}", self.running.len())
    }

    fn title_of_first(&self, waiting: &VecDeque<Job>) -> String {
        waiting.front().map(|job| job.title(self.programs)).unwrap_or_default()
    }

    /// The first job that fits beside the running ones.
    fn next(&self, waiting: &VecDeque<Job>) -> Option<usize> {
        let load: f64 = self.running.iter().map(|running| running.job.needs.load).sum();
        let has_node = self.running.iter().any(|running| running.job.needs.node);
        waiting.iter().position(|job| {
            let fits = self.running.is_empty()
                || load + job.needs.load <= self.processors * LOAD_PER_PROCESSOR + self.more_load;
            fits && job.needs.planes <= self.free_planes.len() && !(job.needs.node && has_node)
        })
    }

    fn start(&mut self, job: Job) -> Result<()> {
        let output = self.log.with_extension(format!("{}.part", self.next_file));
        self.next_file += 1;
        let file = fs::File::create(&output).with_context(|| format!("create {}", output.display()))?;
        let planes = self.free_planes.split_off(self.free_planes.len() - job.needs.planes);
        let mut command = job.command(self.programs);
        (self.servers.prepare)(&mut command);
        // A job without an exclusive plane may still read a shared one, or use its own namespaces there.
        let named = if planes.is_empty() {
            &self.servers.planes[..]
        } else {
            &planes[..]
        };
        for number in 1..=2 {
            if let Some(plane) = named.get((number - 1).min(named.len().saturating_sub(1))) {
                command.env((self.servers.plane_variable)(number), plane);
            }
        }
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let group = step::Group::spawn(&mut command).with_context(|| format!("start {}", job.title(self.programs)))?;
        let now = Instant::now();
        let (start, looked, progressed) = (now, now, now);
        self.running.push(Running {
            job,
            group,
            output,
            planes,
            start,
            looked,
            progressed,
            ended_tests: 0,
            killed: None,
        });
        Ok(())
    }

    /// Jobs that have ended since the last call.
    fn collect(&mut self) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let before = processor_seconds_of_children();
            let Some(status) = running.group.try_wait()? else {
                running.keep_to(self.limits)?;
                index += 1;
                continue;
            };
            let processor_seconds = processor_seconds_of_children() - before;
            let running = self.running.swap_remove(index);
            ended.push(self.conclude(running, status, processor_seconds)?);
        }
        Ok(ended)
    }

    fn conclude(&mut self, running: Running, status: ExitStatus, processor_seconds: f64) -> Result<Ended> {
        let Running {
            job,
            output,
            planes,
            start,
            killed,
            ..
        } = running;
        let seconds = start.elapsed().as_secs_f64();
        self.resting_planes
            .extend(planes.into_iter().map(|plane| (Instant::now(), plane)));
        let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        let title = job.title(self.programs);
        let mut outcome = results::read(&text, &job.tests, status.success());
        if let [_] = job.tests[..] {
            // With a single test, its time includes the start of the process.
            outcome.seconds.values_mut().for_each(|of_test| *of_test = seconds);
        }
        if let Some(why) = &killed {
            outcome.unended = Some(why.clone());
        } else if !outcome.not_ended.is_empty() {
            outcome.unended = Some(status.to_string());
        }
        let mut log = fs::OpenOptions::new().create(true).append(true).open(self.log)?;
        writeln!(
            log,
            "\n     Running {title} ({seconds:.1} s, {processor_seconds:.1} s of a processor)\n{text}"
        )?;
        if let Some(why) = &outcome.unended {
            writeln!(
                log,
                "{title}: {why}; these tests had not ended: {}",
                outcome.not_ended.join(", ")
            )?;
        }
        fs::remove_file(&output)?;
        Ok(Ended {
            job,
            outcome,
            seconds,
            processor_seconds,
        })
    }
}

impl Running {
    /// Kills a process that takes too long. Its watchdog then kills its servers.
    fn keep_to(&mut self, limits: Limits) -> Result<()> {
        if self.looked.elapsed() < limits.look || self.killed.is_some() {
            return Ok(());
        }
        self.looked = Instant::now();
        let text = String::from_utf8_lossy(&fs::read(&self.output)?).into_owned();
        let ended = self.job.tests.len() - results::read(&text, &self.job.tests, true).not_ended.len();
        if ended > self.ended_tests {
            (self.ended_tests, self.progressed) = (ended, Instant::now());
        }
        let why = if self.start.elapsed() > limits.time {
            format!("it was killed after {}", seconds(limits.time))
        } else if self.progressed.elapsed() > limits.silence {
            format!("it was killed because no test ended in {}", seconds(limits.silence))
        } else {
            return Ok(());
        };
        self.killed = Some(why);
        self.group.kill().context("kill a test that takes too long")
    }
}

/// Processor time of all children that have ended and were waited for.
fn processor_seconds_of_children() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return 0.0;
    };
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{
        super::rules::{Engine, Needs},
        *,
    };

    /// Runs a shell script instead of a test program.
    fn run(script: &str, tests: &[&str], limits: Limits) -> (Ended, String) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let programs = [TestProgram::at(&program)];
        let servers = Servers {
            planes: Vec::new(),
            prepare: Box::new(|_| ()),
            plane_variable: |n| n.to_string(),
        };
        let log = folder.path().join("test.log");
        let tests = tests.iter().map(|test| (*test).to_owned()).collect();
        let job = Job::new(0, tests, Engine::Sqlite, Needs::default());
        let mut runner = Runner {
            limits,
            ..Runner::new(&programs, &servers, &log)
        };
        let mut ended = runner.run(vec![job]).unwrap();
        (ended.remove(0), fs::read_to_string(&log).unwrap())
    }

    #[test]
    fn a_process_in_which_no_test_ends_is_killed_and_its_tests_are_named() {
        let [silence, look] = [300, 10].map(Duration::from_millis);
        let limits = Limits {
            silence,
            look,
            ..Limits::default()
        };
        let script = "echo 'test a::ends ... ok <0.100s>'; exec sleep 1000";
        let (ended, log) = run(script, &["a::ends", "a::hangs"], limits);
        assert_eq!(
            (ended.outcome.passed, ended.outcome.not_ended),
            (vec!["a::ends".into()], vec!["a::hangs".into()])
        );
        assert!(
            log.contains("no test ended in 0.3s; these tests had not ended: a::hangs"),
            "{log}"
        );
        let limits = Limits {
            time: silence,
            look,
            ..Limits::default()
        };
        let (_, log) = run("exec sleep 1000", &["a::hangs"], limits);
        assert!(log.contains("killed after 0.3s"), "{log}");
    }

    #[test]
    fn a_process_that_ends_is_read_and_its_time_is_that_of_its_only_test() {
        let script = "echo 'test a::ends ... ok <0.000s>'; sleep 0.2";
        let (ended, log) = run(script, &["a::ends"], Limits::default());
        assert!(
            ended.outcome.faults().next().is_none() && ended.outcome.seconds["a::ends"] >= 0.2,
            "{log}"
        );
        let (ended, log) = run(
            "echo 'test a::ends ... ok <0.000s>'; exit 1",
            &["a::ends"],
            Limits::default(),
        );
        assert_eq!(ended.outcome.not_ended, ["a::ends"], "{log}");
    }
}
