//! The check that a tile program computes its program.
//!
//! It is looked at in two ways. *At its true extents* (`true_extents.rs`) the tile program that is emitted, as it is, is interpreted in f64 and
//! compared with the program within the running error bounds of both: in full where that is little work, else at output elements of each
//! region of its masks, bounds and tiles. And on *small shapes* (`draw.rs`), of which each picks extents and tile sizes, tile program
//! and expression are compared in the field, exactly, and tile program and program in f64. Extents are small there (partial tiles, single
//! tiles and single coordinates all occur), or around the true tile sizes, or around the integer constants in the program; numbers
//! also lie beside the program's other constants. On some draws numbers differ by a thousand from one coordinate to the next: what a loop
//! holds of them must not overflow where the expression does not.
//!
//! Where one output element takes too much work kernels are also looked at by themselves (`pieces.rs`).
//!
//! What could not be decided is counted and is never a pass, and what no element met of masks, bounds and tiles is said.

mod draw;
mod evidence;
mod pieces;
mod true_extents;

use self::draw::Draw;
pub use self::evidence::{
    ByExpression, LEAST_DECIDED, PieceEvidence, SliceEvidence, TilingEvidence,
};
pub use self::pieces::Known;
use self::true_extents::TrueExtents;
use crate::coverage::{Called, Coverage, Seen};
use crate::domain::{domains, domains_at};
use crate::shapes::{Agreement, Extents, Shapes, Tiles, program_at};
use crate::simulate_error::SimulateError;
use ir::{Program, Reject, TileProgram};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// How much to check.
#[derive(Clone, Copy, Debug)]
pub struct TilingOptions {
    /// How many small shapes are tried.
    pub draws: usize,
    /// Where the draws start.
    pub seed: u64,
    /// The most work of one evaluation at a small shape, in element operations; bounds the time of a draw.
    pub work: u64,
    /// The most work at the true extents, in element operations.
    pub slice_work: u64,
    /// The same where not even a few output elements take so little.
    pub most_slice_work: u64,
}

impl Default for TilingOptions {
    fn default() -> Self {
        Self {
            draws: 8,
            seed: 0,
            work: 200_000,
            slice_work: 40_000_000,
            most_slice_work: 400_000_000,
        }
    }
}

/// Times the usual work of one evaluation.
const MORE: [u64; 3] = [8, 64, 512];

/// Why nothing can be said of a tile program whose expression is the program at its own extents, or not even there.
const UNRELATED: &str = "the expression holds numbers that are extents of the program, and at none that are small enough the two were seen to be equal";

/// Compares a tile program with its program and with the expression that it was built from. The axis tables of the three
/// agree as far as they go.
///
/// # Errors
/// The first difference, and too little that was decided.
pub fn check_tiling(
    program: &Program,
    expression: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
) -> Result<TilingEvidence, Reject> {
    check(program, expression, tile, options, &Known::default())
}

/// The same, by what is known of its kernels.
pub(crate) fn check(
    program: &Program,
    expression: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
    known: &Known,
) -> Result<TilingEvidence, Reject> {
    let all: Vec<usize> = (0..tile.kernels.len()).collect();
    let called = Called {
        program: "the program",
        kernels: &all,
    };
    Ok(compare(program, expression, tile, options, Some(known))?.told(called))
}

/// What was found of a tile program, or of a piece of one.
#[derive(Clone, Debug)]
struct Compared {
    evidence: TilingEvidence,
    coverage: Coverage,
    /// What was not decided of some kernel by itself, where the whole was.
    undecided: Option<String>,
}

impl Compared {
    /// With what was not met in words.
    fn told(self, called: Called<'_>) -> TilingEvidence {
        let (mut evidence, coverage) = (self.evidence, self.coverage);
        evidence.outcomes = coverage.outcomes();
        evidence.unseen.extend(coverage.unseen(called));
        evidence.undrawn = coverage.undrawn(called).collect();
        evidence.count_pieces();
        evidence.unseen.extend(self.undecided);
        evidence
    }
}

