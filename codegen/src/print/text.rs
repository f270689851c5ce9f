//! Texts that kernels are made of: names, constants, sums, operations.

use crate::functions;
use ir::{Dtype, MapOp, Schedule, TileProgram};

/// What the text says about its origin.
pub(crate) fn describe(tile: &TileProgram, schedule: &Schedule) -> String {
    format!("{tile}\n{}", schedule.text(tile))
}

/// Text that cannot end a comment line or continue it.
pub(crate) fn comment(text: &str) -> String {
    text.chars()
        .map(|c| if c == '\\' || c.is_control() { ' ' } else { c })
        .collect()
}

/// A name as a C++ identifier part.
pub(crate) fn identifier(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

/// A constant as an f32 expression.
pub(crate) fn literal(x: f64) -> String {
    let x = x as f32;
    if x == f32::INFINITY {
        "tw_inf()".into()
    } else if x == f32::NEG_INFINITY {
        "(-tw_inf())".into()
    } else if x.is_sign_negative() {
        format!("({x:?}f)")
    } else {
        format!("{x:?}f")
    }
}

/// The suffix of a dtype's device functions.
pub(crate) fn suffix(dtype: Dtype) -> &'static str {
    dtype.name()
}

/// The C++ type that holds a dtype's elements.
pub(crate) fn holder(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float",
        Dtype::F16 | Dtype::Bf16 => "u16",
        Dtype::I32 => "int",
        Dtype::I64 => "long long",
        Dtype::Bool => "unsigned char",
    }
}

/// `text` as an f32 expression, `text` being an element as it is held.
pub(crate) fn widen(dtype: Dtype, text: &str) -> String {
    match dtype {
        Dtype::F32 => text.to_string(),
        Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => {
            format!("tw_float_{}({text})", suffix(dtype))
        }
    }
}

/// An f32 expression as an element as it is held.
pub(crate) fn narrow(dtype: Dtype, text: &str) -> String {
    match dtype {
        Dtype::F32 => text.to_string(),
        Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::Bool => {
            format!("tw_round_{}({text})", suffix(dtype))
        }
    }
}

/// `a + b + …`, `0` for nothing.
pub(crate) fn sum(terms: Vec<String>) -> String {
    if terms.is_empty() {
        "0".into()
    } else {
        terms.join(" + ")
    }
}

/// `c · text`.
pub(crate) fn times(c: i64, text: &str) -> String {
    match c {
        1 => text.to_string(),
        c if c < 0 => format!("({c}) * {text}"),
        c => format!("{c} * {text}"),
    }
}

pub(crate) fn entry_name(name: &str) -> String {
    let name = identifier(name);
    if name.chars().next().is_some_and(|c| c.is_ascii_alphabetic()) {
        name
    } else {
        format!("k{name}")
    }
}

/// The text of an element-wise operation.
pub(crate) fn map_text(op: MapOp, args: &[String], precise: bool) -> Option<String> {
    let row = functions::row(op);
    let print = if precise { row.precise } else { row.fast };
    (args.len() == op.arity()).then(|| print(args))
}
