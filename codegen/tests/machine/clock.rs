//! What the clock says of kernels whose time is known from counts.

use crate::common::*;
use ir::{Atom, Dtype, Schedule, TileProgram};
use tilewright_codegen::clock::Part;
use tilewright_codegen::machine::{Statement, Sync};
use tilewright_codegen::passes::{multicast, raster};
use tilewright_codegen::{clock, machines};

fn us(tile: &TileProgram, schedule: &Schedule) -> f64 {
    let machines = machines(tile, schedule, &target()).expect("lowers");
    clock::us(tile, &machines, &target()).iter().sum()
}

fn under(tile: &TileProgram, atom: Atom, warps: [u32; 2], stages: u32) -> f64 {
    us(tile, &schedule(tile, atom, warps, stages, &[]))
}

#[test]
fn a_large_product_takes_what_its_operations_take() {
    let n = 4096;
    let tile = matmul(Dtype::Bf16, Dtype::Bf16, [n, n, n], [128, 256, 64], true);
    let floor = 2.0 * (n as f64).powi(3) / (target().matrix["wgmma.16bit"].tflops * 1e6);
    let found = under(&tile, atoms::WGMMA_M64K16, [8, 1], 3);
    assert!((1.0..1.5).contains(&(found / floor)), "{found} of {floor}");
    // Warps' instructions have two thirds of the rate, and wait.
    let warps = under(&tile, atoms::MMA_M16N8K16, [2, 4], 3);
    assert!(warps > 1.3 * found, "{warps} and {found}");
}

/// Three products of TF32, and what the splits of a tile take beside them: less where these overlap.
#[test]
fn split_products_take_what_three_take() {
    let n = 4096;
    let tile = matmul(Dtype::F32, Dtype::F32, [n, n, n], [128, 128, 32], true);
    let floor = 3.0 * 2.0 * (n as f64).powi(3) / (target().matrix["wgmma.tf32"].tflops * 1e6);
    let beside = under(&tile, atoms::WGMMA_M64K8_TF32X3, [8, 1], 4);
    assert!(
        (1.0..1.5).contains(&(beside / floor)),
        "{beside} of {floor}"
    );
    let behind = under(&tile, atoms::WGMMA_M64K8_TF32X3, [8, 1], 2);
    assert!(behind > 1.2 * beside, "{behind} and {beside}");
}

#[test]
fn what_only_moves_bytes_takes_what_memory_takes() {
    let tile = row_norm(Dtype::Bf16, [65536, 4096], 1, None);
    let bytes = 2.0 * 2.0 * 65536.0 * 4096.0;
    let floor = bytes / (target().memory_tb_s * 1e6);
    let found = under(&tile, atoms::FMA, [1, 8], 1);
    assert!((0.95..1.6).contains(&(found / floor)), "{found} of {floor}");
}

#[test]
fn copies_that_nothing_hides_are_seen() {
    let tile = matmul(
        Dtype::Bf16,
        Dtype::Bf16,
        [1024, 1024, 8192],
        [128, 128, 64],
        true,
    );
    let one = under(&tile, atoms::WGMMA_M64K16, [8, 1], 1);
    let three = under(&tile, atoms::WGMMA_M64K16, [8, 1], 3);
    assert!(
        one > 1.3 * three,
        "{one} with one stage, {three} with three"
    );
}

/// A large matrix that is not in L2, read once: under way is what the stages hold.
#[test]
fn few_small_stages_do_not_keep_memory_busy() {
    let tile = matmul(
        Dtype::Bf16,
        Dtype::Bf16,
        [6144, 16, 4096],
        [64, 16, 64],
        true,
    );
    let of = |stages| {
        let atom = atoms::WGMMA_M64K16;
        us(
            &tile,
            &overlapped(&tile, atom, [4, 1], stages, &[false], Overlap::Turns),
        )
    };
    let (four, six) = (of(4), of(6));
    assert!(four > 1.1 * six, "{four} with four stages, {six} with six");
}

