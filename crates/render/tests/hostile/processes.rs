//! The kernel limits the number of processes of a plugin, whichever user the agent runs as.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::json;

use super::support::{self, Bench, Job, open_to_all, strict, values};

/// An id that no other program runs as.
const NOBODY: &str = "60001";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a shell script within limits and without a namespace. If this process is root, the script runs as `user`.
fn confine(program: &Path, user: Option<&str>, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    match user.filter(|_| is_root()) {
        Some(user) => command.args(["--reuid", user, "--regid", user, "--clear-groups"]),
        None => command.arg("--no-new-privs"),
    };
    let none = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    command
        .args(["unshare", "--user", "--map-root-user", "/bin/sh", "-c", none, "sh"])
        .arg(program);
    command.args([
        "confine",
        "--processes",
        "16",
        "--seconds",
        "5",
        "--",
        "/bin/sh",
        "-c",
        script,
    ]);
    command.current_dir("/").output().unwrap()
}

#[tokio::test]
async fn as_root_a_plugin_is_another_user() {
    let _alone = super::others::ALONE.lock().await;
    let script = "printf 'apiVersion: v1\\nkind: ConfigMap\\nmetadata: {name: seen}\\ndata:\\n'; \
                  echo \"  user: '$(id -u) $(id -g) $(id -G)'\"";
    let command = ["/bin/sh", "-c", script];
    let bench = Bench::with(
        strict(),
        &json!({"plugins": [{"name": "p", "command": command}]}).to_string(),
    );
    let job = Job::of([("a", "x")]).renderers(json!([{"type": "Plugin", "plugin": "p"}]));
    let seen = values(bench.render(&job).await).remove(0);
    let user = seen["data"]["user"].as_str().unwrap();
    assert!(user.split(' ').all(|id| id != "0"), "{user}");
}

#[tokio::test]
async fn without_namespaces_the_kernel_still_limits_the_number_of_processes() {
    let _alone = super::others::ALONE.lock().await;
    let (_folder, program) = open_to_all(Path::new(&support::renderer()));
    let limit = confine(&program, Some(NOBODY), "ulimit -p");
    let said = String::from_utf8_lossy(&limit.stdout);
    assert!(limit.status.success(), "{limit:?}");
    let most: u32 = said.trim().parse().unwrap();
    // If this process is root, the script's user has no other processes.
    assert!(!is_root() || most <= 64, "{said}");
    let bomb = confine(&program, Some(NOBODY), "b() { b | b & b; }; b");
    assert!(!bomb.status.success(), "{bomb:?}");
}

/// No other user is available, as in a container whose only user is the machine's root.
#[tokio::test]
async fn what_nothing_limits_is_not_started() {
    let _alone = super::others::ALONE.lock().await;
    let (_folder, program) = open_to_all(Path::new(&support::renderer()));
    let ran = confine(&program, None, "echo started");
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_root() {
        assert_eq!(
            (ran.status.code(), ran.stdout.as_slice()),
            (Some(122), &b""[..]),
            "{said}"
        );
        assert!(
            said.contains("nothing limits the number of this user's processes"),
            "{said}"
        );
    } else {
        assert_eq!(ran.stdout, b"started\n", "{said}");
    }
}
