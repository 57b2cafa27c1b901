//! im2col and the product that follows become one convolution.

use super::merge_moves::emit;
use super::moves::{Atom, Moves};
use super::rewrite::fills_rows;
use super::{Pass, Rewriter};
use crate::error::GraphError;
use crate::graph::{Graph, ValueId};
use conure_ops::{
    Activation, Binary, BinaryKind, Cast, Conv2d, Im2col, Linear, MatMul, Op, Reshape, Transpose, Unary,
    ValueType,
};
use conure_tensor::{Axis, Dim, Shape};
use std::collections::HashMap;

/// Replaces im2col, the product with the kernel, and the moves, bias and activation around them by a convolution, which makes no
/// buffer of patches.
///
/// ```text
///   image [N, C, H, W] ── im2col ── reshape ─┐
///                         f32, f16           matmul ── reshape ── transpose ── + bias ── activation ── y
///   kernel [O, C, kH, kW] ───────── reshape ─┘
///
///   image ── transpose ── conv2d (bias, activation) ── transpose ── y          the transposes of a stack of convolutions meet
///                          kernel ─┘                                           and go (`merge_moves`)
/// ```
///
/// In one and in two dimensions, with any stride, padding and dilation; depthwise and grouped where im2col ran on single groups
/// as if they were images; with the product's operands either way round, or as a linear layer.
///
/// It is left alone unless: im2col feeds nothing else and has no name; the product contracts the patches' axis, whole, with the
/// last axis of the kernel; the kernel is stored (not computed) and lies as `[O, C kH kW]`, not transposed; reshapes in between
/// only merge axes or take them apart; a kernel of a block format fills rows of kW with whole blocks, as it hardly ever does;
/// groups are the inner part of im2col's image axis and as many as the kernel has; a bias has one number per output channel and
/// is added along that axis. im2col pads with zeros by its definition. An f16 im2col rounds the image; the convolution does not.
///
/// The subsampling of a FastConformer runs 4.9 times as fast as its im2col form, the stem of Whisper 2.0, the patch embedding of CLIP
/// 1.6 (`conure bench conv --threads 1`, a Xeon with AVX-512).
#[derive(Clone, Copy, Debug)]
pub struct FuseConv;

impl Pass for FuseConv {
    fn name(&self) -> &'static str {
        "fuse_conv"
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        let mut ends: HashMap<usize, Found> = HashMap::new();
        Rewriter::run(&graph, |r, index| {
            if let Some(found) = find(r, index) {
                ends.insert(found.last, found);
            }
            match ends.remove(&index) {
                Some(found) => build(r, &found).map(|()| true),
                None => Ok(false),
            }
        })
    }
}

/// A convolution that was found.
struct Found {
    conv: Conv2d,
    image: ValueId,
    /// The image as the convolution takes it: `[N, C, H, W]`.
    image_shape: Shape,
    kernel: ValueId,
    /// `[O, C / groups, kH, kW]`.
    kernel_shape: [usize; 4],
    bias: Option<ValueId>,
    /// Moves from `[N, OH, OW, O]` to what the last node gives.
    moves: Moves,
    last: usize,
}

fn build(r: &mut Rewriter<'_>, found: &Found) -> Result<(), GraphError> {
    let path = r.old_node(found.last).path.clone();
    let mut x = r.new_of(found.image)?;
    if !r.new_ty(x).shape.same_lengths(&found.image_shape) {
        x = r.apply(Reshape { shape: found.image_shape.clone() }, &[x], &path)?;
    }
    let x = r.apply(Transpose { perm: vec![0, 2, 3, 1] }, &[x], &path)?; // [N, H, W, C]
    let mut inputs = vec![x, r.reshaped_weight(found.kernel, &found.kernel_shape)?];
    if let Some(bias) = found.bias {
        inputs.push(r.reshaped_weight(bias, &[found.kernel_shape[0]])?);
    }
    let y = r.apply(found.conv.clone(), &inputs, &path)?; // [N, OH, OW, O]
    let out = r.old_node(found.last).outputs[0];
    let steps = found.moves.steps(&r.new_ty(y).shape.clone(), &r.old_ty(out).shape);
    let y = emit(r, y, steps, &path)?;
    r.replace(out, y)
}

