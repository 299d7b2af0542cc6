//! What each command changes, and in which field or object. `kubectl apply` can make every such change too.

/// Keyed by the command's words. A test compares this list with the command line and `docs/cli.md`.
pub const EFFECTS: &[(&str, Effect)] = &[
    ("hub", Effect::Runs),
    (
        "install",
        Effect::Cluster(
            "the namespace `farwater-hub` and the hub in it; on this machine, the kubeconfig that `farwater` reads",
        ),
    ),
    ("login", Effect::Here("the kubeconfig that `farwater` reads")),
    (
        "cluster join",
        Effect::Writes(&[
            "Cluster, created if it does not exist",
            "the subresource `clusters/NAME/join`: a one-time token; with --context, the agent's objects in that cluster",
        ]),
    ),
    ("cluster age-key", Effect::Reads),
    (
        "cluster leave",
        Effect::Writes(&["Cluster, deleted; with --context, the agent's objects in that cluster"]),
    ),
    (
        "tenant prepare",
        Effect::Cluster(
            "with --apply: Namespaces, ServiceAccounts and RoleBindings; without it, the command only prints them",
        ),
    ),
    (
        "deploy",
        Effect::Writes(&[
            "GitRepository `spec.url`, `spec.ref`, `spec.secretRef`, created if no GitRepository has the same fields",
            "ServiceDeployment `spec`",
        ]),
    ),
    ("get", Effect::Reads),
    (
        "delete",
        Effect::Writes(&[
            "the resource, deleted; for a ServiceDeployment or ServiceSet, `spec.deletionPolicy` decides about its objects",
        ]),
    ),
    ("tree", Effect::Reads),
    ("why", Effect::Reads),
    (
        "wait",
        Effect::Writes(&[
            "with --fetch: source or ServiceDeployment (those of a set), annotation `farwater.dev/requestedAt`",
        ]),
    ),
    ("plan", Effect::Reads),
    ("impact", Effect::Reads),
    ("render", Effect::Reads),
    (
        "undo",
        Effect::Writes(&["ServiceDeployment, annotation `farwater.dev/undo`: the deletion to undo"]),
    ),
    ("objects", Effect::Reads),
    ("history", Effect::Reads),
    ("explain digest", Effect::Reads),
    (
        "hooks",
        Effect::Writes(&["with --retry: ServiceDeployment, annotation `farwater.dev/retry-hook`: the failed run"]),
    ),
    ("explain parameters", Effect::Reads),
    (
        "rollback",
        Effect::Writes(&["ServiceDeployment `spec.pin`", "with a set: ServiceSet `spec.pin`"]),
    ),
    ("rollout status", Effect::Reads),
    (
        "rollout promote",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"]),
    ),
    (
        "rollout pause",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.paused`, `spec.rollout.pauseReason`"]),
    ),
    (
        "rollout resume",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.paused`, `spec.rollout.pauseReason`"]),
    ),
    (
        "rollout abort",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"]),
    ),
    (
        "rollout skip",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"]),
    ),
    ("pipeline status", Effect::Reads),
    (
        "approve",
        Effect::Writes(&[
            "the subresource `pipelines/NAME/approve`: the hub records the approval and the user",
            "for a service: ServiceDeployment, annotation `farwater.dev/approve-prune`, or `farwater.dev/propose-prune` with --propose",
        ]),
    ),
    (
        "notify test",
        Effect::Writes(&["NotificationProvider, annotation `farwater.dev/requestedAt`"]),
    ),
    (
        "suspend",
        Effect::Writes(&["ServiceDeployment `spec.suspend`, `spec.suspension`"]),
    ),
    (
        "freeze",
        Effect::Writes(&[
            "ChangeWindow, created",
            "with --override: ServiceDeployment or ServiceSet, annotation `farwater.dev/override-freeze`, or \
             `farwater.dev/propose-override` with --propose",
        ]),
    ),
    ("unfreeze", Effect::Writes(&["ChangeWindow, deleted"])),
    (
        "resume",
        Effect::Writes(&["ServiceDeployment `spec.suspend`, `spec.suspension`"]),
    ),
    ("doctor", Effect::Reads),
    ("version", Effect::Reads),
    ("completion", Effect::Reads),
    ("convert flux", Effect::Reads),
    ("convert argocd", Effect::Reads),
    ("admin backup", Effect::Here("the archive; the database is only read")),
    (
        "admin restore",
        Effect::Database(
            "all its content is replaced, and the epoch and the counter increase; the backup's keys replace the keys of \
             another installation. With --context the command stops and starts the hub, and signs in to it",
        ),
    ),
    ("admin fsck", Effect::Reads),
    ("admin keys list", Effect::Reads),
    (
        "admin keys rotate",
        Effect::Here(
            "`keys/request.json` in the data directory, or `keys/seal.wanted` for the seal key; the hub creates the key",
        ),
    ),
    (
        "admin keys announce",
        Effect::Here("`keys/request.json` in the data directory: the authorities that the hub announces to agents"),
    ),
    (
        "admin keys revoke",
        Effect::Here("`keys/request.json` in the data directory: the hub retires all but the current keys"),
    ),
    ("admin kubeconfig", Effect::Reads),
    (
        "admin copy-store",
        Effect::Database("the one of --to, which becomes a copy of the one of --from"),
    ),
];

