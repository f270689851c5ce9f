//! The charts: Vega-Lite specifications with their data beside them. How they look, light or dark, is `script.js`'s.

use super::facts::KernelFacts;
use super::html::{json, text};
use super::words;
use codegen::clock::Part;
use codegen::clock::timeline::{Bar, Kind, Timeline};
use serde_json::{Value, json};

/// Bars of a timeline that are drawn at most: what comes behind is left out.
const MOST_BARS: usize = 2_000;
/// Blocks of a multiprocessor that a timeline shows.
const SHOWN_BLOCKS: usize = 2;
/// From this ratio of the slowest to the fastest on a curve has a logarithmic axis.
const WIDE: f64 = 8.0;

/// A chart with a caption: rows of numbers, in which columns with texts hold places in these.
fn figure(spec: &Value, table: &Value, canvas: bool, caption: &str) -> String {
    let data = json(&json!({"spec": spec, "table": table, "canvas": canvas}));
    format!(
        "<figure class=\"vega\"><div class=\"chart\"></div><script type=\"application/json\">{data}</script><figcaption>{}</figcaption></figure>\n",
        text(caption)
    )
}

fn rounded(x: f64) -> f64 {
    match x.is_finite() {
        true => (x * 1e4).round() / 1e4,
        false => 0.0,
    }
}

/// A point of a curve: seconds, microseconds, and what it is.
pub(super) type Point = (f64, f64, String);

/// Best times against search times, a line for each name. Each line goes on to `end`.
pub(super) fn curves(
    lines: &[(String, Vec<Point>)],
    end: f64,
    what: &str,
    caption: &str,
) -> String {
    let (mut rows, mut texts) = (Vec::new(), Vec::new());
    let names: Vec<&str> = lines.iter().map(|l| l.0.as_str()).collect();
    let all = lines.iter().flat_map(|l| l.1.iter().map(|p| p.1));
    let (least, most) = all.fold((f64::INFINITY, 0.0f64), |(x, y), us| (x.min(us), y.max(us)));
    for (line, (_, points)) in lines.iter().enumerate() {
        for (seconds, us, said) in points {
            texts.push(said.clone());
            rows.push(json!([
                rounded(*seconds),
                rounded(*us),
                line,
                texts.len() - 1,
                1
            ]));
        }
        if let Some((seconds, us, _)) = points.last().filter(|p| p.0 < end) {
            texts.push(format!(
                "until {end:.1} s nothing better than that of {seconds:.1} s"
            ));
            rows.push(json!([
                rounded(end),
                rounded(*us),
                line,
                texts.len() - 1,
                0
            ]));
        }
    }
    let scale = match least > 0.0 && most > WIDE * least {
        true => json!({"type": "log", "nice": true}),
        false => json!({"zero": false, "nice": true}),
    };
    let color = match lines.len() {
        1 => json!({}),
        _ => {
            json!({"color": {"field": "line", "type": "nominal", "scale": {"scheme": "tableau10"}}})
        }
    };
    let mut encoding = json!({
        "x": {"field": "seconds", "type": "quantitative", "title": "search time (s)", "scale": {"nice": true}},
        "y": {"field": "us", "type": "quantitative", "title": what, "scale": scale},
        "tooltip": {"field": "said"},
    });
    if let (Some(all), Some(more)) = (encoding.as_object_mut(), color.as_object()) {
        all.extend(more.clone());
    }
    let spec = json!({
        "height": 240,
        "encoding": encoding,
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2}},
            {"transform": [{"filter": "datum.point == 1"}], "mark": {"type": "point", "filled": true, "size": 60}},
        ],
    });
    let table = json!({
        "columns": ["seconds", "us", "line", "said", "point"],
        "rows": rows,
        "texts": {"line": names, "said": texts},
    });
    figure(&spec, &table, false, caption)
}

/// What each kernel takes, beside its floor.
pub(super) fn kernels(all: &[KernelFacts], caption: &str) -> String {
    let names: Vec<String> = all.iter().map(|k| format!("kernel {}", k.number)).collect();
    let said: Vec<String> = (all.iter())
        .map(|k| {
            let (us, floor) = (words::us(k.us), words::us(k.floor_us()));
            format!("kernel {}: {us} by the clock, floor {floor}", k.number)
        })
        .collect();
    let rows = all.iter().enumerate();
    let rows: Vec<Value> = rows
        .map(|(n, k)| json!([n, rounded(k.us), rounded(k.floor_us()), n]))
        .collect();
    let spec = json!({
        "height": {"step": 26},
        "encoding": {
            "y": {"field": "kernel", "type": "nominal", "sort": null, "title": null},
            "tooltip": {"field": "said"},
        },
        "layer": [
            {"mark": {"type": "bar", "opacity": 0.75}, "encoding": {"x": {"field": "us", "type": "quantitative", "title": "time by the clock (us); the mark is the floor"}}},
            {"mark": {"type": "tick", "thickness": 3, "size": 20, "color": {"expr": "'#d9822b'"}}, "encoding": {"x": {"field": "floor", "type": "quantitative"}}},
        ],
    });
    let table = json!({
        "columns": ["kernel", "us", "floor", "said"],
        "rows": rows,
        "texts": {"kernel": names, "said": said},
    });
    figure(&spec, &table, false, caption)
}

