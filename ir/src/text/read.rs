//! From text to a program: statements, names, and every fault.

use super::diagnostics::{Diagnostics, Fault, Span};
use super::expand::{Context, Expander, Scope, unknown_call};
use super::syntax::{Cursor, Definitions, Expr, ExprId, Ident, Step, is_built_in, reserved};
use super::{Kind, Token, lex, prelude, taken};
use crate::builder::{Builder, check_length};
use crate::limits::{MAX_AXES, MAX_NODES, MAX_OUTPUTS, MAX_PARAMETERS, MAX_SOURCE};
use crate::ops::too_many;
use crate::program::{Dim, Dtype, NodeId, Program};
use petgraph::algo::kosaraju_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};

/// Dimensions as written.
type DimsSyntax = Vec<Vec<Ident>>;

/// What a name is bound to.
enum Bound {
    Parameter(Dtype, DimsSyntax),
    Value(ExprId),
    /// Reported already.
    Faulty,
}

/// One result as written.
struct Returned {
    dtype: Dtype,
    dims: DimsSyntax,
    value: ExprId,
    span: Span,
}

/// The statements in order, axes and definitions taken out.
#[derive(Default)]
struct Statements {
    program: Option<Ident>,
    axes: Vec<(Ident, u64)>,
    bindings: Vec<(Ident, Bound)>,
    returned: Option<(Span, Vec<Returned>)>,
}

/// Reads a file, with other extents for some of its axes.
pub(crate) fn read(
    source: &str,
    file: &str,
    extents: &BTreeMap<String, u64>,
) -> Result<Program, Diagnostics> {
    let mut faults = Vec::new();
    let program = if source.len() > MAX_SOURCE {
        let message = format!(
            "expected at most {MAX_SOURCE} bytes, found {}",
            source.len()
        );
        faults.push((Span::default(), message));
        None
    } else {
        build(source, extents, &mut faults)
    };
    match program {
        Some(program) if faults.is_empty() => Ok(program),
        Some(_) | None => Err(Diagnostics::new(file, source, faults)),
    }
}

/// Reads definitions alone: the prelude, which a test proves to be free of faults.
pub(crate) fn definitions(source: &str) -> (Definitions, Vec<Fault>) {
    let mut definitions = Definitions::default();
    let mut faults = Vec::new();
    let tokens = lex(source, false, &mut faults);
    for statement in split(&tokens, &mut faults) {
        let mut cursor = Cursor::new(&statement.tokens, &mut definitions);
        if let Err(fault) = definition(&mut cursor) {
            faults.push(fault);
        }
    }
    check_definitions(&mut definitions, 0, &mut faults);
    (definitions, faults)
}

