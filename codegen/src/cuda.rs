//! A small syntax tree of CUDA, and its printer. The printer decides nothing.

/// How often the compiler may copy a loop's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unroll {
    /// Every iteration: the counter is a constant in each copy.
    Full,
    /// That many times.
    By(u32),
}

/// One piece of a function's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A declaration or statement, with its semicolon.
    Line(String),
    /// `for (int variable = from; variable < to; ++variable)`.
    For {
        variable: String,
        from: String,
        to: String,
        unroll: Unroll,
        body: Vec<Node>,
    },
    /// `if (condition)`, with an alternative unless that is empty.
    If {
        condition: String,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// A scope of its own.
    Scope(Vec<Node>),
}

impl Node {
    /// Puts what happens in a loop behind what happens in this one, which has the same counters.
    pub(crate) fn join(&mut self, other: Self) {
        let (Self::For { body, .. }, Self::For { body: more, .. }) = (self, other) else {
            return;
        };
        match (body.as_mut_slice(), more.as_slice()) {
            ([inner @ Self::For { .. }], [Self::For { .. }]) => {
                more.into_iter().for_each(|node| inner.join(node));
            }
            _ => body.extend(more),
        }
    }
}

/// A statement.
pub(crate) fn line(text: impl Into<String>) -> Node {
    Node::Line(text.into())
}

/// A loop with constant bounds that disappears: `0 .. count`.
pub(crate) fn unrolled(variable: &str, count: u64, body: Vec<Node>) -> Node {
    Node::For {
        variable: variable.into(),
        from: "0".into(),
        to: count.to_string(),
        unroll: Unroll::Full,
        body,
    }
}

/// Appends the text of `nodes`, `depth` levels in.
pub(crate) fn print(nodes: &[Node], depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    for node in nodes {
        match node {
            Node::Line(text) => out.push_str(&format!("{pad}{text}\n")),
            Node::For {
                variable,
                from,
                to,
                unroll,
                body,
            } => {
                match unroll {
                    Unroll::Full => out.push_str("#pragma unroll\n"),
                    Unroll::By(n) => out.push_str(&format!("#pragma unroll {n}\n")),
                }
                out.push_str(&format!(
                    "{pad}for (int {variable} = {from}; {variable} < {to}; ++{variable}) {{\n"
                ));
                print(body, depth + 1, out);
                out.push_str(&format!("{pad}}}\n"));
            }
            Node::If {
                condition,
                then,
                otherwise,
            } => {
                out.push_str(&format!("{pad}if ({condition}) {{\n"));
                print(then, depth + 1, out);
                if !otherwise.is_empty() {
                    out.push_str(&format!("{pad}}} else {{\n"));
                    print(otherwise, depth + 1, out);
                }
                out.push_str(&format!("{pad}}}\n"));
            }
            Node::Scope(body) => {
                out.push_str(&format!("{pad}{{\n"));
                print(body, depth + 1, out);
                out.push_str(&format!("{pad}}}\n"));
            }
        }
    }
}
