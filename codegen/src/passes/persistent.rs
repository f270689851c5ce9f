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
//! The rings go on from tile to tile, so that the next one is on its way while results are written. It is legal where warps of their own fill
//! rings.

use crate::machine::{Machine, Statement, Sync};
use ir::Reject;

/// The machine program of blocks that go over several tiles.
///
/// # Errors
/// No warps only fill rings.
pub(crate) fn persistent(mut machine: Machine) -> Result<Machine, Reject> {
    let Some(producer) = &mut machine.producer else {
        return Err(Reject::Schedule(
            "blocks stay for several tiles, and no warps only fill rings".into(),
        ));
    };
    all_tiles(&mut producer.body);
    all_tiles(&mut machine.body);
    machine.grid.persistent = true;
    Ok(machine)
}

/// Everything but what stands once in front and behind, for each tile.
fn all_tiles(body: &mut Vec<Statement>) {
    let opens = |s: &Statement| matches!(s, Statement::OpenRing(..));
    let (first, mut tile): (Vec<_>, Vec<_>) = body.drain(..).partition(opens);
    let ends = |s: &mut Statement| matches!(s, Statement::Sync(Sync::CopiesEnd));
    let end = tile.pop_if(ends);
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
        before.producer = Some(crate::machine::Producer {
            threads: 128,
            boxed: false,
            registers: None,
            body,
        });
        let after = persistent(before).expect("legal");
        let producer = after.producer.expect("warps that fill");
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
}
