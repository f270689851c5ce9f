//! Rules that users write, as text, and the check that they are identities: the property tests of the table, on drawn operands.
//!
//! ```text
//! # A rule: its axes, what is known of its operands, and two sides in the language of programs.
//! rule scaled maximum
//! axis i, j                      # every axis gets several extents; `axis t = 2` fixes one
//! c = positive [i?]              # carries i or not: both are tried
//! x = any [i, j]
//! left = max(c * x; j)
//! right = c * max(x; j)
//! ```
//!
//! An operand is `any`, `masked` (any, or −∞ in places), `positive`, `nonnegative` or `nonzero`, with the axes that it
//! carries, or a `constant`. That is all that a rule has of side conditions: `j ∉ c` is an axis that isn't listed. Further
//! bindings and `def`s are those of the language. A file holds any number of rules; a rule ends where the next begins.

use super::property::{Counterexample, DRAWS, Exercise, Instance, Sign};
use super::term::Names;
use crate::egraph::convert;
use ir::{MapOp, Op, Program};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write;

/// A rule of a file.
#[derive(Clone, Debug)]
pub struct UserRule {
    /// What stands behind `rule`.
    pub name: String,
    /// The line where it begins, from 1.
    pub line: usize,
    axes: Vec<(String, Option<u64>)>,
    operands: Vec<Operand>,
    /// The rule's lines as they are handed to the parser of programs, but for axes and operands: one for each line of the
    /// file from the rule's first to its last.
    lines: Vec<Line>,
    file: String,
}

#[derive(Clone, Debug)]
struct Operand {
    name: String,
    /// `None`: a constant.
    sign: Option<Sign>,
    /// Each with whether it may be missing.
    axes: Vec<(String, bool)>,
}

#[derive(Clone, Debug)]
enum Line {
    Text(String),
    Axes,
    Operand(usize),
}

/// What the check of a rule found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Both sides agreed wherever they were compared.
    Sound(Exercise),
    /// They differ.
    Unsound(Box<Counterexample>),
    /// The left side had a value at so few points that nothing can be said.
    Undecided(Exercise),
}

/// Why a file cannot be checked: one message a line, each with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuleFileError(String);

/// Longest file, in bytes.
pub const MAX_FILE: usize = 1 << 16;
/// Most rules in a file.
const MOST_RULES: usize = 256;
/// Points that an instance may have, and steps that its evaluation may take.
const MOST_POINTS: u64 = 4096;
/// Operations of a rule.
const MOST_NODES: usize = 400;
/// Points at which the sides must have been compared.
const LEAST_POINTS: u64 = 60;
/// An axis and a value that no rule may use: the sides are told apart from them.
const OWN: &str = "rule_own";

/// Reads a file of rules.
///
/// # Errors
/// Every fault that is seen before anything is drawn, with the file's name and the line.
pub fn read(text: &str, file: &str) -> Result<Vec<UserRule>, RuleFileError> {
    if text.len() > MAX_FILE {
        return Err(RuleFileError(format!(
            "{file}: expected at most {MAX_FILE} bytes, found {}",
            text.len()
        )));
    }
    let mut faults: Vec<String> = Vec::new();
    let mut rules: Vec<UserRule> = Vec::new();
    for (n, raw) in text.lines().enumerate() {
        let line = raw.split('#').next().unwrap_or_default();
        let mut fault = |what: String| faults.push(format!("{file}:{}: {what}", n + 1));
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first == "rule" {
            let name = words.collect::<Vec<_>>().join(" ");
            if rules.len() >= MOST_RULES {
                fault(format!("a file has at most {MOST_RULES} rules"));
                break;
            }
            if name.is_empty() {
                fault("expected a name behind `rule`".to_owned());
            } else if rules.iter().any(|r| r.name == name) {
                fault(format!("another rule is called `{name}`"));
            }
            rules.push(UserRule {
                name,
                line: n + 1,
                axes: Vec::new(),
                operands: Vec::new(),
                lines: vec![Line::Text("program rule".to_owned())],
                file: file.to_owned(),
            });
            continue;
        }
        let Some(rule) = rules.last_mut() else {
            if !first.is_empty() {
                fault(format!("expected `rule name` first, found `{first}`"));
            }
            continue;
        };
        let kept = match first {
            "axis" => axes(line).map(|more| {
                rule.axes.extend(more);
                Line::Axes
            }),
            "return" | "program" => Err(format!(
                "a rule has no `{first}`: its sides are `left = …` and `right = …`"
            )),
            _ => match operand(line) {
                None => Ok(Line::Text(line.to_owned())),
                Some(Err(what)) => Err(what),
                Some(Ok(operand)) => {
                    rule.operands.push(operand);
                    Ok(Line::Operand(rule.operands.len() - 1))
                }
            },
        };
        rule.lines.push(kept.unwrap_or_else(|what| {
            fault(what);
            Line::Text(String::new())
        }));
    }
    if rules.is_empty() && faults.is_empty() {
        faults.push(format!("{file}: expected `rule name`, found no rule"));
    }
    for rule in &rules {
        for side in ["left", "right"] {
            let is_side = |l: &Line| matches!(l, Line::Text(t) if t.split('=').next().is_some_and(|n| n.trim() == side) && t.contains('='));
            if !rule.lines.iter().any(is_side) {
                faults.push(format!(
                    "{file}:{}: rule `{}` has no `{side} = …`",
                    rule.line, rule.name
                ));
            }
        }
    }
    // What the language says about the sides does not depend on the draw, mostly.
    if faults.is_empty() {
        for rule in &rules {
            if let Err(what) = rule.draw(0) {
                faults.push(what.0);
            }
        }
    }
    if faults.is_empty() {
        Ok(rules)
    } else {
        Err(RuleFileError(faults.join("\n")))
    }
}

