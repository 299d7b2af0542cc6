//! P17: resting members are not read. A decision by the numbers of resting members equals one that looks at all of
//! them.

use farwater_fleet::rollout::{
    ChangeId, Decision, Evidence, Member, Published, Reach, Rest, Resting, Stands, Track, decide, place,
};

use crate::{row::Row, world::World};

/// How a member rests, and its state when that was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Rested {
    rest: Rest,
    step: u16,
    wanted: Option<ChangeId>,
    track: Track,
    published: Option<Published>,
    evidence: Option<Evidence>,
    reach: Reach,
    stands: Option<Stands>,
}

impl Rested {
    fn of(rest: Rest, row: &Row, reach: Reach) -> Self {
        // A new contact with the same state is no change.
        let reach = if matches!(reach, Reach::Heard { .. }) {
            Reach::Heard { at: 0 }
        } else {
            reach
        };
        let (evidence, stands) = (row.evidence.clone(), row.stands());
        let Row {
            step,
            wanted,
            track,
            published,
            ..
        } = *row;
        Self {
            rest,
            step,
            wanted,
            track,
            published,
            evidence,
            reach,
            stands,
        }
    }

    fn still(&self, row: &Row, reach: Reach) -> bool {
        *self == Self::of(self.rest, row, reach)
    }
}

/// Notes which members rest after the decision.
pub fn note(world: &mut World, rests: &[Option<Rest>]) {
    for (index, rest) in rests.iter().enumerate() {
        let reach = world.reach(&world.rows[index]);
        let row = &mut world.rows[index];
        row.rested = rest.map(|rest| Rested::of(rest, row, reach));
    }
}

/// Compares the decision by numbers with the one by all members. Returns whether there was a comparison.
pub fn judge(world: &World, decision: &Decision) -> Result<bool, String> {
    let mut resting = Resting::default();
    let mut awake = Vec::new();
    for (index, row) in world.rows.iter().enumerate() {
        match &row.rested {
            Some(rested) if rested.still(row, world.reach(row)) => resting.add(row.step, rested.rest, 1),
            _ => awake.push(index),
        }
    }
    let labels = awake.iter().map(|index| &world.rows[*index].labels);
    let suffice = resting.suffice(&world.policy, (&world.state, world.target()), labels);
    if resting == Resting::default() || !suffice {
        return Ok(false);
    }
    let all = world.members();
    let members: Vec<Member<'_>> = awake.iter().map(|index| all[*index].clone()).collect();
    let found = decide(
        &world.policy,
        &world.state,
        world.target(),
        (&members, &resting),
        world.clock,
    );
    let of_all = |indices: &[usize]| indices.iter().map(|index| awake[*index]).collect();
    let found = Decision {
        tracks: found
            .tracks
            .iter()
            .map(|(index, track)| (awake[*index], *track))
            .collect(),
        released: of_all(&found.released),
        retracted: of_all(&found.retracted),
        rests: decision.rests.clone(),
        ..found
    };
    if found != *decision {
        return Err(format!(
            "P17: {decision:?} of all, and {found:?} of {awake:?} beside {resting:?}"
        ));
    }
    let clusters = world.clusters();
    let some: Vec<_> = awake.iter().map(|index| clusters[*index]).collect();
    let steps = place(&world.policy, &some, &resting);
    let expected = place(&world.policy, &clusters, &Resting::default());
    let same = awake.iter().zip(&steps).all(|(index, step)| expected[*index] == *step);
    let stay = (0..all.len()).all(|index| awake.contains(&index) || expected[index] == all[index].step);
    if same && stay {
        Ok(true)
    } else {
        Err(format!("P17: placed at {steps:?} of {expected:?}, {awake:?}"))
    }
}
