//! What stands behind a semicolon: axes and numbers, and how a call's arguments meet a definition's parameters.

use super::diagnostics::Span;
use super::expand::{Context, Scope, fault};
use super::syntax::{Definition, Ident, ItemSyntax, Param, Term};
use crate::affine::Affine;
use crate::axes::AxisId;
use crate::ops::integer;
use crate::program::Program;
use std::sync::Arc;

/// An argument behind the semicolon.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// One axis or, where a parameter `a...` was given more, several; none twice.
    Axes(Arc<[AxisId]>),
    Number(f64),
}

/// Equal keys are equal arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ItemKey {
    Axes(Arc<[AxisId]>),
    Number(u64),
}

impl Item {
    pub(crate) fn axis(axis: AxisId) -> Self {
        Self::Axes(Arc::from([axis]))
    }

    pub(crate) fn key(&self) -> ItemKey {
        match self {
            Self::Axes(axes) => ItemKey::Axes(axes.clone()),
            Self::Number(number) => ItemKey::Number(number.to_bits()),
        }
    }
}

/// The axes of all items, each listed once; `wanted` says who expects axes.
pub(crate) fn axes_of(
    items: &[Item],
    program: &Program,
    wanted: impl Fn() -> String,
) -> Result<Vec<AxisId>, String> {
    let mut all = Vec::new();
    for item in items {
        match item {
            Item::Axes(axes) => {
                for axis in axes.iter() {
                    if all.contains(axis) {
                        let name = program.axis_name(*axis);
                        return Err(format!("axis `{name}` is listed twice"));
                    }
                    all.push(*axis);
                }
            }
            Item::Number(number) => {
                return Err(format!("{}, found {number}", wanted()));
            }
        }
    }
    Ok(all)
}

/// The arguments of a call in the order of the parameters; those that a parameter `a...` stands for are one. There are as
/// many as the definition takes.
pub(crate) fn bind(
    definition: &Definition,
    mut items: Vec<Item>,
    program: &Program,
) -> Result<Vec<Item>, String> {
    let name = &definition.name.name;
    if let Some(at) = definition.items.iter().position(|p| p.many) {
        let several = items.len() + 1 - definition.items.len();
        let taken: Vec<Item> = items.splice(at..at + several, []).collect();
        let param = &definition.items[at].ident.name;
        let wanted = || format!("`{param}...` of `{name}` is axes");
        let item = match <[Item; 1]>::try_from(taken) {
            // What was passed on as it was is shared.
            Ok([Item::Axes(axes)]) => Item::Axes(axes),
            Ok(one) => Item::Axes(axes_of(&one, program, wanted)?.into()),
            Err(all) => Item::Axes(axes_of(&all, program, wanted)?.into()),
        };
        items.insert(at, item);
    }
    for (Param { ident, many }, item) in definition.items.iter().zip(&items) {
        if let Item::Axes(axes) = item
            && axes.len() > 1
            && !many
        {
            let axes = list(axes, program);
            return Err(format!(
                "`{}` of `{name}` is one axis, found {axes}",
                ident.name
            ));
        }
    }
    Ok(items)
}

/// `2 axes: h, w`
fn list(axes: &[AxisId], program: &Program) -> String {
    let names: Vec<&str> = axes.iter().map(|a| program.axis_name(*a)).collect();
    format!("{} axes: {}", axes.len(), names.join(", "))
}

/// The items of a call, all of them looked at.
pub(crate) fn item_list(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    items: &[ItemSyntax],
) -> Option<Vec<Item>> {
    let all: Vec<Option<Item>> = items
        .iter()
        .map(|syntax| match syntax {
            ItemSyntax::Name(name) => item(context, scope, name),
            ItemSyntax::Number(number, _) => Some(Item::Number(*number)),
            ItemSyntax::Map(source, _) => {
                fault(context, source.span, "only `view` takes a re-indexing")
            }
        })
        .collect();
    all.into_iter().collect()
}

