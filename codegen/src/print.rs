//! The CUDA text of machine programs. It decides nothing: what threads do, and when, stands in the machine program.

mod block_group;
mod contract;
pub(crate) use self::contract::run;
mod control;
mod coordinates;
mod elements;
mod kernel;
mod memory;
mod rings;
mod text;
mod warpgroup;

pub(crate) use self::text::{comment, describe, entry_name, holder, identifier, sum};

use crate::atoms::{BACKGROUND, Variant};
use crate::cuda::{self, Node, line};
use crate::families::Family;
use crate::layout::Layout;
use crate::machine::{Fragment, FragmentId, Holds, Machine, Source, Statement};
use ir::{Atom, AxisId};
use std::collections::BTreeSet;

/// Stands between the wrapped instructions and the rest of a program's text.
pub const KERNELS_MARK: &str = "// ---- kernels ----";

/// The text of one kernel, and what it calls.
pub(crate) struct Text {
    kernel: String,
    families: BTreeSet<Family>,
    atoms: BTreeSet<Atom>,
    variants: BTreeSet<Variant>,
}

impl Text {
    /// That of a machine program.
    pub(crate) fn of(machine: &Machine) -> Self {
        let mut printer = Printer::new(machine);
        let mut kernel = String::new();
        printer.kernel(&mut kernel);
        Self {
            kernel,
            families: printer.families,
            atoms: printer.atoms,
            variants: printer.variants,
        }
    }
}

/// A translation unit: what comments say of its origin, then device functions, then kernels.
pub(crate) fn unit<'a>(
    origin: &[String],
    texts: impl IntoIterator<Item = &'a Text> + Clone,
) -> String {
    let all = || texts.clone().into_iter();
    let called = all().flat_map(|t| t.families.iter().copied());
    let families: BTreeSet<Family> = Family::ALWAYS.into_iter().chain(called).collect();
    let atoms: BTreeSet<Atom> = all().flat_map(|t| t.atoms.iter().copied()).collect();
    let variants: BTreeSet<&Variant> = all().flat_map(|t| &t.variants).collect();
    let mut source = String::new();
    for text in origin.iter().flat_map(|text| text.lines()) {
        source.push_str(&format!("// {}\n", comment(text)));
    }
    for plain in [false, true] {
        for family in Family::ALL {
            if families.contains(&family) && family.plain() == plain {
                family.print(&atoms, &mut source);
            }
        }
        if !plain {
            for variant in &variants {
                source.push_str(&variant.text());
            }
            source.push_str(&format!("\n{KERNELS_MARK}\n"));
        }
    }
    all().for_each(|t| source.push_str(&t.kernel));
    source
}

/// The index of one element of a layout's registers: one expression a digit.
type Digits = Vec<String>;

/// What printing one kernel carries along.
struct Printer<'a> {
    machine: &'a Machine,
    /// What the text calls.
    families: BTreeSet<Family>,
    /// Matrix instructions that it calls.
    atoms: BTreeSet<Atom>,
    /// Those of warpgroups, as they are printed for this kernel.
    variants: BTreeSet<Variant>,
    /// Layouts whose thread coordinates have names.
    known: Vec<Layout>,
    used: BTreeSet<(usize, AxisId)>,
    /// Which warps the statements are of that only fill rings; none of those that compute.
    fills: Option<u32>,
}

