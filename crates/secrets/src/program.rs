//! A program of the hub's configuration. It reads a reference as JSON from its input, and prints values as JSON.
//!
//! ```text
//! stdin   {"version":1,"namespace":"team-a","path":"web"}
//! stdout  {"values":{"password":"…","key":{"base64":"…"}}}   or   {"error":"there is no web","passing":false}
//! ```
//!
//! The hub discards the program's standard error, because it may contain values.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};
use zeroize::Zeroizing;

use crate::{
    backend::{Backend, BackendError, MAX_VALUES_BYTES, Reference, SecretBytes, Values},
    config,
};

/// Maximum size of the output, in bytes: values in base64, and the JSON around them.
const MAX_OUTPUT: usize = 2 * MAX_VALUES_BYTES;

pub(crate) struct Program {
    command: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl Program {
    pub(crate) fn new(config: &config::Program) -> Result<Self, String> {
        match config.command.first() {
            Some(program) if Path::new(program).is_absolute() => Ok(Self {
                command: config.command.clone(),
                environment: config.environment.clone(),
            }),
            Some(program) => Err(format!("the path of program {program} is not absolute")),
            None => Err("command is empty".to_owned()),
        }
    }

    fn spawn(&self) -> std::io::Result<Running> {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env_clear()
            .envs(&self.environment)
            .current_dir("/");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        command.spawn().map(Running)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    values: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    passing: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes { base64: String },
}

/// A process group, killed when it is dropped, e.g. after a timeout.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self
            .0
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Running {
    async fn exchange(&mut self, input: &[u8]) -> std::io::Result<(ExitStatus, Zeroizing<Vec<u8>>)> {
        let (stdin, stdout) = (self.0.stdin.take(), self.0.stdout.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program need not read its input.
                let _ = stdin.write_all(input).await;
            }
        };
        let mut output = Zeroizing::new(Vec::with_capacity(4096));
        let read = async {
            if let Some(stdout) = stdout {
                stdout.take(MAX_OUTPUT as u64 + 1).read_to_end(&mut output).await?;
            }
            Ok::<_, std::io::Error>(())
        };
        let ((), read) = tokio::join!(write, read);
        read?;
        if output.len() > MAX_OUTPUT {
            return Ok((ExitStatus::from_raw(0), output));
        }
        Ok((self.0.wait().await?, output))
    }
}

#[async_trait]
impl Backend for Program {
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError> {
        let program = &self.command[0];
        let Reference { namespace, path } = reference;
        let input = json!({"version": 1, "namespace": namespace, "path": path});
        let failed = |error: std::io::Error| BackendError::passing(format!("{program} can't be run: {}", error.kind()));
        let mut running = self.spawn().map_err(failed)?;
        let (status, output) = running.exchange(input.to_string().as_bytes()).await.map_err(failed)?;
        if output.len() > MAX_OUTPUT {
            return Err(BackendError::lasting(format!(
                "{program} printed more than {MAX_OUTPUT} bytes"
            )));
        }
        // An error of the parser is not shown, because it may quote a value.
        let answer: Option<Answer> = serde_json::from_slice(&output).ok();
        match (answer, status.success()) {
            (
                Some(Answer {
                    error: Some(error),
                    passing: true,
                    ..
                }),
                _,
            ) => Err(BackendError::passing(error)),
            (Some(Answer { error: Some(error), .. }), _) => Err(BackendError::lasting(error)),
            (
                Some(Answer {
                    values: Some(values), ..
                }),
                true,
            ) => decode(program, values),
            (_, false) => Err(BackendError::passing(format!(
                "{program} ended with {status} and printed no answer"
            ))),
            (_, true) => Err(BackendError::lasting(format!(
                "{program} printed no JSON with values or an error"
            ))),
        }
    }
}

fn decode(program: &str, values: BTreeMap<String, Value>) -> Result<Values, BackendError> {
    let decode = |(name, value)| match value {
        Value::Text(text) => Ok((name, SecretBytes::new(text))),
        Value::Bytes { base64 } => match STANDARD.decode(base64) {
            Ok(bytes) => Ok((name, SecretBytes::new(bytes))),
            Err(_) => Err(BackendError::lasting(format!(
                "{program}: the base64 of {name:?} is damaged"
            ))),
        },
    };
    values.into_iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shell(script: &str) -> Program {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Program::new(&config::Program {
            command,
            environment: BTreeMap::from([("NAME".to_owned(), "x".to_owned())]),
        })
        .unwrap()
    }

    async fn run(script: &str) -> Result<Values, BackendError> {
        let reference = Reference {
            namespace: "team".into(),
            path: "web".into(),
        };
        shell(script).read(&reference).await
    }

    #[tokio::test]
    async fn a_program_gets_the_reference_and_nothing_else() {
        let script = r#"read -r line; printf '{"values": {"in": "%s", "env": "%s", "bytes": {"base64": "AP8="}}}' \
                        "$(printf %s "$line" | tr -d '"')" "$(env | grep -v '^PWD=\|^_=\|^SHLVL=\|^OLDPWD=' | tr '\n' ' ')""#;
        let values = run(script).await.unwrap();
        let texts: Vec<_> = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose().to_vec()))
            .collect();
        assert_eq!(texts[0], ("bytes", vec![0, 255]));
        assert_eq!(texts[1], ("env", b"NAME=x ".to_vec()));
        let line = String::from_utf8(texts[2].1.clone()).unwrap();
        assert!(line.contains("path:web") && line.contains("namespace:team"), "{line}");
    }

    #[tokio::test]
    async fn what_goes_wrong_is_told_without_what_was_printed() {
        let check = async |script: &str, passing: bool, problem: &str| {
            let error = run(script).await.unwrap_err();
            assert!(
                error.is_passing() == passing && error.to_string().contains(problem),
                "{script}: {error:?}"
            );
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        };
        check(r#"echo '{"error": "there is no web"}'"#, false, "there is no web").await;
        check(
            r#"echo '{"error": "it is locked", "passing": true}'; exit 1"#,
            true,
            "it is locked",
        )
        .await;
        check("echo hunter2; echo hunter2 >&2; exit 3", true, "exit status: 3").await;
        check("echo hunter2", false, "no JSON").await;
        check(
            r#"echo '{"values": {"a": {"base64": "hunter2 "}}}'"#,
            false,
            "the base64 of \"a\" is damaged",
        )
        .await;
        check(r#"echo '{"values": {"hunter2": 5}}'"#, false, "no JSON").await;
        check("yes hunter2", false, "more than").await;
        let absent = Program::new(&config::Program {
            command: vec!["/absent".into()],
            environment: BTreeMap::new(),
        });
        assert!(
            absent
                .unwrap()
                .read(&Reference::default())
                .await
                .unwrap_err()
                .to_string()
                .contains("/absent can't be run")
        );
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_ends_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = format!("sleep 60 & echo $! $$ > {}; wait", file.display());
        assert!(
            tokio::time::timeout(Duration::from_millis(500), run(&script))
                .await
                .is_err()
        );
        let is_gone = |pid: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tZ")
        };
        let pids = std::fs::read_to_string(&file).unwrap();
        for _ in 0..200 {
            if pids.split_whitespace().all(is_gone) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{pids} still run");
    }
}
