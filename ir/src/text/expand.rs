//! From expressions to values: definitions are expanded as hygienic macros whose arguments are values, hence shared.
//!
//! The work is bounded: equal calls are expanded once, nesting and steps are limited, and values are hash-consed and
//! limited by the builder. So a ladder of definitions that double costs what its distinct values cost.

use super::diagnostics::{Fault, Span};
use super::items::{
    Item, ItemKey, affine, axes, axes_of, axis, bind, item_list, source as source_of,
};
use super::nearest;
use super::syntax::{
    Definitions, Expr, ExprId, Ident, Infix, ItemSyntax, built_in as calls, is_built_in,
};
use crate::affine::Quotient;
use crate::axes::AxisId;
use crate::builder::{BuildError, Builder};
use crate::limits::{MAX_NESTING, MAX_STEPS};
use crate::ops::count;
use crate::program::{MapOp, NodeId, Op, ReduceOp};
use std::collections::{BTreeSet, HashMap};

/// Definition, values, items.
type CallKey = (usize, Vec<NodeId>, Vec<ItemKey>);

/// What names mean.
pub(crate) enum Scope<'a> {
    /// The program's own statements: names bound so far, and names whose binding was faulty.
    Program { faulty: &'a BTreeSet<String> },
    /// The body of a definition.
    Body {
        values: Vec<(&'a str, NodeId)>,
        items: Vec<(&'a str, Item)>,
    },
}

/// The state of expanding one program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expander {
    calls: HashMap<CallKey, Result<NodeId, Option<String>>>,
    depth: usize,
    steps: usize,
}

/// Everything that stays the same while one expression is expanded.
pub(crate) struct Context<'a> {
    pub(crate) builder: &'a mut Builder,
    pub(crate) definitions: &'a Definitions,
    pub(crate) faults: &'a mut Vec<Fault>,
}

