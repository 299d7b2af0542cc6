//! Runs the commands of README's section "By hand", so that the section can't be wrong.

use anyhow::{Context as _, Result, bail, ensure};
use farwater_e2e::{
    PATIENCE, config_map,
    page::{Page, Shell},
    take_turn,
};
use farwater_testkit::{git::GitServer, kube::unique_name, ports, shared, tools::repository_root, wait_for};
use serde_json::Value;

/// The section with its commands, which have no prompt.
fn read_section() -> Result<Page> {
    let path = repository_root()?.join("README.md");
    let readme = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (_, section) = readme
        .split_once("\n## By hand\n")
        .context("README has no section \"By hand\"")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section
        .split("```sh\n")
        .skip(1)
        .filter_map(|block| block.split("```").next());
    let commands = blocks
        .flat_map(str::lines)
        .map(|line| line.split(" #").next().unwrap_or_default().trim());
    let lines = commands.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    Ok(Page {
        text: section.to_owned(),
        lines,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_work() -> Result<()> {
    let plane = shared(1).await?;
    let _turn = take_turn(plane).await?;
    let dir = tempfile::tempdir()?;
    let shell = Shell::new(dir.path())?;
    let git = GitServer::start().await?;
    let web = [
        ("apps/web/one.yaml", &config_map("one", "a")[..]),
        ("apps/web/two.yaml", &config_map("two", "b")),
    ];
    git.create("infra")?.commit("main", &web)?;

    let mut readme = read_section()?;
    let address = format!("127.0.0.1:{}", ports::free()?);
    let namespace = unique_name("by-hand");
    readme.replace("https://git.example.com/infra.git", &git.url("infra"))?;
    readme.replace("--namespace web", &format!("--namespace {namespace}"))?;
    readme.replace("127.0.0.1:8443", &address)?;
    readme.replace("farwater hub ", &format!("farwater hub --listen {address} "))?;

    readme.next("cargo build ")?;
    readme.next("export PATH=\"$PWD/target/release:$PATH\"")?;
    let hub = shell.start("hub", &readme.next("farwater hub ")?)?;
    let login = readme.next("sed ")?;
    ensure!(login.contains("| farwater login "), "{login}");
    wait_for("the hub to let the administrator in", PATIENCE, || async {
        shell.run(&login).map(Some)
    })
    .await
    .with_context(|| hub.tail())?;

    let joined = shell.run(&readme.next("farwater cluster join east")?)?;
    ensure!(
        joined.stdout.lines().count() == 1 && joined.stdout.starts_with("farwater-agent "),
        "{}",
        joined.stdout
    );
    for flag in ["--kubeconfig FILE", "--state-dir DIR"] {
        ensure!(
            readme.text.contains(flag) && joined.stderr.contains(flag),
            "{flag} is not named: {}",
            joined.stderr
        );
    }
    let (kubeconfig, state) = (plane.kubeconfig().display(), dir.path().join("agent"));
    let command = format!(
        "{} --kubeconfig {kubeconfig} --state-dir {}",
        joined.stdout.trim_end(),
        state.display()
    );
    let agent = shell.start("agent", &command)?;

    let deployed = shell
        .run(&readme.next("farwater deploy ")?)
        .with_context(|| agent.tail())?
        .stdout;
    ensure!(deployed.ends_with("\nfarwater-admin/web healthy\n"), "{deployed}");
    for line in readme.lines {
        check(&line, &shell.run(&line)?.stdout, &namespace)?;
    }
    for process in [&hub, &agent] {
        ensure!(!process.output().contains("ERROR"), "{}", process.output());
    }
    Ok(())
}

/// Output of each command for a healthy service with two ConfigMaps.
fn check(line: &str, stdout: &str, namespace: &str) -> Result<()> {
    let two = [format!("{namespace}/one"), format!("{namespace}/two")];
    let as_said = match line.split(' ').collect::<Vec<_>>()[..] {
        ["farwater", "get", "clusters", "-A"] => stdout
            .lines()
            .any(|line| line.starts_with("farwater-admin   east   True ")),
        ["farwater", "tree"] => {
            stdout.starts_with("● farwater-admin/east  Ready") && stdout.contains("└─ ✓ web  Healthy")
        }
        ["farwater", "tree", "web"] => stdout.contains("✓ ConfigMap one  Healthy"),
        ["farwater", "objects", "web"] => ["one", "two"].iter().all(|name| {
            stdout
                .lines()
                .any(|line| line.contains(name) && line.contains("Healthy"))
        }),
        ["farwater", "why", "web"] => stdout.starts_with("ok: web is healthy at main@sha1:"),
        ["farwater", "wait", "--all"] => stdout == "farwater-admin/web healthy\n",
        ["kubectl", .., "get", "sd", "-A"] => stdout.contains("2 objects are healthy"),
        ["kubectl", .., "get", "--raw", _] => {
            let answer: Value = serde_json::from_str(stdout)?;
            let items = answer["items"].as_array().context("the answer has no items")?;
            let names: Vec<_> = items
                .iter()
                .map(|item| format!("{}/{}", item["namespace"], item["name"]).replace('"', ""))
                .collect();
            names == two && items.iter().all(|item| item["health"] == "Current")
        }
        _ => bail!("README's {line:?} is not tested"),
    };
    ensure!(as_said, "{line} prints something else:\n{stdout}");
    Ok(())
}
