//! What is offered, and what is tried first.

use super::*;
use codegen::passes::{instruction, multicast, persistent, raster, warps};
use ir::{Atom, Wishes};

fn h200() -> Target {
    crate::targets::target("h200").expect("a target")
}

fn tile(text: &str) -> TileProgram {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn fastest(text: &str) -> KernelSchedule {
    ranked(&tile(text), &h200()).remove(0).schedule
}

/// What the clock says of a schedule.
fn us(tile: &TileProgram, schedule: &KernelSchedule) -> (bool, f64) {
    let (target, correction) = (h200(), Correction::default());
    let judge = Judge {
        target: &target,
        correction: &correction,
        wishes: &Wishes::default(),
    };
    let clocked = clocked(tile, schedule, judge, 1.0);
    clocked.map_or((true, f64::INFINITY), |c| (c.spills(), c.us))
}

/// Oracle: every point of the space.
#[test]
fn the_walk_finds_what_is_nearly_the_fastest_of_all() {
    let product = "tile few\naxis t = 64, m = 512, n = 16384\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
         buffer y = output 0 f16 [t, n]\nkernel grid(t: 64, n: 64) loop(m: 64) {\n  loop m {\n    carry sum = 0 over [t, n]\n    \
         a = load x[t, m]\n    b = load w[m, n]\n    p = contract(a, b; m)\n    next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  \
         store y = all\n}\n";
    let rows = "tile rows\naxis r = 4096, c = 2048\nbuffer x = parameter 0 f32 [r, c]\nbuffer y = output 0 f32 [r]\n\
         kernel grid(r: 4) whole(c: 2048) {\n  a = load x[r, c]\n  s = reduce_sum(a; c)\n  store y = s\n}\n";
    for text in [product, rows] {
        let tile = tile(text);
        let found: Vec<KernelSchedule> = ranked(&tile, &h200())
            .into_iter()
            .map(|r| r.schedule)
            .collect();
        let all: Vec<KernelSchedule> = kernel_schedules(&tile, &h200()).collect();
        let possible = all
            .iter()
            .map(|s| us(&tile, s))
            .filter(|(spills, _)| !spills);
        let best = possible.map(|(_, us)| us).fold(f64::INFINITY, f64::min);
        let (spills, us) = us(&tile, &found[0]);
        assert!(
            !spills && us <= 1.03 * best,
            "{us} of {best}: {:?}",
            found[0]
        );
        let few = 4 * found.len() < all.len() || all.len() < 100;
        assert!(few, "{} of {}", found.len(), all.len());
        let known = |s: &KernelSchedule| all.contains(s);
        assert!(found.iter().all(known));
    }
}

/// What comes behind others that stand alike counts for more there, and takes what the clock says of it.
#[test]
fn what_is_said_of_a_schedule_is_what_the_clock_says() {
    let tile = tile(
        "tile few\naxis t = 64, m = 512, n = 4096\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
         buffer y = output 0 f16 [t, n]\nkernel grid(t: 64, n: 64) loop(m: 64) {\n  loop m {\n    carry sum = 0 over [t, n]\n    \
         a = load x[t, m]\n    b = load w[m, n]\n    p = contract(a, b; m)\n    next = add(sum, p)\n    \
         yield all = final(sum, next)\n  }\n  store y = all\n}\n",
    );
    let found = ranked(&tile, &h200());
    for one in &found {
        assert_eq!(one.us, us(&tile, &one.schedule).1, "{one:?}");
        assert!(one.rank >= one.us, "{one:?}");
    }
    assert!(found.iter().any(|one| one.rank > one.us));
}

/// 96 rows are 128 of warpgroups, and 96 columns are as many.
#[test]
fn either_side_of_a_product_gives_the_rows() {
    let product = |m: u64, n: u64| {
        let tile = tile(&format!(
            "tile uneven\naxis m = {}, n = {}, k = 4096\nbuffer x = parameter 0 bf16 [m, k]\nbuffer w = parameter 1 bf16 [n, k]\n\
             buffer y = output 0 f32 [m, n]\nkernel grid(m: {m}, n: {n}) loop(k: 64) {{\n  loop k {{\n    carry sum = 0 over [m, n]\n    \
             a = load x[m, k]\n    b = load w[n, k]\n    p = contract(a, b; k)\n    next = add(sum, p)\n    \
             yield all = final(sum, next)\n  }}\n  store y = all\n}}\n",
            64 * m,
            64 * n
        ));
        let found = ranked(&tile, &h200());
        let contraction = |s: &KernelSchedule| {
            let all = (0..tile.kernels[0].values.len()).map(|n| ir::ValueId(n as u32));
            let mut own = all.filter_map(|v| instruction::of(s, v));
            own.next().expect("a contraction")
        };
        let grouped = |s: &KernelSchedule| contraction(s).atom.name().starts_with("wgmma");
        let all = found.iter().map(|one| &one.schedule).filter(|s| grouped(s));
        all.map(|s| contraction(s).swap).collect::<Vec<bool>>()
    };
    let (wide, tall) = (product(96, 128), product(128, 96));
    assert!(wide.contains(&false) && wide.contains(&true));
    assert!(wide[0] && !tall[0], "{} {}", wide[0], tall[0]);
}

/// Where the tiles along the fast axis are narrow, walking one of the slow axis at a time reads the least.
#[test]
fn one_tile_at_a_time_is_no_raster() {
    let tile = |n: u64| {
        fastest(&format!(
            "tile narrow\naxis t = 8192, m = 512, n = 4096\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
             buffer y = output 0 f16 [t, n]\nkernel grid(t: 512, n: {n}) loop(m: 32) {{\n  loop m {{\n    carry s = 0 over [t, n]\n    \
             a = load x[t, m]\n    b = load w[m, n]\n    c = contract(a, b; m)\n    d = add(s, c)\n    yield r = final(s, d)\n  }}\n  \
             store y = r\n}}\n"
        ))
    };
    assert_eq!(raster::of(&tile(64)), 4);
    assert_eq!(raster::of(&tile(4)), 1);
}

/// A product with few rows, whose grid has 384 blocks: three a multiprocessor.
#[test]
fn what_streams_starts_with_all_blocks_under_way() {
    let few = tile(
        "tile few\naxis t = 16, m = 512, n = 49152\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
         buffer y = output 0 f16 [t, n]\nkernel grid(t: 16, n: 128) loop(m: 32) {\n  loop m {\n    \
         carry sum = 0 over [t, n]\n    a = load w[m, n]\n    b = load x[t, m]\n    p = contract(b, a; m)\n    \
         next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  store y = all\n}\n",
    );
    let (target, schedule) = (h200(), ranked(&few, &h200()).remove(0).schedule);
    let machines = codegen::machines(&few, &alone(&schedule), &target).expect("a kernel");
    let takes = machines[0].resources();
    let registers = takes.registers * takes.threads;
    for (takes, has) in [
        (takes.threads, target.threads_per_sm),
        (takes.shared_bytes, target.shared_per_sm as u32),
        (registers, target.registers_per_sm),
    ] {
        assert!(
            3 * takes <= u64::from(has),
            "{takes} of {has}: {schedule:?}"
        );
    }
}

/// One query: eight warps would stand along keys, and half of them idle along the results.
#[test]
fn warps_are_no_more_than_every_product_has_work_for() {
    let schedule = fastest(
        "tile one\naxis h = 256, j = 4096, d = 64, e = 64\nbuffer q = parameter 0 bf16 [h, d]\nbuffer k = parameter 1 bf16 [h, j, d]\n\
         buffer v = parameter 2 bf16 [h, j, e]\nbuffer y = output 0 bf16 [h, e]\nkernel grid(h: 1) loop(j: 128) whole(d: 64, e: 64) {\n  \
         a = load q[h, d]\n  loop j {\n    carry sum = 0 over [h, e]\n    b = load k[h, j, d]\n    s = contract(a, b; d)\n    \
         c = load v[h, j, e]\n    p = contract(c, s; j)\n    next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  \
         store y = all\n}\n",
    );
    assert!(warps::of(&schedule)[0] <= 4, "{schedule:?}");
}

/// Blocks are persistent where there are more tiles than find room, whether all take as long or not.
#[test]
fn blocks_are_persistent_for_many_tiles() {
    let product = |m: u64, bound: &str| -> bool {
        let text = format!(
            "tile square\naxis m = {m}, n = 4096, k = 4096\nbuffer a = parameter 0 bf16 [m, k]\nbuffer b = parameter 1 bf16 [k, n]\n\
             buffer y = output 0 bf16 [m, n]\nkernel grid(m: 128, n: 256) loop(k: 64) {{\n  loop k{bound} {{\n    \
             carry sum = 0 over [m, n]\n    c = load b[k, n]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    \
             next = add(sum, p)\n    yield all = final(sum, next)\n  }}\n  store y = all\n}}\n"
        );
        kernel_schedules(&tile(&text), &h200()).any(|s| persistent::of(&s))
    };
    assert!(product(4096, ""));
    // 128 tiles.
    assert!(!product(1024, ""));
    assert!(product(4096, " to last(m) + 1"));
}

/// Schedules in clusters lower where blocks with neighbouring numbers read the same.
#[test]
fn clusters_are_offered_where_neighbours_read_the_same() {
    let product = |dtype: &str, m: u64| {
        let text = format!(
            "tile square\naxis m = {m}, n = 4096, k = 64\nbuffer a = parameter 0 {dtype} [m, k]\nbuffer b = parameter 1 {dtype} [k, n]\n\
             buffer y = output 0 {dtype} [m, n]\nkernel grid(m: 128, n: 128) loop(k: 32) {{\n  loop k {{\n    \
             carry sum = 0 over [m, n]\n    c = load b[k, n]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    \
             next = add(sum, p)\n    yield all = final(sum, next)\n  }}\n  store y = all\n}}\n"
        );
        kernel_schedules(&tile(&text), &h200()).any(|s| multicast::of(&s) > 1)
    };
    assert!(product("bf16", 4096));
    // 33 tiles in a column, of which the raster walks some together.
    assert!(!product("bf16", 33 * 128));
    assert!(!product("f32", 4096));
}

/// Products of f32 by groups of warps, where the target has them and sums are short.
#[test]
fn split_products_are_offered_to_groups_of_warps() {
    let atoms = |k: u64, target: &Target| -> Vec<Atom> {
        let text = format!(
            "tile square\naxis m = 4096, n = 4096, k = 4096\nbuffer a = parameter 0 f32 [m, k]\nbuffer b = parameter 1 f32 [k, n]\n\
             buffer y = output 0 f32 [m, n]\nkernel grid(m: 128, n: 128) loop(k: {k}) {{\n  loop k {{\n    \
             carry sum = 0 over [m, n]\n    c = load b[k, n]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    \
             next = add(sum, p)\n    yield all = final(sum, next)\n  }}\n  store y = all\n}}\n"
        );
        let of = |s: KernelSchedule| instruction::all(&s).next().map(|(_, c)| c.atom);
        kernel_schedules(&tile(&text), target)
            .filter_map(of)
            .collect()
    };
    let target = h200();
    let grouped = |atoms: &[Atom]| {
        let all = atoms
            .iter()
            .filter(|a| **a == Atom::new("wgmma.m64k8.3xtf32"));
        all.count()
    };
    let short = atoms(32, &target);
    assert_eq!(short[0].name(), "wgmma.m64k8.3xtf32");
    assert!(grouped(&short) >= 6, "{short:?}");
    assert!(short.contains(&Atom::new("mma.m16n8k8.3xtf32")) && short.contains(&Atom::new("fma")));
    assert_eq!(grouped(&atoms(128, &target)), 0);
    let mut without = target;
    without.matrix.remove("wgmma.tf32");
    assert_eq!(grouped(&atoms(32, &without)), 0);
}

/// Oracle: the schedules' own texts.
#[test]
fn wishes_bind_what_is_tried() {
    let product = "tile few\naxis t = 256, m = 512, n = 4096\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
         buffer y = output 0 f16 [t, n]\nkernel grid(t: 64, n: 64) loop(m: 64) {\n  loop m {\n    carry sum = 0 over [t, n]\n    \
         a = load x[t, m]\n    b = load w[m, n]\n    p = contract(a, b; m)\n    next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  \
         store y = all\n}\n";
    let rows = "tile rows\naxis r = 4096, c = 2048\nbuffer x = parameter 0 f32 [r, c]\nbuffer y = output 0 f32 [r]\n\
         kernel grid(r: 4) whole(c: 2048) {\n  a = load x[r, c]\n  s = reduce_sum(a; c)\n  store y = s\n}\n";
    let texts = |text: &str, pins: &[&str], forbids: &[&str]| -> Vec<String> {
        let (tile, language) = (tile(text), codegen::language());
        let mut wishes = Wishes::default();
        pins.iter()
            .for_each(|p| wishes.pin(p, &language).expect("a line"));
        forbids
            .iter()
            .for_each(|f| wishes.forbid(f, &language).expect("a line"));
        let all = ranked_as(&tile, &h200(), &wishes).into_iter();
        all.map(|r| alone(&r.schedule).text(&tile)).collect()
    };
    let free = texts(product, &[], &[]);
    for (line, wish) in [
        ("pipeline 2 stages", "pipeline=2 stages"),
        ("pipeline 3 stages", "pipeline=3"),
        ("instruction p = fma", "instruction=fma"),
        ("instruction p = mma.m16n8k16", "instruction = mma.m16n8k16"),
        ("roles producer", "roles"),
        ("warps 2 x 2", "warps=2 x 2"),
    ] {
        let pinned = texts(product, &[wish], &[]);
        assert!(!pinned.is_empty(), "{wish}");
        assert!(
            pinned.iter().all(|t| t.contains(line)),
            "{wish}: {pinned:?}"
        );
        let without = texts(product, &[], &[wish]);
        assert!(!without.is_empty(), "{wish}");
        assert!(!without.iter().any(|t| t.contains(line)), "{wish}");
        // A kernel that has no such line is not bound by it, and by nothing else.
        if !wish.starts_with("warps") {
            assert_eq!(texts(rows, &[wish], &[]), texts(rows, &[], &[]), "{wish}");
        }
    }
    assert!(free.iter().any(|t| t.contains("roles")));
    let both = texts(
        product,
        &["instruction=mma.m16n8k16", "pipeline=1"],
        &["registers"],
    );
    let plain =
        |t: &String| t.contains("mma.") && !t.contains("pipeline") && !t.contains("registers");
    assert!(!both.is_empty() && both.iter().all(plain), "{both:?}");
    assert!(texts(product, &["instruction=fma"], &["instruction=fma"]).is_empty());
    // What nothing says is named.
    let mut wishes = Wishes::default();
    for line in ["pipeline=1", "pipeline=3", "cluster", "warps"] {
        let pinned = wishes.pin(line, &codegen::language());
        pinned.expect("a line");
    }
    let first = ranked_as(&tile(rows), &h200(), &wishes).remove(0);
    let of_rows = alone(&first.schedule);
    let unsaid: Vec<&str> = wishes.unsaid(&of_rows).collect();
    assert_eq!(unsaid, ["pipeline=3", "cluster"]);
    // Of two kernels one is enough, which says nothing of stages, whatever the other one says.
    let mut both = alone(
        &ranked_as(&tile(product), &h200(), &Wishes::default())
            .remove(0)
            .schedule,
    );
    assert!(both.text(&tile(product)).contains("pipeline"));
    let mut wishes = Wishes::default();
    wishes
        .pin("pipeline=1", &codegen::language())
        .expect("a line");
    assert_eq!(wishes.unsaid(&both).collect::<Vec<_>>(), ["pipeline=1"]);
    both.kernels.push(first.schedule);
    assert_eq!(wishes.unsaid(&both).count(), 0);
}