/// Compares a tile program, by what is `known` of its kernels; a piece of one, of which nothing is, as a whole alone.
fn compare(
    program: &Program,
    expression: &Program,
    tile: &TileProgram,
    options: &TilingOptions,
    known: Option<&Known>,
) -> Result<Compared, Reject> {
    let mut evidence = TilingEvidence {
        seed: options.seed,
        draws: options.draws,
        work: options.work,
        slice_work: options.slice_work,
        most_slice_work: options.most_slice_work,
        primes: vec![ir::field::P, ir::field::Q],
        ..TilingEvidence::default()
    };
    ir::tile_check::validate(tile).map_err(|faults| Reject::Wrong(faults.join("; ")))?;
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let shapes = Shapes::new(program, expression, Some(tile), options.work)?;
    let true_extents = TrueExtents {
        program,
        expression,
        tile,
        shapes: &shapes,
        work: options.slice_work,
        most_work: options.most_slice_work,
    };
    let interpreted = true_extents.check(&mut rng, &mut evidence)?;
    evidence.refuse_differences()?;
    let small = |much| {
        let (mut rng, mut evidence) = (rng.clone(), evidence.clone());
        let compared = (program, expression, tile);
        let seen = check_small(compared, options, much, &mut rng, &mut evidence);
        (seen, rng, evidence)
    };
    // Where views pin the extents to so much that nothing fits, one shape of more work is better than none, unless each kernel is decided by itself.
    let pieces = known.filter(|_| evidence.slices.is_empty());
    let pieces = pieces.and_then(|known| Some((pieces::pieces(expression, tile)?, known)));
    let mut undecided = None;
    let (others, mut rng, found) = match (pieces, known) {
        (Some((pieces, known)), _) => {
            let by_pieces = || pieces::check(&pieces, options, known);
            let (by_pieces, checked) = rayon::join(by_pieces, || small(&MORE[..1]));
            match by_pieces? {
                Ok(found) => {
                    evidence.pieces = found;
                    checked
                }
                Err(why) => {
                    undecided = Some(why);
                    small(&MORE)
                }
            }
        }
        (None, Some(_)) => small(&MORE),
        (None, None) => small(&MORE[..1]),
    };
    let is_decided = !evidence.pieces.is_empty();
    let others = match others {
        // The whole need not be known then, but that the expression is the program.
        Err(Reject::Undecided(_)) if is_decided => Seen::new(tile),
        checked => {
            let seen = checked?;
            evidence = TilingEvidence {
                pieces: evidence.pieces,
                ..found
            };
            seen
        }
    };
    evidence.refuse_differences()?;
    // Kernels are what the expression says: of the program nothing was said yet.
    if is_decided && expression != program && evidence.real == 0 {
        evidence.by_expression = Some(related(program, expression, options, &mut rng)?);
    }
    let mut coverage = Coverage::default();
    // Of shortened axes there are other tiles to meet: which were shortened is said.
    for (tile, mut seen) in interpreted {
        seen.merge_values(&others);
        let mut own = Coverage::of_tile(&tile, &seen);
        own.of_program(program, &seen);
        coverage.merge(own);
    }
    if !is_decided && !evidence.is_decided() {
        let own = || Reject::Undecided(evidence.too_little_decided());
        return Err(undecided.unwrap_or_else(own));
    }
    evidence.leaves_field = evidence.leaves_field();
    let undecided = match undecided {
        Some(Reject::Undecided(why)) => Some(why),
        Some(_) | None => None,
    };
    Ok(Compared {
        evidence,
        coverage,
        undecided,
    })
}

/// Where program and expression are equal: at small extents, of which those vary that views ask for where they are too much work otherwise, and with
/// them the numbers that count elements where extents of several sums are such numbers.
fn related(
    program: &Program,
    expression: &Program,
    options: &TilingOptions,
    rng: &mut ChaCha8Rng,
) -> Result<ByExpression, Reject> {
    let shapes = Shapes::new(program, expression, None, options.work)?;
    let free = shapes.without_views().map(|free| free.0);
    for mut shapes in [Some(shapes), free].into_iter().flatten() {
        let agreement = agreement(&mut shapes, options.work, rng);
        if agreement.elements > 0 {
            return Ok(agreement.into());
        }
    }
    Err(Reject::Undecided(
        "kernels compute by themselves what the expression says, and at no extents that are small enough was that seen to be the program".to_owned(),
    ))
}

