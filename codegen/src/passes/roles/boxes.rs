//! Tiles that the hardware copies by itself: boxes of a tensor, described once a launch.

use crate::TensorMap;
use crate::access::Access;
use crate::machine::{Axes, Boxes, Copy, Region, Swizzle};
use crate::resources::SWIZZLE_BYTES;
use ir::AxisId;

/// Bytes of an element.
const ELEMENT: u64 = 2;

/// What pitches and addresses must be multiples of, in bytes.
const CHUNK: u64 = 16;

/// Bytes from one element of a dimension to the next stay below this.
const MOST_PITCH: u64 = 1 << 40;

/// Dimensions of a tensor that boxes are copied of.
const MOST_DIMENSIONS: usize = 5;

/// Elements of a box along one dimension.
const MOST_SIZE: u64 = 256;

/// The boxes of a tile, if it is made of whole ones: swizzle atoms as [`Swizzle`] says, no padding, every axis a dimension with a
/// pitch of a multiple of 16 bytes. Elements outside of the tensor are zeros, as they are in every tile.
pub(super) fn boxes(copy: &Copy, tile: &Region, cut: &Axes) -> Option<Boxes> {
    let access = &copy.access;
    let swizzle = tile.swizzle?;
    let sized =
        |(axis, size, _): &(AxisId, u64, u64)| cut.get(axis).is_some_and(|own| *size == own.tile);
    if !tile.patch.is_empty()
        || !access.checks.is_empty()
        || access.dtype != tile.dtype
        || access.dtype.bytes() != ELEMENT
        || !tile.axes.iter().all(sized)
    {
        return None;
    }
    let (along, across) = tile.axes.split_at(swizzle.along);
    let &[(unit, length, _)] = along else {
        return None;
    };
    let lines: u64 = across.iter().map(|a| a.1).product();
    let swizzle_atoms = length / swizzle.span;
    if lines != swizzle.lines
        || !length.is_multiple_of(swizzle.span)
        || (swizzle_atoms > 1
            && !swizzle
                .swizzle_atom_bytes(tile.dtype)
                .is_multiple_of(SWIZZLE_BYTES))
    {
        return None;
    }
    let mut axes = vec![unit];
    axes.extend(across.iter().map(|a| a.0));
    // What the block's number or a loop alone moves.
    let others = |a: &&AxisId| !axes.contains(a) && cut.get(a).is_none_or(|own| own.extent > 1);
    let further: Vec<AxisId> = (access.coefficients.keys())
        .filter(others)
        .copied()
        .collect();
    if further
        .iter()
        .any(|a| cut.get(a).is_none_or(|own| own.tile > 1))
    {
        return None;
    }
    axes.extend(further);
    let map = tensor(access, swizzle, &axes, cut)?;
    Some(Boxes {
        map,
        axes,
        span: swizzle.span,
        swizzle_atoms,
        share: None,
    })
}

/// The tensor whose dimensions are these axes, and the box of one swizzle atom.
fn tensor(access: &Access, swizzle: Swizzle, axes: &[AxisId], cut: &Axes) -> Option<TensorMap> {
    let (mut strides, mut sizes) = (Vec::new(), Vec::new());
    for (i, axis) in axes.iter().enumerate() {
        let pitch = u64::try_from(*access.coefficients.get(axis)?).ok()? * ELEMENT;
        if i == 0 {
            sizes.push(swizzle.span);
            if pitch != ELEMENT {
                return None;
            }
        } else {
            sizes.push(cut.get(axis)?.tile);
            if pitch == 0 || !pitch.is_multiple_of(CHUNK) || pitch >= MOST_PITCH {
                return None;
            }
            strides.push(pitch);
        }
    }
    let offset = u64::try_from(access.offset).ok()? * ELEMENT;
    let extents: Option<Vec<u64>> = axes.iter().map(|a| Some(cut.get(a)?.extent)).collect();
    let extents = extents?;
    let fits = (2..=MOST_DIMENSIONS).contains(&axes.len())
        && offset.is_multiple_of(CHUNK)
        && sizes.iter().all(|n| *n <= MOST_SIZE)
        && extents.iter().all(|n| *n <= 1 << 32);
    fits.then(|| TensorMap {
        buffer: access.buffer,
        offset,
        extents,
        strides,
        sizes: sizes.iter().map(|n| *n as u32).collect(),
        line_bytes: swizzle.line_bytes(access.dtype) as u32,
    })
}
