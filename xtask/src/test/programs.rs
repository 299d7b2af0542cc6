//! Compiled test programs, as `cargo test` runs them. Cargo builds all of them together. If it built only some, it
//! would rebuild dependencies with the features that only those need.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::repository;

/// A test program: the unit tests of a library or program, or a file in a package's `tests` folder.
pub struct TestProgram {
    pub name: String,
    /// Folder of the package: `hub`, `e2e`.
    pub folder: String,
    /// Whether it is in the package's `tests` folder.
    pub is_black_box: bool,
    is_library: bool,
    executable: PathBuf,
    package: PathBuf,
}

/// A line of cargo's JSON output. Lines of other kinds have none of these fields.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl TestProgram {
    /// All test programs of the workspace, by package, unit tests first.
    pub fn all() -> Result<Vec<Self>> {
        let said = repository::cargo_output(&[
            "test",
            "--workspace",
            "--locked",
            "--no-run",
            "--quiet",
            "--message-format=json-render-diagnostics",
        ])?;
        let mut programs: Vec<Self> = said.lines().filter_map(Self::parse).collect();
        ensure!(!programs.is_empty(), "cargo reported no test programs");
        // Cargo reports each program when it is built, in no fixed order.
        programs.sort_by(|a, b| (&a.package, a.is_black_box, &a.name).cmp(&(&b.package, b.is_black_box, &b.name)));
        Ok(programs)
    }

    fn parse(line: &str) -> Option<Self> {
        let Message {
            manifest_path,
            target,
            profile,
            executable,
        } = serde_json::from_str(line).ok()?;
        let (target, package) = (target?, manifest_path?.parent()?.to_owned());
        profile.filter(|profile| profile.test)?;
        let folder = package.file_name()?.to_str()?.to_owned();
        let (is_black_box, is_library) = (target.kind == ["test"], target.kind == ["lib"]);
        Some(Self {
            name: target.name,
            folder,
            is_black_box,
            is_library,
            executable: executable?,
            package,
        })
    }

    /// Name for people: `hub's api`, `unit tests of farwater_hub`.
    pub fn title(&self) -> String {
        let Self { name, folder, .. } = self;
        if self.is_black_box {
            format!("{folder}'s {name}")
        } else {
            format!("unit tests of {name}")
        }
    }

    /// Prefix of the ids of its tests: `hub/api`, `hub/lib`, `cli/bin`.
    pub fn id(&self) -> String {
        let Self {
            name,
            folder,
            is_black_box,
            is_library,
            ..
        } = self;
        match (is_black_box, is_library) {
            (true, _) => format!("{folder}/{name}"),
            (false, true) => format!("{folder}/lib"),
            (false, false) => format!("{folder}/bin"),
        }
    }

    /// Id of one of its tests, for `xtask/tests.toml` and `--tests`.
    pub fn id_of(&self, test: &str) -> String {
        format!("{}::{test}", self.id())
    }

    /// Names of its tests, except those that only campaigns run.
    pub fn tests(&self) -> Result<Vec<String>> {
        let ignored = self.list(&["--ignored"])?;
        Ok(self
            .list(&[])?
            .into_iter()
            .filter(|test| !ignored.contains(test))
            .collect())
    }

    fn list(&self, more: &[&str]) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).args(more).output();
        let output = output.with_context(|| format!("start {}", self.executable.display()))?;
        ensure!(
            output.status.success(),
            "list the tests of {}: {}",
            self.title(),
            output.status
        );
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(lines
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

#[cfg(test)]
impl TestProgram {
    pub fn at(program: &std::path::Path) -> Self {
        let package = program.parent().unwrap().to_owned();
        let (name, folder) = ("a".to_owned(), "a".to_owned());
        Self {
            name,
            folder,
            is_black_box: true,
            is_library: false,
            executable: program.to_owned(),
            package,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_programs_are_told_from_all_else_that_cargo_says() {
        let parse = |line: &str| TestProgram::parse(line).map(|program| program.title());
        let line = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/hub/Cargo.toml","target":{{"kind":["{kind}"],"name":"api"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        assert_eq!(
            parse(&line("test", true, r#""/t/api-1""#)).as_deref(),
            Some("hub's api")
        );
        assert_eq!(
            parse(&line("lib", true, r#""/t/api-2""#)).as_deref(),
            Some("unit tests of api")
        );
        assert_eq!(parse(&line("bin", false, r#""/t/api""#)), None);
        assert_eq!(parse(&line("test", true, "null")), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("warning: words"), None);
    }
}
