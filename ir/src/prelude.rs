//! The prelude's definitions as methods of [`Builder`]: they are read by the parser, which makes values with the same builder.

use crate::axes::AxisId;
use crate::builder::{BuildError, Builder};
use crate::program::NodeId;
use crate::text::{Expander, Item, prelude, taken};

impl Builder {
    /// An empty program. Its axes and parameters may have the names that they may have in a text.
    pub fn new(name: impl Into<String>) -> Self {
        Self::empty(name, taken)
    }

    /// A definition of the prelude by its name: values, then axes, then numbers, in the order of its parameters. The language's
    /// reference, `docs/language.md`, lists them all.
    pub fn call(
        &mut self,
        name: &str,
        values: &[NodeId],
        axes: &[AxisId],
        numbers: &[f64],
    ) -> Result<NodeId, BuildError> {
        let items: Vec<Item> = axes
            .iter()
            .map(|a| Item::axis(*a))
            .chain(numbers.iter().map(|n| Item::Number(*n)))
            .collect();
        Expander::default()
            .call_by_name(self, prelude(), name, values, items)
            .map_err(BuildError)
    }

    /// `min(x; axes)`
    pub fn min_over(
        &mut self,
        x: NodeId,
        axes: impl IntoIterator<Item = AxisId>,
    ) -> Result<NodeId, BuildError> {
        let axes: Vec<AxisId> = axes.into_iter().collect();
        self.call("min", &[x], &axes, &[])
    }

    /// The prelude's `causal(x; i, j)`.
    pub fn causal(&mut self, x: NodeId, i: AxisId, j: AxisId) -> Result<NodeId, BuildError> {
        self.call("causal", &[x], &[i, j], &[])
    }
}

/// Methods that are one definition each.
macro_rules! definitions {
    (values $($name:ident($($x:ident),*; $($c:ident),*);)*) => {
        impl Builder {$(
            /// The prelude's definition of this name.
            pub fn $name(&mut self, $($x: NodeId,)* $($c: f64,)*) -> Result<NodeId, BuildError> {
                self.call(stringify!($name), &[$($x),*], &[], &[$($c),*])
            }
        )*}
    };
    (over axes $($name:ident($($x:ident),*; $($c:ident),*);)*) => {
        impl Builder {$(
            /// The prelude's definition of this name, over one or more axes.
            pub fn $name(
                &mut self,
                $($x: NodeId,)*
                axes: impl IntoIterator<Item = AxisId>,
                $($c: f64,)*
            ) -> Result<NodeId, BuildError> {
                let axes: Vec<AxisId> = axes.into_iter().collect();
                self.call(stringify!($name), &[$($x),*], &axes, &[$($c),*])
            }
        )*}
    };
}

definitions! { values
    min(x, y;);
    abs(x;);
    clamp(x, low, high;);
    rsqrt(x;);
    sigmoid(x;);
    silu(x;);
    relu(x;);
    tanh(x;);
    gelu(x;);
    gelu_erf(x;);
    erf(x;);
    softplus(x;);
    mish(x;);
    elu(x; alpha);
    selu(x;);
    leaky_relu(x; slope);
    hardswish(x;);
    batch_norm(x, mu, var; eps);
}

definitions! { over axes
    mean(x;);
    softmax(x;);
    logsumexp(x;);
    log_softmax(x;);
    rms_norm(x; eps);
    layer_norm(x; eps);
    instance_norm(x; eps);
    group_norm(x; eps);
}
