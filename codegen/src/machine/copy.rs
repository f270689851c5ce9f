//! How threads share out a copy into a region of shared memory.

use super::{Axes, Copy, Region, RegionId, Stage};
use crate::access::Access;
use crate::layout::Layout;
use ir::{AxisId, Dtype};

impl Copy {
    /// A copy of the whole of a stage by so many warps: every element of it is written, zero where it does not exist.
    pub(crate) fn of(
        (id, region): (RegionId, &Region),
        stage: Stage,
        access: Access,
        axes: &Axes,
        warps: u64,
    ) -> Self {
        if !region.patch.is_empty() {
            let sides = region.patch.iter().filter(|s| s.span > 1);
            let sizes: Vec<(AxisId, u64)> = sides.map(|s| (s.axis, s.span)).collect();
            return Self {
                region: id,
                stage,
                layout: Layout::blocked(&sizes, 1, warps, 1),
                width: 1,
                background: access.fill == 0.0 && region.dtype == Dtype::F32,
                access,
            };
        }
        let sizes: Vec<(AxisId, u64)> = region.axes.iter().map(|a| (a.0, a.1)).collect();
        let unit = access.unit_axis(axes);
        let step = 16 / region.dtype.bytes();
        let most = match unit {
            Some(u) if region.axes.first().map(|a| a.0) == unit && access.dtype == region.dtype => {
                access.vector(axes, u, step)
            }
            Some(_) | None => 1,
        };
        let across = sizes.iter().position(|a| Some(a.0) == unit);
        let layout = match (across, region.swizzle) {
            (_, Some(s)) => Layout::swizzle_atoms(&sizes, s.along, s.span, most, warps),
            (Some(at), None) if at > 0 => Layout::crossed(&sizes, at, warps),
            (Some(_) | None, None) => Layout::blocked(&sizes, most, 1, warps),
        };
        let width = match unit {
            Some(u) if most > 1 => layout.vector(u).min(most),
            Some(_) | None => 1,
        };
        let background = width * region.dtype.bytes() >= 4
            && access.dtype == region.dtype
            && (access.checks.is_empty() || access.fill == 0.0);
        Self {
            region: id,
            stage,
            access,
            layout,
            width,
            background,
        }
    }
}