impl<'a> Printer<'a> {
    fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            families: BTreeSet::new(),
            atoms: BTreeSet::new(),
            variants: BTreeSet::new(),
            known: Vec::new(),
            used: BTreeSet::new(),
            fills: None,
        }
    }

    fn fragment(&self, id: FragmentId) -> &'a Fragment {
        self.machine.fragment(id)
    }

    fn name(&self, id: FragmentId) -> &'a str {
        &self.fragment(id).name
    }

    /// Element-wise statements behind each other go over their elements in one loop. Where each had its own, the compiler would keep every element
    /// of what is only made for the next one, and spill: it does not take such loops apart once they are unrolled.
    fn statements(&mut self, body: &[Statement]) -> Vec<Node> {
        let mut out = Vec::new();
        let mut issues = false;
        // The loop that is open, and what it goes over.
        let mut run: Option<(usize, Layout)> = None;
        for statement in body {
            // What one contraction finds in registers, those right behind it find as well: a fence between them holds the first back until
            // its last product is made.
            let issued = std::mem::replace(&mut issues, matches!(statement, Statement::Issue(_)));
            if issues && !issued {
                out.push(line(BACKGROUND.fence));
            }
            let (first, layout) = (out.len(), self.elements_of(statement));
            self.statement(statement, &mut out);
            run = match (run, layout) {
                (Some((at, open)), Some(layout)) if open == layout => {
                    let own = out.split_off(first);
                    own.into_iter().for_each(|node| out[at].join(node));
                    Some((at, open))
                }
                (_, Some(layout)) => Some((first, layout)),
                (Some((at, open)), None) if matches!(statement, Statement::Declare(_)) => {
                    out[at..].rotate_right(1);
                    Some((at + 1, open))
                }
                (_, None) => None,
            };
        }
        out
    }

    /// What a statement goes over that makes each element from those at its place alone; where a thread holds each element once, so that no other iteration
    /// looks at it.
    fn elements_of(&self, statement: &Statement) -> Option<Layout> {
        let (Statement::Map { to, .. } | Statement::Mask { to, .. }) = statement else {
            return None;
        };
        let layout = self.fragment(*to).layout();
        let is_once = layout.registers.iter().all(|f| f.axis.is_some());
        (is_once && layout.register_count() > 1).then_some(layout)
    }

    fn statement(&mut self, statement: &Statement, out: &mut Vec<Node>) {
        match statement {
            Statement::Declare(id) => out.push(self.declare(*id)),
            Statement::Map { to, function, args } => self.map(*to, *function, args, out),
            Statement::Select {
                to,
                condition,
                x,
                y,
            } => self.select(*to, condition, [*x, *y], out),
            Statement::ExpScale {
                scale,
                scaled,
                of,
                by,
            } => self.exp_scale([*scale, *scaled], [*of, *by], out),
            Statement::Mask { to, from, axes } => self.mask(*to, *from, axes, out),
            Statement::IsNotOne { flag, of, layout } => self.is_not_one(*flag, *of, layout, out),
            Statement::Reduce(reduce) => self.reduce(reduce, out),
            Statement::Scan(scan) => self.scan(scan, out),
            Statement::AcrossLanes(across) => self.across_lanes(across, out),
            Statement::PutParts(across) => self.put_parts(across, out),
            Statement::TakeParts(across) => self.take_parts(across, out),
            Statement::Spill { from, held } => self.spill(*from, held, out),
            Statement::Unspill { to, held } => self.unspill(*to, held, out),
            Statement::Load {
                to,
                access,
                axes,
                width,
                policy,
            } => {
                let node = self.load(*to, access, axes, *width, *policy);
                out.push(node);
            }
            Statement::Store(store) => {
                let node = self.store(store);
                out.push(node);
            }
            Statement::Copy(copy) => {
                let nodes = self.copy(copy);
                out.extend(nodes);
            }
            Statement::PrefetchBoxes(regions) => out.extend(self.prefetch_boxes(regions)),
            Statement::Prefetch {
                access,
                layout,
                axes,
                width,
            } => out.push(self.prefetch(access, layout, axes, *width)),
            Statement::CopyBoxes(ring) => out.extend(self.copy_boxes(*ring)),
            Statement::Clear(region) => out.push(self.clear(*region)),
            Statement::Publish {
                region,
                from,
                layout,
                axes,
            } => {
                let node = self.publish(*region, *from, layout, axes);
                out.push(node);
            }
            Statement::Fetch { to, region, stage } => {
                let node = self.fetch(*to, *region, *stage);
                out.push(node);
            }
            Statement::Multiply(multiply) => {
                let node = self.multiply(multiply);
                out.push(node);
            }
            Statement::Outer(outer) => self.outer(outer, out),
            Statement::Split(split) => {
                let node = self.split(split);
                out.push(node);
            }
            Statement::Issue(issue) => {
                let node = self.issue(issue);
                out.push(node);
            }
            Statement::Pack {
                to,
                from,
                dtype,
                stride,
            } => out.push(self.pack(*to, *from, *dtype, *stride)),
            Statement::StorePartial(partial) => self.store_partial(partial, out),
            Statement::GridBarrier(round) => out.push(self.grid_barrier(*round)),
            Statement::LastGoesOn => out.push(self.last_goes_on()),
            Statement::ReducePartials(partial) => self.reduce_partials(partial, out),
            Statement::Range {
                number,
                axis,
                low,
                high,
            } => out.extend(self.range(*number, *axis, low, high)),
            Statement::Tile { axis, at } => out.extend(self.tile(*axis, *at)),
            Statement::Loop { number, body } => {
                let node = self.repeat(*number, body);
                out.push(node);
            }
            Statement::Tiles(body) => {
                let node = self.tiles(body);
                out.push(node);
            }
            Statement::If {
                condition,
                then,
                otherwise,
            } => {
                let (then, otherwise) = (self.statements(then), self.statements(otherwise));
                out.push(Node::If {
                    condition: self.condition(*condition),
                    then,
                    otherwise,
                });
            }
            Statement::Scope(body) => {
                let body = self.statements(body);
                out.push(Node::Scope(body));
            }
            Statement::OpenStages(counter) => out.push(Self::open_stages(*counter)),
            Statement::NextStage {
                counter,
                stages,
                ahead,
            } => out.push(Self::next_stage(*counter, *stages, *ahead)),
            Statement::PreviousStage { number, stages } => {
                out.push(Self::previous_stage(*number, *stages));
            }
            Statement::AdvanceStage { counter, stages } => {
                out.push(Self::advance_stage(*counter, *stages));
            }
            Statement::OpenRing(ring, parity) => out.push(self.open_ring(*ring, *parity)),
            Statement::AdvanceRing(ring) => out.push(self.advance_ring(*ring)),
            Statement::Sync(sync) => out.push(self.sync(*sync)),
        }
    }

    fn declare(&self, id: FragmentId) -> Node {
        let Fragment { name, holds } = self.fragment(id);
        line(match holds {
            Holds::Floats(layout) => format!("float {name}[{}];", layout.register_count()),
            Holds::Rows { atoms, steps } => format!("u32 {name}[{atoms}][{steps}][4] = {{}};"),
            Holds::Flag => format!("bool {name} = false;"),
        })
    }

    /// Loops over the registers of a layout; `body` gets the digits and says what happens. The first digit moves in
    /// steps of `step`.
    fn registers(
        &mut self,
        layout: &Layout,
        step: u64,
        body: impl FnOnce(&mut Self, &Digits) -> Vec<Node>,
    ) -> Vec<Node> {
        let counts: Vec<u64> = layout
            .registers
            .iter()
            .enumerate()
            .map(|(i, f)| if i == 0 { f.size / step } else { f.size })
            .collect();
        let digits: Digits = counts
            .iter()
            .enumerate()
            .map(|(i, n)| match (i, n) {
                (_, 1) => "0".to_string(),
                (0, _) => text::times(step as i64, "r0"),
                _ => format!("r{i}"),
            })
            .collect();
        let mut nodes = body(self, &digits);
        for (i, n) in counts.iter().enumerate() {
            if *n > 1 {
                nodes = vec![cuda::unrolled(&format!("r{i}"), *n, nodes)];
            }
        }
        nodes
    }

    /// The index in the array of a layout of the element that another layout's digits name.
    fn index(of: &Layout, within: &Layout, digits: &Digits) -> String {
        let (mut terms, mut scale) = (Vec::new(), 1);
        for f in &of.registers {
            if f.axis.is_some()
                && let Some(at) = within.registers.iter().position(|g| g == f)
                && digits[at] != "0"
            {
                terms.push(text::times(scale, &digits[at]));
            }
            scale *= f.size as i64;
        }
        sum(terms)
    }

    /// The index in a layout's own array.
    fn own_index(layout: &Layout, digits: &Digits) -> String {
        let (mut terms, mut scale) = (Vec::new(), 1);
        for (f, d) in layout.registers.iter().zip(digits) {
            if d != "0" {
                terms.push(text::times(scale, d));
            }
            scale *= f.size as i64;
        }
        sum(terms)
    }

    /// One element of a source, as seen from another layout's digits.
    fn element(&mut self, source: Source, within: &Layout, digits: &Digits) -> String {
        match source {
            Source::Constant(x) => text::literal(x),
            Source::Coordinate(axis) => {
                let at = self.global(within, axis, digits);
                format!("(float)({at})")
            }
            Source::Fragment(id) => {
                let layout = self.fragment(id).layout();
                format!(
                    "{}[{}]",
                    self.name(id),
                    Self::index(&layout, within, digits)
                )
            }
        }
    }
}