/// For what share of its time each unit is busy in a kernel, and what its warps wait for.
pub(super) fn parts(kernel: &KernelFacts, caption: &str) -> Option<String> {
    let parts = kernel.parts?;
    let groups = ["busy", "waiting", "launch"];
    let all = (Part::UNITS.into_iter().map(|p| (p, 0)))
        .chain(Part::WAITS.into_iter().map(|p| (p, 1)))
        .chain([(Part::Launch, 2)]);
    let mut shares: Vec<(Part, usize, f64)> = all
        .map(|(part, group)| (part, group, 100.0 * parts[part] / parts[Part::All]))
        .filter(|(_, _, share)| *share >= 0.5)
        .collect();
    shares.sort_by(|x, y| x.1.cmp(&y.1).then(y.2.total_cmp(&x.2)));
    let name = |(part, group, _): &(Part, usize, f64)| match group {
        1 => format!("wait: {}", words::part(*part)),
        _ => words::short(*part).to_owned(),
    };
    let names: Vec<String> = shares.iter().map(name).collect();
    let rows: Vec<Value> = (shares.iter().enumerate())
        .map(|(n, (part, group, share))| json!([n, group, rounded(*share), rounded(parts[*part])]))
        .collect();
    let spec = json!({
        "height": {"step": 20},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "part", "type": "nominal", "sort": null, "title": null},
            "x": {"field": "share", "type": "quantitative", "title": "share of the kernel's time (%)", "scale": {"domain": [0, 100], "clamp": true}},
            "color": {"field": "group", "type": "nominal", "scale": {"domain": groups, "range": ["#3a78b8", "#a9b0b8", "#d9822b"]}},
            "tooltip": [{"field": "part", "title": "part"}, {"field": "us", "title": "us"}, {"field": "share", "title": "%", "format": ".1f"}],
        },
    });
    let table = json!({
        "columns": ["part", "group", "share", "us"],
        "rows": rows,
        "texts": {"part": names, "group": groups},
    });
    Some(figure(&spec, &table, false, caption))
}

/// Bars of one role behind each other that say the same are one.
fn merged(bars: &[Bar], blocks: usize) -> Vec<Bar> {
    let mut all: Vec<Bar> = bars.iter().filter(|b| b.block < blocks).copied().collect();
    all.sort_by(|x, y| {
        let of = |b: &Bar| (b.block, b.role);
        of(x).cmp(&of(y)).then(x.begin.total_cmp(&y.begin))
    });
    let mut merged: Vec<Bar> = Vec::new();
    for bar in all {
        match merged.last_mut() {
            Some(last)
                if (last.block, last.role, last.statement, last.waits)
                    == (bar.block, bar.role, bar.statement, bar.waits)
                    && bar.begin - last.end < 0.5 =>
            {
                last.end = bar.end;
            }
            Some(_) | None => merged.push(bar),
        }
    }
    merged
}

