//! The time until the next poll.

use std::time::Duration;

use farwater_api::protocol::Number;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{connection::Link, sync::full_jitter};

/// Shortest time between polls, so that faster hints cause only one: a hub that never stops hinting gets twenty polls a
/// second.
const GAP: Duration = Duration::from_millis(50);

/// The result of the last poll.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// Time until the next poll without a connection.
    pub usual: Duration,
    /// The poll was answered and nothing is left to retry, so a connection may make the pause longer.
    pub settled: bool,
    /// The hub asked for a pause, which no hint may shorten.
    pub hold: bool,
    /// Number of the agent's desired state.
    pub accepted: Option<Number>,
}

impl Pause {
    /// Waits. `known`: the state of the connection when the last poll began.
    pub async fn wait(self, link: &mut watch::Receiver<Link>, known: Link) {
        let begun = Instant::now();
        let mut before = known;
        let mut due = begun + self.length(&before);
        // A poll that is due because the connection was lost. It stays due if another connection is opened meanwhile.
        let mut owed = None;
        loop {
            let now = *link.borrow_and_update();
            if !self.hold && self.is_news(&before, &now) {
                due = due.min(begun + GAP);
            } else if before.poll_every.is_some() && now.poll_every.is_none() && self.settled {
                due = self.after_loss(begun, now.poll_within);
                owed = Some(due);
            } else if before.poll_every != now.poll_every {
                let usual = begun + self.length(&now);
                due = owed.map_or(usual, |owed| usual.min(owed));
            }
            before = now;
            tokio::select! {
                () = sleep_until(due) => return,
                changed = link.changed() => if changed.is_err() {
                    return sleep_until(due).await;
                },
            }
        }
    }

    fn length(&self, link: &Link) -> Duration {
        // A newer state was announced but the poll didn't return it: a lagging replica or a cache answered.
        let behind = link.newest > self.accepted;
        match link.poll_every {
            Some(every) if self.settled && !behind => every.max(self.usual),
            _ => self.usual,
        }
    }

    fn is_news(&self, before: &Link, now: &Link) -> bool {
        now.asked != before.asked || now.newest > before.newest && now.newest > self.accepted
    }

    /// Spreads the polls after a loss: all agents lose their connections at the same time, and none has polled lately.
    fn after_loss(&self, begun: Instant, within: Duration) -> Instant {
        let now = Instant::now();
        let soon = now + full_jitter(within.min(self.usual));
        let usual = begun + self.usual;
        if usual > now { usual.min(soon) } else { soon }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const USUAL: Duration = Duration::from_secs(30);
    const EVERY: Duration = Duration::from_secs(300);

    fn number(generation: u64) -> Option<Number> {
        Some(Number { epoch: 1, generation })
    }

    fn pause() -> Pause {
        Pause {
            usual: USUAL,
            settled: true,
            hold: false,
            accepted: number(5),
        }
    }

    fn connected() -> Link {
        Link {
            poll_every: Some(EVERY),
            newest: number(5),
            ..Link::default()
        }
    }

    /// The time that a pause takes while the connection changes every second.
    async fn waited(pause: Pause, known: Link, changes: &[Link]) -> Duration {
        let (sender, mut receiver) = watch::channel(known);
        let begun = Instant::now();
        let changing = async {
            for change in changes {
                tokio::time::sleep(SECOND).await;
                sender.send_replace(*change);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! { () = pause.wait(&mut receiver, known) => {} () = changing => {} }
        begun.elapsed()
    }

    fn about(time: Duration, expected: Duration) {
        assert!(time.abs_diff(expected) < SECOND / 10, "{time:?}, not {expected:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_connection_polls_come_as_always() {
        about(waited(pause(), Link::default(), &[]).await, USUAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_makes_polls_rare_and_a_hint_makes_one_at_once() {
        about(waited(pause(), connected(), &[]).await, EVERY);
        about(waited(pause(), Link::default(), &[connected()]).await, EVERY);
        about(
            waited(
                pause(),
                connected(),
                &[Link {
                    newest: number(6),
                    ..connected()
                }],
            )
            .await,
            SECOND,
        );
        about(
            waited(
                pause(),
                connected(),
                &[Link {
                    asked: 1,
                    ..connected()
                }],
            )
            .await,
            SECOND,
        );
        // Duplicate hints, or hints about the present or an older state.
        let old = Link {
            newest: number(4),
            ..connected()
        };
        about(waited(pause(), old, &[connected(), connected()]).await, EVERY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_that_came_during_the_poll_makes_another_one() {
        let (sender, mut receiver) = watch::channel(connected());
        let known = *receiver.borrow_and_update();
        sender.send_replace(Link {
            newest: number(6),
            ..connected()
        });
        let begun = Instant::now();
        pause().wait(&mut receiver, known).await;
        about(begun.elapsed(), GAP);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_announced_and_has_not_come_is_polled_for_as_without_a_connection() {
        about(
            waited(
                pause(),
                Link {
                    newest: number(6),
                    ..connected()
                },
                &[],
            )
            .await,
            USUAL,
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_makes_a_poll_soon_at_a_random_moment() {
        let lost = Link {
            poll_every: None,
            poll_within: 5 * SECOND,
            ..connected()
        };
        let mut waits = Vec::new();
        for _ in 0..20 {
            waits.push(waited(pause(), connected(), &[lost]).await);
        }
        assert!(
            waits
                .iter()
                .all(|wait| (SECOND..=6 * SECOND + SECOND / 10).contains(wait)),
            "{waits:?}"
        );
        assert!(
            waits.iter().max().unwrap().abs_diff(*waits.iter().min().unwrap()) > SECOND / 2,
            "{waits:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_that_a_loss_made_necessary_comes_also_after_another_connection() {
        let lost = Link {
            poll_every: None,
            poll_within: 5 * SECOND,
            ..connected()
        };
        for _ in 0..20 {
            let waited = waited(pause(), connected(), &[lost, connected()]).await;
            assert!(waited <= 6 * SECOND + SECOND / 10, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_repeated_as_without_a_connection_and_a_hub_that_asks_for_it_is_left_alone() {
        let failed = Pause {
            settled: false,
            ..pause()
        };
        about(waited(failed, connected(), &[]).await, USUAL);
        let hint = Link {
            newest: number(6),
            ..connected()
        };
        about(waited(failed, connected(), &[hint]).await, SECOND);
        about(
            waited(Pause { hold: true, ..failed }, connected(), &[hint]).await,
            USUAL,
        );
    }
}
