//! Cuts a report to a size that the hub accepts. Even for a huge service, the report of what is wrong must arrive.

use std::io;

use farwater_api::{
    objects::{Health, ObjectReport, ServiceReport, SyncState},
    protocol::{MAX_REPORTED_OBJECTS, MAX_STATUS_BYTES},
};
use farwater_fleet::{conditions::cut, words::counted};

use crate::messages::MAX_MESSAGE;

/// Most bytes for one service: half of a request, so that there is room for the envelope and other reports.
const MAX_SERVICE_BYTES: usize = MAX_STATUS_BYTES / 2;
/// Most bytes of objects' messages, tried in this order.
const MESSAGES: [usize; 3] = [256, 64, 0];

/// The report itself if it is small enough. Otherwise with fewer objects, the unhealthy ones first, and shorter
/// messages, which its message then says.
pub fn fit(mut report: ServiceReport) -> ServiceReport {
    let stated = report.objects.len();
    if stated <= MAX_REPORTED_OBJECTS && json_bytes(&report) <= MAX_SERVICE_BYTES {
        return report;
    }
    // The output of hooks is dropped first; their results stay.
    let outputs = drop_outputs(&mut report);
    if stated <= MAX_REPORTED_OBJECTS && json_bytes(&report) <= MAX_SERVICE_BYTES {
        add_note(&mut report, outputs);
        return report;
    }

    report.objects.sort_by_key(rank);
    report.objects.truncate(MAX_REPORTED_OBJECTS);
    let mut longest = MAX_MESSAGE;
    for limit in MESSAGES {
        if json_bytes(&report) <= MAX_SERVICE_BYTES {
            break;
        }
        longest = limit;
        report
            .objects
            .iter_mut()
            .for_each(|object| object.message = shorten(&object.message, limit));
    }
    // Names alone may be too long, with up to 700 bytes each.
    while json_bytes(&report) > MAX_SERVICE_BYTES && !report.objects.is_empty() {
        report.objects.truncate(report.objects.len() / 2);
    }

    let mut note = format!("this report is cut to {} of {stated} objects", report.objects.len());
    if longest < MAX_MESSAGE {
        note.push_str(&format!(" and to {longest} bytes of each message"));
    }
    add_note(&mut report, &note);
    report
}

/// The report without objects, for a hub that refuses them.
pub fn without_objects(mut report: ServiceReport) -> ServiceReport {
    let note = format!(
        "the hub refused the report of its {}; the agent's log says why",
        counted(report.objects.len(), "object")
    );
    report.objects.clear();
    drop_outputs(&mut report);
    add_note(&mut report, &note);
    report
}

fn drop_outputs(report: &mut ServiceReport) -> &'static str {
    report
        .hooks
        .iter_mut()
        .for_each(|hook| (hook.log, hook.junit) = (None, None));
    "this report is cut: logs and JUnit files are left out"
}

/// Size of the report as JSON.
pub fn json_bytes(report: &ServiceReport) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, report).expect("a report is plain JSON");
    count.0
}

fn rank(object: &ObjectReport) -> u8 {
    match (object.sync, object.health) {
        (SyncState::Synced, Health::Current) => 2,
        (SyncState::Synced, _) => 1,
        _ => 0,
    }
}

fn shorten(text: &str, limit: usize) -> String {
    if limit == 0 { String::new() } else { cut(text, limit) }
}

/// Appends a note, which is never cut off itself.
fn add_note(report: &mut ServiceReport, note: &str) {
    report.message = match report.message.as_str() {
        "" => note.to_owned(),
        message => format!("{}; {note}", cut(message, MAX_MESSAGE.saturating_sub(note.len() + 2))),
    };
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest,
        objects::{ObjectRef, Outcome},
    };

    use super::*;

    fn report(count: usize, name: &str, message: &str) -> ServiceReport {
        let object = |n: usize| ObjectReport {
            object: ObjectRef {
                group: String::new(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: "web".into(),
                name: format!("{name}-{n:05}"),
            },
            sync: SyncState::Synced,
            health: if n + 1 == count {
                Health::Failed
            } else {
                Health::Current
            },
            message: message.to_owned(),
            waits_for: None,
        };
        ServiceReport {
            entry: Digest::of(b"entry"),
            outcome: Outcome::Failed,
            message: "m".repeat(1024),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: (0..count).map(object).collect(),
        }
    }

    /// Expects the number of objects left of `count`, and the length of their messages.
    fn check(count: usize, name: &str, message: &str, expected: (usize, usize)) {
        let fitted = fit(report(count, name, message));
        let longest = fitted.objects.iter().map(|o| o.message.len()).max().unwrap_or_default();
        assert_eq!((fitted.objects.len(), longest), expected);
        assert!(json_bytes(&fitted) <= MAX_SERVICE_BYTES && fitted.message.len() <= MAX_MESSAGE);
        if count > expected.0 {
            assert_eq!(fitted.objects[0].health, Health::Failed);
            assert!(
                fitted.message.contains(&format!("{} of {count} objects", expected.0)),
                "{}",
                fitted.message
            );
        }
    }

    #[test]
    fn messages_are_cut_no_further_than_they_must_be() {
        let whole = report(1000, "a", "x");
        assert_eq!(fit(whole.clone()), whole);
        check(10_000, "a", &"x".repeat(1024), (10_000, 256));
        // Each quote is two bytes of JSON.
        check(10_000, "a", &"\"".repeat(1024), (10_000, 64));
    }

    #[test]
    fn objects_are_left_out_once_no_message_is_left() {
        check(10_001, "a", "", (10_000, 0));
        check(10_000, &"a".repeat(250), &"x".repeat(1024), (10_000, 0));
        check(10_000, &"a".repeat(700), &"x".repeat(1024), (5_000, 0));
    }

    #[test]
    fn cutting_again_changes_nothing() {
        let once = fit(report(12_000, "a", &"x".repeat(1024)));
        assert_eq!(fit(once.clone()), once);
    }

    #[test]
    fn a_refused_report_keeps_its_outcome() {
        let cut = without_objects(report(3, "a", ""));
        assert_eq!((cut.outcome, cut.objects.len()), (Outcome::Failed, 0));
        assert!(cut.message.contains("its 3 objects"));
    }
}