/// The first nanoseconds of one multiprocessor: its units, and what each role of its blocks does.
pub(super) fn timeline(timeline: &Timeline, clock_ghz: f64) -> Option<String> {
    let blocks = timeline.blocks.min(SHOWN_BLOCKS);
    let mut bars = merged(&timeline.bars, blocks);
    let first = timeline.bars.iter().map(|b| b.begin);
    let mut end = timeline.bars.iter().map(|b| b.end).fold(0.0, f64::max);
    if first.fold(f64::INFINITY, f64::min) >= end {
        return None;
    }
    // Up to the moment at which there are enough.
    if bars.len() > MOST_BARS {
        let mut begins: Vec<f64> = bars.iter().map(|b| b.begin).collect();
        begins.sort_by(f64::total_cmp);
        end = begins[MOST_BARS];
        bars.retain(|b| b.begin < end);
    }
    let least = end / 4000.0;
    let (mut names, mut rows): (Vec<String>, Vec<Value>) = (Vec::new(), Vec::new());
    const KINDS: [Kind; 5] = [
        Kind::Products,
        Kind::Arithmetic,
        Kind::Memory,
        Kind::Shared,
        Kind::Synchronisation,
    ];
    let kinds: Vec<&str> = KINDS
        .map(Kind::name)
        .into_iter()
        .chain(["waiting", "unit busy"])
        .collect();
    let (waiting, busy) = (KINDS.len(), KINDS.len() + 1);
    let mut said: Vec<String> = Vec::new();
    let ns = |clocks: f64| (clocks / clock_ghz * 10.0).round() / 10.0;
    let mut say = |text: String| match said.iter().position(|s| *s == text) {
        Some(at) => at,
        None => {
            said.push(text);
            said.len() - 1
        }
    };
    for unit in Part::UNITS {
        let mut stretches: Vec<[f64; 2]> = Vec::new();
        let own = timeline
            .busy
            .iter()
            .filter(|b| b.unit == unit && b.begin < end);
        for b in own {
            match stretches.last_mut() {
                Some(last) if b.begin - last[1] < least => last[1] = last[1].max(b.end),
                Some(_) | None => stretches.push([b.begin, b.end]),
            }
        }
        if stretches.is_empty() {
            continue;
        }
        names.push(format!("unit: {}", words::short(unit)));
        let text = say(format!("{} busy", words::part(unit)));
        rows.extend(
            stretches
                .iter()
                .map(|[from, to]| json!([names.len() - 1, busy, ns(*from), ns(to.min(end)), text])),
        );
    }
    for block in 0..blocks {
        let mut warp = 0;
        for (role, (computes, warps)) in timeline.roles.iter().enumerate() {
            let last = warp + warps - 1;
            let what = if *computes { "compute" } else { "copy" };
            names.push(match blocks {
                1 => format!("warps {warp}–{last}: {what}"),
                _ => format!("block {block}, warps {warp}–{last}: {what}"),
            });
            warp += warps;
            for bar in bars.iter().filter(|b| (b.block, b.role) == (block, role)) {
                let statement = &timeline.statements[bar.statement];
                let (kind, text) = match bar.waits {
                    None => (
                        KINDS
                            .iter()
                            .position(|k| *k == statement.kind)
                            .unwrap_or_default(),
                        statement.text.clone(),
                    ),
                    Some(part) => (
                        waiting,
                        format!("waits for {}, at: {}", words::part(part), statement.text),
                    ),
                };
                let to = bar.end.min(end);
                rows.push(json!([
                    names.len() - 1,
                    kind,
                    ns(bar.begin),
                    ns(to),
                    say(text)
                ]));
            }
        }
    }
    let spec = json!({
        "height": {"step": 24},
        "mark": {"type": "bar", "height": 16},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": null, "title": null},
            "x": {"field": "from", "type": "quantitative", "title": "time from the first block's begin (ns)", "scale": {"nice": false, "domain": [0, ns(end)]}},
            "x2": {"field": "to"},
            "color": {"field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": ["#3a78b8", "#4fa37a", "#d9822b", "#8d6cc0", "#c75d5d", "#c9ced4", "#7b8794"]}},
            "tooltip": [{"field": "said", "title": "what"}, {"field": "from", "title": "from (ns)"}, {"field": "to", "title": "to (ns)"}],
        },
    });
    let table = json!({
        "columns": ["row", "kind", "from", "to", "said"],
        "rows": rows,
        "texts": {"row": names, "kind": kinds, "said": said},
    });
    let mut caption = format!(
        "One multiprocessor by the clock: {}, {:.0} ns of simulated time.",
        match timeline.blocks {
            1 => "one block".to_owned(),
            all if all > blocks => format!("{all} blocks side by side, {blocks} of them shown"),
            all => format!("{all} blocks side by side"),
        },
        ns(end)
    );
    if timeline.is_cut || end < timeline.clocks {
        caption += " Long loops are cut after a few iterations, which repeat.";
    }
    caption += " What runs in the background, such as copies and matrix instructions under way, shows as the unit that it keeps busy.";
    Some(figure(&spec, &table, true, &caption))
}

/// How a quantity is shared among names.
pub(super) fn shares(all: &[(String, f64)], title: &str, caption: &str) -> String {
    let names: Vec<&str> = all.iter().map(|a| a.0.as_str()).collect();
    let rows = all.iter().enumerate();
    let rows: Vec<Value> = rows.map(|(n, (_, x))| json!([n, rounded(*x)])).collect();
    let spec = json!({
        "height": {"step": 22},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": null, "title": null},
            "x": {"field": "x", "type": "quantitative", "title": title},
            "tooltip": [{"field": "name", "title": "job"}, {"field": "x", "title": title}],
        },
    });
    let table = json!({"columns": ["name", "x"], "rows": rows, "texts": {"name": names}});
    figure(&spec, &table, false, caption)
}
