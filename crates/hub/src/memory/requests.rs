//! Requests of services to fetch their sources at once: from the annotation to its acknowledgement.
//!
//! ```text
//!  assign_revisions: wanted ─► fetch_sources: asking ─► answered ─► assign_revisions: assigned
//!                                                              ─► summarize_reports: acknowledged
//! ```
//!
//! An acknowledged request therefore means one of two things. Either the status reflects what the source had then, or
//! the source could not be fetched, as its own status says. Requests are kept in memory: after a restart, a request
//! that was not acknowledged is made again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::resources::Name;

/// The newest request of each service.
#[derive(Default)]
pub struct Requests(Mutex<HashMap<Name, Request>>);

struct Request {
    /// The annotation's value.
    value: String,
    source_uid: String,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Wanted,
    Asking,
    Answered,
    Assigned,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the request is new, so that its source has to be fetched.
    pub fn want(&self, service: &Name, value: &str, source_uid: &str) -> bool {
        let mut requests = self.lock();
        if requests
            .get(service)
            .is_some_and(|known| known.value == value && known.source_uid == source_uid)
        {
            return false;
        }
        let (value, source_uid) = (value.to_owned(), source_uid.to_owned());
        requests.insert(
            service.clone(),
            Request {
                value,
                source_uid,
                stage: Stage::Wanted,
            },
        );
        true
    }

    /// The source is about to be fetched. This does not answer requests that come later.
    pub fn ask(&self, source_uid: &str) {
        for request in self.lock().values_mut() {
            if request.source_uid == source_uid && request.stage == Stage::Wanted {
                request.stage = Stage::Asking;
            }
        }
    }

    /// The source was fetched and saved. Returns the services that wait for it.
    pub fn answer(&self, source_uid: &str) -> Vec<Name> {
        let mut services = Vec::new();
        for (service, request) in self.lock().iter_mut() {
            if request.source_uid == source_uid && request.stage == Stage::Asking {
                request.stage = Stage::Answered;
                services.push(service.clone());
            }
        }
        services
    }

    pub fn is_answered(&self, service: &Name, value: &str) -> bool {
        self.reached(service, value, Stage::Answered)
    }

    /// The service was reconciled with what its source had then.
    pub fn assign(&self, service: &Name, value: &str) {
        let request = Request {
            value: value.to_owned(),
            source_uid: String::new(),
            stage: Stage::Assigned,
        };
        self.lock().insert(service.clone(), request);
    }

    pub fn is_assigned(&self, service: &Name, value: &str) -> bool {
        self.reached(service, value, Stage::Assigned)
    }

    fn reached(&self, service: &Name, value: &str, stage: Stage) -> bool {
        self.lock()
            .get(service)
            .is_some_and(|request| request.value == value && request.stage >= stage)
    }

    /// Services whose requests are not acknowledged yet.
    pub fn services(&self) -> Vec<Name> {
        self.lock().keys().cloned().collect()
    }

    /// Called when the status acknowledges the request, or the service is gone.
    pub fn forget(&self, service: &Name) {
        self.lock().remove(service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_by_a_question_that_came_after_it() {
        let (requests, web) = (Requests::default(), Name::new("a", "web"));
        assert!(requests.want(&web, "1", "infra"));
        assert!(!requests.want(&web, "1", "infra"));
        // A fetch that began before the request does not answer it.
        assert_eq!(requests.answer("infra"), []);
        requests.ask("infra");
        requests.ask("other");
        assert_eq!(requests.answer("other"), []);
        assert!(!requests.is_answered(&web, "1"));
        assert_eq!(requests.answer("infra"), std::slice::from_ref(&web));
        assert!(requests.is_answered(&web, "1") && !requests.is_assigned(&web, "1"));
        requests.assign(&web, "1");
        assert!(requests.is_answered(&web, "1") && requests.is_assigned(&web, "1"));
        assert!(requests.want(&web, "2", "infra") && !requests.is_assigned(&web, "1"));
    }
}
