//! The syntax tree of expressions and definitions, and its parser over the tokens of one statement.
//!
//! Trees live in one arena, and chains of infix operators are flat: neither dropping nor reading a long one recurses.

use super::diagnostics::{Fault, Span};
use super::lexer::{Kind, Token};
use crate::functions::Function;
use crate::limits::MAX_BRACKETS;
use crate::ops::count;
use std::collections::HashMap;
use std::fmt;

/// A name and its place.
#[derive(Clone, Debug)]
pub(crate) struct Ident {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// An index into [`Definitions::exprs`].
pub(crate) type ExprId = usize;

/// An infix operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Infix {
    Add,
    Sub,
    Mul,
    Div,
}

/// An expression.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    Number(f64),
    Name(String),
    Negate(ExprId),
    /// Operators of one precedence, from left to right.
    Chain(ExprId, Vec<(Infix, ExprId)>),
    Call {
        name: Ident,
        args: Vec<ExprId>,
        items: Vec<ItemSyntax>,
        fill: Option<f64>,
    },
}

/// What stands behind a semicolon.
#[derive(Clone, Debug)]
pub(crate) enum ItemSyntax {
    Name(Ident),
    /// The axis that is re-indexed, maybe times something, and its index.
    Map(Term, Vec<Term>),
    Number(f64, Span),
}

impl ItemSyntax {
    /// Where it begins.
    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Name(name) => name.span,
            Self::Map(source, _) => source.span,
            Self::Number(_, span) => *span,
        }
    }
}

/// A term of an index: the product of what is there. A name is an axis or a constant argument.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// Where it begins.
    pub(crate) span: Span,
    /// The integer, or the sign alone.
    pub(crate) integer: i64,
    /// The name in front of a `*`: a constant.
    pub(crate) factor: Option<Ident>,
    pub(crate) name: Option<Ident>,
}

/// A parameter behind the semicolon: `a`, or `a...` for one or more axes.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub(crate) ident: Ident,
    pub(crate) many: bool,
}

/// `def name(values; items) = body`. No body: it was faulty and has been reported.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) name: Ident,
    pub(crate) values: Vec<Ident>,
    /// At most one of them stands for several axes.
    pub(crate) items: Vec<Param>,
    pub(crate) body: Option<ExprId>,
}

impl Definition {
    /// Every parameter's name.
    pub(crate) fn params(&self) -> impl Iterator<Item = &Ident> {
        self.values
            .iter()
            .chain(self.items.iter().map(|i| &i.ident))
    }

    /// Whether a call may have so many values, and arguments behind the semicolon.
    fn takes(&self, values: usize, items: usize) -> bool {
        let several = self.items.iter().any(|i| i.many);
        let items_fit = if several {
            items >= self.items.len()
        } else {
            items == self.items.len()
        };
        self.values.len() == values && items_fit
    }
}

/// `layer_norm(x; a..., eps)`
impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<&str> = self.values.iter().map(|v| v.name.as_str()).collect();
        write!(f, "{}({}", self.name.name, values.join(", "))?;
        for (at, item) in self.items.iter().enumerate() {
            let dots = if item.many { "..." } else { "" };
            let mark = if at == 0 { ";" } else { "," };
            write!(f, "{mark} {}{dots}", item.ident.name)?;
        }
        f.write_str(")")
    }
}

/// Definitions, and the arena of every expression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    pub(crate) exprs: Vec<(Expr, Span)>,
    pub(crate) list: Vec<Definition>,
    by_name: HashMap<String, Vec<usize>>,
}

impl Definitions {
    /// The forms of a name, in the order of the text. Only the prelude gives a name more than one, as `max` has two.
    pub(crate) fn forms(&self, name: &str) -> Option<&[usize]> {
        self.by_name.get(name).map(Vec::as_slice)
    }

