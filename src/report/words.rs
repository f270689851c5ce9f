//! In which words numbers are said, and what differs between two candidates by their texts.

use super::facts::{KernelFacts, Limit};
use crate::pipeline::history::{Loser, Seen};
use codegen::clock::Part;
use std::collections::BTreeMap;

/// What is meant by the reasons that do not say it by themselves.
const REASONS: [(&str, &str); 7] = [
    (
        "assignment",
        "of what the search for cuts tried: axes in roles with which no kernel can be built",
    ),
    ("registers", "more than a thread has"),
    ("shared_memory", "more than a block has"),
    ("grid", "more blocks than can be launched"),
    ("fragile", "equal forms that lose digits in f32"),
    ("schedule", "mappings that the kernel does not allow"),
    (
        "other_tiling",
        "tile programs with other kernels or values than the schedule that was given",
    ),
];

/// What a reason for rejects means, where it does not say it by itself.
pub fn meaning(reason: &str) -> Option<&'static str> {
    let known = REASONS.iter().find(|r| r.0 == reason);
    known.map(|(_, meaning)| *meaning)
}

/// Microseconds, with as many digits as say something.
pub fn us(us: f64) -> String {
    match us.abs() {
        x if !x.is_finite() => "unknown".to_owned(),
        x if x >= 1000.0 => format!("{us:.0} us"),
        x if x >= 100.0 => format!("{us:.1} us"),
        x if x >= 0.1 || x == 0.0 => format!("{us:.2} us"),
        x if x >= 0.001 => format!("{us:.3} us"),
        _ => "< 0.001 us".to_owned(),
    }
}

/// How many times something is another.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if !r.is_finite() || r > 100.0 => "> 100".to_owned(),
        r => format!("{r:.2}"),
    }
}

/// A share of one as percent.
pub fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p != 0.0 && p.abs() < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Bytes, decimal.
pub fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b} bytes"),
    }
}

/// Arithmetic operations.
pub fn operations(flops: u64) -> String {
    match flops as f64 {
        f if f >= 1e12 => format!("{:.2} TFLOP", f / 1e12),
        f if f >= 1e9 => format!("{:.2} GFLOP", f / 1e9),
        f if f >= 1e6 => format!("{:.2} MFLOP", f / 1e6),
        f => format!("{f} FLOP"),
    }
}

/// A part of the clock's time: a unit, or what is waited for.
pub fn part(part: Part) -> &'static str {
    match part {
        Part::All => "all of it",
        Part::Launch => "the launch",
        Part::Issue => "instruction issue",
        Part::Half => "comparisons and conversions",
        Part::Special => "special functions (exponentials, reciprocals, roots)",
        Part::Shared => "shared memory",
        Part::Tensor => "tensor cores",
        Part::L2 => "L2",
        Part::Memory => "device memory",
        Part::Loads => "loads into registers",
        Part::Stages => "stages that copies fill",
        Part::Instructions => "matrix instructions under way",
        Part::Barriers => "barriers of the block",
        Part::Turns => "the turn of other warps",
        Part::GridBarriers => "the other blocks of the group",
        Part::Latency => "results of their own instructions",
    }
}

/// The same without what it consists of.
pub fn short(of: Part) -> &'static str {
    let whole = part(of);
    whole.split_once(" (").map_or(whole, |(short, _)| short)
}

/// The same, by its name in an artifact.
pub fn named(name: &str) -> String {
    let known = Part::ALL.into_iter().find(|p| p.name() == name);
    match known {
        Some(p) if Part::WAITS.contains(&p) => format!("waiting for {}", part(p)),
        Some(p) => part(p).to_owned(),
        None => name.to_owned(),
    }
}