/// What is seen of program and expression with the extents kept that are numbers; where that shows nothing, with numbers that follow the extents.
fn agreement(shapes: &mut Shapes<'_>, work: u64, rng: &mut ChaCha8Rng) -> Agreement {
    let found = shapes.pin_counted_extents(rng, work, &mut u64::MAX.clone());
    if found.elements > 0 {
        return found;
    }
    let mut recounting = shapes.clone().recounting();
    recounting.pin_counted_extents(rng, work, &mut u64::MAX.clone())
}

/// The comparisons at small shapes; gives what they met.
fn check_small(
    compared: (&Program, &Program, &TileProgram),
    options: &TilingOptions,
    much: &[u64],
    rng: &mut ChaCha8Rng,
    evidence: &mut TilingEvidence,
) -> Result<Seen, Reject> {
    let (program, expression, tile) = compared;
    let mut seen = Seen::new(tile);
    let shapes = Shapes::new(program, expression, Some(tile), options.work)?;
    if shapes.fits(&Extents::new(), &Tiles::new(), options.work) {
        let draw = Draw {
            domains: domains(program),
            program: program.clone(),
            expression: expression.clone(),
            tile: tile.clone(),
            with_expression: false,
            unrelated: false,
        };
        draw.check(rng, 0, evidence, &mut seen)?;
        evidence.extents.push(shapes.shape(&Extents::new()));
    }
    let free = shapes.without_views();
    check_drawn(compared, shapes, options, much, rng, evidence, &mut seen)?;
    // What views pin may be too much work wherever one looks. Without that the two may differ where they are equal, which says nothing.
    if let Some((free, names)) = free.filter(|_| !evidence.is_decided()) {
        let (mut found, mut met) = (evidence.clone(), seen.clone());
        found.by_expression = None;
        found.unseen.push(format!(
            "masks and bounds at {}, which were free",
            names.join(", ")
        ));
        let checked = check_drawn(compared, free, options, much, rng, &mut found, &mut met)
            .and_then(|()| found.refuse_differences());
        if checked.is_ok() && found.is_decided() {
            (*evidence, seen) = (found, met);
        }
    }
    Ok(seen)
}

/// The comparisons at shapes that are drawn.
fn check_drawn(
    (program, expression, tile): (&Program, &Program, &TileProgram),
    mut shapes: Shapes<'_>,
    options: &TilingOptions,
    much: &[u64],
    rng: &mut ChaCha8Rng,
    evidence: &mut TilingEvidence,
    seen: &mut Seen,
) -> Result<(), Reject> {
    let before = shapes.pinned().clone();
    let agreement = agreement(&mut shapes, options.work, rng);
    let unrelated = expression != program && agreement.elements == 0;
    let mut compared = program;
    let is_much = || shapes.draw(&mut rng.clone(), 0, options.work).is_none();
    // The tile program's numbers are those of the expression at its true extents.
    if agreement.recounted || *shapes.pinned() != before && agreement.elements > 0 && is_much() {
        shapes = shapes.unpinned(before);
        compared = expression;
        evidence.by_expression = Some(agreement.into());
    }
    for more in [1].iter().chain(much) {
        let draws = if *more == 1 { options.draws } else { 1 };
        for number in 0..draws {
            let most = options.work.saturating_mul(*more);
            let Some((extents, tiles)) = shapes.draw(rng, number, most) else {
                continue;
            };
            let compared = program_at(compared, &extents);
            let draw = Draw {
                domains: domains_at(program, &compared),
                program: compared,
                expression: program_at(expression, &extents),
                tile: tile
                    .resized(&extents_of(tile, &extents), |k, a| {
                        tiles.get(&(k, a)).copied()
                    })
                    .map_err(|e| shapes.explain(Reject::Wrong(e), &extents))?,
                with_expression: evidence.by_expression.is_some(),
                unrelated,
            };
            draw.check(rng, number + 1, evidence, seen)
                .map_err(|reject| shapes.explain(reject, &extents))?;
            evidence.extents.push(shapes.shape(&extents));
        }
        if evidence.is_decided() {
            break;
        }
    }
    Ok(())
}

fn wrong(error: SimulateError) -> Reject {
    Reject::Wrong(error.to_string())
}