/// The convolution whose product is node `index`.
fn find(r: &Rewriter<'_>, index: usize) -> Option<Found> {
    let product = Product::of(r, index)?;
    let patches = Patches::of(r, product.patches)?;
    let (kernel, kernel_dims) = stored(r, product.kernel)?;
    let (&[rows, width], batch) = kernel_dims.split_last_chunk::<2>().map(|(b, l)| (l, b))?;
    let groups = Groups::of(&patches, batch)?;
    let im2col = patches.op;
    let taps = im2col.kernel[0] * im2col.kernel[1];
    let image = &r.old_ty(patches.image).shape;
    let channels = image.get(1)?.as_constant()?;
    if width != channels * taps || !patches.whole_patches() {
        return None;
    }
    let (moves, batch_dim) = groups.output(&patches, rows, product.kernel_first, r.old_ty(product.out))?;
    let height = image.get(2)?.clone();
    let breadth = image.get(3).cloned().unwrap_or(Dim::from(1));
    let image_shape = Shape::new([
        (Axis::B, batch_dim),
        (Axis::C, Dim::from(channels * groups.count)),
        (Axis("H"), height),
        (Axis("W"), breadth),
    ]);
    let mut found = Found {
        conv: Conv2d {
            stride: im2col.stride,
            pad: im2col.pad,
            dilation: im2col.dilation,
            groups: groups.count,
            activation: product.activation,
            bias: product.bias.is_some(),
        },
        image: patches.image,
        image_shape,
        kernel,
        kernel_shape: [rows * groups.count, channels, im2col.kernel[0], im2col.kernel[1]],
        bias: product.bias,
        moves,
        last: index,
    };
    follow(r, &mut found, product.out);
    found.conv.bias = found.bias.is_some();
    fits(r, &found).then_some(found)
}

/// The product of patches and kernel.
struct Product {
    patches: ValueId,
    kernel: ValueId,
    /// Whether the kernel's rows come before the patches' in the output.
    kernel_first: bool,
    bias: Option<ValueId>,
    activation: Activation,
    out: ValueId,
}

impl Product {
    fn of(r: &Rewriter<'_>, index: usize) -> Option<Product> {
        let node = r.old_node(index);
        let out = *node.outputs.first()?;
        if let Some(linear) = r.op::<Linear>(index) {
            if linear.residual.is_some() || r.old_ty(*node.inputs.get(1)?).shape.rank() != 2 {
                return None;
            }
            let bias = if linear.bias { Some(*node.inputs.get(2)?) } else { None };
            if bias.is_some_and(|b| !r.is_static(b)) {
                return None;
            }
            let (patches, kernel) = (node.inputs[0], node.inputs[1]);
            return Some(Product {
                patches,
                kernel,
                kernel_first: false,
                bias,
                activation: linear.activation,
                out,
            });
        }
        let matmul = r.op::<MatMul>(index)?;
        let &[a, b] = node.inputs.as_slice() else { return None };
        // Both contract their last axis.
        if !matmul.transpose_b {
            return None;
        }
        let kernel_first = stored(r, a).is_some();
        let (patches, kernel) = if kernel_first { (b, a) } else { (a, b) };
        Some(Product { patches, kernel, kernel_first, bias: None, activation: Activation::None, out })
    }
}

/// What an im2col gave, and what was moved since.
struct Patches<'g> {
    op: &'g Im2col,
    image: ValueId,
    /// From `[N, OH, OW, K]`; axis 2 has no atoms in one dimension.
    moves: Moves,
}