/// What limits a kernel, in a sentence or two.
pub fn limit(kernel: &KernelFacts, sms: u32) -> String {
    let mut text = match kernel.limit {
        Limit::Unit { unit, share } => format!(
            "Limited by {}: busy for {} of the time.",
            part(unit),
            percent(share)
        ),
        Limit::Launch { share } => {
            format!(
                "Limited by the launch, which takes {} of the time.",
                percent(share)
            )
        }
        Limit::Waits {
            wait,
            share,
            unit,
            busy,
        } => format!(
            "Limited by waiting: the warps that compute wait for {} for {} of the time, and the busiest unit, {}, is busy for {}.",
            part(wait),
            percent(share),
            part(unit),
            percent(busy)
        ),
        Limit::Unknown => "The clock cannot say what limits it.".to_owned(),
    };
    if kernel.blocks < u64::from(sms) {
        let (blocks, s) = (kernel.blocks, if kernel.blocks == 1 { "" } else { "s" });
        text += &format!(" It has {blocks} block{s} for {sms} multiprocessors.");
    }
    text
}

/// The same in two or three words.
pub fn limit_name(limit: Limit) -> String {
    match limit {
        Limit::Unit { unit, .. } => part(unit).to_owned(),
        Limit::Launch { .. } => "the launch".to_owned(),
        Limit::Waits { wait, .. } => format!("waiting for {}", part(wait)),
        Limit::Unknown => "unknown".to_owned(),
    }
}

/// A role, and a tile over an extent.
type Axis = (String, String);

/// The axes of each kernel of a plan.
fn plan(text: &str) -> Vec<BTreeMap<String, Axis>> {
    let kernels = text
        .lines()
        .filter_map(|l| Some(l.trim().split_once(": ")?.1));
    kernels
        .map(|line| {
            let (mut role, mut axes) = (String::new(), BTreeMap::new());
            for word in line.split_whitespace() {
                match word.split_once(':') {
                    None => role = word.to_owned(),
                    Some((axis, tile)) => {
                        axes.insert(axis.to_owned(), (role.clone(), tile.to_owned()));
                    }
                }
            }
            axes
        })
        .collect()
}

/// The lines of each kernel of a schedule, by what each is about.
pub fn lines(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut all: Vec<BTreeMap<String, String>> = Vec::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if line.starts_with("kernel ") {
            all.push(BTreeMap::new());
        } else if let Some(kernel) = all.last_mut() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            let key = match (first, words.next()) {
                ("instruction", Some(value)) => format!("{first} {value}"),
                (_, _) => first.to_owned(),
            };
            kernel.insert(key, line.to_owned());
        }
    }
    all
}

fn role(word: &str) -> &str {
    match word {
        "grid" => "over the grid",
        "loop" => "in a loop",
        "whole" => "held whole",
        other => other,
    }
}