/// Sums of so many windows, so far apart, on CUDA cores.
fn windows(count: u64, apart: u64) -> f64 {
    let tile: TileProgram = format!(
        "tile windows\naxis b = 4096, c = 96, p = {count}, k = 64, n = {}\n\
         buffer x = parameter 0 f32 [b, n]\nbuffer f = parameter 1 f32 [c, k]\nbuffer out0 = output 0 f32 [b, c, p]\n\
         kernel grid(b: 4, c: 96, p: {count}) whole(k: 64) {{\n in = load x[b, {apart}*p + k]\n in2 = load f[c, k]\n\
         dot = contract(in2, in; k)\n store out0 = dot\n}}\n",
        apart * count + 64
    )
    .parse()
    .expect("a tile program");
    under(&tile, atoms::FMA, [2, 4], 1)
}

/// Threads have windows eight apart, and the last eight of 64 are none of 55.
#[test]
fn registers_that_hold_nothing_take_no_multiplications() {
    let (some, all) = (windows(55, 4), windows(64, 4));
    assert!(some < 0.95 * all, "{some} and {all}");
}

/// Eight threads read elements that lie as far apart as there are banks, or one further.
#[test]
fn one_bank_gives_one_word_at_a_time() {
    let (same, different) = (windows(64, 32), windows(64, 33));
    assert!(same > 1.3 * different, "{same} and {different}");
}

#[test]
fn waves_count() {
    let rows = u64::from(target().sms) * 128;
    let product = |m: u64| {
        let tile = matmul(
            Dtype::Bf16,
            Dtype::Bf16,
            [m, 128, 4096],
            [128, 128, 64],
            true,
        );
        let schedule = schedule(&tile, atoms::WGMMA_M64K16, [8, 1], 4, &[]);
        us(&tile, &schedule)
    };
    let (one, two, more) = (product(rows), product(2 * rows), product(rows + 128));
    assert!(two > 1.5 * one, "{one} for a wave, {two} for two");
    assert!(
        more > 1.3 * one,
        "{one} for a wave, {more} for one and a block"
    );
}

/// Where special functions take as long as products, two groups of warps that take turns leave both idle by turns, and three do not.
#[test]
fn three_groups_wait_less_for_each_other_than_two() {
    let per_row = |rows: u64, warps: u32| {
        let extents = [128, 1536, 4096, 64, 64];
        let tile = attention(Dtype::Bf16, extents, [rows, 128], false, false);
        let (atom, swaps) = (atoms::WGMMA_M64K16, [true, false]);
        let schedule = overlapped(&tile, atom, [warps, 1], 2, &swaps, Overlap::Turns);
        us(&tile, &schedule)
    };
    let (two, three) = (per_row(128, 8), per_row(192, 12));
    assert!(three < 0.9 * two, "{three} and {two}");
}

/// Half of the scores are masked, and their tiles are left out, whichever of as many blocks as powers of two have the long rows.
#[test]
fn what_bounds_leave_out_is_not_counted() {
    let of = |causal: bool| {
        let tile = attention(
            Dtype::Bf16,
            [128, 4096, 4096, 64, 64],
            [128, 128],
            causal,
            false,
        );
        under(&tile, atoms::WGMMA_M64K16, [8, 1], 2)
    };
    let share = of(true) / of(false);
    assert!((0.5..0.75).contains(&share), "{share}");
}

/// Where L2 is what a product mostly waits for, and two blocks read half of it together: three quarters of the bytes.
#[test]
fn what_a_cluster_copies_comes_once() {
    let n = 8192;
    let tile = matmul(Dtype::Bf16, Dtype::Bf16, [n, n, n], [64, 64, 64], true);
    let mut schedule = schedule(&tile, atoms::WGMMA_M64K16, [4, 1], 4, &[]);
    schedule.kernels[0].set(raster::step(4));
    let alone = us(&tile, &schedule);
    schedule.kernels[0].set(multicast::step(2));
    let share = us(&tile, &schedule) / alone;
    assert!((0.74..0.9).contains(&share), "{share} of {alone}");
}

