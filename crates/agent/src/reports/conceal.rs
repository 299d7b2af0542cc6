//! Takes out of a report what its service was handed as a secret, or has encrypted: programs say such values in their logs and last
//! words.

use farwater_api::{
    hooks::{MAX_JUNIT_BYTES, MAX_LOG_BYTES},
    objects::ServiceReport,
};
use farwater_fleet::plan::veil::Veil;

use crate::messages::shorten;

pub fn conceal(mut report: ServiceReport, veil: &Veil) -> ServiceReport {
    if veil.is_empty() {
        return report;
    }
    let hide = |text: &mut String| {
        if !text.is_empty() {
            *text = shorten(&veil.conceal(text));
        }
    };
    hide(&mut report.message);
    report.objects.iter_mut().for_each(|object| hide(&mut object.message));
    for hook in &mut report.hooks {
        hide(&mut hook.message);
        // It may be longer now.
        hook.log = hook.log.take().map(|log| end(veil.conceal(&log), MAX_LOG_BYTES));
        hook.junit = hook.junit.take().map(|junit| veil.conceal(&junit)).filter(|junit| junit.len() <= MAX_JUNIT_BYTES);
    }
    report
}

/// At most so many bytes.
fn end(text: String, bytes: usize) -> String {
    let from = (text.len().saturating_sub(bytes)..=text.len()).find(|at| text.is_char_boundary(*at));
    from.map_or_else(String::new, |from| text[from..].to_owned())
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest,
        hooks::{HookPhase, HookReport, HookState},
        objects::{Health, ObjectRef, ObjectReport, Outcome, SyncState},
    };

    use super::*;

    #[test]
    fn what_programs_say_of_secret_values_is_not_told() {
        let object = ObjectRef {
            group: String::new(),
            version: "v1".into(),
            kind: "Pod".into(),
            namespace: "web".into(),
            name: "a".into(),
        };
        let said = "login as hunter2-of-db failed".to_owned();
        let hook = HookReport {
            object: object.clone(),
            phase: HookPhase::Test,
            run: Digest::of("run"),
            state: HookState::Failed,
            message: said.clone(),
            test: None,
            started: None,
            ended: None,
            exit_code: None,
            log: Some(said.clone() + &"hunter2-of-db ä".repeat(600)),
            junit: Some(said.clone()),
        };
        let object = ObjectReport {
            object,
            sync: SyncState::Synced,
            health: Health::Failed,
            message: said.clone(),
            waits_for: None,
        };
        let report = ServiceReport {
            entry: Digest::of("entry"),
            outcome: Outcome::Failed,
            message: said,
            held_prune: None,
            deletion: None,
            hooks: vec![hook],
            objects: vec![object],
        };
        assert_eq!(conceal(report.clone(), &Veil::default()), report);
        let mut veil = Veil::default();
        veil.add("hunter2-of-db");
        let concealed = conceal(report, &veil);
        assert!(!serde_json::to_string(&concealed).unwrap().contains("hunter2"), "{concealed:?}");
        assert_eq!(concealed.objects[0].message, "login as (secret) failed");
        let log = concealed.hooks[0].log.as_deref().unwrap();
        assert!(log.len() <= MAX_LOG_BYTES && log.ends_with("(secret) ä"), "{log}");
    }

    #[test]
    fn the_end_of_a_text_begins_with_a_whole_character() {
        assert_eq!(
            (end("aäb".to_owned(), 2), end("ab".to_owned(), 5), end("ab".to_owned(), 0)),
            ("b".into(), "ab".into(), String::new())
        );
    }
}