fn build(
    source: &str,
    extents: &BTreeMap<String, u64>,
    faults: &mut Vec<Fault>,
) -> Option<Program> {
    let tokens = lex(source, false, faults);
    let mut definitions = prelude().clone();
    let of_prelude = definitions.list.len();
    let mut statements = statements(&tokens, source.len(), &mut definitions, faults);
    fill(&mut statements, extents, faults);
    check_definitions(&mut definitions, of_prelude, faults);
    if let Some(fault) = crowd(&statements) {
        // Each axis, parameter or result beyond the limit would be a fault of its own, and so would its uses.
        faults.push(fault);
        return None;
    }

    if let Some(name) = &statements.program
        && let Err(why) = check_length(&name.name)
    {
        faults.push((name.span, why.0));
    }
    let name = statements.program.map_or(String::new(), |n| n.name);
    let mut builder = Builder::empty(name, taken);
    for (name, extent) in &statements.axes {
        if let Err(why) = builder.axis(&name.name, *extent) {
            faults.push((name.span, why.0));
            // An extent of 1 keeps later uses of the name from being reported as well.
            let _ = builder.axis(&name.name, 1);
        }
    }
    let mut faulty = BTreeSet::new();
    let mut expander = Expander::default();
    for (name, bound) in &statements.bindings {
        let taken = definitions
            .forms(&name.name)
            .is_some_and(|forms| forms.iter().any(|d| *d >= of_prelude));
        if taken {
            let message = format!("`{}` is a definition of this program", name.name);
            faults.push((name.span, message));
            continue;
        }
        if faulty.contains(&name.name) {
            faults.push((name.span, format!("`{}` is already defined", name.name)));
            continue;
        }
        let ok = match bound {
            Bound::Faulty => false,
            Bound::Parameter(dtype, dims) => match resolve(&builder, dims, faults) {
                None => false,
                Some(dims) => match builder.parameter(&name.name, *dtype, dims) {
                    Ok(_) => true,
                    Err(why) => {
                        faults.push((name.span, why.0));
                        false
                    }
                },
            },
            Bound::Value(expr) => {
                let mut context = Context {
                    builder: &mut builder,
                    definitions: &definitions,
                    faults,
                };
                let scope = Scope::Program { faulty: &faulty };
                match expander.value(&mut context, &scope, *expr) {
                    None => false,
                    Some(id) => match builder.name(id, &name.name) {
                        Ok(()) => true,
                        Err(why) => {
                            faults.push((name.span, why.0));
                            false
                        }
                    },
                }
            }
        };
        if !ok && builder.named(&name.name).is_none() {
            faulty.insert(name.name.clone());
        }
        if !ok && builder.so_far().nodes.len() >= MAX_NODES {
            return None;
        }
    }
    let (_, returned) = statements.returned?;
    for result in returned {
        let mut context = Context {
            builder: &mut builder,
            definitions: &definitions,
            faults,
        };
        let scope = Scope::Program { faulty: &faulty };
        let value: Option<NodeId> = expander.value(&mut context, &scope, result.value);
        let dims = resolve(&builder, &result.dims, faults);
        if let (Some(value), Some(dims)) = (value, dims)
            && let Err(why) = builder.output(result.dtype, dims, value)
        {
            faults.push((result.span, why.0));
        }
    }
    if !faults.is_empty() {
        return None;
    }
    builder.finish().ok()
}

/// Gives axes other extents than the text does.
fn fill(statements: &mut Statements, extents: &BTreeMap<String, u64>, faults: &mut Vec<Fault>) {
    for (name, extent) in extents {
        let mut named = statements.axes.iter_mut().filter(|a| a.0.name == *name);
        match named.next() {
            Some(axis) => axis.1 = *extent,
            None => {
                let message =
                    format!("no axis `{name}` is declared, whose extent should be {extent}");
                faults.push((Span::default(), message));
            }
        }
    }
}

/// The first axis, parameter or result of more than there may be.
fn crowd(statements: &Statements) -> Option<Fault> {
    let axes = statements.axes.iter().map(|a| a.0.span);
    let parameters = (statements.bindings.iter())
        .filter(|b| matches!(b.1, Bound::Parameter(..)))
        .map(|b| b.0.span);
    let results = statements.returned.iter().flat_map(|r| &r.1);
    let check = |places: Vec<Span>, most: usize, noun: &str| {
        too_many(places.len(), most, noun).map(|why| (places[most], why))
    };
    check(axes.collect(), MAX_AXES, "axes")
        .or_else(|| check(parameters.collect(), MAX_PARAMETERS, "parameters"))
        .or_else(|| check(results.map(|r| r.span).collect(), MAX_OUTPUTS, "results"))
}

/// Names of axes to axes; every unknown one is reported.
fn resolve(builder: &Builder, dims: &DimsSyntax, faults: &mut Vec<Fault>) -> Option<Vec<Dim>> {
    let program = builder.so_far();
    let mut ok = true;
    let mut seen = BTreeSet::new();
    let resolved = dims
        .iter()
        .map(|dim| {
            let axes = dim.iter().filter_map(|ident| {
                let at = program.axes.iter().position(|a| a.name == ident.name);
                if at.is_none() {
                    faults.push((ident.span, format!("no axis `{}` is declared", ident.name)));
                    ok = false;
                } else if !seen.insert(ident.name.as_str()) {
                    let message = format!("axis `{}` is used twice in one tensor", ident.name);
                    faults.push((ident.span, message));
                    ok = false;
                }
                at.map(|at| crate::axes::AxisId(at as u32))
            });
            Dim(axes.collect())
        })
        .collect();
    ok.then_some(resolved)
}

