//! What the rows of the table say of each other.

use super::*;
use ir::AxisId;
use std::collections::BTreeSet;

#[test]
fn names_and_device_functions_are_there_once() {
    let names: BTreeSet<Atom> = names().into_iter().collect();
    assert_eq!(names.len(), INSTRUCTIONS.len());
    let all: String = INSTRUCTIONS.iter().map(|i| i.text).collect();
    let mut forms = 0;
    for i in INSTRUCTIONS {
        assert_eq!(instruction(i.atom).map(|x| x.atom), Some(i.atom));
        assert_eq!(i.is_matrix(), !i.forms.is_empty(), "{i:?}");
        assert!(i.text.is_empty() || i.text.ends_with('\n'), "{i:?}");
        for row in i.forms {
            forms += 1;
            assert_eq!(row.instruction.atom, i.atom, "{row}");
            let bytes = i.operand_bytes(Some(Dtype::F32));
            assert_eq!(row.operand.bytes(), bytes, "{row}");
            // Rows in registers have a function of their own in warpgroups.
            let named = |suffix: &str| all.contains(&format!(" {}{suffix}(", row.function));
            match (i.scope, i.rows) {
                (Scope::Thread | Scope::Warp, _) => assert!(named(""), "{row}"),
                (Scope::Warpgroup, Rows::Shared) => assert!(named(""), "{row}"),
                (Scope::Warpgroup, Rows::Registers(_)) => assert!(named("_held"), "{row}"),
                (Scope::Warpgroup, Rows::Either(_)) => {
                    assert!(named("") && named("_held"), "{row}");
                }
            }
        }
    }
    assert_eq!(forms, 7);
}

/// Where the layout of rows in registers says that elements are, instructions find them. Oracle: [`Held::element`], which is the manual's.
#[test]
fn rows_in_registers_lie_as_instructions_read_them() {
    let mut checked = 0;
    for i in INSTRUCTIONS {
        let Some(held) = i.rows.held() else { continue };
        let (m, k) = (AxisId(0), AxisId(1));
        let (rows, depth, step) = (16 * i.warps(), 64, i.shape[2]);
        let layout = (held.layout)(
            &Space::new(&[(m, rows)], rows),
            &Space::new(&[(k, depth)], depth),
            (i.warps(), 1),
        );
        let each = 16 * step / 32;
        for warp in 0..i.warps() {
            for (row, at) in (0..16).flat_map(|r| (0..depth).map(move |k| (r, k))) {
                let (lane, element) = (held.element)(row, at % step);
                let register = each * (at / step) + element;
                let place = |axis| layout.coordinate(axis, register, lane as u64, warp);
                assert_eq!((place(m), place(k)), (16 * warp + row, at), "{i:?}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, (1 + 4 + 4) * 16 * 64);
}
