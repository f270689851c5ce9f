//! How the tiling of a kernel is drawn: the tile of its result over the axes of that, and a bar for each axis that is walked or held.

use super::html::text;
use ir::{AxisId, Kernel, Role, TileProgram};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Sides of a drawing, in CSS pixels.
const WIDTH: f64 = 390.0;
const SQUARE: f64 = 210.0;
/// Cuts that are drawn along a side: more would be grey.
const MOST_CUTS: u64 = 64;
/// The least side of a tile that is seen.
const LEAST: f64 = 3.0;

/// An axis, as a kernel has it.
struct Axis<'a> {
    name: &'a str,
    tile: u64,
    extent: u64,
    role: Role,
}

impl Axis<'_> {
    fn tiles(&self) -> u64 {
        self.extent.div_ceil(self.tile.max(1))
    }

    /// In a few words.
    fn said(&self) -> String {
        let (name, tile, extent) = (self.name, self.tile, self.extent);
        let s = if self.tiles() == 1 { "" } else { "s" };
        match self.role {
            Role::Grid => format!(
                "{name}: {tile} of {extent}, {} tile{s} in parallel",
                self.tiles()
            ),
            Role::Loop => format!(
                "{name}: {tile} of {extent}, up to {} iteration{s}",
                self.tiles()
            ),
            Role::Whole => format!("{name}: all {extent}"),
        }
    }
}

/// The drawing of a kernel, with a line of words below it.
pub(super) fn drawing(tile: &TileProgram, kernel: &Kernel) -> String {
    let axis = |id: AxisId| {
        let own = kernel.axes.get(&id)?;
        let axis = &tile.axes[id.index()];
        Some(Axis {
            name: &axis.name,
            tile: own.tile.min(axis.extent),
            extent: axis.extent,
            role: own.role,
        })
    };
    let stores = ir::stores(&kernel.body);
    let Some((buffer, value)) = stores.first() else {
        return String::new();
    };
    let output = tile.axes_stored(*buffer, &kernel.value(*value).axes);
    let buffer = tile.buffer(*buffer);
    let longer: Vec<AxisId> = (output.iter().copied())
        .filter(|a| axis(*a).is_some_and(|a| a.extent > 1))
        .collect();
    let across = longer.last().copied();
    let down = longer.len().checked_sub(2).map(|n| longer[n]);
    let drawn: BTreeSet<AxisId> = across.into_iter().chain(down).collect();
    let outer = output.iter().filter(|a| !drawn.contains(a));
    let outer: Vec<Axis<'_>> = outer.filter_map(|a| axis(*a)).collect();
    let inner = kernel.axes.keys().filter(|a| !output.contains(a));
    let inner: Vec<Axis<'_>> = inner.filter_map(|a| axis(*a)).collect();
    let one = Axis {
        name: "1",
        tile: 1,
        extent: 1,
        role: Role::Whole,
    };
    let x = across.and_then(axis);
    let y = down.and_then(axis);
    let (x, y) = (x.as_ref().unwrap_or(&one), y.as_ref().unwrap_or(&one));
    let inner = match inner.is_empty() {
        true => String::new(),
        false => bars(&inner),
    };
    let title = format!("result {} [{}]", buffer.name, names(tile, &output));
    let drawings = square(&title, x, y) + &inner;
    let mut words = format!(
        "{} blocks, each makes one tile of the result{}.",
        tile.blocks(kernel),
        match stores.len() {
            1 => String::new(),
            n => format!("s; of {n} results the first is drawn"),
        }
    );
    if !outer.is_empty() {
        let outer: Vec<String> = outer.iter().map(Axis::said).collect();
        words += &format!(" Not drawn: {}.", outer.join("; "));
    }
    format!(
        "<figure><div class=\"drawing\">{drawings}</div><figcaption>{}</figcaption></figure>\n",
        text(words)
    )
}

/// What of a side a tile has, so that it is seen.
fn along(axis: &Axis<'_>, side: f64) -> f64 {
    let own = side * axis.tile as f64 / axis.extent as f64;
    own.max(LEAST).min(side)
}