/// Many sums of rows that follow from a large tensor, and what is made of them.
#[test]
fn what_a_kernel_stored_is_in_l2_for_the_next() {
    let second = |row: u64| {
        let tile: TileProgram = format!(
            "tile sums\naxis i = 65536, j = {row}\n\
             buffer x = parameter 0 f32 [i, j]\nbuffer out0 = output 0 f32 [i]\nbuffer w = workspace f32 [i]\n\
             kernel grid(i: 1) whole(j: {row}) {{\n in = load x[i, j]\n sum = reduce_sum(in; j)\n store w = sum\n}}\n\
             kernel grid(i: 512) {{\n in = load w[i]\n k = 2\n mul = mul(k, in)\n store out0 = mul\n}}\n"
        )
        .parse()
        .expect("a tile program");
        let schedule = schedule(&tile, atoms::FMA, [1, 4], 1, &[]);
        let machines = machines(&tile, &schedule, &target()).expect("lowers");
        clock::us(&tile, &machines, &target())[1]
    };
    // Its own results come from memory where they were last stored before all of that.
    let (large, small) = (second(4096), second(16));
    assert!(large < 1.1 * small, "{large} and {small}");
}

/// Sums of windows, which take from L2 what they have in common once, and of rows of as many.
#[test]
fn what_windows_share_is_read_once() {
    let of = |step: u64| {
        let tile: TileProgram = format!(
            "tile windows\naxis p = 262144, r = 32, n = {}\n\
             buffer x = parameter 0 f32 [n]\nbuffer out0 = output 0 f32 [p]\n\
             kernel grid(p: 128) whole(r: 32) {{\n in = load x[{step}*p + r]\n sum = reduce_sum(in; r)\n store out0 = sum\n}}\n",
            262_144 * step + 32
        )
        .parse()
        .expect("a tile program");
        under(&tile, atoms::FMA, [4, 1], 1)
    };
    let (windows, rows) = (of(1), of(32));
    assert!(rows > 2.0 * windows, "{windows} and {rows}");
}

/// Rows that are written as columns are turned in shared memory, so that warps write whole sectors. Where a tile is too large for that the sectors that
/// they touch count: as many as elements.
#[test]
fn what_is_written_in_pieces_takes_longer() {
    let of = |side: u64, out: &str| {
        let tile: TileProgram = format!(
            "tile rows\naxis n = 64, c = 1024, w = 1024\nbuffer x = parameter 0 f32 [n, c, w]\nbuffer y = output 0 f32 [n, {out}]\n\
             kernel grid(n: 1, c: {side}, w: 256) {{\n  v = load x[n, c, w]\n  store y = v\n}}\n"
        )
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
        let schedule = schedule(&tile, atoms::FMA, [1, 16], 1, &[]);
        let machines = machines(&tile, &schedule, &target()).expect("lowers");
        let is_turned = |s: &Statement| matches!(s, Statement::Spill { .. });
        let turned = machines[0].body.iter().any(is_turned);
        (clock::us(&tile, &machines, &target())[0], turned)
    };
    let (straight, none) = of(32, "c, w");
    let (small, turned) = of(32, "w, c");
    let (large, too_large) = of(256, "w, c");
    assert!(!none && turned && !too_large);
    assert!(small < 1.2 * straight, "{small} and {straight}");
    assert!(large > 1.5 * straight, "{large} and {straight}");
}

/// Of windows of three by three that become planes neighbouring threads have neighbours of a plane: a warp writes whole sectors, and the elements of
/// a window that a line brings are read from the cache.
#[test]
fn windows_become_planes_in_whole_sectors() {
    let tile: TileProgram = "tile planes\naxis o = 1280, c = 512, h = 3, w = 3\nbuffer x = parameter 0 bf16 [o, c, h, w]\n\
         buffer y = output 0 bf16 [h, w, o, c]\nkernel grid(h: 3, w: 3, o: 1, c: 512) {\n  v = load x[o, c, h, w]\n  store y = v\n}\n"
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
    let schedule = schedule(&tile, atoms::FMA, [1, 4], 1, &[]);
    let machines = machines(&tile, &schedule, &target()).expect("lowers");
    let mut held = None;
    for statement in &machines[0].body {
        if let Statement::Store(store) = statement {
            held = Some(&store.held);
        }
    }
    let lanes = &held.expect("a store").lanes;
    let along = lanes.iter().filter(|f| f.axis == Some(ir::AxisId(1)));
    assert_eq!(along.map(|f| f.size).product::<u64>(), 32, "{lanes:?}");
}