    /// The names that have a definition, in the order of the text.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|d| d.name.name.as_str())
    }

    /// Adds a form of a name, without a body.
    pub(crate) fn add(&mut self, name: Ident) -> usize {
        let at = self.list.len();
        self.by_name.entry(name.name.clone()).or_default().push(at);
        self.list.push(Definition {
            name,
            values: Vec::new(),
            items: Vec::new(),
            body: None,
        });
        at
    }

    /// The one of some forms that takes so many values, and arguments behind the semicolon. The error is what to say at the
    /// call, if it has not been said.
    pub(crate) fn choose(
        &self,
        forms: &[usize],
        values: usize,
        items: usize,
    ) -> Result<usize, Option<String>> {
        let mut known: Vec<&Definition> = Vec::new();
        for at in forms {
            let definition = self.list.get(*at).ok_or(None)?;
            if definition.body.is_none() {
                return Err(None);
            }
            if definition.takes(values, items) {
                return Ok(*at);
            }
            known.push(definition);
        }
        let texts: Vec<String> = known.iter().map(|d| format!("`{d}`")).collect();
        let texts = texts.join(" or ");
        Err(Some(match known.as_slice() {
            [one] => {
                let name = &one.name.name;
                if one.values.len() != values {
                    let want = count(one.values.len(), "value");
                    format!("`{name}` takes {want}, {values} given: {texts}")
                } else {
                    let several = one.items.iter().any(|i| i.many);
                    let least = if several { "at least " } else { "" };
                    let want = count(one.items.len(), "argument");
                    format!(
                        "`{name}` takes {least}{want} behind the semicolon, {items} given: {texts}"
                    )
                }
            }
            _ => format!(
                "expected {texts}, found {} and {} behind the semicolon",
                count(values, "value"),
                count(items, "argument")
            ),
        }))
    }

    fn push(&mut self, expr: Expr, span: Span) -> ExprId {
        self.exprs.push((expr, span));
        self.exprs.len() - 1
    }
}

/// The calls that the language itself knows.
pub(crate) fn built_in<'a>() -> impl Iterator<Item = &'a str> {
    let others = [
        "max", "select", "sum", "prod", "dot", "view", "iota", "size",
    ];
    Function::all()
        .map(|f| -> &'a str { f.name() })
        .chain(others)
}

/// Whether it is one of [`built_in`].
pub(crate) fn is_built_in(name: &str) -> bool {
    built_in().any(|own| own == name)
}

/// What a name that the grammar uses is.
pub(crate) fn reserved(name: &str) -> Option<&'static str> {
    match name {
        "program" | "axis" | "def" | "return" | "parameter" | "fill" => Some("a keyword"),
        "f32" | "f16" | "bf16" => Some("a dtype"),
        "inf" => Some("a number"),
        // It came later than programs that may have a value or a definition of that name.
        "prod" => None,
        other if is_built_in(other) => Some("an operation"),
        _ => None,
    }
}

/// A cursor over the tokens of one statement.
pub(crate) struct Cursor<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    pub(crate) definitions: &'a mut Definitions,
}

/// A step that fails says where and why; the statement is then given up.
pub(crate) type Step<T> = Result<T, Fault>;

