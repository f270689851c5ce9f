//! Layouts as text: digits of registers, lanes, warps and, if there are any, blocks of a cluster, lowest first, apart by `|`. A digit is `axis:size@stride`, or `*size` where copies
//! are held: `0:2@1 1:4@8|0:32@2|*4`.

use super::{Factor, Layout};
use ir::AxisId;
use std::fmt;
use std::str::FromStr;

/// Text that is no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no layout: digits of registers, lanes, warps and perhaps blocks, apart by `|`, each `axis:size@stride` or `*size`"
)]
pub struct LayoutError(String);

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.axis {
            Some(axis) => write!(f, "{}:{}@{}", axis.0, self.size, self.stride),
            None => write!(f, "*{}", self.size),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = [&self.registers, &self.lanes, &self.warps].into_iter();
        let blocks = Some(&self.blocks).filter(|b| !b.is_empty());
        for (i, digits) in threads.chain(blocks).enumerate() {
            if i > 0 {
                f.write_str("|")?;
            }
            for (j, digit) in digits.iter().enumerate() {
                let apart = if j > 0 { " " } else { "" };
                write!(f, "{apart}{digit}")?;
            }
        }
        Ok(())
    }
}

/// No part of a layout counts further, and no coordinate lies farther away: sums and products of digits are then numbers.
const MOST: u64 = 1 << 32;

/// The digits of one part.
fn digits(part: &str) -> Option<Vec<Factor>> {
    let digits: Vec<Factor> = part.split_whitespace().map(digit).collect::<Option<_>>()?;
    let sizes = digits.iter().map(|f| f.size);
    let all = sizes.clone().try_fold(1u64, |n, size| n.checked_mul(size));
    let last = |f: &Factor| (f.size - 1).checked_mul(f.stride);
    let counted = sizes.min().is_none_or(|least| least > 0) && all.is_some_and(|n| n <= MOST);
    let near = counted && digits.iter().all(|f| last(f).is_some_and(|n| n <= MOST));
    near.then_some(digits)
}

fn digit(text: &str) -> Option<Factor> {
    if let Some(size) = text.strip_prefix('*') {
        return Some(Factor {
            axis: None,
            size: size.parse().ok()?,
            stride: 0,
        });
    }
    let (axis, rest) = text.split_once(':')?;
    let (size, stride) = rest.split_once('@')?;
    Some(Factor {
        axis: Some(AxisId(axis.parse().ok()?)),
        size: size.parse().ok()?,
        stride: stride.parse().ok()?,
    })
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Option<Vec<Vec<Factor>>> = text.split('|').map(digits).collect();
        let parts = parts.and_then(|mut parts| {
            let blocks = (parts.len() == 4).then(|| parts.pop()).flatten();
            let blocks = blocks.unwrap_or_default();
            let powers = blocks.iter().all(|f| f.size.is_power_of_two());
            let threads = <[Vec<Factor>; 3]>::try_from(parts).ok();
            threads.filter(|_| powers).map(|threads| (threads, blocks))
        });
        let ([registers, lanes, warps], blocks) =
            parts.ok_or_else(|| LayoutError(text.to_owned()))?;
        Ok(Self {
            registers,
            lanes,
            warps,
            blocks,
        })
    }
}

impl From<Layout> for String {
    fn from(layout: Layout) -> Self {
        layout.to_string()
    }
}

impl TryFrom<String> for Layout {
    type Error = LayoutError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}
