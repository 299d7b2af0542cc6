//! Removes a service's secret parameters and decrypted values from the output of its hooks and tests, because programs
//! print such values.
//!
//! All other texts of a report are by the agent or an API server and hold no values; concealing them would hide names
//! in them.

use farwater_api::hooks::{HookReport, MAX_JUNIT_BYTES, MAX_LOG_BYTES};
use farwater_fleet::plan::veil::Veil;

use crate::messages::shorten;

pub fn conceal(mut hooks: Vec<HookReport>, veil: &Veil) -> Vec<HookReport> {
    if veil.is_empty() {
        return hooks;
    }
    for hook in &mut hooks {
        hook.message = shorten(&veil.conceal(&hook.message));
        // Concealing may have made them longer.
        hook.log = hook.log.take().map(|log| end(veil.conceal(&log), MAX_LOG_BYTES));
        hook.junit = hook
            .junit
            .take()
            .map(|junit| veil.conceal(&junit))
            .filter(|junit| junit.len() <= MAX_JUNIT_BYTES);
    }
    hooks
}

/// The last part of a text, at most `bytes` long.
fn end(text: String, bytes: usize) -> String {
    let from = (text.len().saturating_sub(bytes)..=text.len()).find(|at| text.is_char_boundary(*at));
    from.map_or_else(String::new, |from| text[from..].to_owned())
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest,
        hooks::{HookPhase, HookState},
        objects::ObjectRef,
    };

    use super::*;

    #[test]
    fn what_hooks_say_of_secret_values_is_not_told() {
        let said = "login as hunter2-of-db failed".to_owned();
        let hook = HookReport {
            object: ObjectRef {
                group: String::new(),
                version: "v1".into(),
                kind: "Pod".into(),
                namespace: "web".into(),
                name: "a".into(),
            },
            phase: HookPhase::Test,
            run: Digest::of("run"),
            state: HookState::Failed,
            message: said.clone(),
            test: None,
            started: None,
            ended: None,
            exit_code: None,
            log: Some("hunter2-of-db ä ".repeat(600) + &said),
            junit: Some(said),
        };
        assert_eq!(
            conceal(vec![hook.clone()], &Veil::default()),
            std::slice::from_ref(&hook)
        );
        let mut veil = Veil::default();
        veil.add("hunter2-of-db");
        let concealed = conceal(vec![hook], &veil).remove(0);
        assert!(
            !serde_json::to_string(&concealed).unwrap().contains("hunter2"),
            "{concealed:?}"
        );
        assert_eq!(concealed.message, "login as (secret) failed");
        let log = concealed.log.unwrap();
        assert!(
            log.len() <= MAX_LOG_BYTES && log.ends_with("login as (secret) failed"),
            "{log}"
        );
    }

    #[test]
    fn the_end_of_a_text_begins_with_a_whole_character() {
        let check = |text: &str, bytes: usize, expected: &str| assert_eq!(end(text.to_owned(), bytes), expected);
        check("aäb", 2, "b");
        check("ab", 5, "ab");
        check("ab", 0, "");
    }
}
