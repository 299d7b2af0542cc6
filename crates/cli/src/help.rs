//! `farwater help`: the commands, grouped by task.

use crate::text;

/// The groups with their commands. A test checks that every command is in exactly one.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["install", "login", "cluster", "deploy", "convert"]),
    (
        "Look",
        &[
            "get", "tree", "why", "wait", "objects", "history", "hooks", "plan", "impact", "render", "explain",
            "doctor", "version",
        ],
    ),
    (
        "Change",
        &[
            "rollout", "rollback", "pipeline", "approve", "suspend", "resume", "freeze", "unfreeze", "undo", "delete",
        ],
    ),
    (
        "Administer",
        &["hub", "admin", "tenant", "notify", "completion", "help"],
    ),
];

/// Clap's template without its list of commands, which can't have groups.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n";

/// Replaces the list of commands in the help by the groups.
pub fn grouped(command: clap::Command) -> clap::Command {
    let text = groups(&command);
    command.help_template(format!("{TEMPLATE}{text}\nOptions:\n{{options}}\n"))
}

fn groups(command: &clap::Command) -> String {
    let widest = command
        .get_subcommands()
        .map(|one| text::width(one.get_name()))
        .max()
        .unwrap_or_default();
    let mut page = String::new();
    for (heading, names) in GROUPS {
        page += &format!("\n{heading}:\n");
        for name in names {
            let about = match command.find_subcommand(name).and_then(clap::Command::get_about) {
                Some(about) => about.to_string(),
                // Clap adds the `help` command only when it parses.
                None => "Prints this help, or that of a command".to_owned(),
            };
            page += &format!("  {name:widest$}  {about}\n");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_says_what_it_does_in_a_line() {
        let command = crate::Cli::command();
        let mut known: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .chain(["help"])
            .collect();
        let mut told: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        known.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, known);
        let page = groups(&command);
        assert!(
            page.starts_with("\nStart:\n  install     Installs a hub in a cluster and signs in\n"),
            "{page}"
        );
        assert!(page.lines().all(|line| text::width(line) <= 80), "{page}");
    }

    #[test]
    fn help_is_grouped_and_lists_the_options_of_the_connection() {
        let help = grouped(crate::Cli::command()).render_help().to_string();
        let order = [
            "Usage:",
            "Start:",
            "Look:",
            "Change:",
            "Administer:",
            "Options:",
            "--kubeconfig",
        ];
        let places: Vec<_> = order
            .iter()
            .map(|part| help.find(part).unwrap_or_else(|| panic!("{part}: {help}")))
            .collect();
        assert!(places.is_sorted(), "{help}");
    }
}