/// One statement's tokens, line ends inside brackets left out; not whole where a bracket was never closed.
struct StatementTokens {
    tokens: Vec<Token>,
    whole: bool,
}

/// Splits at line ends outside brackets. A line that can only begin a statement ends an unclosed bracket.
fn split(tokens: &[Token], faults: &mut Vec<Fault>) -> Vec<StatementTokens> {
    let mut statements = Vec::new();
    let mut open: Vec<Span> = Vec::new();
    let mut current: Vec<Token> = Vec::new();
    let mut end = |open: &mut Vec<Span>, current: &mut Vec<Token>| {
        if let Some(first) = open.first() {
            faults.push((*first, "this bracket is never closed".to_owned()));
        }
        let whole = open.is_empty();
        open.clear();
        let tokens = std::mem::take(current);
        if !tokens.is_empty() {
            statements.push(StatementTokens { tokens, whole });
        }
    };
    for (at, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Newline => {
                if open.is_empty() || begins_statement(&tokens[at + 1..]) {
                    end(&mut open, &mut current);
                }
                continue;
            }
            Kind::Mark("(" | "[" | "{") => open.push(token.span),
            Kind::Mark(")" | "]" | "}") => {
                open.pop();
            }
            Kind::Name(_) | Kind::Number(..) | Kind::Mark(_) => {}
        }
        current.push(token.clone());
    }
    end(&mut open, &mut current);
    statements
}

fn begins_statement(tokens: &[Token]) -> bool {
    let name = match tokens.first().map(|t| &t.kind) {
        Some(Kind::Name(name)) => name.as_str(),
        Some(Kind::Number(..) | Kind::Mark(_) | Kind::Newline) | None => return false,
    };
    let assigns = tokens.get(1).is_some_and(|t| t.kind == Kind::Mark("="));
    matches!(name, "axis" | "def" | "return" | "program") || (assigns && name != "fill")
}

/// Sorts the statements; faulty ones are reported and leave their name behind.
fn statements(
    tokens: &[Token],
    length: usize,
    definitions: &mut Definitions,
    faults: &mut Vec<Fault>,
) -> Statements {
    let mut all = Statements::default();
    let mut missing_program = true;
    for (at, statement) in split(tokens, faults).into_iter().enumerate() {
        let mut cursor = Cursor::new(&statement.tokens, definitions);
        let span = cursor.span();
        if at == 0 && !cursor.is_keyword("program") {
            faults.push((span, "expected `program name` first".to_owned()));
            missing_program = false;
        }
        if all.returned.is_some() {
            let message = "nothing may follow `return`; several results are separated by commas";
            faults.push((span, message.to_owned()));
        }
        let result = one_statement(&mut cursor, at, &mut all, statement.whole);
        if let Err(fault) = result {
            // A fault behind a bracket that was never closed has been reported as such.
            if statement.whole {
                faults.push(fault);
            }
        }
    }
    let end = Span {
        start: length,
        end: length,
    };
    if all.program.is_none() && missing_program && tokens.iter().all(|t| t.kind == Kind::Newline) {
        faults.push((
            end,
            "expected `program name`, found nothing but blank lines and comments".to_owned(),
        ));
    } else if all.returned.is_none() {
        let message = "expected `return dtype [axes] value` at the end";
        faults.push((end, message.to_owned()));
    }
    all
}

