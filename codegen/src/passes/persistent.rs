//! Lets as many blocks as find room go over all tiles of the grid.
//!
//! ```text
//! before: those that compute   those that fill      after: those that compute   those that fill
//!   OpenRing(k0)                 OpenRing(k0)         OpenRing(k0)                OpenRing(k0)
//!   Loop …                       Loop …               Tiles                       Tiles
//!   Store                                               Loop …                      Loop …
//!                                                       Store
//! ```
//!
//! Where groups of warps take turns all wait for each other at the end of a tile: the first turn of the next one is given before the last one of this
//! tile was taken.
//!
//! The rings go on from tile to tile, so that the next one is on its way while results are written. It is legal where warps of their own fill
//! rings.

use super::{Apply, Behind, Pass};
use crate::machine::{Among, Machine, Statement, Sync, Turn};
use ir::{Form, KernelSchedule, Reject, Step};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "persistent",
        parts: &[],
        required: false,
        help: "as many blocks as find room go over all tiles",
    },
    behind: &[
        Behind::needs(
            "roles",
            "rings are filled for the next tile while this one ends",
        ),
        Behind::after("turns", "turns end with a tile"),
    ],
    apply: Apply::Statements(|machine, _, _, _| persistent(machine)),
};

/// Only as many blocks are launched as find room, each of which goes over several tiles: those that fill rings begin the next tile while the others
/// still write the former one.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether blocks go over several tiles.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The machine program of blocks that go over several tiles.
///
/// # Errors
/// No warps only fill rings.
pub(crate) fn persistent(mut machine: Machine) -> Result<Machine, Reject> {
    if machine.producers.is_empty() {
        return Err(Reject::Schedule(
            "blocks stay for several tiles, and no warps only fill rings".into(),
        ));
    }
    for producer in &mut machine.producers {
        all_tiles(&mut producer.body, None);
    }
    let meet =
        takes_turns(&machine.body).then_some(Statement::Sync(Sync::Barrier(Among::Computing)));
    all_tiles(&mut machine.body, meet);
    machine.grid.persistent = true;
    Ok(machine)
}

/// Whether groups of warps take turns in the statements.
fn takes_turns(body: &[Statement]) -> bool {
    let first = |s: &Statement| matches!(s, Statement::Sync(Sync::TurnWait(Turn::First)));
    let inside = |s: &Statement| s.lists().into_iter().any(takes_turns);
    body.iter().any(|s| first(s) || inside(s))
}

/// Everything but what stands once in front and behind, for each tile, and something behind each.
fn all_tiles(body: &mut Vec<Statement>, behind: Option<Statement>) {
    let opens = |s: &Statement| matches!(s, Statement::OpenRing(..));
    let (first, mut tile): (Vec<_>, Vec<_>) = body.drain(..).partition(opens);
    let ends = |s: &mut Statement| matches!(s, Statement::Sync(Sync::CopiesEnd));
    let end = tile.pop_if(ends);
    tile.extend(behind);
    body.extend(first);
    body.push(Statement::Tiles(tile));
    body.extend(end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    #[test]
    fn rings_go_on_from_tile_to_tile() {
        let refused = persistent(machine("STORE")).expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "schedule: blocks stay for several tiles, and no warps only fill rings"
        );
        let mut before =
            machine("OpenRing(\"ring0\", 0), RANGE, Loop(number: 0, body: [HERE]), STORE");
        let body = machine(
            "OpenRing(\"ring0\", 1), RANGE, Loop(number: 0, body: [HERE]), Sync(CopiesEnd)",
        )
        .body;
        before.producers.push(crate::machine::Producer {
            threads: 128,
            boxed: false,
            registers: None,
            body,
        });
        let after = persistent(before).expect("legal");
        let producer = &after.producers[0];
        expect![[r#"
            OpenRing(RingId(0), 0)
            tiles
              range of 0
              loop 0
                tile Now(0)
              store to 2
            ---
            OpenRing(RingId(0), 1)
            tiles
              range of 0
              loop 0
                tile Now(0)
            Sync(CopiesEnd)
        "#]]
        .assert_eq(&format!(
            "{}---\n{}",
            outline(&after.body),
            outline(&producer.body)
        ));
    }

    #[test]
    fn turns_end_with_their_tile() {
        let turns = "RANGE, Loop(number: 0, body: [HERE]), If(condition: Group(0), then: [Sync(TurnWait(First))], otherwise: []), STORE";
        let mut before = machine(turns);
        before.producers.push(crate::machine::Producer {
            threads: 128,
            boxed: false,
            registers: None,
            body: Vec::new(),
        });
        let after = persistent(before).expect("legal");
        expect![[r#"
            tiles
              range of 0
              loop 0
                tile Now(0)
              if Group(0)
                Sync(TurnWait(First))
              store to 2
              Sync(Barrier(Computing))
        "#]]
        .assert_eq(&outline(&after.body));
    }
}
