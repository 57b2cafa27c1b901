//! The functions that a layer may apply to what it computes.

/// The function at the end of a [`crate::Linear`], a [`crate::Conv2d`] or a [`crate::DepthwiseConv1d`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The value itself.
    #[default]
    None,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Gated linear unit over a whole row: the first half times the sigmoid of the second. Only [`crate::Linear`] ends in
    /// it; it halves the row.
    Glu,
}

impl Activation {
    /// Those that take every element by itself.
    pub const ELEMENTWISE: [Activation; 5] =
        [Activation::None, Activation::Relu, Activation::Silu, Activation::Sigmoid, Activation::Tanh];

    /// Its name, as drawings show it.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Silu => "silu",
            Activation::Sigmoid => "sigmoid",
            Activation::Tanh => "tanh",
            Activation::Glu => "glu",
        }
    }

    /// The definition, element by element.
    ///
    /// [`Activation::Glu`] has no such definition: its op gates whole rows itself and the value stays as it is here.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Glu => x,
            Activation::None => x,
            Activation::Relu => relu(x),
            Activation::Silu => silu(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// `max(x, 0)`, but NaN stays NaN.
pub(crate) fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
