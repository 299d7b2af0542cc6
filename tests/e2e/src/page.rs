//! Runs the commands of a documentation page as a person would, so that the page can't be wrong.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Process, Tools, farwater::program, process::bare_command, tools::repository_root};

use crate::cli::Ran;

/// A page, and its commands that were not run yet.
#[derive(Clone, Debug)]
pub struct Page {
    pub text: String,
    pub lines: Vec<String>,
}

impl Page {
    /// Reads a page of `docs` by name. Its consoles must contain only commands.
    pub fn read(name: &str) -> Result<Self> {
        let path = repository_root()?.join("docs").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let consoles = text
            .split("```console\n")
            .skip(1)
            .filter_map(|block| block.split("```").next());
        let commands = consoles.flat_map(str::lines).map(|line| {
            let command = line.strip_prefix("$ ").filter(|command| !command.ends_with('\\'));
            command
                .map(str::to_owned)
                .with_context(|| format!("docs/{name} shows {line:?}, which is not one command"))
        });
        let lines = commands.collect::<Result<Vec<String>>>()?;
        Ok(Self { text, lines })
    }

    /// Replaces an example value, which the page must contain, by ours.
    pub fn replace(&mut self, example: &str, ours: &str) -> Result<()> {
        ensure!(
            self.lines.iter().any(|line| line.contains(example)),
            "the page does not name {example:?} any more"
        );
        for line in &mut self.lines {
            *line = line.replace(example, ours);
        }
        Ok(())
    }

    /// The next command, which must begin with this text.
    pub fn next(&mut self, start: &str) -> Result<String> {
        ensure!(!self.lines.is_empty(), "the page has no command {start:?}");
        let line = self.lines.remove(0);
        ensure!(
            line.starts_with(start),
            "the page's next command is {line:?}, not {start:?}"
        );
        Ok(line)
    }
}

/// A person's shell: a folder that is also the home, and a PATH with our programs and kubectl.
#[derive(Clone, Debug)]
pub struct Shell {
    dir: PathBuf,
    path: OsString,
    kubeconfig: Option<PathBuf>,
}

impl Shell {
    pub fn new(dir: &Path) -> Result<Self> {
        let bin = dir.join("bin");
        fs::create_dir(&bin)?;
        for (name, real) in [
            ("farwater", program("farwater")?),
            ("farwater-agent", program("farwater-agent")?),
            ("kubectl", Tools::find()?.kubectl()),
        ] {
            std::os::unix::fs::symlink(real, bin.join(name))?;
        }
        let mut path = bin.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Ok(Self {
            dir: dir.to_owned(),
            path,
            kubeconfig: None,
        })
    }

    /// With a kubeconfig for kubectl.
    #[must_use]
    pub fn with_kubeconfig(self, file: PathBuf) -> Self {
        Self {
            kubeconfig: Some(file),
            ..self
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = bare_command("sh");
        command
            .args(["-c", line])
            .current_dir(&self.dir)
            .env("HOME", &self.dir)
            .env("PATH", &self.path);
        if let Some(file) = &self.kubeconfig {
            command.env("KUBECONFIG", file);
        }
        command
    }

    /// Runs a command. Returns its output if it ended with 0.
    pub fn run(&self, line: &str) -> Result<Ran> {
        Ran::of(self.command(line))?.expect(0, line)
    }

    /// Starts a command that runs until it is dropped.
    pub fn start(&self, name: &str, line: &str) -> Result<Process> {
        Process::spawn(
            name,
            self.command(&format!("exec {line}")),
            &self.dir.join(format!("{name}.log")),
        )
    }
}