/// Units are busy for as long as what bounds a kernel, and never for longer than all of it.
#[test]
fn parts_say_what_a_kernel_waits_for() {
    let of = |tile: &TileProgram, schedule: &Schedule| {
        let machines = machines(tile, schedule, &target()).expect("lowers");
        let found = clock::parts(tile, &machines, &target())[0];
        assert_eq!(found[Part::All], us(tile, schedule));
        for unit in Part::UNITS {
            assert!(found[unit] <= found[Part::All], "{unit:?} of {found:?}");
        }
        for part in Part::ALL {
            assert!(found[part] >= 0.0, "{part:?} of {found:?}");
        }
        found
    };
    let n = 4096;
    let tile = matmul(Dtype::Bf16, Dtype::Bf16, [n, n, n], [128, 256, 64], true);
    let product = of(&tile, &schedule(&tile, atoms::WGMMA_M64K16, [8, 1], 3, &[]));
    assert!(product[Part::Tensor] > 0.8 * product[Part::All]);
    assert!(product[Part::Stages] > product[Part::Loads]);
    let tile = row_norm(Dtype::Bf16, [65536, 4096], 1, None);
    let rows = of(&tile, &schedule(&tile, atoms::FMA, [1, 8], 1, &[]));
    assert!(rows[Part::Memory] > 0.8 * rows[Part::All]);
    assert_eq!(rows[Part::Tensor], 0.0);
}

/// Watching changes nothing: what the timeline shows adds up to what the clock counts.
#[test]
fn a_timeline_shows_what_the_clock_counts() {
    let n = 1024;
    let tile = matmul(Dtype::Bf16, Dtype::Bf16, [n, n, 256], [128, 128, 64], true);
    let plain = schedule(&tile, atoms::MMA_M16N8K16, [2, 4], 2, &[]);
    let roles = schedule(&tile, atoms::WGMMA_M64K16, [8, 1], 2, &[]);
    for schedule in [plain, roles] {
        let machines = machines(&tile, &schedule, &target()).expect("lowers");
        let parts = clock::parts(&tile, &machines, &target())[0];
        let seen = clock::timeline(&tile, 0, &machines[0], &target());
        // Four iterations, and fewer blocks than multiprocessors: nothing is left out or extrapolated.
        assert!(!seen.is_cut && seen.blocks == 1);
        let us = |clocks: f64| clocks / (target().clock_ghz * 1e3);
        let same = |x: f64, y: f64| (x - y).abs() < 1e-9 * x.abs().max(y.abs()).max(1.0);
        let all = parts[Part::All] - parts[Part::Launch];
        assert!(same(us(seen.clocks), all), "{} and {all}", us(seen.clocks));
        for unit in Part::UNITS {
            let own = seen.busy.iter().filter(|b| b.unit == unit);
            let busy: f64 = own.map(|b| b.end - b.begin).sum();
            assert!(
                same(us(busy), parts[unit]),
                "{unit:?}: {} and {parts:?}",
                us(busy)
            );
        }
        let computing = seen.roles.iter().filter(|r| r.0).count() as f64;
        for wait in Part::WAITS {
            let own = seen
                .bars
                .iter()
                .filter(|b| b.waits == Some(wait) && seen.roles[b.role].0);
            let waits: f64 = own.map(|b| b.end - b.begin).sum();
            assert!(same(us(waits) / computing, parts[wait]), "{wait:?}");
        }
        for role in 0..seen.roles.len() {
            let own: Vec<_> = seen.bars.iter().filter(|b| b.role == role).collect();
            assert!(!own.is_empty());
            for pair in own.windows(2) {
                assert!(pair[0].end <= pair[1].begin + 1e-9, "{pair:?}");
            }
        }
        let texts: Vec<&str> = seen.statements.iter().map(|s| s.text.as_str()).collect();
        let of = |word: &str| texts.iter().any(|t| t.contains(word));
        assert!(
            of("store to z") && (of("mma.m16n8k16") || of("issue wgmma")),
            "{texts:?}"
        );
    }
}

