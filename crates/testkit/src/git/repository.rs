//! Creates repositories: commits from lists of files, and malformed objects as an attacker would push them.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, Result, bail};

use crate::process::bare_command;

/// Time of the first commit in Unix seconds. Each further commit is a second later.
static CLOCK: AtomicU64 = AtomicU64::new(1_700_000_000);

/// A bare repository on disk.
#[derive(Clone, Debug)]
pub struct Repository {
    path: PathBuf,
    /// Author of commits if it is not the committer: `Name <address>`.
    author: Option<String>,
}

impl Repository {
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_with(path, "sha1")
    }

    /// Creates a repository with `sha1` or `sha256` as object format.
    pub fn create_with(path: &Path, format: &str) -> Result<Self> {
        let repository = Self {
            path: path.to_owned(),
            author: None,
        };
        std::fs::create_dir_all(path)?;
        let format = format!("--object-format={format}");
        repository.git(
            &["init", "--quiet", "--bare", "--initial-branch=main", &format, "."],
            b"",
        )?;
        // As on large hosts.
        repository.git(&["config", "uploadpack.allowAnySHA1InWant", "true"], b"")?;
        repository.git(&["config", "gc.auto", "0"], b"")?;
        Ok(repository)
    }

    /// The same repository, but with another author of commits: `Name <address>`.
    #[must_use]
    pub fn by(&self, author: &str) -> Self {
        Self {
            author: Some(author.to_owned()),
            ..self.clone()
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Commits exactly these files on top of a branch, or as its first commit. Content that begins with `-> ` creates a
    /// symlink. Returns the commit's id.
    pub fn commit(&self, branch: &str, files: &[(&str, &str)]) -> Result<String> {
        let parent = self.branch(branch);
        self.import(
            branch,
            parent.as_deref(),
            true,
            files.iter().map(|(p, c)| (*p, Some(*c))),
        )
    }

    /// Changes some files of a branch. `None` deletes a file.
    pub fn change(&self, branch: &str, changes: &[(&str, Option<&str>)]) -> Result<String> {
        let parent = self
            .branch(branch)
            .with_context(|| format!("branch {branch} doesn't exist"))?;
        self.import(branch, Some(&parent), false, changes.iter().copied())
    }

    /// Replaces a branch by one commit without history, as after `git push --force` of a new root.
    pub fn rewrite(&self, branch: &str, files: &[(&str, &str)]) -> Result<String> {
        self.delete_ref(&format!("refs/heads/{branch}"))?;
        self.commit(branch, files)
    }

    /// The current commit of a branch.
    pub fn branch(&self, branch: &str) -> Option<String> {
        self.git(
            &["rev-parse", "--verify", "--quiet", &format!("refs/heads/{branch}")],
            b"",
        )
        .ok()
    }

    pub fn delete_branch(&self, branch: &str) -> Result<()> {
        self.delete_ref(&format!("refs/heads/{branch}"))
    }

    /// Points a reference at an object, for branches that are moved back and lightweight tags.
    pub fn set_ref(&self, name: &str, id: &str) -> Result<()> {
        self.git(&["update-ref", name, id], b"").map(drop)
    }

    pub fn delete_ref(&self, name: &str) -> Result<()> {
        self.git(&["update-ref", "-d", name], b"").map(drop)
    }

    /// Creates many references to one commit at once.
    pub fn set_refs(&self, names: impl Iterator<Item = String>, id: &str) -> Result<()> {
        let lines: String = names.map(|name| format!("create {name} {id}\n")).collect();
        self.git(&["update-ref", "--stdin"], lines.as_bytes()).map(drop)
    }

    /// Creates an annotated tag. Returns the id of the tag object.
    pub fn annotated_tag(&self, name: &str, id: &str) -> Result<String> {
        self.git(&["tag", "--annotate", "--message", name, name, id], b"")?;
        self.git(&["rev-parse", &format!("refs/tags/{name}")], b"")
    }

    /// Writes an object unchanged, even if malformed. Returns its id.
    pub fn write_object(&self, kind: &str, bytes: &[u8]) -> Result<String> {
        self.git(&["hash-object", "-w", "--literally", "--stdin", "-t", kind], bytes)
    }

    /// Writes a tree with exactly these entries: octal mode without leading zeros, any name, id of an object.
    pub fn write_tree(&self, entries: &[(&str, &[u8], &str)]) -> Result<String> {
        let mut body = Vec::new();
        for (mode, name, id) in entries {
            body.extend_from_slice(mode.as_bytes());
            body.push(b' ');
            body.extend_from_slice(name);
            body.push(0);
            body.extend_from_slice(&hex::decode(id)?);
        }
        self.write_object("tree", &body)
    }

    /// Commits a tree and moves the branch there, wherever it was.
    pub fn commit_tree(&self, branch: &str, tree: &str) -> Result<String> {
        let id = self.git(&["commit-tree", "-m", "tree", tree], b"")?;
        self.set_ref(&format!("refs/heads/{branch}"), &id)?;
        Ok(id)
    }

    fn import<'f>(
        &self,
        branch: &str,
        parent: Option<&str>,
        all: bool,
        files: impl Iterator<Item = (&'f str, Option<&'f str>)>,
    ) -> Result<String> {
        let time = CLOCK.fetch_add(1, Ordering::Relaxed);
        let author = self
            .author
            .as_ref()
            .map(|author| format!("author {author} {time} +0000\n"))
            .unwrap_or_default();
        let committer = format!("committer Test <test@example.com> {time} +0000\n");
        let mut stream = format!("commit refs/heads/{branch}\n{author}{committer}").into_bytes();
        stream.extend_from_slice(b"data 6\nchange\n");
        if let Some(parent) = parent {
            writeln!(stream, "from {parent}")?;
        }
        if all {
            stream.extend_from_slice(b"deleteall\n");
        }
        for (path, content) in files {
            match content {
                None => writeln!(stream, "D {path}")?,
                Some(content) => {
                    let (mode, content) = content
                        .strip_prefix("-> ")
                        .map_or(("100644", content), |t| ("120000", t));
                    writeln!(stream, "M {mode} inline {path}\ndata {}\n{content}", content.len())?;
                }
            }
        }
        stream.extend_from_slice(b"\ndone\n");
        self.git(&["fast-import", "--quiet", "--done", "--force"], &stream)?;
        self.branch(branch).context("the commit is missing")
    }

    /// Runs git in the repository. Returns its output without the last line break.
    pub fn git(&self, args: &[&str], input: &[u8]) -> Result<String> {
        let time = format!("{} +0000", CLOCK.fetch_add(1, Ordering::Relaxed));
        let mut command: Command = bare_command("git");
        let mut child = command
            .args(args)
            .current_dir(&self.path)
            .envs([
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("HOME", "/nonexistent"),
            ])
            .envs([("GIT_AUTHOR_NAME", "Test"), ("GIT_AUTHOR_EMAIL", "test@example.com")])
            .envs([
                ("GIT_COMMITTER_NAME", "Test"),
                ("GIT_COMMITTER_EMAIL", "test@example.com"),
            ])
            .envs([("GIT_AUTHOR_DATE", &time), ("GIT_COMMITTER_DATE", &time)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run git")?;
        let mut stdin = child.stdin.take().context("no pipe")?;
        let input = input.to_vec();
        // In a thread, because git may answer before it has read everything.
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().context("wait for git")?;
        let _ = writer.join();
        if !output.status.success() {
            bail!(
                "git {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}
