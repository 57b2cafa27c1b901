//! What chains of reshapes and transposes do to a tensor: which lengths end up where.

use conure_tensor::{Axis, Dim, Shape};

/// A length that moves as a whole: an axis of the tensor at the start of the chain, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Atom {
    /// The axis at the start that it is (a part of).
    pub axis: usize,
    /// Its length.
    pub dim: Dim,
}

/// A tensor's axes as products of atoms, slowest first.
///
/// ```text
///   [N, OH, OW, K]                atoms  N  OH  OW  K         axes [N] [OH] [OW] [K]
///     reshape [N OH OW, K]                                    axes [N OH OW] [K]
///     transpose 1 0                                           axes [K] [N OH OW]
/// ```
///
/// Axes of length 1 have no atoms: where they stand means nothing.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    /// In the order of the start.
    pub atoms: Vec<Atom>,
    /// Now: for each axis, the numbers of its atoms.
    pub axes: Vec<Vec<usize>>,
}

/// A move to make.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // at most three, and not for long
pub(super) enum Move {
    Reshape(Shape),
    Transpose(Vec<usize>),
}

impl Moves {
    /// Nothing moved yet.
    pub(super) fn of(shape: &Shape) -> Moves {
        let mut moves = Moves { atoms: Vec::new(), axes: Vec::new() };
        for (axis, (_, dim)) in shape.iter().enumerate() {
            moves.axes.push(Vec::new());
            if *dim != Dim::from(1) {
                moves.axes[axis].push(moves.atoms.len());
                moves.atoms.push(Atom { axis, dim: dim.clone() });
            }
        }
        moves
    }

    /// After the axes were put in this order.
    pub(super) fn transpose(&self, perm: &[usize]) -> Moves {
        let axes = perm.iter().map(|&p| self.axes.get(p).cloned().unwrap_or_default()).collect();
        Moves { atoms: self.atoms.clone(), axes }
    }

    /// After a reshape that merges axes or takes them apart; `None` if an axis of the new shape holds parts of two atoms.
    pub(super) fn reshape(&self, shape: &Shape) -> Option<Moves> {
        let mut moves = Moves { atoms: self.atoms.clone(), axes: Vec::new() };
        let mut flat: Vec<usize> = self.axes.iter().flatten().copied().collect();
        let dims: Vec<&Dim> = shape.iter().map(|(_, d)| d).collect();
        let (mut i, mut j) = (0, 0);
        while j < dims.len() {
            if *dims[j] == Dim::from(1) {
                moves.axes.push(Vec::new());
                j += 1;
                continue;
            }
            let atoms = &moves.atoms;
            if let Some(count) = prefix(flat[i..].iter().map(|&a| &atoms[a].dim), dims[j]) {
                moves.axes.push(flat[i..i + count].to_vec());
                (i, j) = (i + count, j + 1);
                continue;
            }
            let atom = *flat.get(i)?;
            let count = prefix(dims[j..].iter().copied(), &atoms[atom].dim)?;
            let parts: Vec<Dim> = dims[j..j + count].iter().map(|&d| d.clone()).collect();
            let made = moves.split(atom, &parts, &mut flat);
            moves.axes.extend(made);
            (i, j) = (i + parts.iter().filter(|d| **d != Dim::from(1)).count(), j + count);
        }
        (i == flat.len()).then_some(moves)
    }

    /// Takes `atom` apart; the axes that its parts make.
    fn split(&mut self, atom: usize, parts: &[Dim], flat: &mut Vec<usize>) -> Vec<Vec<usize>> {
        let axis = self.atoms[atom].axis;
        let kept: Vec<&Dim> = parts.iter().filter(|d| **d != Dim::from(1)).collect();
        let more = kept.len() - 1;
        let shift = |a: &mut usize| {
            if *a > atom {
                *a += more;
            }
        };
        self.axes.iter_mut().flatten().for_each(shift);
        flat.iter_mut().for_each(shift);
        if let Some(at) = flat.iter().position(|&a| a == atom) {
            flat.splice(at..=at, atom..=atom + more);
        }
        self.atoms.splice(atom..=atom, kept.into_iter().map(|d| Atom { axis, dim: d.clone() }));
        let mut next = atom;
        let axes = parts.iter().map(|d| {
            if *d == Dim::from(1) {
                return Vec::new();
            }
            next += 1;
            vec![next - 1]
        });
        axes.collect()
    }