/// The extents of the axes that the tile program has.
fn extents_of(tile: &TileProgram, extents: &Extents) -> Extents {
    extents
        .iter()
        .filter(|(axis, _)| axis.index() < tile.axes.len())
        .map(|(axis, extent)| (*axis, *extent))
        .collect()
}

#[cfg(test)]
mod tests {
    // Oracle: tile programs written by hand are right, and each small fault in them makes them wrong unless argued.
    use super::*;
    use crate::fixtures;
    use crate::mutants::mutants;

    fn fixture_pairs() -> Vec<(&'static str, Program, TileProgram)> {
        let e = [6, 11, 3, 2];
        vec![
            (
                "online",
                fixtures::attention(e, None),
                fixtures::online_attention(e, None),
            ),
            (
                "causal",
                fixtures::attention(e, Some(0)),
                fixtures::online_attention(e, Some(0)),
            ),
            (
                "offset",
                fixtures::attention([3, 11, 3, 2], Some(8)),
                fixtures::online_attention([3, 11, 3, 2], Some(8)),
            ),
            (
                "split",
                fixtures::attention(e, None),
                fixtures::split_attention(e, 4),
            ),
            (
                "rows",
                fixtures::row_softmax(6, 11),
                fixtures::two_pass_softmax(6, 11),
            ),
            (
                "block_group",
                fixtures::row_softmax(6, 11),
                fixtures::block_group_softmax(6, 11),
            ),
            (
                "collapsed",
                fixtures::rows_of_groups(),
                fixtures::collapsed_rows_of_groups(),
            ),
        ]
    }

    fn check(program: &Program, tile: &TileProgram, seed: u64) -> Result<TilingEvidence, Reject> {
        let options = TilingOptions {
            seed,
            ..TilingOptions::default()
        };
        check_tiling(program, program, tile, &options)
    }

    #[test]
    fn correct_tilings_pass() {
        for (name, program, tile) in fixture_pairs() {
            for seed in 0..20 {
                let evidence =
                    check(&program, &tile, seed).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(
                    evidence.is_full_shape() && evidence.shapes == 9,
                    "{name}: {evidence:?}"
                );
                assert!(
                    evidence.exact > 20 && evidence.real > 20,
                    "{name}: {evidence:?}"
                );
                assert!(
                    evidence.exact > 3 * evidence.exact_undecided,
                    "{name}: {evidence:?}"
                );
                assert!(evidence.max_error < 1e-10, "{name}: {evidence:?}");
            }
        }
    }

    #[test]
    fn what_is_undefined_everywhere_is_not_passed() {
        let at = |value: &str| -> Result<TilingEvidence, Reject> {
            let program =
                format!("program p\naxis i = 64\nx = parameter f32 [i]\nreturn f32 [i] {value}\n");
            let program: Program = program.parse().unwrap_or_else(|e| panic!("{e}"));
            let log = match value.starts_with("log") {
                true => "  y = log(t)\n",
                false => "  y = exp(t)\n",
            };
            let tile = format!(
                "tile p\naxis i = 64\nbuffer x = parameter 0 f32 [i]\nbuffer out0 = output 0 f32 [i]\n\
                 kernel grid(i: 16) {{\n  in = load x[i]\n  s = mul(in, in)\n  k = -1\n  n = mul(s, k)\n  t = add(n, k)\n{log}  \
                 store out0 = y\n}}\n"
            );
            let tile: TileProgram = tile.parse().unwrap_or_else(|e| panic!("{e}"));
            check(&program, &tile, 3)
        };
        let undefined = at("log(-1 - x * x)");
        assert!(
            matches!(undefined, Err(Reject::Undecided(_))),
            "{undefined:?}"
        );
        let defined = at("exp(-1 - x * x)").unwrap_or_else(|e| panic!("{e}"));
        assert!(defined.decided() >= LEAST_DECIDED, "{defined:?}");
    }

