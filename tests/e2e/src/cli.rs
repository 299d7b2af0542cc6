//! Starts `farwater` and kubectl as a user of the hub does.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Tools, farwater::program};
use serde_json::Value;

/// Exit code and output of a program.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_owned();
        let output = command.output().with_context(|| format!("start {}", name.display()))?;
        let code = output
            .status
            .code()
            .with_context(|| format!("{} was killed", name.display()))?;
        Ok(Self {
            code,
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// Returns itself if the program ended with this code.
    pub fn expect(self, code: i32, what: &str) -> Result<Self> {
        ensure!(
            self.code == code,
            "{what} ended with {}, not {code}:\n{}\n{}",
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }
}

/// The administrator at a terminal, with an otherwise empty environment.
#[derive(Clone, Debug)]
pub struct Cli {
    pub kubeconfig: PathBuf,
}

impl Cli {
    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = Command::new(program("farwater")?);
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.home())
            .env("FARWATER_KUBECONFIG", &self.kubeconfig);
        Ran::of(command)
    }

    pub fn expect(&self, code: i32, arguments: &[&str]) -> Result<Ran> {
        self.run(arguments)?
            .expect(code, &format!("farwater {}", arguments.join(" ")))
    }

    /// Own home, because kubectl caches discovery there.
    fn home(&self) -> PathBuf {
        self.kubeconfig.with_file_name("home")
    }

    /// Findings of `farwater why`, as data.
    pub fn why(&self, service: &str) -> Result<Value> {
        Ok(serde_json::from_str(
            &self.run(&["why", service, "-o", "json"])?.stdout,
        )?)
    }

    /// Runs the built kubectl. Returns its output if it ends with 0.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(Tools::find()?.kubectl());
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.home())
            .env("KUBECONFIG", &self.kubeconfig);
        Ok(Ran::of(command)?
            .expect(0, &format!("kubectl {}", arguments.join(" ")))?
            .stdout)
    }
}