fn item(context: &mut Context<'_>, scope: &Scope<'_>, name: &Ident) -> Option<Item> {
    if let Scope::Body { items, .. } = scope
        && let Some((_, item)) = items.iter().find(|i| i.0 == name.name)
    {
        return Some(item.clone());
    }
    let axes = &context.builder.so_far().axes;
    if let Some(at) = axes.iter().position(|a| a.name == name.name) {
        return Some(Item::axis(AxisId(at as u32)));
    }
    let message = format!("no axis `{}` is declared", name.name);
    fault(context, name.span, &message)
}

/// The axes that a name stands for, at least one.
pub(crate) fn axes(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    name: &Ident,
) -> Option<Arc<[AxisId]>> {
    match item(context, scope, name)? {
        Item::Axes(axes) => Some(axes),
        Item::Number(number) => {
            let message = format!("`{}` is {number} here, expected an axis", name.name);
            fault(context, name.span, &message)
        }
    }
}

/// The one axis of a name, or what is wrong.
pub(crate) fn axis(context: &mut Context<'_>, scope: &Scope<'_>, name: &Ident) -> Option<AxisId> {
    let all = axes(context, scope, name)?;
    one_axis(context, name, &all)
}

fn one_axis(context: &mut Context<'_>, name: &Ident, axes: &[AxisId]) -> Option<AxisId> {
    match axes {
        [axis] => Some(*axis),
        several => {
            let several = list(several, context.builder.so_far());
            let message = format!("expected one axis, `{}` stands for {several}", name.name);
            fault(context, name.span, &message)
        }
    }
}

/// The integer that a constant argument is.
fn whole(context: &mut Context<'_>, name: &Ident, item: &Item) -> Option<i64> {
    let found = match item {
        Item::Number(number) => match integer(*number) {
            Some(integer) => return Some(integer),
            None => format!("{number}"),
        },
        Item::Axes(_) => "an axis".to_owned(),
    };
    let message = format!("`{}` is {found} here, expected an integer", name.name);
    fault(context, name.span, &message)
}

/// The axis that a re-indexing is of, and by what its index is divided; every fault is reported.
pub(crate) fn source(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    term: &Term,
) -> Option<(AxisId, i64)> {
    let name = term.name.as_ref()?;
    let divisor = match &term.factor {
        Some(factor) => item(context, scope, factor).and_then(|i| whole(context, factor, &i)),
        None => Some(term.integer),
    };
    let divisor = divisor.and_then(|divisor| match divisor {
        1.. => Some(divisor),
        _ => {
            let message = format!("an index is divided by {divisor} here, expected 1 or more");
            fault(context, term.span, &message)
        }
    });
    let found = axis(context, scope, name);
    found.zip(divisor)
}

/// An index; every fault in it is reported. `at` is the place of an index as a whole.
pub(crate) fn affine(
    context: &mut Context<'_>,
    scope: &Scope<'_>,
    terms: &[Term],
    at: Span,
) -> Option<Affine> {
    let mut known = true;
    let mut parts = Vec::new();
    let mut offset = Some(0i64);
    for term in terms {
        let mut coefficient = Some(term.integer);
        if let Some(name) = &term.factor {
            let factor = item(context, scope, name).and_then(|i| whole(context, name, &i));
            known &= factor.is_some();
            coefficient = coefficient.and_then(|c| c.checked_mul(factor.unwrap_or(1)));
        }
        let mut constant = term.name.is_none();
        if let Some(name) = &term.name {
            match item(context, scope, name) {
                Some(Item::Axes(axes)) => match (one_axis(context, name, &axes), coefficient) {
                    (Some(axis), Some(coefficient)) => parts.push((coefficient, axis)),
                    (None, _) => known = false,
                    (Some(_), None) => offset = None,
                },
                Some(number) => {
                    let number = whole(context, name, &number);
                    known &= number.is_some();
                    coefficient = coefficient.and_then(|c| c.checked_mul(number.unwrap_or(1)));
                    constant = true;
                }
                None => known = false,
            }
        }
        if constant {
            offset = offset.and_then(|o| o.checked_add(coefficient?));
        }
    }
    if !known {
        return None;
    }
    let affine = offset.and_then(|o| Affine::new(parts, o));
    if affine.is_none() {
        return fault(context, at, "the index overflows");
    }
    affine
}