    /// The tile programs of a program's first candidates are made elsewhere: this is the program itself, kernel by kernel, by hand.
    fn top_gate(strict: f64) -> (Program, TileProgram) {
        let program = "program gate\naxis t = 5, e = 4\nx = parameter f32 [t, e]\ng = exp(x) / sum(exp(x); e)\n\
                       return f32 [t, e] select(g - max(g; e), g, 0)\n";
        let program: Program = program.parse().unwrap_or_else(|e| panic!("{e}"));
        let tile = format!(
            "tile gate\naxis t = 5, e = 4\nbuffer x = parameter 0 f32 [t, e]\nbuffer out0 = output 0 f32 [t, e]\n\
             kernel grid(t: 2) whole(e: 4) {{\n  in = load x[t, e]\n  p = exp(in)\n  s = reduce_sum(p; e)\n  g = div(p, s)\n  \
             m = reduce_max(g; e)\n  k = -1\n  d = mul(m, k)\n  c = add(g, d)\n  n = {strict}\n  c2 = add(c, n)\n  z = 0\n  \
             o = select(c2, g, z)\n  store out0 = o\n}}\n"
        );
        let tile = tile.parse().unwrap_or_else(|e| panic!("{e}"));
        (program, tile)
    }

    #[test]
    fn what_is_equal_to_its_threshold_is_decided_by_agreement() {
        let (program, tile) = top_gate(0.0);
        let evidence = check(&program, &tile, 0).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            evidence.real_conditional > 20 && evidence.real_different == 0,
            "{evidence:?}"
        );
        // An order of the sum that makes the largest differ from the maximum by rounding alone.
        let (program, tile) = top_gate(-1e-17);
        assert!(check(&program, &tile, 0).is_err());
        let (program, tile) = top_gate(-0.01);
        assert!(check(&program, &tile, 0).is_err());
    }

    #[test]
    fn extents_of_one_sum_are_kept_together() {
        let parse = |value: &str| -> Program {
            let text = format!(
                "program p\naxis n = 4, c = 65536, i = 20, j = 12, k = 6\nx = parameter f32 [n, c, i, j, k]\nw = parameter f32 [c]\n\
                 b = parameter f32 [n]\nreturn f32 [n] {value}\n"
            );
            text.parse().unwrap_or_else(|e| panic!("{e}"))
        };
        let program = parse("mean(dot(x, w; c) + b; i, j, k)");
        let kept = |form: &Program| {
            let mut shapes = Shapes::new(&program, form, None, 200_000).expect("shapes");
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let found = shapes.pin_counted_extents(&mut rng, 200_000, &mut u64::MAX.clone());
            (found.elements > 0).then_some(found.kept)
        };
        let right = parse("dot(sum(x; i, j, k), w; c) / 1440 + b");
        let counted = ["i = 20", "j = 12", "k = 6"].map(String::from);
        assert_eq!(kept(&right), Some(counted.to_vec()));
        let wrong = parse("dot(sum(x; i, j, k), w; c) / 1441 + b");
        assert_eq!(kept(&wrong), None);
    }

    /// The extents of a mean of means are too large to be kept: its numbers follow them, and one that does not count what it has to is refused.
    #[test]
    fn numbers_that_count_elements_follow_their_extents() {
        let parse = |value: &str| -> Program {
            let text = format!(
                "program p\naxis n = 3, a = 4, b = 30000000\nx = parameter f32 [n, a, b]\nm = 8.333333333333334e-9 * sum(x; a, b)\n\
                 i = 3.3333333333333334e-8 * sum(x; b)\nd = i - m\nreturn f32 [n] {value}\n"
            );
            text.parse().unwrap_or_else(|e| panic!("{e}"))
        };
        let program = parse("sum((x - m) * (x - m); a, b)");
        let found = |value: &str| {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let options = TilingOptions::default();
            related(&program, &parse(value), &options, &mut rng)
        };
        let right = found("sum(sum((x - i) * (x - i); b) + 30000000 * d * d; a)");
        let right = right.expect("the sums of squares add up");
        assert!(right.recounted && right.kept.is_empty() && right.elements > 0);
        for wrong in ["30000001", "120000000", "4"] {
            let value = format!("sum(sum((x - i) * (x - i); b) + {wrong} * d * d; a)");
            let refused = found(&value).expect_err(wrong);
            assert!(matches!(refused, Reject::Undecided(_)), "{refused}");
        }
    }

    /// Running sums of running sums: of the last one element takes all of the others.
    fn scans() -> (Program, String) {
        let program = "program scans
axis l = 4096, j = 4096, k = 4096, i = 4096
x = parameter f32 [l]
a = sum(select(iota(l) - iota(j), view(x; l -> 4095 - j), 0); j)
b = sum(select(iota(l) - iota(k), view(a; l -> 4095 - k), 0); k)
return f32 [l] sum(select(iota(l) - iota(i), view(b; l -> 4095 - i), 0); i)
";
        let kernel = |from: &str, to: &str, over: &str| {
            format!(
                "kernel grid(l: 64) loop({over}: 64) {{
  loop {over} to last(l) + 1 {{
    carry s = 0 over [l]
    in = load {from}[4095 - {over}]
    p = iota(l)
    q = iota({over})
    n = -1
    m = mul(q, n)
    d = add(p, m)
    z = 0
    v = select(d, in, z)
    f = reduce_sum(v; {over})
    s' = add(s, f)
    yield all = final(s, s')
  }}
  store {to} = all
}}
"
            )
        };
        let tile = format!(
            "tile scans
axis l = 4096, j = 4096, k = 4096, i = 4096
buffer x = parameter 0 f32 [l]
buffer out0 = output 0 f32 [l]
buffer a = workspace f32 [l]
buffer b = workspace f32 [l]
{}{}{}",
            kernel("x", "a", "j"),
            kernel("a", "b", "k"),
            kernel("b", "out0", "i")
        );
        (program.parse().expect("a program"), tile)
    }

    #[test]
    fn what_is_too_much_work_is_compared_kernel_by_kernel() {
        let (program, text) = scans();
        let options = TilingOptions {
            slice_work: 2_000_000,
            most_slice_work: 20_000_000,
            ..TilingOptions::default()
        };
        let check = |text: &str| {
            let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            check_tiling(&program, &program, &tile, &options)
        };
        let evidence = check(&text).unwrap_or_else(|e| panic!("{e}"));
        assert!(evidence.slices.is_empty(), "{evidence:?}");
        let kernels = evidence.pieces.iter().map(|piece| piece.kernels.clone());
        assert_eq!(kernels.collect::<Vec<_>>(), [[0], [1], [2]]);
        for piece in &evidence.pieces {
            let found = &piece.found;
            assert!(found.real > 20, "{found:?}");
            assert!(found.slices.iter().all(|s| s.shortened.is_empty()));
        }
        let said = evidence.at_true_extents();
        assert!(said.contains("kernel 2: at the true extents"), "{said}");
        // What is wrong in the last tiles alone is not seen where extents are small.
        let far = "n = -1\n    m = mul(q, n)\n    d = add(p, m)\n    z = 0\n    v = select(d, in, z)\n    f = reduce_sum(v; k)";
        let wrong = far.replace(
            "v = select(d, in, z)",
            "e = -4000\n    g = add(p, e)\n    h = select(g, z, in)\n    v = select(d, h, z)",
        );
        let refused = check(&text.replace(far, &wrong)).expect_err("it is wrong");
        assert!(
            matches!(&refused, Reject::InKernel { kernel: 1, reject } if matches!(**reject, Reject::Wrong(_))),
            "{refused}"
        );
        // What the tile program computes is another expression, which is the program or is not.
        let with = |value: &str, last: &str| {
            let form = program.to_string().replace("return f32 [l] ", "y = ");
            let form = format!("{form}return f32 [l] {value}\n");
            let form: Program = form.parse().unwrap_or_else(|e| panic!("{e}\n{form}"));
            let text = text.replace("  store out0 = all", last);
            let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            check_tiling(&program, &form, &tile, &options)
        };
        let same = "  k = 0.5\n  h = mul(all, k)\n  out = add(h, h)\n  store out0 = out";
        let evidence = with("0.5 * y + 0.5 * y", same).unwrap_or_else(|e| panic!("{e}"));
        let equal = evidence.by_expression.as_ref().map(|by| by.elements);
        assert!(evidence.pieces.len() == 3 && (equal > Some(0) || evidence.real > 0));
        let other = "  k = 1\n  out = add(all, k)\n  store out0 = out";
        let refused = with("y + 1", other).expect_err("another function");
        assert!(
            matches!(refused, Reject::Undecided(_) | Reject::Wrong(_)),
            "{refused}"
        );
        // Nor is what takes or gives other tensors.
        let turned = text.replace(
            "buffer out0 = output 0 f32 [l]",
            "buffer out0 = output 0 bf16 [l]",
        );
        let pieces = check(&turned).map(|evidence| evidence.pieces.len());
        assert!(pieces.unwrap_or(0) == 0);
        // A buffer that is called otherwise belongs to both of its kernels.
        let unnamed = text.replace("buffer b =", "buffer h =");
        let unnamed = unnamed
            .replace("store b =", "store h =")
            .replace("load b[", "load h[");
        let evidence = check(&unnamed).unwrap_or_else(|e| panic!("{e}"));
        let kernels = evidence.pieces.iter().map(|piece| piece.kernels.clone());
        assert_eq!(kernels.collect::<Vec<_>>(), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn where_the_program_is_undefined_anything_is_right() {
        let wide = |text: &str| -> Program {
            format!("program p\naxis t = 7\nx = parameter f32 [t]\ny = parameter f32 [t]\nreturn f32 [t] {text}\n")
                .parse()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let tile = |body: &str| -> TileProgram {
            format!(
                "tile p\naxis t = 7\nbuffer x = parameter 0 f32 [t]\nbuffer y = parameter 1 f32 [t]\n\
                 buffer out0 = output 0 f32 [t]\nkernel grid(t: 2) {{\n  a = load x[t]\n  b = load y[t]\n{body}  store out0 = r\n}}\n"
            )
            .parse()
            .unwrap_or_else(|e| panic!("{e}"))
        };
        // The root of a product of two, of which one is negative as often as not, and a maximum that hides it.
        let program = wide("max(sqrt(x * y + x * y), 0)");
        let right =
            "  p = mul(a, b)\n  k = 2\n  q = mul(p, k)\n  s = sqrt(q)\n  z = 0\n  r = max(s, z)\n";
        let evidence = check(&program, &tile(right), 0).unwrap_or_else(|e| panic!("{e}"));
        assert!(evidence.real > 20, "{evidence:?}");
        assert!(check(&program, &tile(&right.replace("k = 2", "k = 3")), 0).is_err());
        // An overflow on the way is no fault of who avoids it.
        let program = wide("exp(exp(x) * 9) * 0 + y");
        assert!(
            check(
                &program,
                &tile("  z = 0\n  c = mul(a, z)\n  r = add(c, b)\n"),
                0
            )
            .is_ok()
        );
        assert!(
            check(
                &program,
                &tile("  z = 0\n  c = mul(b, z)\n  r = add(c, a)\n"),
                0
            )
            .is_err()
        );
    }

    /// Faults that change nothing over the reals, and why.
    const EQUIVALENT: &[(&str, &str)] = &[
        ("online: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("online: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("causal: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("causal: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        (
            "causal: kernel 0: `v14`: only operand 0 of Add",
            "the operand dropped is 0",
        ),
        ("causal: kernel 0: loop 1: high bound 0 dropped", MASKED),
        ("offset: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("offset: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("offset: kernel 0: loop 1: high bound 0 dropped", MASKED),
        ("split: kernel 0: `v2`: starts at 1 for 0", FORGOTTEN),
        ("split: kernel 0: `v3`: starts at 1 for 0", FORGOTTEN),
        ("rows: kernel 0: `v1`: starts at 1 for 0", FORGOTTEN),
    ];
    const FORGOTTEN: &str = "the first rescale multiplies the start by e^(−∞ − m) = 0";
    const MASKED: &str = "tiles beyond the bound are masked: they add e^(−∞) = 0";

    #[test]
    fn faults_are_caught() {
        let mut tried = 0;
        let mut survivors = Vec::new();
        for (name, program, tile) in fixture_pairs() {
            for (what, mutant) in mutants(&tile) {
                tried += 1;
                let argued = EQUIVALENT
                    .iter()
                    .any(|(w, _)| *w == format!("{name}: {what}"));
                if check(&program, &mutant, 1).is_ok() != argued {
                    survivors.push(format!("{name}: {what}"));
                }
            }
        }
        assert!(survivors.is_empty(), "of {tried}: {survivors:#?}");
        assert!(tried > 150, "{tried}");
    }
}