impl Expander {
    /// The value of an expression. `None`: faults have been reported, here or where a name was bound.
    pub(crate) fn value(
        &mut self,
        context: &mut Context<'_>,
        scope: &Scope<'_>,
        id: ExprId,
    ) -> Option<NodeId> {
        let (expr, span) = context.definitions.exprs.get(id)?;
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return fault(
                context,
                *span,
                &format!("the program takes more than {MAX_STEPS} steps to expand"),
            );
        }
        if self.depth >= MAX_NESTING {
            return fault(
                context,
                *span,
                &format!("nested more than {MAX_NESTING} deep; bind a part to a name"),
            );
        }
        self.depth += 1;
        let value = self.expand(context, scope, expr, *span);
        self.depth -= 1;
        value
    }

    fn expand(
        &mut self,
        context: &mut Context<'_>,
        scope: &Scope<'_>,
        expr: &Expr,
        span: Span,
    ) -> Option<NodeId> {
        match expr {
            Expr::Number(value) => {
                let value = context.builder.constant(*value);
                report(context, span, value)
            }
            Expr::Name(name) => name_value(context, scope, name, span),
            Expr::Negate(inner) => {
                let inner = self.value(context, scope, *inner)?;
                let value = context.builder.neg(inner);
                report(context, span, value)
            }
            Expr::Chain(first, rest) => {
                let mut sum = self.value(context, scope, *first);
                for (infix, right) in rest {
                    let right = self.value(context, scope, *right);
                    let (Some(x), Some(y)) = (sum, right) else {
                        sum = None;
                        continue;
                    };
                    let builder = &mut *context.builder;
                    let value = match infix {
                        Infix::Add => builder.add(x, y),
                        Infix::Sub => builder.sub(x, y),
                        Infix::Mul => builder.mul(x, y),
                        Infix::Div => builder.div(x, y),
                    };
                    sum = report(context, span, value);
                }
                sum
            }
            Expr::Call {
                name,
                args,
                items,
                fill,
            } => {
                if fill.is_some() && name.name != "view" {
                    return fault(context, span, "only `view` takes a `fill`");
                }
                match name.name.as_str() {
                    "iota" | "size" => axis_call(context, scope, name, args, items),
                    "view" => self.view(context, scope, span, args, items, *fill),
                    other => {
                        let values = self.values(context, scope, args);
                        let items = item_list(context, scope, items);
                        let (values, items) = (values?, items?);
                        // One that the program defines is meant where the name is not reserved.
                        let defined = context.definitions.forms(other).is_some();
                        if is_built_in(other) && !defined {
                            let value = built_in(context.builder, other, &values, &items);
                            return report(context, span, value);
                        }
                        let Some(forms) = context.definitions.forms(other) else {
                            return fault(
                                context,
                                name.span,
                                &unknown_call(context.definitions, other),
                            );
                        };
                        let Context {
                            builder,
                            definitions,
                            ..
                        } = context;
                        match self.call(builder, definitions, forms, &values, items) {
                            Ok(id) => Some(id),
                            Err(why) => {
                                context.faults.extend(why.map(|w| (span, w)));
                                None
                            }
                        }
                    }
                }
            }
        }
    }

    fn values(
        &mut self,
        context: &mut Context<'_>,
        scope: &Scope<'_>,
        args: &[ExprId],
    ) -> Option<Vec<NodeId>> {
        let values: Vec<Option<NodeId>> = args
            .iter()
            .map(|a| self.value(context, scope, *a))
            .collect();
        values.into_iter().collect()
    }

    fn view(
        &mut self,
        context: &mut Context<'_>,
        scope: &Scope<'_>,
        span: Span,
        args: &[ExprId],
        items: &[ItemSyntax],
        fill: Option<f64>,
    ) -> Option<NodeId> {
        let values = self.values(context, scope, args);
        let before = context.faults.len();
        let mut map: Vec<(AxisId, Quotient)> = Vec::new();
        for item in items {
            let ItemSyntax::Map(source, terms) = item else {
                let what = "expected a re-indexing `axis -> affine`";
                let _: Option<NodeId> = fault(context, item.span(), what);
                continue;
            };
            let at = source.span;
            let from = source_of(context, scope, source);
            let affine = affine(context, scope, terms, at);
            if let (Some((axis, divisor)), Some(affine)) = (from, affine)
                && let Some(index) = Quotient::new(affine, divisor)
            {
                if map.iter().any(|m| m.0 == axis) {
                    let name = context.builder.so_far().axis_name(axis);
                    let what = format!("axis `{name}` is re-indexed twice");
                    let _: Option<NodeId> = fault(context, at, &what);
                } else {
                    map.push((axis, index));
                }
            }
        }
        let values = values?;
        if context.faults.len() > before {
            return None;
        }
        map.sort_by_key(|m| m.0);
        let value = context.builder.node(Op::View { map, fill }, &values);
        report(context, span, value)
    }

    /// Expands a definition. The error is what to say at the call, if it has not been said.
    fn call(
        &mut self,
        builder: &mut Builder,
        definitions: &Definitions,
        forms: &[usize],
        values: &[NodeId],
        items: Vec<Item>,
    ) -> Result<NodeId, Option<String>> {
        let at = definitions.choose(forms, values.len(), items.len())?;
        let definition = definitions.list.get(at).ok_or(None)?;
        let name = &definition.name.name;
        let body = definition.body.ok_or(None)?;
        let items = bind(definition, items, builder.so_far()).map_err(Some)?;
        let key = (at, values.to_vec(), items.iter().map(Item::key).collect());
        if let Some(known) = self.calls.get(&key) {
            return known.clone();
        }
        let value_names = definition.values.iter().map(|v| v.name.as_str());
        let item_names = definition.items.iter().map(|i| i.ident.name.as_str());
        let scope = Scope::Body {
            values: value_names.zip(values.iter().copied()).collect(),
            items: item_names.zip(items).collect(),
        };
        let mut faults = Vec::new();
        let mut context = Context {
            builder,
            definitions,
            faults: &mut faults,
        };
        let result = self.value(&mut context, &scope, body).ok_or_else(|| {
            let first = faults.into_iter().next();
            first.map(|(_, message)| format!("in `{name}`: {message}"))
        });
        self.calls.insert(key, result.clone());
        result
    }

    /// A call from Rust code.
    pub(crate) fn call_by_name(
        &mut self,
        builder: &mut Builder,
        definitions: &Definitions,
        name: &str,
        values: &[NodeId],
        items: Vec<Item>,
    ) -> Result<NodeId, String> {
        let forms = definitions
            .forms(name)
            .ok_or_else(|| format!("no definition `{name}`"))?;
        self.call(builder, definitions, forms, values, items)
            .map_err(|why| why.unwrap_or_else(|| format!("`{name}` is faulty")))
    }
}