impl<'g> Patches<'g> {
    fn of(r: &Rewriter<'g>, v: ValueId) -> Option<Patches<'g>> {
        // Upwards: only reshapes and casts may lie in between, and nobody else may read any of it.
        let mut shapes = Vec::new();
        let mut at = v;
        let (index, op) = loop {
            if let Some(found) = r.inner::<Im2col>(at) {
                break found;
            }
            let n = match (r.inner::<Reshape>(at), r.inner::<Cast>(at)) {
                (Some((n, reshape)), _) => {
                    shapes.push(&reshape.shape);
                    n
                }
                (_, Some((n, _))) => n,
                _ => return None,
            };
            at = *r.old_node(n).inputs.first()?;
        };
        let shape = &r.old_ty(at).shape;
        let mut moves = Moves::of(shape);
        if shape.rank() == 3 {
            // In one dimension the patches are axis 3 all the same.
            moves.atoms.iter_mut().filter(|a| a.axis == 2).for_each(|a| a.axis = 3);
        }
        for shape in shapes.iter().rev() {
            moves = moves.reshape(shape)?;
        }
        Some(Patches { op, image: *r.old_node(index).inputs.first()?, moves })
    }

    /// Whether the last axis is the patches, all of them and nothing else.
    fn whole_patches(&self) -> bool {
        let of_patches = |&a: &usize| self.moves.atoms[a].axis == 3;
        let Some((last, rest)) = self.moves.axes.split_last() else { return false };
        let one_tap = self.moves.atoms.iter().all(|a| a.axis != 3) && last.is_empty();
        !rest.iter().flatten().any(of_patches)
            && (one_tap || (last.len() == 1 && last.iter().all(of_patches)))
    }
}

/// A weight or constant behind reshapes and casts, and the lengths it has at the end of them.
fn stored(r: &Rewriter<'_>, v: ValueId) -> Option<(ValueId, Vec<usize>)> {
    let dims = r.old_ty(v).shape.iter().map(|(_, d)| d.as_constant()).collect::<Option<Vec<_>>>()?;
    let mut at = v;
    while !r.is_static(at) {
        let n = r.made_by::<Reshape>(at).map(|(n, _)| n).or(r.made_by::<Cast>(at).map(|(n, _)| n))?;
        at = *r.old_node(n).inputs.first()?;
    }
    Some((at, dims))
}

/// How many kernels there are, each for its own part of im2col's image axis.
struct Groups {
    count: usize,
    /// The number of the patches' atom that counts them.
    atom: Option<usize>,
}

impl Groups {
    /// `batch`: the kernel's axes before its last two.
    fn of(patches: &Patches<'_>, batch: &[usize]) -> Option<Groups> {
        let long: Vec<usize> = (0..batch.len()).filter(|&i| batch[i] != 1).collect();
        let at = match long.as_slice() {
            [] => return Some(Groups { count: 1, atom: None }),
            [at] => *at,
            _ => return None,
        };
        // Batch axes are counted from the right, before the last two.
        let from_right = batch.len() - at + 2;
        let axis = patches.moves.axes.len().checked_sub(from_right)?;
        let &[atom] = patches.moves.axes[axis].as_slice() else { return None };
        let Atom { axis, dim } = &patches.moves.atoms[atom];
        let innermost = patches.moves.atoms.get(atom + 1).is_none_or(|next| next.axis != 0);
        let fits = *axis == 0 && innermost && *dim == Dim::from(batch[at]);
        fits.then_some(Groups { count: batch[at], atom: Some(atom) })
    }

