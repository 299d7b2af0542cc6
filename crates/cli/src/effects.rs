//! What each command changes, and which field or object does it: whatever a command does, `kubectl apply` can do too.

/// By the words of the command. The command line and this list are held together by a test, and `docs/cli.md` shows it.
pub const EFFECTS: &[(&str, Effect)] = &[
    ("hub", Effect::Runs),
    (
        "install",
        Effect::Cluster("the namespace `farwater-hub` with the hub in it; and the kubeconfig that `farwater` reads"),
    ),
    ("login", Effect::Here("the kubeconfig that `farwater` reads")),
    (
        "cluster join",
        Effect::Writes(&[
            "Cluster, made if it is missing",
            "the subresource `clusters/NAME/join`: a one-time token; with --context, the agent's objects in that cluster",
        ]),
    ),
    ("cluster age-key", Effect::Reads),
    ("cluster leave", Effect::Writes(&["Cluster, deleted; with --context, the agent's objects in that cluster"])),
    (
        "deploy",
        Effect::Writes(&[
            "GitRepository `spec.url`, `spec.ref`, `spec.secretRef`; made if none has the same",
            "ServiceDeployment `spec`",
        ]),
    ),
    ("get", Effect::Reads),
    (
        "delete",
        Effect::Writes(&[
            "the resource, deleted; a ServiceDeployment and a ServiceSet do with their objects what `spec.deletionPolicy` says",
        ]),
    ),
    ("tree", Effect::Reads),
    ("why", Effect::Reads),
    ("wait", Effect::Writes(&["with --fetch: ServiceDeployment or source, annotation `farwater.dev/requestedAt`"])),
    ("plan", Effect::Reads),
    ("impact", Effect::Reads),
    ("render", Effect::Reads),
    (
        "undo",
        Effect::Writes(&["ServiceDeployment, annotation `farwater.dev/undo`: the deletion that its agent undoes"]),
    ),
    ("objects", Effect::Reads),
    ("history", Effect::Reads),
    ("explain digest", Effect::Reads),
    (
        "hooks",
        Effect::Writes(&["with --retry: ServiceDeployment, annotation `farwater.dev/retry-hook`: the run that failed"]),
    ),
    ("explain parameters", Effect::Reads),
    ("rollback", Effect::Writes(&["ServiceDeployment `spec.pin`", "with a set: ServiceSet `spec.pin`"])),
    ("rollout status", Effect::Reads),
    ("rollout promote", Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"])),
    (
        "rollout pause",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.paused`, `spec.rollout.pauseReason`"]),
    ),
    (
        "rollout resume",
        Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.paused`, `spec.rollout.pauseReason`"]),
    ),
    ("rollout abort", Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"])),
    ("rollout skip", Effect::Writes(&["ServiceSet or ManagedNamespace `spec.rollout.order`"])),
    ("pipeline status", Effect::Reads),
    (
        "approve",
        Effect::Writes(&[
            "the subresource `pipelines/NAME/approve`: who approves what, kept by the hub",
            "of a service: ServiceDeployment, annotation `farwater.dev/approve-prune`, or `farwater.dev/propose-prune` with --propose",
        ]),
    ),
    ("notify test", Effect::Writes(&["NotificationProvider, annotation `farwater.dev/requestedAt`"])),
    ("suspend", Effect::Writes(&["ServiceDeployment `spec.suspend`, `spec.suspension`"])),
    (
        "freeze",
        Effect::Writes(&[
            "ChangeWindow, made",
            "with --override: ServiceDeployment or ServiceSet, annotation `farwater.dev/override-freeze`, or \
             `farwater.dev/propose-override` with --propose",
        ]),
    ),
    ("unfreeze", Effect::Writes(&["ChangeWindow, deleted"])),
    ("resume", Effect::Writes(&["ServiceDeployment `spec.suspend`, `spec.suspension`"])),
    ("doctor", Effect::Reads),
    ("version", Effect::Reads),
    ("completion", Effect::Reads),
    ("convert flux", Effect::Reads),
    ("convert argocd", Effect::Reads),
    ("admin backup", Effect::Here("the archive that it writes; the database is only read")),
    (
        "admin restore",
        Effect::Database(
            "everything in it is replaced, and the epoch and the counter go up; another installation's keys give way to the \
             backup's. With --context the hub is stopped and started for it, and signed in to",
        ),
    ),
    ("admin fsck", Effect::Reads),
    ("admin keys list", Effect::Reads),
    (
        "admin keys rotate",
        Effect::Here("`keys/request.json` of the data directory; the hub's next start makes the keys"),
    ),
    ("admin keys announce", Effect::Here("the same, with authorities that agents are told of")),
    ("admin keys revoke", Effect::Here("the same, with what is taken out of use")),
    ("admin kubeconfig", Effect::Reads),
    ("admin copy-store", Effect::Database("another one, made from this one")),
];

#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Reads,
    /// It is the hub.
    Runs,
    /// Something on this machine alone.
    Here(&'static str),
    /// Objects of a cluster that is named by its context.
    Cluster(&'static str),
    /// Objects and fields of the hub.
    Writes(&'static [&'static str]),
    /// The hub's data, below its API and with the hub stopped.
    Database(&'static str),
}

impl Effect {
    fn told(self) -> String {
        match self {
            Self::Reads => "nothing".to_owned(),
            Self::Runs => "it is the hub".to_owned(),
            Self::Here(what) => format!("on this machine: {what}"),
            Self::Cluster(what) => format!("in the cluster: {what}"),
            Self::Writes(fields) => fields.join("; "),
            Self::Database(what) => format!("the database: {what}"),
        }
    }
}

/// The table of `docs/cli.md`.
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

    /// In the order of the alphabet.
    fn commands() -> Vec<String> {
        let mut commands = Vec::new();
        leaves(&crate::Cli::command(), "", &mut commands);
        commands.sort();
        commands
    }

    /// The words before the first argument.
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
            assert!(does.trim_end_matches('|').trim().len() > 5, "docs/cli.md does not say what {usage} does");
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