/// What to say about a call of something that is not there.
pub(crate) fn unknown_call(definitions: &Definitions, name: &str) -> String {
    let known = calls().chain(definitions.names());
    let hint = nearest(name, known).map_or(String::new(), |k| format!("; did you mean `{k}`?"));
    format!("nothing called `{name}` can be called: expected an operation or a definition{hint}")
}

pub(super) fn fault<T>(context: &mut Context<'_>, span: Span, message: &str) -> Option<T> {
    context.faults.push((span, message.to_owned()));
    None
}

fn report(
    context: &mut Context<'_>,
    span: Span,
    value: Result<NodeId, BuildError>,
) -> Option<NodeId> {
    match value {
        Ok(id) => Some(id),
        Err(why) => fault(context, span, &why.0),
    }
}

fn name_value(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    name: &str,
    span: Span,
) -> Option<NodeId> {
    match scope {
        Scope::Program { faulty } => {
            if let Some(id) = context.builder.named(name) {
                return Some(id);
            }
            if faulty.contains(name) {
                return None;
            }
            let is_axis = context.builder.so_far().axes.iter().any(|a| a.name == name);
            let hint = if is_axis {
                format!(
                    "; `{name}` is an axis: its coordinate is `iota({name})`, its extent `size({name})`"
                )
            } else {
                String::new()
            };
            let message = format!("no value `{name}` is defined above{hint}");
            fault(context, span, &message)
        }
        Scope::Body { values, items } => {
            if let Some((_, id)) = values.iter().find(|v| v.0 == name) {
                return Some(*id);
            }
            match items.iter().find(|i| i.0 == name) {
                Some((_, Item::Number(number))) => {
                    let value = context.builder.constant(*number);
                    report(context, span, value)
                }
                Some((_, Item::Axes(axes))) => {
                    let what = if axes.len() == 1 { "an axis" } else { "axes" };
                    let message = format!("`{name}` is {what} here, expected a number");
                    fault(context, span, &message)
                }
                None => {
                    let message = format!("`{name}` is no parameter of the definition");
                    fault(context, span, &message)
                }
            }
        }
    }
}

/// `iota(a)` and `size(a)`: the argument is an axis, of `size` also several.
fn axis_call(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    name: &Ident,
    args: &[ExprId],
    items: &[ItemSyntax],
) -> Option<NodeId> {
    let argument = match args {
        [one] if items.is_empty() => context.definitions.exprs.get(*one),
        _ => None,
    };
    let Some((Expr::Name(axis_name), span)) = argument else {
        let message = format!("`{}` takes one axis", name.name);
        return fault(context, name.span, &message);
    };
    let ident = Ident {
        name: axis_name.clone(),
        span: *span,
    };
    let value = if name.name == "iota" {
        let axis = axis(context, scope, &ident)?;
        context.builder.iota(axis)
    } else {
        let axes = axes(context, scope, &ident)?;
        context.builder.size(axes.iter().copied())
    };
    report(context, *span, value)
}

fn built_in(
    builder: &mut Builder,
    name: &str,
    values: &[NodeId],
    items: &[Item],
) -> Result<NodeId, BuildError> {
    let wanted = || format!("`{name}` takes axes behind the semicolon");
    let axes = axes_of(items, builder.so_far(), wanted).map_err(BuildError)?;
    let axes = axes.into_iter().collect();
    let reduces = !items.is_empty();
    let op = match name {
        "sum" => Op::Reduce {
            op: ReduceOp::Sum,
            axes,
        },
        "dot" => Op::Dot { axes },
        "max" if reduces => Op::Reduce {
            op: ReduceOp::Max,
            axes,
        },
        "prod" => Op::Reduce {
            op: ReduceOp::Product,
            axes,
        },
        _ => {
            let Some(op) = MapOp::all().find(|op| op.name() == name) else {
                return Err(BuildError(format!("`{name}` is no operation of values")));
            };
            if reduces {
                return Err(BuildError(format!(
                    "`{name}` takes nothing behind a semicolon"
                )));
            }
            Op::Map(op)
        }
    };
    if let Op::Reduce { .. } | Op::Dot { .. } = &op
        && values.len() != op.row().arity
    {
        return Err(BuildError(format!(
            "`{name}` over axes takes {}, {} given",
            count(op.row().arity, "value"),
            values.len()
        )));
    }
    builder.node(op, values)
}