    /// The product's output as moves from `[N, OH, OW, O]`, and N.
    fn output(
        &self,
        patches: &Patches<'_>,
        rows: usize,
        kernel_first: bool,
        out: &ValueType,
    ) -> Option<(Moves, Dim)> {
        // Atoms of the output: those of the patches but the groups and the patches themselves, then groups, then rows.
        let mut atoms = Vec::new();
        let mut number = vec![None; patches.moves.atoms.len()];
        let mut batch = Dim::from(1);
        for (i, atom) in patches.moves.atoms.iter().enumerate() {
            if atom.axis == 3 || Some(i) == self.atom {
                continue;
            }
            if atom.axis == 0 {
                batch = &batch * &atom.dim;
            }
            number[i] = Some(atoms.len());
            atoms.push(atom.clone());
        }
        let mut channels = |dim: usize| {
            (dim != 1).then(|| {
                atoms.push(Atom { axis: 3, dim: Dim::from(dim) });
                atoms.len() - 1
            })
        };
        let group_atom = channels(self.count);
        let row_atom = channels(rows);
        if let Some(atom) = self.atom {
            number[atom] = group_atom;
        }
        let mut axes: Vec<Vec<usize>> = Vec::new();
        for axis in &patches.moves.axes[..patches.moves.axes.len().checked_sub(1)?] {
            axes.push(axis.iter().map(|&a| number[a]).collect::<Option<Vec<_>>>()?);
        }
        let rows: Vec<usize> = row_atom.into_iter().collect();
        let at = if kernel_first { axes.len().checked_sub(1)? } else { axes.len() };
        axes.insert(at, rows);
        // Batch axes that only the kernel has are 1 long.
        while axes.len() < out.shape.rank() {
            axes.insert(0, Vec::new());
        }
        let moves = Moves { atoms, axes };
        let lengths = |axis: &Vec<usize>| axis.iter().fold(Dim::from(1), |n, &a| &n * &moves.atoms[a].dim);
        let right = moves.axes.len() == out.shape.rank()
            && moves.axes.iter().zip(out.shape.iter()).all(|(axis, (_, d))| lengths(axis) == *d);
        right.then_some((moves, batch))
    }
}

/// Takes in what follows the product: moves, one bias, one activation.
fn follow(r: &Rewriter<'_>, found: &mut Found, out: ValueId) {
    let mut at = out;
    while r.only_use(at) {
        let Some(index) = r.reader(at) else { return };
        let node = r.old_node(index);
        let plain = found.conv.activation == Activation::None;
        if let Some(reshape) = r.op::<Reshape>(index) {
            let Some(moves) = found.moves.reshape(&reshape.shape) else { return };
            found.moves = moves;
        } else if let Some(transpose) = r.op::<Transpose>(index) {
            found.moves = found.moves.transpose(&transpose.perm);
        } else if let (Some(Binary { kind: BinaryKind::Add }), &[a, bias], true) =
            (r.op::<Binary>(index), node.inputs.as_slice(), plain && found.bias.is_none())
        {
            if a != at || !is_bias(r, found, bias) {
                return;
            }
            found.bias = Some(bias);
        } else if let (Some(unary), true) = (r.op::<Unary>(index), plain) {
            let Some(activation) = unary.kind.activation() else { return };
            found.conv.activation = activation;
        } else {
            return;
        }
        found.last = index;
        at = node.outputs[0];
    }
}

/// Whether what is added is stored, has a number per output channel, and lies along that axis.
fn is_bias(r: &Rewriter<'_>, found: &Found, bias: ValueId) -> bool {
    let shape = &r.old_ty(bias).shape;
    if !r.is_static(bias) || shape.elements() != Dim::from(found.kernel_shape[0]) {
        return false;
    }
    let axes = &found.moves.axes;
    let Some(skip) = axes.len().checked_sub(shape.rank()) else { return false };
    let long = axes[skip..].iter().zip(shape.iter()).filter(|(_, (_, d))| **d != Dim::from(1));
    let atoms: Vec<usize> = long.flat_map(|(axis, _)| axis.iter().copied()).collect();
    let channels: Vec<usize> =
        (0..found.moves.atoms.len()).filter(|&a| found.moves.atoms[a].axis == 3).collect();
    atoms == channels
}

/// Whether the convolution takes these types and gives as many positions as im2col did.
fn fits(r: &Rewriter<'_>, found: &Found) -> bool {
    let image = &found.image_shape;
    let dim = |i: usize| image.get(i).cloned().unwrap_or(Dim::from(1));
    let x = ValueType::f32(Shape::new([
        (Axis::B, dim(0)),
        (Axis::T, dim(2)),
        (Axis::F, dim(3)),
        (Axis::C, dim(1)),
    ]));
    let kernel = ValueType::new(r.old_ty(found.kernel).dtype, Shape::fixed(&found.kernel_shape));
    let bias = found.bias.map(|b| ValueType::new(r.old_ty(b).dtype, Shape::fixed(&[found.kernel_shape[0]])));
    let of_blocks = |v: ValueId, shape: &[usize]| fills_rows(r.old_ty(v).dtype, shape);
    if !of_blocks(found.kernel, &found.kernel_shape)
        || found.bias.is_some_and(|b| !of_blocks(b, &found.kernel_shape[..1]))
    {
        return false;
    }
    let mut types = vec![&x, &kernel];
    types.extend(bias.as_ref());
    let Ok(out) = found.conv.infer(&types) else { return false };
    let atoms = |axis: usize| {
        let of = found.moves.atoms.iter().filter(move |a| a.axis == axis);
        of.fold(Dim::from(1), |n, a| &n * &a.dim)
    };
    let elements = image.elements() == r.old_ty(found.image).shape.elements();
    elements && out.first().is_some_and(|o| (0..4).all(|i| o.shape.get(i) == Some(&atoms(i))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::{GraphBuilder, MemoryWeights, Passes, Weights};
    use conure_ops::UnaryKind;
    use conure_tensor::{Bindings, DType};
    use std::sync::Arc;

    /// A convolution as ggml writes it.
    #[derive(Clone, Copy, Debug)]
    struct Form {
        /// N, C, H, W; in one dimension W is 0.
        image: [usize; 4],
        outputs: usize,
        groups: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        pad: usize,
        dilation: [usize; 2],
        half: bool,
        /// Whether the kernel is the product's first operand, so that channels come out first.
        kernel_first: bool,
        /// Whether the product is a linear layer.
        linear: bool,
        bias: bool,
        activation: bool,
    }

    const PLAIN: Form = Form {
        image: [1, 3, 9, 8],
        outputs: 5,
        groups: 1,
        kernel: [3, 3],
        stride: [1, 1],
        pad: 1,
        dilation: [1, 1],
        half: false,
        kernel_first: true,
        linear: false,
        bias: true,
        activation: true,
    };
    const LINE: Form = Form { image: [1, 6, 20, 0], kernel: [3, 1], outputs: 7, ..PLAIN };

    fn shape(dims: &[usize]) -> Shape {
        Shape::fixed(dims)
    }

    /// What a negative test does differently.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Twist {
        None,
        NamedPatches,
        PatchesReadTwice,
        PatchesTransposed,
        KernelComputed,
        KernelNotTransposed,
        KernelTransposed,
        BiasAlongWidth,
        BiasComputed,
        HalfPatches,
        GroupsOutside,
    }

    fn build(f: Form, twist: Twist) -> (Graph, Vec<(&'static str, conure_tensor::Tensor)>) {
        let [n, c, h, w] = f.image;
        let (two, g_count) = (w != 0, f.groups);
        let (cg, og) = (c / g_count, f.outputs / g_count);
        let width = cg * f.kernel[0] * f.kernel[1];
        let stored = if f.half { DType::F16 } else { DType::F32 };
        let weights = MemoryWeights::new()
            .with("kernel", noise(1, &[f.outputs, cg, f.kernel[0], f.kernel[1]], stored))
            .with("transposed", noise(1, &[width, og], DType::F32))
            .with("bias", noise(2, &[f.outputs], DType::F32));
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let dims: Vec<usize> = if two { vec![n, c, h, w] } else { vec![n, c, h] };
        let x = g.input("x", ValueType::f32(shape(&dims)));
        let mut inputs = vec![("x", noise(3, &dims, DType::F32))];
        let pads = if two { [f.pad; 4] } else { [f.pad, f.pad, 0, 0] };
        // Groups are images of their own.
        let singles: Vec<usize> = [&[n * g_count, cg], &dims[2..]].concat();
        let x = if g_count > 1 { g.apply(Reshape { shape: shape(&singles) }, &[x]).unwrap() } else { x };
        let dtype = if f.half { DType::F16 } else { DType::F32 };
        let im2col = Im2col { kernel: f.kernel, stride: f.stride, pad: pads, dilation: f.dilation, dtype };
        let mut patches = g.apply(im2col, &[x]).unwrap();
        if twist == Twist::NamedPatches {
            g.name(patches, "patches");
        }
        if twist == Twist::PatchesReadTwice {
            let other = g.apply(Cast, &[patches]).unwrap();
            g.output("other", other);
        }
        let positions: Vec<usize> = {
            let s = &g.ty(patches).unwrap().shape;
            (1..s.rank() - 1).map(|i| s.get(i).unwrap().as_constant().unwrap()).collect()
        };
        let all: usize = positions.iter().product();
        let merged = if g_count > 1 { vec![n, g_count, all, width] } else { vec![n * all, width] };
        if twist == Twist::PatchesTransposed {
            let order = if two { vec![0, 2, 1, 3] } else { vec![1, 0, 2] };
            patches = g.apply(Transpose { perm: order }, &[patches]).unwrap();
        }
        let mut merged = merged;
        if twist == Twist::HalfPatches {
            merged = vec![merged[0] * 2, width / 2];
        }
        if twist == Twist::GroupsOutside {
            merged = vec![g_count, n, all, width];
        }
        patches = g.apply(Reshape { shape: shape(&merged) }, &[patches]).unwrap();
        let kernel = g.weight("kernel", &[f.outputs, cg, f.kernel[0], f.kernel[1]]).unwrap();
        let mut flat = if g_count > 1 { vec![g_count, og, width] } else { vec![og, width] };
        if twist == Twist::HalfPatches {
            flat = vec![og * 2, width / 2];
        }
        if twist == Twist::GroupsOutside {
            flat = vec![g_count, 1, og, width];
        }
        let mut kernel = g.apply(Reshape { shape: shape(&flat) }, &[kernel]).unwrap();
        if twist == Twist::KernelComputed {
            let ty = g.ty(kernel).unwrap().clone();
            kernel = g.input("kernel", ty);
            inputs.push(("kernel", noise(4, &flat, DType::F32)));
        }
        if twist == Twist::KernelTransposed {
            let t = g.weight("transposed", &[width, og]).unwrap();
            kernel = g.apply(Transpose { perm: vec![1, 0] }, &[t]).unwrap();
        }
        let mut y = if f.linear {
            if f.half {
                patches = g.apply(Cast, &[patches]).unwrap();
            }
            let linear = Linear { activation: Activation::None, bias: false, residual: None };
            g.apply(linear, &[patches, kernel]).unwrap()
        } else {
            let pair = if f.kernel_first { [kernel, patches] } else { [patches, kernel] };
            let transpose_b = twist != Twist::KernelNotTransposed;
            g.apply(MatMul { transpose_b }, &pair).unwrap()
        };
        if matches!(twist, Twist::HalfPatches | Twist::GroupsOutside) {
            g.output("y", y);
            return (g.finish().unwrap(), inputs);
        }
        // To [N, O, OH, OW], as ggml has it.
        let channels_first = f.kernel_first && !f.linear;
        if g_count > 1 {
            let inner = if channels_first { [og, all] } else { [all, og] };
            let apart = [[n, g_count], inner].concat();
            y = g.apply(Reshape { shape: shape(&apart) }, &[y]).unwrap();
            if !channels_first {
                y = g.apply(Transpose { perm: vec![0, 1, 3, 2] }, &[y]).unwrap();
            }
        } else if channels_first {
            y = g.apply(Reshape { shape: shape(&[og, n, all]) }, &[y]).unwrap();
            y = g.apply(Transpose { perm: vec![1, 0, 2] }, &[y]).unwrap();
        } else {
            y = g.apply(Reshape { shape: shape(&[n, all, og]) }, &[y]).unwrap();
            y = g.apply(Transpose { perm: vec![0, 2, 1] }, &[y]).unwrap();
        }
        let last: Vec<usize> = [&[n, f.outputs], positions.as_slice()].concat();
        y = g.apply(Reshape { shape: shape(&last) }, &[y]).unwrap();
        if f.bias {
            let mut along: Vec<usize> = vec![1; last.len() - 1];
            along[0] = f.outputs;
            if twist == Twist::BiasAlongWidth {
                along = vec![f.outputs];
            }
            let b = g.weight("bias", &[f.outputs]).unwrap();
            let mut b = g.apply(Reshape { shape: shape(&along) }, &[b]).unwrap();
            if twist == Twist::BiasComputed {
                b = g.input("b", ValueType::f32(shape(&along)));
                inputs.push(("b", noise(5, &along, DType::F32)));
            } else {
                b = g.weight("bias", &along).unwrap_or(b);
            }
            y = g.apply(Binary { kind: BinaryKind::Add }, &[y, b]).unwrap();
        }
        if f.activation {
            y = g.apply(Unary { kind: UnaryKind::Relu }, &[y]).unwrap();
        }
        g.output("y", y);
        (g.finish().unwrap(), inputs)
    }

    fn forms() -> Vec<Form> {
        let mut forms = Vec::new();
        let one = [
            LINE,
            Form { image: [1, 6, 21, 0], stride: [2, 1], ..LINE },
            Form { image: [1, 4, 20, 0], kernel: [5, 1], pad: 4, dilation: [3, 1], ..LINE },
        ];
        let depthwise = Form { image: [1, 6, 20, 0], groups: 6, outputs: 6, ..LINE };
        let two = [
            PLAIN,
            Form { image: [2, 3, 9, 8], stride: [2, 3], dilation: [2, 1], pad: 2, ..PLAIN },
            Form { image: [1, 3, 28, 28], kernel: [14, 14], stride: [14, 14], pad: 0, ..PLAIN },
            Form { image: [2, 1, 12, 10], stride: [2, 2], outputs: 8, ..PLAIN },
            Form { image: [2, 5, 6, 4], kernel: [1, 1], pad: 0, ..PLAIN },
        ];
        let grouped = [
            depthwise,
            Form { stride: [2, 1], image: [3, 6, 20, 0], ..depthwise },
            Form { image: [2, 6, 9, 8], groups: 6, outputs: 6, ..PLAIN },
            Form { image: [1, 8, 9, 8], groups: 8, outputs: 8, stride: [2, 2], ..PLAIN },
            Form { image: [2, 6, 9, 8], groups: 3, outputs: 12, ..PLAIN },
            Form { image: [2, 4, 9, 8], groups: 4, outputs: 8, dilation: [2, 2], pad: 2, ..PLAIN },
        ];
        for form in one.into_iter().chain(two) {
            forms.extend([form, Form { kernel_first: false, ..form }, Form { linear: true, ..form }]);
            forms.push(Form { half: true, ..form });
            forms.push(Form { half: true, linear: true, bias: false, ..form });
            forms.push(Form { bias: false, activation: false, kernel_first: false, ..form });
        }
        for form in grouped {
            forms.extend([form, Form { kernel_first: false, ..form }, Form { half: true, ..form }]);
            forms.push(Form { activation: false, bias: false, ..form });
        }
        forms
    }

    #[test]
    fn every_form_becomes_one_convolution() {
        for form in forms() {
            let (graph, inputs) = build(form, Twist::None);
            let fused = Passes::default().run(graph.clone()).unwrap();
            for (op, expected) in [("im2col", 0), ("matmul", 0), ("linear", 0), ("binary", 0), ("unary", 0)] {
                assert_eq!(count(&fused, op), expected, "{form:?}: {op}");
            }
            assert_eq!(count(&fused, "conv2d"), 1, "{form:?}");
            assert!(count(&fused, "transpose") <= 2, "{form:?}");
            // An f16 im2col rounds each element to 11 bits; the convolution does not.
            let nmse = if form.half { 1e-6 } else { 1e-12 };
            check(&format!("{form:?}"), &graph, &fused, &Bindings::new(), &inputs, nmse);
        }
    }

    #[test]
    fn what_is_no_convolution_is_left_alone() {
        let square = Form { image: [1, 3, 5, 5], outputs: 5, activation: false, ..PLAIN };
        // As many patches as they are wide, so that the product the other way round has right lengths too.
        let confusable = Form { image: [1, 2, 3, 6], ..PLAIN };
        let cases = [
            (PLAIN, Twist::NamedPatches),
            (PLAIN, Twist::PatchesReadTwice),
            (Form { image: [1, 3, 9, 9], ..PLAIN }, Twist::PatchesTransposed),
            (LINE, Twist::PatchesTransposed),
            (PLAIN, Twist::KernelComputed),
            (Form { linear: true, ..PLAIN }, Twist::KernelComputed),
            (confusable, Twist::KernelNotTransposed),
            (Form { kernel_first: false, ..PLAIN }, Twist::KernelTransposed),
            (Form { image: [1, 2, 4, 4], ..PLAIN }, Twist::HalfPatches),
            (Form { image: [2, 6, 5, 4], groups: 3, outputs: 6, ..PLAIN }, Twist::GroupsOutside),
        ];
        for (form, twist) in cases {
            let (graph, inputs) = build(form, twist);
            let fused = FuseConv.run(graph.clone()).unwrap();
            assert_eq!(count(&fused, "conv2d"), 0, "{twist:?}");
            assert_eq!(count(&fused, "im2col"), 1, "{twist:?}");
            check(&format!("{twist:?}"), &graph, &fused, &Bindings::new(), &inputs, 1e-12);
        }
        // Blocks of 32 fill the rows of the product's kernel, not those of the convolution's.
        for dtype in [DType::Q8_0, DType::Q4_0, DType::F16] {
            let weights = MemoryWeights::new().with("kernel", noise(1, &[5, 288], dtype));
            let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
            let x = g.input("x", ValueType::f32(shape(&[2, 32, 9, 8])));
            let op =
                Im2col { kernel: [3, 3], stride: [1, 1], pad: [1; 4], dilation: [1, 1], dtype: DType::F32 };
            let patches = g.apply(op, &[x]).unwrap();
            let patches = g.apply(Reshape { shape: shape(&[144, 288]) }, &[patches]).unwrap();
            let kernel = g.weight("kernel", &[5, 288]).unwrap();
            let linear = Linear { activation: Activation::None, bias: false, residual: None };
            let y = g.apply(linear, &[patches, kernel]).unwrap();
            g.output("y", y);
            let graph = g.finish().unwrap();
            let blocks = dtype.is_quantised();
            let fused = Passes::default().run(graph.clone()).unwrap();
            assert_eq!(count(&fused, "conv2d"), usize::from(!blocks), "{dtype}");
            let inputs = [("x", noise(3, &[2, 32, 9, 8], DType::F32))];
            // Activations are rounded to 8 bits for a product with blocks: 1 / 127 / sqrt(12) of the largest of 32.
            let limit = if blocks { 1e-4 } else { 1e-10 };
            check(&format!("{dtype}"), &graph, &fused, &Bindings::new(), &inputs, limit);
        }
        // A convolution, but what is added is not its bias.
        for twist in [Twist::BiasAlongWidth, Twist::BiasComputed] {
            let (graph, inputs) = build(square, twist);
            let fused = FuseConv.run(graph.clone()).unwrap();
            assert_eq!((count(&fused, "conv2d"), count(&fused, "binary")), (1, 1), "{twist:?}");
            check(&format!("{twist:?}"), &graph, &fused, &Bindings::new(), &inputs, 1e-12);
        }
    }
}
