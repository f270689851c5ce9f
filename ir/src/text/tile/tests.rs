//! The round trip of tile programs, the validator's reasons, and other extents.

use super::*;
use crate::tile_axes::affine_of;
use crate::tile_split::split_of;

/// Attention with its keys split over two grid points and a combining kernel: every construct at once.
const SOURCE: &str = "tile attention
axis b = 2, i = 10, j = 100, d = 8, e = 8, j_part = 2
buffer q = parameter 0 f16 [b, (i d)]
buffer k = parameter 1 f16 [b, j, d]
buffer v = parameter 2 f16 [b, j, e]
buffer out = output 0 f16 [b, i, e]
buffer m_part = workspace f32 [b, i, j_part]
buffer l_part = workspace f32 [b, i, j_part]
buffer o_part = workspace f32 [b, i, j_part, e]
kernel grid(b: 1, j_part: 1, i: 4) loop(j: 16) whole(d: 8, e: 8) {
  qs = load q[b, i, d]
  minus = -1
  loop j from 64*first(j_part) to 64*first(j_part) + 64, (2*last(i) + 300) / 2 {
    carry m = -inf over [b, i, j_part]
    carry l = 0 over [b, i, j_part]
    carry o = 0 over [b, i, e, j_part]
    ks = load k[b, j, d]
    s = contract(qs, ks; d)
    col = iota(j)
    row = iota(i)
    turned = mul(minus, col)
    ahead = add(row, turned)
    ninety = 90
    kept = add(ahead, ninety)
    low = -inf
    masked = select(kept, s, low)
    r = reduce_max(masked; j)
    m' = max(m, r)
    back = mul(minus, m')
    gap = add(m, back)
    c = exp(gap)
    shifted = add(masked, back)
    p = exp(shifted)
    total = reduce_sum(p; j)
    lc = mul(l, c)
    l' = add(lc, total)
    vs = load v[b, j, e]
    pv = contract(p, vs; j)
    oc = mul(o, c)
    o' = add(oc, pv)
    yield m_end = final(m, m')
    yield l_end = final(l, l')
    yield o_end = final(o, o')
  }
  store m_part = m_end
  store l_part = l_end
  store o_part = o_end
}
kernel grid(b: 1, i: 10) whole(e: 8, j_part: 2) {
  m = load m_part[b, i, j_part] fill -inf
  l = load l_part[b, i, j_part]
  o = load o_part[b, i, j_part, e]
  top = reduce_max(m; j_part)
  minus = -1
  back = mul(minus, top)
  gap = add(m, back)
  c = exp(gap)
  sum = contract(l, c; j_part)
  value = contract(o, c; j_part)
  result = div(value, sum)
  store out = result
}
";

fn read(source: &str) -> TileProgram {
    source.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn axis(tile: &TileProgram, name: &str) -> AxisId {
    let at = tile.axes.iter().position(|a| a.name == name);
    AxisId(at.expect("the axis is there") as u32)
}

#[test]
fn the_text_is_the_program() {
    let tile = read(SOURCE);
    assert_eq!(tile.to_string(), SOURCE);
    assert_eq!(validate(&tile), Ok(()));
    let indices = "tile conv
axis h = 9, oh = 4, kh = 3
buffer x = parameter 0 f32 [h]
buffer y = output 0 f32 [oh]
kernel grid(oh: 2) whole(kh: 3) {
  w = load x[2*oh + kh - 1] fill 0.5
  yield = reduce_sum(w; kh)
  store y = yield
}
";
    assert_eq!(read(indices).to_string(), indices);
    let scans = "tile scans
axis r = 9, i = 40
buffer x = parameter 0 f32 [r, i]
buffer y = output 0 f32 [r, i]
kernel grid(r: 2) whole(i: 40) {
  t = load x[r, i]
  a = scan_max(t; i)
  b = scan_prod_before(a; i)
  c = scan_sum(b; i)
  store y = c
}
";
    assert_eq!(read(scans).to_string(), scans);
    let before = read(scans).kernels[0].values[2].op.clone();
    assert!(
        matches!(
            before,
            TileOp::Scan {
                op: ReduceOp::Product,
                inclusive: false,
                ..
            }
        ),
        "{before:?}"
    );
}

#[test]
fn numbers_of_values_survive_the_text() {
    let mut tile = read(SOURCE);
    let kernel = &mut tile.kernels[1];
    let mut places: Vec<ValueId> = (0..kernel.values.len() as u32).map(ValueId).collect();
    places.reverse();
    renumber(kernel, &places);
    assert_eq!(validate(&tile), Ok(()));
    let text = tile.to_string();
    assert!(text.contains(" values(result, value,"), "{text}");
    assert_eq!(read(&text), tile);
}

/// Every fault is a change of the text above; what the validator says has to hold the given words.
#[test]
fn ill_formed_tile_programs_are_refused_with_the_reason() {
    let cases = [
        ("b = 2, i = 10", "b = 2, i = 0", "extent 0"),
        ("i: 4)", "i: 11)", "expected 1 to 10"),
        ("d: 8, e: 8)", "d: 4, e: 8)", "`d` is whole"),
        ("  store m_part = m_end\n", "", "`m_part` is never stored"),
        (
            "  store l_part = l_end\n",
            "  store l_part = l_end\n  store l_part = l_end\n",
            "stored twice",
        ),
        (
            "store l_part = l_end",
            "store q = qs",
            "store to the parameter `q`",
        ),
        (
            "store m_part = m_end",
            "store m_part = o_end",
            "with the axes {b, i, e, j_part}",
        ),
        ("store m_part = m_end", "store m_part = m'", "not visible"),
        ("store m_part = m_end", "store m_part = m", "not visible"),
        (
            "contract(qs, ks; d)",
            "contract(qs, ks; j)",
            "reduces over {j}, the operand has {b, i, d}",
        ),
        (
            "load q[b, i, d]",
            "load q[b, i]",
            "has 3 axes, the load gives 2",
        ),
        (
            "  m = load m_part",
            "  w = load out[b, i, e]\n  m = load m_part",
            "no earlier kernel stores",
        ),
        (
            "  ks = load k[b, j, d]\n",
            "  w = load m_part[b, i, j_part]\n  ks = load k[b, j, d]\n",
            "no earlier kernel stores",
        ),
        ("64*first(j_part) to", "64*first(j) to", "mentions `j`"),
        ("/ 2 {", "/ 0 {", "divides by 0"),
        (
            "64*first(j_part) to 64*first(j_part) + 64",
            "40*first(j_part) to 40*first(j_part) + 40",
            "no multiple of the tile",
        ),
        (
            "64*first(j_part) to 64*first(j_part) + 64",
            "32*first(j_part) to 32*first(j_part) + 32",
            "does not reach the extent",
        ),
        ("final(l, l')", "final(l, o')", "different axes"),
        ("final(l, l')", "final(l, l)", "does not compute"),
        (
            "carry l = 0 over [b, i, j_part]",
            "carry l = 0 over [b, i, j, j_part]",
            "varies over {j}",
        ),
        (
            "  qs = load q[b, i, d]\n",
            "  qs = load q[b, i, d]\n  col0 = load k[b, j, d]\n",
            "varies over {j}",
        ),
        (
            "grid(b: 1, i: 10) whole(e: 8, j_part: 2)",
            "grid(b: 1, i: 10, j_part: 1) whole(e: 8)",
            "contracts over the grid axis `j_part`",
        ),
        (
            "grid(b: 1, j_part: 1, i: 4) loop(j: 16)",
            "grid(b: 1, j_part: 1, i: 4, j: 16)",
            "reduces over the grid axis `j` inside a loop",
        ),
        (
            "grid(b: 1, j_part: 1, i: 4) loop(j: 16) whole(d: 8, e: 8)",
            "grid(b: 1, j_part: 1, i: 4, d: 8) loop(j: 16) whole(e: 8)",
            "contracts over the grid axis `d`",
        ),
        (
            "grid(b: 1, i: 10) whole(e: 8, j_part: 2)",
            "grid(b: 1, i: 10) whole(e: 8, j_part: 2, d: 8)",
            "",
        ),
        (
            "  qs = load q[b, i, d]\n",
            "  qs = load q[b, i, d]\n  w = scan_sum(qs; i)\n",
            "`w` scans along the grid axis `i`",
        ),
        (
            "  qs = load q[b, i, d]\n",
            "  qs = load q[b, i, d]\n  w = scan_sum(qs; e)\n",
            "scans along `e`, the operand has {b, i, d}",
        ),
        ("loop j from", "loop i from", "no loop axis"),
        ("output 0", "output 1", "expected 0, 1"),
        (
            "buffer out =",
            "buffer v = workspace f32 [b]\nbuffer out =",
            "two of the same name",
        ),
        (
            "kernel grid(b: 1, j_part: 1, i: 4)",
            "kernel grid(b: 1, j_part: 1, i: 4, e: 8)",
            "already",
        ),
    ];
    let mut wrong = Vec::new();
    let mut refused = 0;
    for (from, to, reason) in cases {
        assert!(SOURCE.contains(from), "{from}");
        let text = SOURCE.replacen(from, to, 1);
        match text.parse::<TileProgram>() {
            Ok(_) if reason.is_empty() => {}
            Ok(_) => wrong.push(format!("accepted: {to}")),
            Err(why) => {
                if reason.is_empty() || !why.to_string().contains(reason) {
                    wrong.push(format!("{to}: {why}"));
                }
                refused += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(refused, cases.len() - 1);
    // What the text cannot even say.
    let mut tile = read(SOURCE);
    tile.kernels[0].values[0].axes = AxisSet::new();
    tile.kernels[1].grid.pop();
    let twin = tile.kernels[1].values[0].clone();
    tile.kernels[1].values.push(twin);
    let faults = validate(&tile).expect_err("three faults");
    let all = faults.join("\n");
    assert!(all.contains("`qs` says that its axes are {}"), "{all}");
    assert!(all.contains("the grid lists {b}"), "{all}");
    assert!(all.contains("kernel 1: two of the same name"), "{all}");
}

#[test]
fn block_groups_reduce_across_the_grid() {
    let rows = "tile rows
axis i = 64, j = 100, part = 4
buffer x = parameter 0 f32 [i, j]
buffer sums = output 0 f32 [i]
kernel grid(i: 16, part: 1) loop(j: 32) {
  loop j from 32*first(part) to 32*first(part) + 32 {
    carry s = 0 over [i, part]
    t = load x[i, j]
    r = reduce_sum(t; j)
    next = add(s, r)
    yield own = final(s, next)
  }
  all = reduce_sum(own; part)
  store sums = all
}
";
    let tile = read(rows);
    assert_eq!(
        tile.kernels[0].block_group(),
        [axis(&tile, "part")].into_iter().collect()
    );
    let reason = |from: &str, to: &str| {
        let text = rows.replacen(from, to, 1);
        text.parse::<TileProgram>()
            .expect_err("refused")
            .to_string()
    };
    // Each point has its own sum, whatever the axes say.
    let same = rows.replacen("[i, part]", "[i]", 1).replacen(
        "all = reduce_sum(own; part)",
        "all = reduce_sum(x2; part)\n  both = add(own, all)",
        1,
    );
    let same = same
        .replacen("  loop j from", "  x2 = iota(part)\n  loop j from", 1)
        .replacen("sums = all", "sums = both", 1);
    let same = same
        .parse::<TileProgram>()
        .expect_err("refused")
        .to_string();
    assert!(
        same.contains("carry `s` does not vary over {part}"),
        "{same}"
    );
    let alone = reason("all = reduce_sum(own; part)", "all = mul(own, own)");
    assert!(
        alone.contains("with the axes {i, part} to `sums`"),
        "{alone}"
    );
}

#[test]
fn elements_are_written_once() {
    let rows = "tile rows
axis i = 64, j = 100
buffer x = parameter 0 f32 [i, j]
buffer out = output 0 f32 [i, j]
kernel grid(i: 16) loop(j: 32) {
  loop j {
    t = load x[i, j]
    store out = t
  }
}
";
    read(rows);
    let reason = |from: &str, to: &str| {
        let text = rows.replacen(from, to, 1);
        text.parse::<TileProgram>()
            .expect_err("refused")
            .to_string()
    };
    assert!(reason("loop j {", "loop j to last(i) + 1 {").contains("leaves out a part"));
    let scalar = reason("[i, j]\nkernel", "[j]\nkernel");
    assert!(
        scalar.contains("with the axes {i, j} to `out`, which has {j}"),
        "{scalar}"
    );
    let twice = rows
        .replace("x = parameter 0 f32 [i, j]", "x = parameter 0 f32 [j]")
        .replace("output 0 f32 [i, j]", "output 0 f32 [j]")
        .replace("load x[i, j]", "load x[j]");
    let why = twice
        .parse::<TileProgram>()
        .expect_err("refused")
        .to_string();
    assert!(why.contains("several grid points along `i`"), "{why}");
}

/// Bounds read parameters of integers, and what is f32, where each of their axes has one coordinate, and indices may be divided.
#[test]
fn bounds_read_integers() {
    const ROWS: &str = "tile rows
axis t = 6, v = 40, d = 8
buffer ids = parameter 0 i64 [t]
buffer table = parameter 1 f16 [v, d]
buffer out = output 0 f16 [t, d]
kernel grid(t: 1, d: 8) loop(v: 4) {
  loop v from 2*ids[t] - 1, (first(t) - ids[t] + 3) / 2 to ids[t] + 1 {
    carry sum = 0 over [t, d]
    x = load table[(-t + v + 1) / 2, d] fill -1
    part = reduce_sum(x; v)
    next = add(sum, part)
    yield all = final(sum, next)
  }
  store out = all
}
";
    let tile = read(ROWS);
    assert_eq!(tile.to_string(), ROWS);
    let entries = tile.kernels[0].entries();
    assert_eq!(entries.len(), 1);
    assert!(entries.iter().all(|e| e.axes == [axis(&tile, "t")]));
    read(&ROWS.replace("i64 [t]", "f32 [t]"));
    let unstored = ROWS.replace(
        "output 0 f16 [t, d]",
        "output 0 f16 [t, d]\nbuffer last = workspace f32 [t]",
    );
    let unstored = unstored.replace("to ids[t]", "to last[t]");
    let found = unstored.parse::<TileProgram>().expect_err("refused");
    let why = "`last`, which no earlier kernel stores";
    assert!(found.to_string().contains(why), "{found}");
    let reason = |from: &str, to: &str| {
        let text = ROWS.replace(from, to);
        let found = text.parse::<TileProgram>().expect_err("refused");
        found.to_string()
    };
    for (from, to, why) in [
        (
            "grid(t: 1",
            "grid(t: 2",
            "`ids` along `t`, which has no single coordinate",
        ),
        (
            "i64 [t]",
            "bool [t]",
            "`ids`, which is neither a parameter of integers nor f32, but bool",
        ),
        (
            "to ids[t]",
            "to out[t]",
            "`out`, which is neither a parameter of integers nor f32, but f16",
        ),
        ("to ids[t]", "to ids[d]", "along other axes than its own"),
        ("to ids[t]", "to ids[]", "along other axes than its own"),
        ("to ids[t] + 1", "to 9000000000000*ids[t]", "overflows"),
        (") / 2, d]", ") / 0, d]", "divided by 1 or more"),
    ] {
        let found = reason(from, to);
        assert!(found.contains(why), "{found}");
    }
}

/// What an integer or a boolean is stored from is no longer there to be read.
#[test]
fn whole_numbers_are_read_by_no_later_kernel() {
    let text = |dtype: &str| {
        format!(
            "tile twice
axis i = 6
buffer x = parameter 0 f32 [i]
buffer out = output 0 {dtype} [i]
buffer last = output 1 f32 [i]
kernel grid(i: 2) {{
  a = load x[i]
  store out = a
}}
kernel grid(i: 2) {{
  b = load out[i]
  store last = b
}}
"
        )
    };
    read(&text("f32"));
    for dtype in ["i32", "i64", "bool"] {
        let found = text(dtype).parse::<TileProgram>().expect_err("refused");
        let why = format!("holds no longer what was stored: it is {dtype}");
        assert!(found.to_string().contains(&why), "{found}");
    }
}

#[test]
fn other_extents_keep_splits_real() {
    let tile = read(SOURCE);
    let [i, j, part] = ["i", "j", "j_part"].map(|n| axis(&tile, n));
    let extents = BTreeMap::from([(i, 3), (j, 7), (part, 3)]);
    let small = tile
        .resized(&extents, |_, a| (a == j).then_some(2))
        .expect("well formed");
    let kernel = &small.kernels[0];
    assert_eq!(
        (kernel.tile(i), kernel.tile(j), kernel.tile(part)),
        (3, 2, 1)
    );
    assert_eq!(small.kernels[1].tile(part), 3);
    let looped = kernel.body.iter().find_map(|s| match s {
        Statement::Loop(looped) => Some(looped),
        Statement::Let(_) | Statement::Store { .. } => None,
    });
    // ⌈7/2⌉ = 4 tiles over 3 parts: 2 tiles, 4 coordinates each.
    let split = split_of(kernel, looped.expect("a loop")).expect("a split");
    assert_eq!((split.part, split.chunk), (part, 4));
    assert!(
        tile.resized(&BTreeMap::from([(j, 0)]), |_, _| None)
            .is_err()
    );
    assert_eq!(
        tile.resized(&BTreeMap::new(), |_, _| None),
        Ok(tile.clone())
    );
}

/// Rows of two axes as one, and a table that one kernel reads by its axes and another one by the one in their place.
const COLLAPSED: &str = "tile rows
axis b = 3, t = 5, n = 4, row = (b t)
buffer x = parameter 0 f32 [b, t, n]
buffer z = parameter 1 f32 [row]
buffer out = output 0 f32 [b, t, n]
buffer last = output 1 f32 [b, t]
kernel grid(n: 2, row: 4) {
  xs = load x[row, n]
  store out = xs
}
kernel grid(b: 1, t: 2) whole(n: 4) {
  ys = load out[b, t, n]
  y = reduce_sum(ys; n)
  store last = y
}
";

#[test]
fn collapsed_axes_stand_for_others() {
    let tile = read(COLLAPSED);
    assert_eq!(tile.to_string(), COLLAPSED);
    let [b, t, n, row] = ["b", "t", "n", "row"].map(|n| axis(&tile, n));
    assert_eq!(tile.extent(row), 15);
    let (x, out) = (BufferId(0), BufferId(2));
    let along = |axes: &[AxisId]| -> Vec<Quotient> {
        axes.iter().map(|a| Affine::axis(*a).into()).collect()
    };
    assert_eq!(tile.axes_loaded(x, &along(&[row, n])), [row, n]);
    assert_eq!(tile.axes_loaded(x, &along(&[b, t, n])), [b, t, n]);
    let stored = |axes: &[AxisId]| tile.axes_stored(out, &axes.iter().copied().collect());
    assert_eq!(stored(&[n, row]), [row, n]);
    assert_eq!(stored(&[b, t, n]), [b, t, n]);
    assert_eq!(
        (tile.members(x, row), tile.members(x, t)),
        (vec![b, t], vec![t])
    );
    // Its extent follows from theirs, whatever is said of it.
    let small = tile
        .resized(&BTreeMap::from([(t, 1), (row, 2)]), |_, _| None)
        .expect("well formed");
    assert_eq!((small.extent(row), small.kernels[0].tile(row)), (3, 3));
}

#[test]
fn collapsed_axes_that_stand_for_nothing_are_refused() {
    let faulty = |from: &str, to: &str| {
        let text = COLLAPSED.replace(from, to);
        assert_ne!(text, COLLAPSED, "{from}");
        let faults = text.parse::<TileProgram>().expect_err("refused");
        faults.to_string()
    };
    for (from, to, why) in [
        ("(b t)", "(b m)", "no axis `m` is declared"),
        // Not as they lie in the buffer.
        ("(b t)", "(t b)", "buffer `x` has 3 axes, the load gives 2"),
        (
            "load x[row, n]",
            "load x[n, row]",
            "buffer `x` has 3 axes, the load gives 2",
        ),
        (
            "load x[row, n]",
            "load x[row + 1, n]",
            "buffer `x` has 3 axes, the load gives 2",
        ),
        (
            "xs = load x[row, n]\n",
            "ys = load x[row, n]\n  at = iota(row)\n  xs = add(ys, at)\n",
            "the coordinate along `row`, which is a collapsed axis",
        ),
        (
            "xs = load x[row, n]\n",
            "ys = load x[row, n]\n  zs = load z[row - 1]\n  xs = add(ys, zs)\n",
            "an index that is not `row` itself, but made of the collapsed axis `row`",
        ),
    ] {
        let found = faulty(from, to);
        assert!(found.contains(why), "{to}: {found}");
    }
    let tile = read(COLLAPSED);
    let [b, t, n, row] = ["b", "t", "n", "row"].map(|n| axis(&tile, n));
    for (members, why) in [
        (vec![b], "it stands for several axes, at least 2"),
        (vec![b, b], "axis `b` is used twice"),
        (vec![t, n], "the extents of what it stands for make 20"),
        (vec![b, row], "`row` does not stand before it"),
        (vec![b, AxisId(9)], "no axis number 9"),
    ] {
        let mut tile = tile.clone();
        tile.collapsed.insert(row, members);
        let faults = validate(&tile).expect_err("refused").join("; ");
        assert!(faults.contains(&format!("axis `row`: {why}")), "{faults}");
    }
    // Loops go over all of it, but for the parts of a split.
    for (axes, looped, why) in [
        (
            "grid(n: 2) loop(row: 4)",
            "row from 1",
            "the loop over the collapsed axis `row` leaves out a part of it",
        ),
        (
            "grid(n: 2, row: 4) loop(b: 1)",
            "b from first(row)",
            "a bound of the loop over `b` mentions a collapsed axis",
        ),
    ] {
        let body = "  xs = load x[row, n]\n  store out = xs\n";
        let text = COLLAPSED.replace("grid(n: 2, row: 4)", axes);
        let text = text.replace(body, &format!("  loop {looped} {{\n{body}  }}\n"));
        let faults = text.parse::<TileProgram>().expect_err("refused");
        assert!(faults.to_string().contains(why), "{text}{faults}");
    }
    let mut tile = tile.clone();
    tile.axes.push(Axis {
        name: "all".to_owned(),
        extent: 60,
    });
    tile.collapsed.insert(AxisId(4), vec![row, n]);
    let faults = validate(&tile).expect_err("refused").join("; ");
    assert!(
        faults.contains("axis `all`: `row` stands for others itself"),
        "{faults}"
    );
}

#[test]
fn affine_values_are_recognised() {
    let tile = read(SOURCE);
    let kernel = &tile.kernels[0];
    let find = |name: &str| {
        let at = kernel.values.iter().position(|v| v.name == name);
        ValueId(at.expect("the value is there") as u32)
    };
    let [i, j] = ["i", "j"].map(|n| axis(&tile, n));
    assert_eq!(
        affine_of(kernel, find("kept")),
        Affine::new([(1, i), (-1, j)], 90)
    );
    assert_eq!(affine_of(kernel, find("s")), None);
    assert_eq!(affine_of(kernel, find("low")), None);
}