fn one_statement(
    cursor: &mut Cursor<'_>,
    at: usize,
    all: &mut Statements,
    whole: bool,
) -> Step<()> {
    let span = cursor.span();
    let keyword = cursor.ident("`axis`, `def`, `return` or `name = …`")?;
    match keyword.name.as_str() {
        "program" => {
            let name = cursor.ident("the program's name")?;
            cursor.end()?;
            if at > 0 {
                return Err((span, "`program` stands first, and once".to_owned()));
            }
            all.program = Some(name);
        }
        "axis" => loop {
            let name = cursor.ident("an axis's name")?;
            // So that a faulty extent does not make every use of the axis a fault.
            all.axes.push((name, 1));
            cursor.expect("=", "`= extent`")?;
            let (extent, _) = cursor.integer("the extent, an integer")?;
            if let Some(last) = all.axes.last_mut() {
                last.1 = extent;
            }
            if !cursor.eat(",") {
                return cursor.end();
            }
        },
        "def" => return own_definition(cursor),
        "return" => {
            // Whatever follows: there was a `return`.
            let results = all.returned.insert((span, Vec::new()));
            loop {
                let start = cursor.span();
                let dtype = dtype(cursor)?;
                let dims = dims(cursor)?;
                let listed = start.to(cursor.before());
                let value = cursor.expr()?;
                results.1.push(Returned {
                    dtype,
                    dims,
                    value,
                    span: listed,
                });
                if !cursor.eat(",") {
                    return cursor.end();
                }
            }
        }
        name => {
            if !cursor.is("=") {
                let what = reserved(name).map_or_else(
                    || "`=` behind the name".to_owned(),
                    |w| format!("a statement (`{name}` is {w})"),
                );
                return cursor.expected(&what);
            }
            cursor.eat("=");
            let bound = bound(cursor);
            let (bound, fault) = match bound {
                Ok(bound) if whole => (bound, None),
                Ok(_) => (Bound::Faulty, None),
                Err(fault) => (Bound::Faulty, Some(fault)),
            };
            all.bindings.push((keyword, bound));
            return fault.map_or(Ok(()), Err);
        }
    }
    Ok(())
}

fn bound(cursor: &mut Cursor<'_>) -> Step<Bound> {
    let bound = if cursor.is_keyword("parameter") {
        cursor.ident("`parameter`")?;
        Bound::Parameter(dtype(cursor)?, dims(cursor)?)
    } else {
        Bound::Value(cursor.expr()?)
    };
    cursor.end()?;
    Ok(bound)
}

fn dtype(cursor: &mut Cursor<'_>) -> Step<Dtype> {
    let names = Dtype::ALL.map(Dtype::name);
    let what = format!("a dtype ({})", names.join(", "));
    let ident = cursor.ident(&what)?;
    let found = Dtype::ALL.into_iter().find(|d| d.name() == ident.name);
    found.ok_or_else(|| {
        (
            ident.span,
            format!("expected {what}, found `{}`", ident.name),
        )
    })
}

fn dims(cursor: &mut Cursor<'_>) -> Step<DimsSyntax> {
    cursor.expect("[", "`[`, the axes in memory order")?;
    let mut dims = Vec::new();
    if cursor.eat("]") {
        return Ok(dims);
    }
    loop {
        if cursor.eat("(") {
            let mut group = vec![cursor.ident("an axis")?];
            while !cursor.eat(")") {
                group.push(cursor.ident("an axis or `)`")?);
            }
            dims.push(group);
        } else {
            dims.push(vec![cursor.ident("an axis or a group `(a b)`")?]);
        }
        if !cursor.eat(",") {
            cursor.expect("]", "`,` or `]`")?;
            return Ok(dims);
        }
    }
}

fn definition(cursor: &mut Cursor<'_>) -> Step<()> {
    let keyword = cursor.ident("`def`")?;
    if keyword.name != "def" {
        return Err((keyword.span, "expected `def`".to_owned()));
    }
    let name = definition_name(cursor)?;
    definition_behind_name(cursor, name)
}

/// A definition of a program: its name is new.
fn own_definition(cursor: &mut Cursor<'_>) -> Step<()> {
    let name = definition_name(cursor)?;
    if cursor.definitions.forms(&name.name).is_some() {
        let message = format!(
            "`{}` is already a definition, expected another name",
            name.name
        );
        return Err((name.span, message));
    }
    definition_behind_name(cursor, name)
}

fn definition_name(cursor: &mut Cursor<'_>) -> Step<Ident> {
    let name = cursor.ident("the definition's name")?;
    match reserved(&name.name) {
        Some(what) => {
            let message = format!("`{}` is {what}, expected another name", name.name);
            Err((name.span, message))
        }
        None => Ok(name),
    }
}

