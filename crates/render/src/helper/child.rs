//! One child process.

use std::{
    io,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, BufReader},
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use super::Program;
use crate::{
    engine::Asker,
    message::{self, Answer, Confinement, Done, Failure, MessageError, Ready, Reply, Request},
};

/// Bytes kept of its standard error. The output of a Go program that crashes has some hundred lines, and the first of
/// them give the reason.
const WORDS: usize = 4 << 10;
/// Bytes that an answer may have beyond the output limit, for the message that the limit was exceeded.
const SLACK: usize = 1 << 20;

pub(super) struct Child {
    process: tokio::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    words: Arc<Mutex<Vec<u8>>>,
    listener: JoinHandle<()>,
    confinement: Confinement,
}

/// The end of a child.
#[derive(Debug, Default)]
pub(super) struct Broken {
    pub by_time: bool,
    pub by_memory: bool,
    pub words: String,
}

impl Child {
    /// Starts it with an empty environment. It is killed when dropped.
    pub fn start(program: &Program) -> io::Result<Self> {
        let Some((path, arguments)) = program.command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program is named"));
        };
        let mut command = Command::new(path);
        command.args(arguments).env_clear().current_dir("/").kill_on_drop(true);
        if let Some(work) = &program.work {
            command.env("TMPDIR", work);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let words = Arc::default();
        let listener = tokio::spawn(listen(errors, Arc::clone(&words)));
        let output = BufReader::new(output);
        Ok(Self {
            process,
            input,
            output,
            words,
            listener,
            confinement: Confinement::default(),
        })
    }

    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    pub fn confinement(&self) -> Confinement {
        self.confinement
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    pub async fn ready(&mut self) -> Result<Ready, MessageError> {
        let (answer, _): (Answer, _) = message::receive(&mut self.output, 0).await?;
        let ready = answer.ready.ok_or(MessageError::Parts)?;
        self.confinement = ready.confinement;
        Ok(ready)
    }

    /// Its answer to a request. The outer error is about the child, the inner one is the child's own.
    pub async fn exchange(
        &mut self,
        request: &Request<'_>,
        body: &[&[u8]],
        most: usize,
        asker: &dyn Asker,
    ) -> Result<Result<(Done, Vec<u8>), Failure>, MessageError> {
        message::send(&mut self.input, request, body).await?;
        loop {
            let (answer, body): (Answer, _) = message::receive(&mut self.output, most + SLACK).await?;
            if let Some(question) = answer.lookup {
                let said = asker.look_up(&question).await;
                let null = Value::Null;
                let reply = match &said {
                    Ok(found) => Reply::Found(found.as_ref().unwrap_or(&null)),
                    Err(why) => Reply::Refused(&why.0),
                };
                message::send(&mut self.input, &reply, &[]).await?;
                continue;
            }
            return match (answer.done, answer.failed) {
                (Some(done), _) => Ok(Ok((done, body))),
                (None, Some(failure)) => Ok(Err(failure)),
                (None, None) => Err(MessageError::Parts),
            };
        }
    }

    /// Kills it if it still runs, and returns how it ended.
    pub async fn end(mut self) -> Broken {
        // A child that ends by itself has its own status in a moment.
        let status = match tokio::time::timeout(Duration::from_millis(500), self.process.wait()).await {
            Ok(status) => status.ok(),
            Err(_) => {
                let _ = self.process.kill().await;
                None
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), &mut self.listener).await;
        let words = {
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&words).into_owned()
        };
        let by_memory = [
            "out of memory",
            "cannot allocate memory",
            "stack overflow",
            "stack exceeds",
        ]
        .iter()
        .any(|sign| words.contains(sign));
        let by_time = status.is_some_and(|status| signal(status) == Some(rustix::process::Signal::XCPU.as_raw()));
        let words = match (status, first_line(&words)) {
            (Some(status), "") => status.to_string(),
            (_, first) => first.to_owned(),
        };
        Broken {
            by_time,
            by_memory,
            words,
        }
    }
}

/// The first line of the kept output. If that was cut inside the line, up to the last complete word, because a cut
/// secret could not be recognized.
fn first_line(words: &str) -> &str {
    let first = words.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    match words.len() >= WORDS && words.ends_with(first) {
        true => first.rsplit_once(char::is_whitespace).map_or("", |(whole, _)| whole),
        false => first,
    }
}

fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// Keeps the beginning of its standard error.
async fn listen(mut errors: ChildStderr, words: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(read) = errors.read(&mut chunk).await {
        if read == 0 {
            return;
        }
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        let room = WORDS.saturating_sub(words.len());
        words.extend_from_slice(&chunk[..read.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_the_words_are_told_that_are_all_there() {
        let cut = |text: String| text.chars().take(WORDS).collect::<String>();
        let check = |words: &str, expected: &str| assert_eq!(first_line(words), expected);
        check("", "");
        check("\n  \npanic: a\nat b\n", "panic: a");
        check(
            &cut(format!("panic: {}\nat hunter2", "x".repeat(WORDS - 12))),
            &format!("panic: {}", "x".repeat(WORDS - 12)),
        );
        check(
            &cut(format!("panic: {} hunter2", "x".repeat(WORDS - 12))),
            &format!("panic: {}", "x".repeat(WORDS - 12)),
        );
        check(&"x".repeat(WORDS), "");
    }
}