#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Reads,
    /// The command is the hub itself.
    Runs,
    /// Changes something on this machine only.
    Here(&'static str),
    /// Changes objects of a cluster that a kubeconfig's context names.
    Cluster(&'static str),
    /// Changes objects and fields of the hub.
    Writes(&'static [&'static str]),
    /// Changes the hub's database directly, without its API and while the hub is stopped.
    Database(&'static str),
}

impl Effect {
    fn told(self) -> String {
        match self {
            Self::Reads => "nothing".to_owned(),
            Self::Runs => "the command runs the hub itself".to_owned(),
            Self::Here(what) => format!("on this machine: {what}"),
            Self::Cluster(what) => format!("in the cluster: {what}"),
            Self::Writes(fields) => fields.join("; "),
            Self::Database(what) => format!("the database: {what}"),
        }
    }
}

/// The table as `docs/cli.md` has it.
fn table() -> String {
    let mut text = "| command | changes |\n|---|---|\n".to_owned();
    for (command, effect) in EFFECTS {
        text.push_str(&format!("| `{command}` | {} |\n", effect.told()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory as _;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    const BEGIN: &str = "<!-- effects: generated by the test `every_command_says_what_it_changes` -->\n";
    const END: &str = "<!-- end of effects -->";

    fn leaves(command: &clap::Command, words: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let words = format!("{words} {}", below.get_name()).trim().to_owned();
            match below.has_subcommands() {
                true => leaves(below, &words, found),
                false => found.push(words),
            }
        }
    }

    /// All commands, sorted.
    fn commands() -> Vec<String> {
        let mut commands = Vec::new();
        leaves(&crate::Cli::command(), "", &mut commands);
        commands.sort();
        commands
    }

    /// The words of a usage line before the first argument.
    fn words(usage: &str) -> String {
        let is_word = |part: &&str| part.starts_with(|c: char| c.is_ascii_lowercase());
        usage.split(' ').take_while(is_word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_command_has_a_line_on_the_page() {
        let page = fs::read_to_string(PAGE).unwrap();
        let (_, section) = page.split_once("\n## Commands\n").unwrap();
        let rows = section.lines().take_while(|line| !line.starts_with("## "));
        let mut told = Vec::new();
        for row in rows.filter_map(|line| line.strip_prefix("| `")) {
            let (usage, does) = row.split_once("` | ").unwrap();
            assert!(
                does.trim_end_matches('|').trim().len() > 5,
                "docs/cli.md does not say what {usage} does"
            );
            told.push(words(usage));
        }
        told.sort();
        assert_eq!(commands(), told);
    }

    #[test]
    fn every_command_says_what_it_changes() {
        let mut told: Vec<_> = EFFECTS.iter().map(|(command, _)| (*command).to_owned()).collect();
        told.sort();
        assert_eq!(commands(), told);

        let page = fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        if std::env::var_os("FARWATER_WRITE").is_some() {
            fs::write(PAGE, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        } else {
            assert_eq!(written, table(), "docs/cli.md: run this test with FARWATER_WRITE=1");
        }
    }
}