fn definition_behind_name(cursor: &mut Cursor<'_>, name: Ident) -> Step<()> {
    let span = name.span;
    let at = cursor.definitions.add(name);
    cursor.expect("(", "`(`")?;
    let (mut values, mut items) = (Vec::new(), Vec::new());
    if !cursor.is(")") && !cursor.is(";") {
        values = cursor.idents("a parameter's name")?;
    }
    if cursor.eat(";") {
        items = cursor.params()?;
    }
    let what = match items.last() {
        Some(last) if !last.many => "`,`, `...` or `)`",
        Some(_) => "`,` or `)`",
        None => "`,`, `;` or `)`",
    };
    cursor.expect(")", what)?;
    let mut seen = BTreeSet::new();
    for ident in values.iter().chain(items.iter().map(|i| &i.ident)) {
        if let Some(what) = reserved(&ident.name) {
            let message = format!("`{}` is {what}, expected another name", ident.name);
            return Err((ident.span, message));
        }
        if !seen.insert(ident.name.as_str()) {
            return Err((
                ident.span,
                format!("two parameters called `{}`", ident.name),
            ));
        }
    }
    cursor.expect("=", "`= body`")?;
    let body = cursor.expr()?;
    cursor.end()?;
    let definition = cursor.definitions.list.get_mut(at);
    let definition = definition.ok_or_else(|| (span, "this definition is lost".to_owned()))?;
    definition.values = values;
    definition.items = items;
    definition.body = Some(body);
    Ok(())
}

/// Checks the definitions from number `from` on: names in bodies, numbers of arguments, recursion. Faulty ones lose
/// their body, so that their calls are not reported as well.
fn check_definitions(definitions: &mut Definitions, from: usize, faults: &mut Vec<Fault>) {
    let mut calls: DiGraphMap<usize, ()> = DiGraphMap::new();
    let mut faulty: Vec<usize> = Vec::new();
    for (at, definition) in definitions.list.iter().enumerate().skip(from) {
        let before = faults.len();
        let mut pending: Vec<ExprId> = definition.body.into_iter().collect();
        while let Some(id) = pending.pop() {
            let Some((expr, span)) = definitions.exprs.get(id) else {
                continue;
            };
            match expr {
                Expr::Number(_) => {}
                Expr::Name(name) => {
                    if !definition.params().any(|i| i.name == *name) {
                        let message = format!(
                            "`{name}` is no parameter of `{}`: a definition sees nothing else",
                            definition.name.name
                        );
                        faults.push((*span, message));
                    }
                }
                Expr::Negate(inner) => pending.push(*inner),
                Expr::Chain(first, rest) => {
                    pending.push(*first);
                    pending.extend(rest.iter().map(|r| r.1));
                }
                Expr::Call {
                    name, args, items, ..
                } => {
                    let by_axis = matches!(name.name.as_str(), "iota" | "size");
                    if by_axis {
                        // Axes of the program are visible, so only its use can tell.
                    } else {
                        pending.extend(args);
                    }
                    match definitions.forms(&name.name) {
                        // Faulty ones as well: they may be on a cycle.
                        Some(forms) => match definitions.choose(forms, args.len(), items.len()) {
                            Ok(callee) => drop(calls.add_edge(at, callee, ())),
                            Err(why) => {
                                calls.extend(forms.iter().map(|form| (at, *form)));
                                faults.extend(why.map(|w| (*span, w)));
                            }
                        },
                        None if is_built_in(&name.name) => {}
                        None => faults.push((name.span, unknown_call(definitions, &name.name))),
                    }
                }
            }
        }
        if faults.len() > before {
            faulty.push(at);
        }
    }
    // Tarjan's algorithm would recurse as deep as the definitions call each other.
    let mut cyclic: Vec<usize> = kosaraju_scc(&calls)
        .into_iter()
        .filter(|circle| circle.len() > 1 || calls.contains_edge(circle[0], circle[0]))
        .flatten()
        .collect();
    cyclic.sort_unstable();
    for at in cyclic {
        let name = &definitions.list[at].name;
        let message = format!("`{}` calls itself, directly or through others", name.name);
        faults.push((name.span, message));
        faulty.push(at);
    }
    for at in faulty {
        definitions.list[at].body = None;
    }
}