/// `axis i, j = 3`
fn axes(line: &str) -> Result<Vec<(String, Option<u64>)>, String> {
    let list = line.trim().trim_start_matches("axis");
    list.split(',')
        .map(|part| {
            let (name, extent) = match part.split_once('=') {
                None => (part, None),
                Some((name, extent)) => (name, Some(extent.trim())),
            };
            let name = name.trim();
            if !is_name(name) {
                return Err(format!("expected an axis's name, found `{name}`"));
            }
            let extent = match extent {
                None => None,
                Some(text) => match text.parse::<u64>() {
                    Ok(extent) if (1..=MOST_POINTS).contains(&extent) => Some(extent),
                    Ok(_) | Err(_) => {
                        return Err(format!(
                            "expected an extent from 1 to {MOST_POINTS}, found `{text}`"
                        ));
                    }
                },
            };
            Ok((name.to_owned(), extent))
        })
        .collect()
}

/// `x = positive [i, j?]` or `c = constant`; nothing if it is another statement.
fn operand(line: &str) -> Option<Result<Operand, String>> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let word = value.split(['[', ' ', '\t']).next()?;
    let sign = match word {
        "any" => Some(Sign::Any),
        "masked" => Some(Sign::Masked),
        "positive" => Some(Sign::Positive),
        "nonnegative" => Some(Sign::Nonnegative),
        "nonzero" => Some(Sign::Nonzero),
        "constant" => None,
        "parameter" => {
            return Some(Err(
                "a rule has no parameters: expected `name = any [axes]`, or masked, positive, nonnegative, nonzero".to_owned(),
            ));
        }
        _ => return None,
    };
    let rest = value[word.len()..].trim();
    if !is_name(name) {
        return Some(Err(format!("expected an operand's name, found `{name}`")));
    }
    let mut operand = Operand {
        name: name.to_owned(),
        sign,
        axes: Vec::new(),
    };
    if sign.is_none() {
        return Some(if rest.is_empty() {
            Ok(operand)
        } else {
            Err(format!("a constant has no axes, found `{rest}`"))
        });
    }
    let Some(list) = rest.strip_prefix('[').and_then(|r| r.strip_suffix(']')) else {
        return Some(Err(format!(
            "expected the axes of `{name}` in brackets, such as `[i, j?]`, found `{rest}`"
        )));
    };
    for axis in list.split(',').map(str::trim) {
        if axis.is_empty() && list.trim().is_empty() {
            continue;
        }
        let (axis, optional) = match axis.strip_suffix('?') {
            Some(axis) => (axis.trim(), true),
            None => (axis, false),
        };
        if !is_name(axis) {
            return Some(Err(format!("expected an axis, found `{axis}`")));
        }
        operand.axes.push((axis.to_owned(), optional));
    }
    Some(Ok(operand))
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl UserRule {
    /// Draws operands, compares the sides at every point, and says what was found.
    ///
    /// # Errors
    /// When some draw is no program: a view that leaves its source at some extents, say.
    pub fn check(&self) -> Result<Verdict, RuleFileError> {
        let mut count = Exercise::default();
        let signs: Vec<Sign> = self.operands.iter().filter_map(|o| o.sign).collect();
        let names = |all: &[&str]| -> Vec<String> { all.iter().map(|n| (*n).to_owned()).collect() };
        let symbols: Vec<&str> = self
            .operands
            .iter()
            .filter(|o| o.sign.is_some())
            .map(|o| o.name.as_str())
            .collect();
        let symbols = names(&symbols);
        for draw in 0..DRAWS {
            let program = self.draw(draw)?;
            let axes: Vec<String> = program.axes.iter().map(|a| a.name.clone()).collect();
            let embedded = convert::embed(&program);
            let [left, right] = embedded.roots[..] else {
                return Err(self.fault("a rule has two sides"));
            };
            let g = &embedded.graph;
            let instance = Instance {
                g,
                left,
                right,
                signs: &signs,
                names: Names {
                    symbols: &symbols,
                    axes: &axes,
                },
                axes: g[left].data.axes.union(&g[right].data.axes),
                exact: true,
                draw,
            };
            if instance.steps() > STEPS {
                return Err(self.fault("this rule is too large to be checked"));
            }
            if let Err(found) = instance.judge(&mut count) {
                return Ok(Verdict::Unsound(found));
            }
        }
        Ok(if count.floating < LEAST_POINTS {
            Verdict::Undecided(count)
        } else {
            Verdict::Sound(count)
        })
    }

    fn fault(&self, what: &str) -> RuleFileError {
        RuleFileError(format!("{}:{}: {what}", self.file, self.line))
    }

    /// An instance: a program with the two sides as results, whose k-th parameter is the k-th operand that is no constant.
    fn draw(&self, draw: u64) -> Result<Program, RuleFileError> {
        let mut rng = ChaCha8Rng::seed_from_u64(draw);
        let mut extents: Vec<u64> = self
            .axes
            .iter()
            .map(|(_, fixed)| fixed.unwrap_or_else(|| [1, 2, 3, 5][rng.random_range(0..4)]))
            .collect();
        // The largest give way where there are many axes.
        let points = |extents: &[u64]| extents.iter().fold(1u64, |n, e| n.saturating_mul(*e));
        while points(&extents) > MOST_POINTS {
            let free = self
                .axes
                .iter()
                .zip(&mut extents)
                .filter(|(a, e)| a.1.is_none() && **e > 1)
                .map(|(_, e)| e);
            match free.max() {
                Some(extent) => *extent = 1,
                None => {
                    return Err(self.fault(&format!(
                        "the fixed extents of this rule give more than {MOST_POINTS} points"
                    )));
                }
            }
        }
        let all: Vec<String> = self
            .axes
            .iter()
            .zip(&extents)
            .map(|((name, _), extent)| format!("{name} = {extent}"))
            .collect();
        // So that diagnostics speak of the file's lines.
        let mut text = "\n".repeat(self.line - 1);
        let mut declared = false;
        for line in &self.lines {
            match line {
                Line::Text(line) => text.push_str(line),
                // All of them at the first place where some are declared.
                Line::Axes if !declared => {
                    declared = true;
                    let _ = write!(text, "axis {}", all.join(", "));
                }
                Line::Axes => {}
                Line::Operand(n) => {
                    let operand = &self.operands[*n];
                    let axes: Vec<&str> = operand
                        .axes
                        .iter()
                        .filter(|(_, optional)| !optional || rng.random_bool(0.5))
                        .map(|(name, _)| name.as_str())
                        .collect();
                    let value = f64::from(rng.random_range(-6_i32..7)) * 0.5;
                    let _ = match operand.sign {
                        Some(_) => write!(
                            text,
                            "{} = parameter f32 [{}]",
                            operand.name,
                            axes.join(", ")
                        ),
                        None => write!(text, "{} = {value}", operand.name),
                    };
                }
            }
            text.push('\n');
        }
        // Results list the axes of their values, which nobody knows yet: each is spread over all axes, and taken apart again.
        let mut dims: Vec<&str> = self.axes.iter().map(|(name, _)| name.as_str()).collect();
        dims.push(OWN);
        let spread: Vec<String> = dims.iter().map(|a| format!("0 * iota({a})")).collect();
        let dims = dims.join(", ");
        let _ = write!(
            text,
            "axis {OWN} = 1\n{OWN}_zero = {}\nreturn f32 [{dims}] left + {OWN}_zero, f32 [{dims}] right + {OWN}_zero, f32 [{dims}] {OWN}_zero\n",
            spread.join(" + ")
        );
        let mut program =
            ir::parse(&text, &self.file).map_err(|e| self.explain(&e, &all.join(", ")))?;
        if program.nodes.len() > MOST_NODES {
            return Err(self.fault("this rule is too large to be checked"));
        }
        let zero = program.outputs.pop().map(|o| o.value);
        for output in &mut program.outputs {
            let sum = program.nodes[output.value.index()].clone();
            let side = match sum.op {
                Op::Map(MapOp::Add) => sum.args.iter().find(|a| Some(**a) != zero),
                Op::Parameter { .. }
                | Op::Constant(_)
                | Op::Iota(_)
                | Op::View { .. }
                | Op::Map(_)
                | Op::Reduce { .. }
                | Op::Dot { .. } => None,
            };
            output.value = *side.ok_or_else(|| self.fault("a side of this rule is lost"))?;
        }
        Ok(program)
    }

    /// The parser's words, without what it says of lines that are not the file's.
    fn explain(&self, found: &ir::Diagnostics, extents: &str) -> RuleFileError {
        let inside: Vec<String> = found
            .list()
            .iter()
            .filter(|d| d.line < self.line + self.lines.len())
            .map(|d| format!("{}:{}:{}: {}", self.file, d.line, d.column, d.message))
            .collect();
        let mut text = inside.join("\n");
        if text.is_empty() {
            text = format!("{}:{}: {found}", self.file, self.line);
        }
        if !extents.is_empty() {
            let _ = write!(text, " (with {extents})");
        }
        RuleFileError(text)
    }
}

/// Evaluations of a node that a draw may take.
const STEPS: u64 = 4_000_000;
