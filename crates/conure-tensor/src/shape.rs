//! Shapes: a length for every axis, and a name that says what the axis is.

use crate::dim::{Bindings, Dim, DimError};
use smallvec::SmallVec;
use std::fmt;

/// Concrete lengths, slowest axis first.
pub type Dims = SmallVec<[usize; 6]>;

/// What an axis counts. The letters are those of papers and of every comment and error in Conure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis(pub &'static str);

impl Axis {
    /// Items of a batch.
    pub const B: Axis = Axis("B");
    /// Frames in time.
    pub const T: Axis = Axis("T");
    /// Frequency bins.
    pub const F: Axis = Axis("F");
    /// Channels of a convolution.
    pub const C: Axis = Axis("C");
    /// Model width.
    pub const D: Axis = Axis("D");
    /// Attention heads.
    pub const H: Axis = Axis("H");
    /// Width of one head.
    pub const K: Axis = Axis("K");
    /// Relative positions.
    pub const P: Axis = Axis("P");
    /// Vocabulary, blank and durations.
    pub const V: Axis = Axis("V");
    /// Tokens.
    pub const U: Axis = Axis("U");
    /// Output features of a weight.
    pub const N: Axis = Axis("N");
    /// Not named: an axis that came from outside.
    pub const ANY: Axis = Axis("?");
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A shape whose lengths may depend on symbols, slowest axis first.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape(SmallVec<[(Axis, Dim); 4]>);

impl Shape {
    /// A shape from axes and lengths.
    pub fn new<D: Into<Dim>>(axes: impl IntoIterator<Item = (Axis, D)>) -> Shape {
        Shape(axes.into_iter().map(|(a, d)| (a, d.into())).collect())
    }

    /// A shape of fixed lengths without names, as files give them.
    pub fn fixed(dims: &[usize]) -> Shape {
        Shape::new(dims.iter().map(|&d| (Axis::ANY, d)))
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The length of axis `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<&Dim> {
        self.0.get(i).map(|(_, d)| d)
    }

    /// The name of axis `i`; [`Axis::ANY`] past the end.
    pub fn axis(&self, i: usize) -> Axis {
        self.0.get(i).map_or(Axis::ANY, |(a, _)| *a)
    }

    /// The length of the last axis, if there is one.
    pub fn last(&self) -> Option<&Dim> {
        self.0.last().map(|(_, d)| d)
    }

    /// All axes with their lengths.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Axis, &Dim)> + ExactSizeIterator + '_ {
        self.0.iter().map(|(a, d)| (*a, d))
    }

    /// The same shape with axis `i` replaced.
    pub fn with(&self, i: usize, axis: Axis, dim: Dim) -> Shape {
        let mut out = self.clone();
        if let Some(slot) = out.0.get_mut(i) {
            *slot = (axis, dim);
        }
        out
    }

    /// The number of elements, as an expression.
    pub fn elements(&self) -> Dim {
        self.0.iter().fold(Dim::from(1), |n, (_, d)| &n * d)
    }

    /// Whether both have the same lengths, whatever the axes are called.
    pub fn same_lengths(&self, other: &Shape) -> bool {
        self.rank() == other.rank() && self.iter().zip(other.iter()).all(|((_, a), (_, b))| a == b)
    }

    /// The lengths under `bindings`.
    ///
    /// # Errors
    /// A symbol without a value, or a length that is negative or too large.
    pub fn eval(&self, bindings: &Bindings) -> Result<Dims, DimError> {
        self.0.iter().map(|(_, d)| d.eval(bindings)).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (axis, dim)) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            if axis == Axis::ANY || dim.to_string() == axis.0 {
                write!(f, "{dim}")?;
            } else {
                write!(f, "{axis} {dim}")?;
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Symbol;

    #[test]
    fn shows_names_and_lengths() {
        let s = Shape::new([
            (Axis::B, Dim::from(Symbol::new("B"))),
            (Axis::T, Dim::from(Symbol::new("T")).plus(1)),
            (Axis::D, Dim::from(512)),
        ]);
        assert_eq!(s.to_string(), "[B, T T+1, D 512]");
        assert_eq!(Shape::fixed(&[2, 3]).to_string(), "[2, 3]");
        let bound = Bindings::new().with(Symbol::new("B"), 2).with(Symbol::new("T"), 9);
        assert_eq!(s.eval(&bound).unwrap().as_slice(), [2, 10, 512]);
        assert_eq!(s.elements().eval(&bound), Ok(2 * 10 * 512));
        assert!(s.same_lengths(&s.with(2, Axis::N, Dim::from(512))));
        assert!(!s.same_lengths(&Shape::fixed(&[1])));
    }
}