/// Sums, their squares, and results, in loops behind each other: each iteration of each loop takes as long however many there are of the others.
#[test]
fn loops_behind_each_other_add_up() {
    let of = |steps: u64| {
        let made = |name: &str| {
            format!(
                "{name} = load x[n, h, c, w]\n    {name}2 = exp({name})\n    {name}3 = add({name}2, {name})\n    \
                 {name}4 = div({name}, {name}3)\n    "
            )
        };
        let tile: TileProgram = format!(
            "tile rows\naxis n = 1024, h = {steps}, c = 8, w = 258\nbuffer x = parameter 0 f32 [n, h, c, w]\n\
             buffer y = output 0 f32 [n, h, c, w]\nkernel grid(n: 1) loop(h: 1) whole(c: 8, w: 258) {{\n  \
             loop h {{\n    carry s = 0 over [n]\n    {}p = reduce_sum(a4; h, c, w)\n    s2 = add(s, p)\n    \
             yield s3 = final(s, s2)\n  }}\n  \
             loop h {{\n    carry t = 0 over [n]\n    {}d = add(b4, s3)\n    e = mul(d, d)\n    \
             q = reduce_sum(e; h, c, w)\n    t2 = add(t, q)\n    yield t3 = final(t, t2)\n  }}\n  \
             loop h {{\n    {}z = div(f4, t3)\n    store y = z\n  }}\n}}\n",
            made("a"),
            made("b"),
            made("f")
        )
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
        let all = [[1, 1], [2, 2], [1, 4], [4, 2], [8, 1]];
        all.map(|warps| under(&tile, atoms::FMA, warps, 1))
    };
    let [few, some, many] = [32, 64, 256].map(of);
    for ((few, some), many) in few.into_iter().zip(some).zip(many) {
        let (each, further) = ((some - few) / 32.0, (many - some) / 192.0);
        assert!(each > 0.0, "{few} and {some}");
        assert!(
            (0.99..1.01).contains(&(further / each)),
            "{each} and {further}"
        );
    }
}

/// Views of one buffer bring its elements once, and neighbouring threads have neighbouring elements where no thread can have several: what lies apart, or
/// begins anywhere, keeps the first-level cache no longer than memory.
#[test]
fn what_several_views_show_comes_from_memory_once() {
    let of = |axes: &str, index: &dyn Fn(u64) -> String| {
        let loads = (0..4).map(|n| format!("  v{n} = load x[t, i, {}]\n", index(n)));
        let text = format!(
            "tile views\naxis t = 4096, i = 8192, m = 4\nbuffer x = parameter 0 f32 [t, i, m]\nbuffer y = output 0 f32 [{axes}]\n\
             kernel grid(t: 1, i: 1024{}) {{\n{}  a = mul(v0, v1)\n  b = mul(v2, v3)\n  c = mul(a, b)\n  store y = c\n}}\n",
            if axes.contains('m') { ", m: 4" } else { "" },
            loads.collect::<String>(),
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let bytes: f64 = (tile.buffers.iter())
            .map(|b| b.axes().map(|a| tile.extent(a) as f64).product::<f64>() * 4.0)
            .sum();
        under(&tile, atoms::FMA, [1, 4], 1) / (bytes / (target().memory_tb_s * 1e6))
    };
    let apart = of("t, i", &|n| n.to_string());
    assert!((1.0..1.4).contains(&apart), "{apart}");
    let moved = of("t, i, m", &|n| format!("m - {n}"));
    assert!((1.0..1.4).contains(&moved), "{moved}");
}

#[test]
fn what_waits_forever_has_no_time() {
    fn without(body: &mut Vec<Statement>) {
        body.retain(|s| !matches!(s, Statement::Sync(Sync::Full(_))));
        body.iter_mut()
            .flat_map(Statement::lists_mut)
            .for_each(without);
    }
    let n = 1024;
    let tile = matmul(Dtype::Bf16, Dtype::Bf16, [n, n, n], [128, 128, 64], true);
    let schedule = schedule(&tile, atoms::WGMMA_M64K16, [8, 1], 4, &[]);
    let mut machines = machines(&tile, &schedule, &target()).expect("lowers");
    assert!(clock::us(&tile, &machines, &target())[0].is_finite());
    // Stages that nobody fills.
    let producer = machines[0]
        .producers
        .first_mut()
        .expect("warps that only copy");
    producer.body.clear();
    assert!(!clock::us(&tile, &machines, &target())[0].is_finite());
    // And nobody who waits for them.
    without(&mut machines[0].body);
    assert!(clock::us(&tile, &machines, &target())[0].is_finite());
}