/// Where the tiles of an axis are cut, if that can be seen.
fn cuts(axis: &Axis<'_>, side: f64) -> impl Iterator<Item = f64> {
    let tiles = axis.tiles();
    let seen = tiles <= MOST_CUTS && side / tiles as f64 >= LEAST;
    let each = side * axis.tile as f64 / axis.extent as f64;
    (1..if seen { tiles } else { 1 }).map(move |n| each * n as f64)
}

fn opened(height: f64) -> String {
    format!(
        "<svg class=\"tiling\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"tiling\">"
    )
}

/// The result over its last two axes, and one tile of it.
fn square(title: &str, x: &Axis<'_>, y: &Axis<'_>) -> String {
    let (w, h) = sides(x.extent, y.extent);
    let (left, top) = (2.0, 24.0);
    let mut svg = opened(top + h + 38.0);
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<text x=\"0\" y=\"14\">{}</text>\
         <rect class=\"all\" x=\"{left}\" y=\"{top}\" width=\"{w:.1}\" height=\"{h:.1}\"/>\
         <rect class=\"tile\" x=\"{left}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        text(title),
        along(x, w),
        along(y, h)
    );
    for at in cuts(x, w).map(|at| left + at) {
        let _ = write!(
            svg,
            "<line class=\"cut\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>",
            top + h
        );
    }
    for at in cuts(y, h).map(|at| top + at) {
        let _ = write!(
            svg,
            "<line class=\"cut\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>",
            left + w
        );
    }
    let said = [(x, "→"), (y, "↓")]
        .into_iter()
        .filter(|(a, _)| a.extent > 1);
    for (n, (axis, arrow)) in said.enumerate() {
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{left}\" y=\"{:.0}\">{arrow} {}</text>",
            top + h + 16.0 + 16.0 * n as f64,
            text(axis.said())
        );
    }
    svg + "</svg>"
}

/// A bar for each axis that is walked or held beside the result.
fn bars(axes: &[Axis<'_>]) -> String {
    let (left, side) = (2.0, WIDTH - 4.0);
    let mut svg = opened(26.0 + 42.0 * axes.len() as f64);
    svg += "<text x=\"0\" y=\"14\">reduced, a tile at a time</text>";
    for (n, axis) in axes.iter().enumerate() {
        let y = 24.0 + 42.0 * n as f64;
        // Writing to a string does not fail.
        let _ = write!(
            svg,
            "<rect class=\"all\" x=\"{left}\" y=\"{y}\" width=\"{side}\" height=\"14\"/>\
             <rect class=\"tile\" x=\"{left}\" y=\"{y}\" width=\"{:.1}\" height=\"14\"/>\
             <text class=\"soft\" x=\"{left}\" y=\"{}\">{}</text>",
            along(axis, side),
            y + 29.0,
            text(axis.said())
        );
        for at in cuts(axis, side).map(|at| left + at) {
            let _ = write!(
                svg,
                "<line class=\"cut\" x1=\"{at:.1}\" y1=\"{y}\" x2=\"{at:.1}\" y2=\"{}\"/>",
                y + 14.0
            );
        }
    }
    svg + "</svg>"
}

fn names(tile: &TileProgram, axes: &[AxisId]) -> String {
    let names: Vec<&str> = axes
        .iter()
        .map(|a| tile.axes[a.index()].name.as_str())
        .collect();
    names.join(", ")
}

/// Sides of a rectangle that tells the longer side, and hides no shorter one.
fn sides(x: u64, y: u64) -> (f64, f64) {
    let ratio = (x as f64 / y as f64).powf(0.4).clamp(0.16, 6.0);
    match ratio >= 1.0 {
        true => (SQUARE * 1.35, (SQUARE * 1.35 / ratio).clamp(26.0, SQUARE)),
        false => ((SQUARE * ratio).max(26.0), SQUARE),
    }
}