/// What changed from one candidate to another: tiles, and transformations of the schedule. Nothing where both are the same. `than` says which the
/// first of both is: `before`, or `the winner`.
pub fn differences(before: &Seen, after: &Seen, than: &str) -> Vec<String> {
    let (old, new) = (plan(&before.plan), plan(&after.plan));
    if old.len() != new.len() {
        let s = |n: usize| if n == 1 { "" } else { "s" };
        return vec![format!(
            "{} kernel{} in place of {}: other values are stored between kernels",
            new.len(),
            s(new.len()),
            old.len()
        )];
    }
    let mut changes = Vec::new();
    let several = new.len() > 1;
    let of = |n: usize| {
        if several {
            format!("kernel {n}: ")
        } else {
            String::new()
        }
    };
    for (n, (old, new)) in old.iter().zip(&new).enumerate() {
        for (axis, (now, tile)) in new {
            match old.get(axis) {
                None => changes.push(format!(
                    "{}axis {axis} is new, {} by {tile}",
                    of(n),
                    role(now)
                )),
                Some((was, before)) if (was, before) != (now, tile) => {
                    let mut change = format!("{}tile of {axis} {tile}", of(n));
                    if before != tile {
                        change += &format!(", {than} {before}");
                    }
                    if was != now {
                        change += &format!("; {}, {than} {}", role(now), role(was));
                    }
                    changes.push(change);
                }
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|axis| !new.contains_key(*axis));
        changes.extend(gone.map(|axis| format!("{}without axis {axis}", of(n))));
    }
    let (old, new) = (lines(&before.schedule), lines(&after.schedule));
    for (n, (old, new)) in old.iter().zip(&new).enumerate() {
        for (key, line) in new {
            match old.get(key) {
                None => changes.push(format!("{}with `{line}`", of(n))),
                Some(was) if was != line => {
                    changes.push(format!("{}`{line}`, {than} `{was}`", of(n)));
                }
                Some(_) => {}
            }
        }
        let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
        changes.extend(gone.map(|(_, line)| format!("{}without `{line}`", of(n))));
    }
    changes
}

/// Why something lost.
pub fn lost(loser: &Loser) -> String {
    let (loss, share) = (loser.loss(), loser.loss() / loser.best_us);
    let by = match loser.measured {
        true => "measured",
        false => "by the clock",
    };
    let more = match loss {
        x if x > 0.0 => format!("{} slower ({}) {by}", us(x), percent(share)),
        x if x < 0.0 => format!("{} faster ({}) {by}", us(-x), percent(-share)),
        _ => format!("as fast {by}, and the winner came first"),
    };
    let mut parts: Vec<(&str, f64)> = loser.parts.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    parts.sort_by(|x, y| y.1.abs().total_cmp(&x.1.abs()));
    let most: Vec<String> = (parts.iter())
        .filter(|(_, more)| more.abs() > 0.005 * loser.best_us && (*more > 0.0) == (loss >= 0.0))
        .take(2)
        .map(|(name, more)| format!("{} {more:+.2} us", named(name)))
        .collect();
    let parts = match most.is_empty() {
        true => String::new(),
        false if loser.measured => format!("; by the clock mostly {}", most.join(", ")),
        false => format!(": mostly {}", most.join(", ")),
    };
    match (&loser.refused, loser.tried) {
        (Some(refusal), _) => {
            let first = refusal.text.lines().next().unwrap_or_default();
            format!("refused: {first}. It would be {more}{parts}")
        }
        (None, true) => format!("{more}{parts}"),
        (None, false) => {
            format!("{more}{parts}; it was not compiled, since another schedule came first")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(plan: &str, schedule: &str) -> Seen {
        Seen {
            plan: plan.to_owned(),
            schedule: schedule.to_owned(),
            clock_us: 1.0,
        }
    }

    #[test]
    fn differences_name_tiles_and_lines() {
        let one = seen(
            "kernel 0: grid b:1/4 i:64/4096 loop j:64/4096 whole d:128\n",
            "kernel 0\n  instruction s = fma\n  warps 4 x 1\n  turns\n",
        );
        let two = seen(
            "kernel 0: grid b:1/4 i:128/4096 whole d:128 j:4096\n",
            "kernel 0\n  instruction s = wgmma.m64k16\n  warps 4 x 1\n  delayed\n",
        );
        assert_eq!(
            differences(&one, &two, "before"),
            [
                "tile of i 128/4096, before 64/4096",
                "tile of j 4096, before 64/4096; held whole, before in a loop",
                "with `delayed`",
                "`instruction s = wgmma.m64k16`, before `instruction s = fma`",
                "without `turns`",
            ]
        );
        assert!(differences(&one, &one, "before").is_empty());
        let three = seen("kernel 0: grid i:1\nkernel 1: grid i:1\n", "");
        let cuts = differences(&one, &three, "before");
        assert!(cuts[0].starts_with("2 kernels in place of 1"), "{cuts:?}");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(us(1597.6), "1598 us");
        assert_eq!(us(54.321), "54.32 us");
        assert_eq!(percent(0.944), "94 %");
        assert_eq!(bytes(536_870_912), "536.87 MB");
        assert_eq!(operations(1_114_985_000_000), "1.11 TFLOP");
    }
}
