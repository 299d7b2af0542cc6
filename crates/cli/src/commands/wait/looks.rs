//! Repeated reads of one object: when its state is printed, and when the wait is over.

use std::time::{Duration, Instant};

use super::GRACE;
use crate::{terminal::say, text};

/// Pause between two reads of one object.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// How the wait for one object ends without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The object won't get there by itself.
    Stuck,
    TimedOut,
}

/// State of the wait for one object, which is read repeatedly.
pub struct Looks {
    deadline: Instant,
    said: String,
    stuck: Option<Instant>,
}

impl Looks {
    pub fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            said: String::new(),
            stuck: None,
        }
    }

    /// Prints a state that differs from the last one. None: wait with [`Self::pause`] and read the object again.
    pub fn note(&mut self, name: &str, state: &str, is_stuck: bool) -> Option<Over> {
        self.note_as(name, state, state, is_stuck)
    }

    /// The same where `told` counts seconds: it is printed when `state`, which doesn't, differs from the last one.
    pub fn note_as(&mut self, name: &str, state: &str, told: &str, is_stuck: bool) -> Option<Over> {
        if self.is_news(state) {
            say(&format!("{name}: {}", text::plain(told)));
        }
        self.stuck = is_stuck.then(|| self.stuck.unwrap_or_else(Instant::now));
        if self.stuck.is_some_and(|since| since.elapsed() > GRACE) {
            return Some(Over::Stuck);
        }
        (Instant::now() >= self.deadline).then_some(Over::TimedOut)
    }

    fn is_news(&mut self, state: &str) -> bool {
        let is_news = state != self.said;
        state.clone_into(&mut self.said);
        is_news
    }

    /// The last state.
    pub fn state(&self) -> &str {
        &self.said
    }

    pub async fn pause(&self) {
        tokio::time::sleep(LOOK_PAUSE.min(self.deadline.saturating_duration_since(Instant::now()))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_printed_when_it_differs_from_the_last_one() {
        let mut looks = Looks::until(Instant::now());
        let news = ["a", "a", "b", "a"].map(|state| looks.is_news(state));
        assert_eq!(news, [true, false, true, true]);
    }
}