    /// The fewest moves that do all this to a tensor of shape `from` and give one of shape `to`: a reshape, a transpose and
    /// another reshape, each only if it is needed.
    pub(super) fn steps(&self, from: &Shape, to: &Shape) -> Vec<Move> {
        let order: Vec<usize> = self.axes.iter().flatten().copied().collect();
        // Atoms that stay side by side move as one.
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &a in &order {
            match groups.last_mut() {
                Some(group) if group.last().is_some_and(|&l| l + 1 == a) => group.push(a),
                _ => groups.push(vec![a]),
            }
        }
        let mut steps = Vec::new();
        let mut shape = from.clone();
        if groups.len() > 1 {
            let mut sorted: Vec<usize> = (0..groups.len()).collect();
            sorted.sort_by_key(|&g| groups[g][0]);
            let length = |g: usize| groups[g].iter().fold(Dim::from(1), |n, &a| &n * &self.atoms[a].dim);
            let apart = Shape::new(sorted.iter().map(|&g| (Axis::ANY, length(g))));
            if !apart.same_lengths(&shape) {
                steps.push(Move::Reshape(apart.clone()));
            }
            let perm: Vec<usize> =
                (0..groups.len()).map(|g| sorted.iter().position(|&s| s == g).unwrap_or(g)).collect();
            shape = Shape::new(perm.iter().map(|&p| (Axis::ANY, length(sorted[p]))));
            steps.push(Move::Transpose(perm));
        }
        if !shape.same_lengths(to) {
            steps.push(Move::Reshape(to.clone()));
        }
        steps
    }
}

/// How many of `dims`, multiplied, are `whole`.
fn prefix<'d>(dims: impl Iterator<Item = &'d Dim>, whole: &Dim) -> Option<usize> {
    let mut product = Dim::from(1);
    for (i, dim) in dims.enumerate() {
        product = &product * dim;
        if product == *whole {
            return Some(i + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use conure_tensor::Symbol;

    fn shape(dims: &[Dim]) -> Shape {
        Shape::new(dims.iter().map(|d| (Axis::ANY, d.clone())))
    }

    fn fixed(dims: &[usize]) -> Shape {
        Shape::fixed(dims)
    }

    #[test]
    fn a_chain_that_undoes_itself_is_nothing() {
        let t = Dim::from(Symbol::new("T"));
        let start = shape(&[t.clone(), 4.into(), 6.into()]);
        let merged = shape(&[t.clone(), 24.into()]);
        let moves = Moves::of(&start).transpose(&[1, 2, 0]).transpose(&[2, 0, 1]).reshape(&merged).unwrap();
        assert_eq!(moves.steps(&start, &merged), [Move::Reshape(merged.clone())]);
        let back = moves.reshape(&start).unwrap();
        assert_eq!(back.steps(&start, &start), []);
    }

    #[test]
    fn the_moves_of_a_convolution_become_one_transpose() {
        // ggml: [O, N OH OW] -> [O, N, OH, OW] -> [N, O, OH, OW], of a convolution's [N, OH, OW, O].
        let start = fixed(&[2, 5, 7, 3]);
        let moves = Moves::of(&start)
            .transpose(&[3, 0, 1, 2])
            .reshape(&fixed(&[3, 70]))
            .and_then(|m| m.reshape(&fixed(&[3, 2, 5, 7])))
            .unwrap()
            .transpose(&[1, 0, 2, 3]);
        let to = fixed(&[2, 3, 5, 7]);
        let expected =
            [Move::Reshape(fixed(&[2, 35, 3])), Move::Transpose(vec![0, 2, 1]), Move::Reshape(to.clone())];
        assert_eq!(moves.steps(&start, &to), expected);
    }

    #[test]
    fn axes_of_one_stand_anywhere() {
        let start = fixed(&[1, 5, 1, 7]);
        let moves = Moves::of(&start).transpose(&[1, 0, 3, 2]);
        let to = fixed(&[5, 1, 7, 1]);
        assert_eq!(moves.steps(&start, &to), [Move::Reshape(to)]);
    }

    #[test]
    fn parts_of_two_axes_in_one_are_not_understood() {
        assert!(Moves::of(&fixed(&[4, 6])).reshape(&fixed(&[8, 3])).is_none());
        assert!(Moves::of(&fixed(&[4, 6])).reshape(&fixed(&[2, 2, 6])).is_some());
        assert!(Moves::of(&fixed(&[4, 6])).reshape(&fixed(&[4, 5])).is_none());
        assert!(Moves::of(&fixed(&[4])).reshape(&fixed(&[4, 5])).is_none());
        let split = Moves::of(&fixed(&[4, 6])).transpose(&[1, 0]).reshape(&fixed(&[3, 2, 1, 4])).unwrap();
        assert_eq!(split.atoms.iter().map(|a| a.axis).collect::<Vec<_>>(), [0, 1, 1]);
        assert_eq!(split.axes, [vec![1], vec![2], vec![], vec![0]]);
    }
}
