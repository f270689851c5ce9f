//! What is tried first.

use super::grid::unevenness;
use super::*;
use codegen::resources::producers_fit;
use ir::Atom;

fn h200() -> Target {
    crate::targets::target("h200").expect("a target")
}

fn first(text: &str) -> KernelSchedule {
    let tile: TileProgram = text.parse().expect("a tile program");
    kernel_schedules(&tile, &tile.kernels[0], &h200()).remove(0)
}

#[test]
fn grids_are_uneven_where_the_last_blocks_are_few() {
    let target = h200();
    for (blocks, each, expected) in [
        (132, 1, 0),
        (132, 4, 0),
        (133, 1, 98),
        (384, 1, 3),
        (384, 2, 37),
        (384, 3, 3),
        (0, 1, 0),
    ] {
        let found = unevenness(blocks, each, &target);
        assert_eq!(found, expected, "{blocks} blocks, {each} at a time");
    }
}

/// Where the tiles along the fast axis are narrow, walking one of the slow axis at a time reads the least.
#[test]
fn one_tile_at_a_time_is_no_raster() {
    let tile = |n: u64| {
        first(&format!(
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
    let schedule = first(
        "tile few\naxis t = 16, m = 512, n = 49152\nbuffer x = parameter 0 f16 [t, m]\nbuffer w = parameter 1 f16 [m, n]\n\
         buffer y = output 0 f16 [t, n]\nkernel grid(t: 16, n: 128) loop(m: 32) {\n  loop m {\n    \
         carry sum = 0 over [t, n]\n    a = load w[m, n]\n    b = load x[t, m]\n    p = contract(b, a; m)\n    \
         next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  store y = all\n}\n",
    );
    assert_eq!(registers::of(&schedule), 3, "{schedule:?}");
}

/// One query: eight warps would stand along keys, and half of them idle along the results.
#[test]
fn warps_are_no_more_than_every_product_has_work_for() {
    let schedule = first(
        "tile one\naxis h = 256, j = 4096, d = 64, e = 64\nbuffer q = parameter 0 bf16 [h, d]\nbuffer k = parameter 1 bf16 [h, j, d]\n\
         buffer v = parameter 2 bf16 [h, j, e]\nbuffer y = output 0 bf16 [h, e]\nkernel grid(h: 1) loop(j: 128) whole(d: 64, e: 64) {\n  \
         a = load q[h, d]\n  loop j {\n    carry sum = 0 over [h, e]\n    b = load k[h, j, d]\n    s = contract(a, b; d)\n    \
         c = load v[h, j, e]\n    p = contract(c, s; j)\n    next = add(sum, p)\n    yield all = final(sum, next)\n  }\n  \
         store y = all\n}\n",
    );
    assert!(
        codegen::passes::warps::of(&schedule)[0] <= 4,
        "{schedule:?}"
    );
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
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let all = kernel_schedules(&tile, &tile.kernels[0], &h200());
        assert!(!persistent::of(&all[0]));
        all.iter().any(persistent::of)
    };
    assert!(product(4096, ""));
    // 128 tiles.
    assert!(!product(1024, ""));
    assert!(product(4096, " to last(m) + 1"));
}

/// A few schedules in clusters stand behind the same without, and lower where blocks with neighbouring numbers read the same.
#[test]
fn clusters_are_offered_behind_the_same_without() {
    let product = |dtype: &str, m: u64| {
        let text = format!(
            "tile square\naxis m = {m}, n = 4096, k = 64\nbuffer a = parameter 0 {dtype} [m, k]\nbuffer b = parameter 1 {dtype} [k, n]\n\
             buffer y = output 0 {dtype} [m, n]\nkernel grid(m: 128, n: 128) loop(k: 32) {{\n  loop k {{\n    \
             carry sum = 0 over [m, n]\n    c = load b[k, n]\n    d = load a[m, k]\n    p = contract(d, c; k)\n    \
             next = add(sum, p)\n    yield all = final(sum, next)\n  }}\n  store y = all\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let all = kernel_schedules(&tile, &tile.kernels[0], &h200());
        let clustered = all.windows(2).filter(|pair| multicast::of(&pair[1]) > 1);
        let clustered = clustered.map(|pair| {
            let [alone, paired] = [&pair[0], &pair[1]];
            let without = paired.clone().with(multicast::step(1));
            let without = without.with(raster::step(raster::of(alone)));
            assert_eq!(*alone, without);
            assert!(raster::of(alone) - raster::of(paired) <= 1);
            let kernels = vec![pair[1].clone()];
            codegen::lower(&tile, &Schedule { kernels }, &h200()).is_ok()
        });
        clustered.collect::<Vec<bool>>()
    };
    assert_eq!(product("bf16", 4096), [true; CLUSTERED]);
    // 33 tiles in a column, of which the raster walks some together.
    assert_eq!(product("bf16", 33 * 128), [false; CLUSTERED]);
    assert_eq!(product("f32", 4096), [false; 0]);
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
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let all = kernel_schedules(&tile, &tile.kernels[0], target);
        let lowers = |s: &&KernelSchedule| {
            let kernels = vec![(*s).clone()];
            codegen::lower(&tile, &Schedule { kernels }, target).is_ok()
        };
        let of = |s: &KernelSchedule| instruction::all(s).next().map(|(_, c)| c.atom);
        all.iter().filter(lowers).filter_map(of).collect()
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

#[test]
fn registers_of_producers_are_counted() {
    let target = h200();
    // 65,536 registers: 3,072 for producers leave 62,464, which is 244 for each of 256 threads.
    assert!(producers_fit(&target, 1, 256, 244));
    assert!(!producers_fit(&target, 1, 256, 245));
    // Two blocks have half each: 29,696 and 232 for each of 128.
    assert!(producers_fit(&target, 2, 128, 232));
    assert!(!producers_fit(&target, 2, 128, 233));
    assert_eq!(target.registers(128), 255);
    assert_eq!(target.whole_registers(128), 248);
    assert_eq!(target.registers(384), 170);
    assert_eq!(target.whole_registers(384), 168);
    assert_eq!(target.taken_shared(2048), 3072);
}
