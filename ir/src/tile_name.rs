//! What a kernel is called, wherever it stands.

use super::tile::{BufferRole, TileProgram};
use crate::AxisId;
use std::collections::BTreeSet;
use std::fmt::Write;

impl TileProgram {
    /// The name of a kernel: its text, in which axes, buffers and values are numbered, with the extents of the axes and what collapsed ones stand for.
    ///
    /// Kernels of one name do the same to their buffers, with the same tiles, and number their values alike: what is known of one under a schedule is known of the
    /// other, though they read and store other tensors, and stand in other programs. What they take may differ where bounds read integers from a tensor.
    pub fn kernel_name(&self, kernel: usize) -> String {
        let (mut own, _) = self.part(&[kernel], |_| false);
        let mentioned = own.mentioned();
        for (n, axis) in mentioned.iter().enumerate() {
            own.axes[axis.index()].name = format!("a{n}");
        }
        for (n, buffer) in own.buffers.iter_mut().enumerate() {
            buffer.name = format!("b{n}");
            buffer.role = match buffer.role {
                BufferRole::Parameter(_) => BufferRole::Parameter(0),
                BufferRole::Output(_) => BufferRole::Output(0),
                BufferRole::Workspace => BufferRole::Workspace,
            };
        }
        for (n, value) in own.kernels[0].values.iter_mut().enumerate() {
            value.name = format!("v{n}");
        }
        let text = own.to_string();
        let says_all = |line: &&str| !line.starts_with("tile ") && !line.starts_with("axis ");
        let lines = text.lines().filter(says_all);
        let mut name: String = lines.flat_map(|line| [line, "\n"]).collect();
        for axis in mentioned {
            let of = &own.axes[axis.index()];
            let _ = write!(name, "{} = {}", of.name, of.extent);
            for member in own.collapsed.get(&axis).into_iter().flatten() {
                let _ = write!(name, " {}", own.axes[member.index()].name);
            }
            name.push('\n');
        }
        name
    }

    /// The axes of which there is a word in kernels and buffers, and those that collapsed ones among them stand for.
    fn mentioned(&self) -> BTreeSet<AxisId> {
        let of_kernels = self.kernels.iter().flat_map(|k| k.axes.keys().copied());
        let of_buffers = self.buffers.iter().flat_map(|b| b.axes());
        let mut all: BTreeSet<AxisId> = of_kernels.chain(of_buffers).collect();
        let members = |axis: &AxisId| self.collapsed.get(axis).cloned().unwrap_or_default();
        let members: Vec<AxisId> = all.iter().flat_map(members).collect();
        all.extend(members);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers, whose kernels read other tensors along other axes.
    const LAYERS: &str = "tile layers
axis r = 64, i = 32, s = 64, j = 32
buffer x = parameter 0 f16 [r, i]
buffer u = parameter 1 f16 [s, j]
buffer y = output 0 f16 [r]
buffer z = output 1 f16 [s]
kernel grid(r: 4) whole(i: 32) {
  a = load x[r, i]
  b = reduce_sum(a; i)
  store y = b
}
kernel grid(s: 4) whole(j: 32) {
  c = load u[s, j]
  d = reduce_sum(c; j)
  store z = d
}
";

    #[test]
    fn kernels_that_do_the_same_have_one_name() {
        let names = |text: &str| {
            let tile = TileProgram::unchecked(text).expect("a tile program");
            [0, 1].map(|k| tile.kernel_name(k))
        };
        let [first, second] = names(LAYERS);
        assert_eq!(first, second);
        for (from, to) in [
            ("s = 64", "s = 128"),
            ("grid(s: 4)", "grid(s: 8)"),
            ("parameter 1 f16", "parameter 1 bf16"),
            ("u = parameter 1 f16 [s, j]", "u = parameter 1 f16 [j, s]"),
            ("parameter 1", "workspace"),
            ("reduce_sum(c", "reduce_max(c"),
            ("load u[s, j]", "load x[s, j]"),
        ] {
            let other = LAYERS.replace(from, to);
            assert_ne!(other, LAYERS, "{from}");
            let [first, second] = names(&other);
            assert_ne!(first, second, "{from}");
        }
    }

    /// What a collapsed axis stands for says where in memory its coordinates are.
    #[test]
    fn what_a_collapsed_axis_stands_for_is_in_the_name() {
        let text = "tile rows
axis b = 4, t = 6, i = 32, row = (b t)
buffer x = parameter 0 f16 [b, t, i]
buffer y = output 0 f16 [b, t]
kernel grid(row: 8) whole(i: 32) {
  a = load x[row, i]
  s = reduce_sum(a; i)
  store y = s
}
";
        let name = |text: &str| {
            let tile = TileProgram::unchecked(text).expect("a tile program");
            tile.kernel_name(0)
        };
        let others = [("b = 4, t = 6", "b = 6, t = 4"), ("row", "line")];
        let [longer, renamed] = others.map(|(from, to)| name(&text.replace(from, to)));
        assert_ne!(longer, name(text));
        assert_eq!(renamed, name(text));
    }
}