impl<'a> Cursor<'a> {
    pub(crate) fn new(tokens: &'a [Token], definitions: &'a mut Definitions) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
            definitions,
        }
    }

    pub(crate) fn peek(&self) -> Option<&'a Kind> {
        self.tokens.get(self.at).map(|t| &t.kind)
    }

    /// The place of the next token, or of the end of the last.
    pub(crate) fn span(&self) -> Span {
        match (self.tokens.get(self.at), self.tokens.last()) {
            (Some(token), _) => token.span,
            (None, Some(last)) => Span {
                start: last.span.end,
                end: last.span.end,
            },
            (None, None) => Span::default(),
        }
    }

    /// The place of the token before the next.
    pub(crate) fn before(&self) -> Span {
        let before = self.at.checked_sub(1).and_then(|p| self.tokens.get(p));
        before.map_or(Span::default(), |t| t.span)
    }

    fn found(&self) -> String {
        match self.peek() {
            None => "the end of the statement".to_owned(),
            Some(Kind::Name(name)) => format!("`{name}`"),
            Some(Kind::Number(..)) => "a number".to_owned(),
            Some(Kind::Mark(mark)) => format!("`{mark}`"),
            Some(Kind::Newline) => "the end of the line".to_owned(),
        }
    }

    /// A fault at the next token.
    pub(crate) fn expected<T>(&self, what: &str) -> Step<T> {
        Err((
            self.span(),
            format!("expected {what}, found {}", self.found()),
        ))
    }

    pub(crate) fn is(&self, mark: &str) -> bool {
        matches!(self.peek(), Some(Kind::Mark(m)) if *m == mark)
    }

    /// Whether the token after the next one is this mark.
    pub(crate) fn is_second(&self, mark: &str) -> bool {
        matches!(self.tokens.get(self.at + 1).map(|t| &t.kind), Some(Kind::Mark(m)) if *m == mark)
    }

    pub(crate) fn eat(&mut self, mark: &str) -> bool {
        let there = self.is(mark);
        self.at += usize::from(there);
        there
    }

    pub(crate) fn expect(&mut self, mark: &str, what: &str) -> Step<()> {
        if self.eat(mark) {
            Ok(())
        } else {
            self.expected(what)
        }
    }

    pub(crate) fn ident(&mut self, what: &str) -> Step<Ident> {
        match self.peek() {
            Some(Kind::Name(name)) => {
                let span = self.span();
                self.at += 1;
                Ok(Ident {
                    name: name.clone(),
                    span,
                })
            }
            Some(Kind::Number(..) | Kind::Mark(_) | Kind::Newline) | None => self.expected(what),
        }
    }

    pub(crate) fn is_keyword(&self, keyword: &str) -> bool {
        matches!(self.peek(), Some(Kind::Name(name)) if name == keyword)
    }

    pub(crate) fn integer(&mut self, what: &str) -> Step<(u64, Span)> {
        match self.peek() {
            Some(Kind::Number(_, Some(value))) => {
                let span = self.span();
                self.at += 1;
                Ok((*value, span))
            }
            Some(Kind::Number(value, None)) if value.fract() == 0.0 => Err((
                self.span(),
                format!("expected {what}, found a number that is too large or has an exponent"),
            )),
            Some(Kind::Number(..) | Kind::Name(_) | Kind::Mark(_) | Kind::Newline) | None => {
                self.expected(what)
            }
        }
    }

    pub(crate) fn end(&self) -> Step<()> {
        if self.at == self.tokens.len() {
            Ok(())
        } else {
            self.expected("the end of the statement")
        }
    }

    /// `NAME { "," NAME }`
    pub(crate) fn idents(&mut self, what: &str) -> Step<Vec<Ident>> {
        let mut all = vec![self.ident(what)?];
        while self.eat(",") {
            all.push(self.ident(what)?);
        }
        Ok(all)
    }

    /// `NAME ["..."] { "," NAME ["..."] }`, several axes at most once.
    pub(crate) fn params(&mut self) -> Step<Vec<Param>> {
        let mut all: Vec<Param> = Vec::new();
        loop {
            let ident = self.ident("a parameter's name")?;
            let many = self.eat("...");
            if let Some(other) = all.iter().find(|p| many && p.many) {
                let message = format!(
                    "expected one parameter for several axes at most: `{}...` is one already",
                    other.ident.name
                );
                return Err((ident.span, message));
            }
            all.push(Param { ident, many });
            if !self.eat(",") {
                return Ok(all);
            }
        }
    }

    /// A number with an optional sign, or `inf`.
    pub(crate) fn signed_number(&mut self) -> Step<(f64, Span)> {
        let start = self.span();
        let negative = self.eat("-");
        let value = match self.peek() {
            Some(Kind::Number(value, _)) => *value,
            Some(Kind::Name(name)) if name == "inf" => f64::INFINITY,
            Some(Kind::Name(_) | Kind::Mark(_) | Kind::Newline) | None => {
                return self.expected("a number");
            }
        };
        self.at += 1;
        let span = start.to(self.before());
        Ok((if negative { -value } else { value }, span))
    }

    fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Step<T>) -> Step<T> {
        if self.depth >= MAX_BRACKETS {
            return Err((
                self.span(),
                format!("nested more than {MAX_BRACKETS} deep; bind a part to a name"),
            ));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// Sums of products.
    pub(crate) fn expr(&mut self) -> Step<ExprId> {
        self.chain(
            |c| {
                c.chain(Self::unary, |c| {
                    if c.eat("*") {
                        Some(Infix::Mul)
                    } else {
                        c.eat("/").then_some(Infix::Div)
                    }
                })
            },
            |c| {
                if c.eat("+") {
                    Some(Infix::Add)
                } else {
                    c.eat("-").then_some(Infix::Sub)
                }
            },
        )
    }

    fn chain(
        &mut self,
        operand: impl Fn(&mut Self) -> Step<ExprId>,
        operator: impl Fn(&mut Self) -> Option<Infix>,
    ) -> Step<ExprId> {
        let start = self.span();
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(infix) = operator(self) {
            rest.push((infix, operand(self)?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        let span = start.to(self.before());
        Ok(self.definitions.push(Expr::Chain(first, rest), span))
    }

    fn unary(&mut self) -> Step<ExprId> {
        let start = self.span();
        if !self.is("-") {
            return self.primary();
        }
        // A sign in front of a literal belongs to the literal.
        let literal = match self.tokens.get(self.at + 1).map(|t| &t.kind) {
            Some(Kind::Number(..)) => true,
            Some(Kind::Name(name)) => name == "inf",
            Some(Kind::Mark(_) | Kind::Newline) | None => false,
        };
        if literal {
            let (value, span) = self.signed_number()?;
            return Ok(self.definitions.push(Expr::Number(value), span));
        }
        self.at += 1;
        let inner = self.deeper(Self::unary)?;
        let span = start.to(self.before());
        Ok(self.definitions.push(Expr::Negate(inner), span))
    }

    fn primary(&mut self) -> Step<ExprId> {
        let start = self.span();
        match self.peek() {
            Some(Kind::Number(value, _)) => {
                self.at += 1;
                Ok(self.definitions.push(Expr::Number(*value), start))
            }
            Some(Kind::Name(name)) if name == "inf" => {
                self.at += 1;
                Ok(self.definitions.push(Expr::Number(f64::INFINITY), start))
            }
            Some(Kind::Name(name)) => {
                let ident = self.ident("a name")?;
                if self.is("(") {
                    self.deeper(|c| c.call(ident))
                } else if name == "parameter" {
                    Err((
                        start,
                        "`parameter` stands alone: expected `name = parameter dtype [axes]`"
                            .to_owned(),
                    ))
                } else if let Some(what) = reserved(name) {
                    Err((start, format!("`{name}` is {what}, expected a value")))
                } else {
                    Ok(self.definitions.push(Expr::Name(ident.name), start))
                }
            }
            Some(Kind::Mark("(")) => {
                self.at += 1;
                let inner = self.deeper(Self::expr)?;
                self.expect(")", "an operator or `)`")?;
                Ok(inner)
            }
            Some(Kind::Mark(_) | Kind::Newline) | None => {
                self.expected("a value: a number, a name, a call or `(`")
            }
        }
    }

    fn call(&mut self, name: Ident) -> Step<ExprId> {
        self.expect("(", "`(`")?;
        let (mut args, mut items, mut fill) = (Vec::new(), Vec::new(), None);
        if !self.is(")") && !self.is(";") {
            args.push(self.expr()?);
            while self.eat(",") {
                args.push(self.expr()?);
            }
        }
        while self.eat(";") {
            let is_fill = self.is_keyword("fill");
            if is_fill && fill.is_none() {
                self.at += 1;
                self.expect("=", "`=` behind `fill`")?;
                fill = Some(self.signed_number()?.0);
            } else if items.is_empty() && fill.is_none() {
                items.push(self.item()?);
                while self.eat(",") {
                    items.push(self.item()?);
                }
            } else {
                return self.expected("`)`");
            }
        }
        let what = match (items.is_empty(), fill) {
            (_, Some(_)) => "`)`",
            (true, None) => "an operator, `,`, `;` or `)`",
            (false, None) => "`,`, `; fill = number` or `)`",
        };
        self.expect(")", what)?;
        let span = name.span.to(self.before());
        let call = Expr::Call {
            name,
            args,
            items,
            fill,
        };
        Ok(self.definitions.push(call, span))
    }

    fn item(&mut self) -> Step<ItemSyntax> {
        match self.peek() {
            Some(Kind::Name(name)) if name != "inf" => {
                if self.is_second("->") || self.is_second("*") {
                    return self.map();
                }
                self.ident("an axis").map(ItemSyntax::Name)
            }
            Some(Kind::Number(..)) if self.is_second("*") => self.map(),
            Some(Kind::Number(..) | Kind::Name(_) | Kind::Mark("-")) => {
                let (value, span) = self.signed_number()?;
                Ok(ItemSyntax::Number(value, span))
            }
            Some(Kind::Mark(_) | Kind::Newline) | None => {
                self.expected("an axis, `axis -> affine` or a number")
            }
        }
    }

    /// `[INT "*"] NAME "->" affine`, `NAME "*" NAME "->" affine`
    fn map(&mut self) -> Step<ItemSyntax> {
        let source = self.term(1)?;
        self.expect("->", "`->`")?;
        Ok(ItemSyntax::Map(source, self.affine()?))
    }

    /// Terms `[INT "*"] NAME`, `NAME "*" NAME` and integers, added and subtracted.
    pub(crate) fn affine(&mut self) -> Step<Vec<Term>> {
        let mut terms = Vec::new();
        let mut sign = if self.eat("-") { -1 } else { 1 };
        loop {
            terms.push(self.term(sign)?);
            sign = if self.eat("+") {
                1
            } else if self.eat("-") {
                -1
            } else {
                return Ok(terms);
            };
        }
    }

    fn term(&mut self, sign: i64) -> Step<Term> {
        let mut term = Term {
            span: self.span(),
            integer: sign,
            factor: None,
            name: None,
        };
        if matches!(self.peek(), Some(Kind::Name(_))) {
            term.name = Some(self.ident("an axis")?);
            if self.eat("*") {
                term.factor = term.name.replace(self.ident("an axis")?);
            }
        } else {
            let (value, span) = self.integer("an axis or an integer")?;
            let value =
                i64::try_from(value).map_err(|_| (span, "this integer is too large".to_owned()))?;
            term.integer = sign * value;
            if self.eat("*") {
                term.name = Some(self.ident("an axis")?);
            }
        }
        if self.is("*") || self.is("/") {
            return self.expected("`+`, `-`, `,`, `;` or `)`: an index is `integer * axis + …`");
        }
        Ok(term)
    }
}
