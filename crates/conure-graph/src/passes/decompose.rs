//! Ops become simpler ops, for a device that lacks them.

use super::{Pass, Rewriter};
use crate::device::Device;
use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, Value, ValueId};
use conure_ops::{Op, Part, Reshape, ValueType};
use conure_tensor::{Bindings, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// Replaces ops by what their folders say they are made of ([`Op::decompose`]).
///
/// ```text
///   x ── glu ── y                 x ──┬── slice ───────────── * ── y
///                                     └── slice ── sigmoid ───┘
/// ```
///
/// For a device: a node that it refuses is taken apart if it takes all of the parts (which may have to be taken apart in turn);
/// otherwise the CPU runs the node, whole. The CPU takes everything, so that nothing is taken apart for it.
#[derive(Clone, Debug)]
pub struct Decompose(Which);

#[derive(Clone, Debug)]
enum Which {
    Ops(&'static str, Vec<&'static str>),
    Refused(Device),
}

impl Decompose {
    /// Takes apart every op of these names that can be.
    pub fn ops(names: &[&'static str]) -> Decompose {
        Decompose::named("decompose", names)
    }

    pub(super) fn named(pass: &'static str, names: &[&'static str]) -> Decompose {
        Decompose(Which::Ops(pass, names.to_vec()))
    }

    /// Takes apart what `device` refuses, where that helps.
    pub fn refused_by(device: &Device) -> Decompose {
        Decompose(Which::Refused(device.clone()))
    }

    /// Whether a node may stay as it is.
    fn accepts(&self, graph: &Graph, node: &Node) -> bool {
        match &self.0 {
            Which::Ops(_, names) => !names.contains(&node.op_name()),
            Which::Refused(device) => device.backend().is_none_or(|b| b.supports(graph, node).is_ok()),
        }
    }

    /// The parts of a node as a graph of their own, whose first values are the node's inputs; `None` if it cannot be taken apart
    /// into what is accepted.
    fn parts(&self, graph: &Graph, node: &Node) -> Result<Option<(Graph, Vec<ValueId>)>, GraphError> {
        let NodeOp::Op(op) = &node.op else { return Ok(None) };
        let mut parts = Parts { graph: Graph::empty(graph.weights.clone()), path: &node.path, accepts: self };
        let mut inputs = Vec::new();
        for &v in &node.inputs {
            let value = &graph.values[v.index()];
            let def = match &value.def {
                Def::Weight(_) | Def::Constant(_) => value.def.clone(),
                _ => Def::Input(parts.graph.inputs.len()),
            };
            let input = matches!(def, Def::Input(_));
            let id = parts.push(Value { ty: value.ty.clone(), name: None, def });
            if input {
                parts.graph.inputs.push(id);
            }
            inputs.push(id);
        }
        let outputs = parts.take_apart(op, &inputs)?;
        Ok(outputs.map(|outputs| (parts.graph, outputs)))
    }
}

impl Pass for Decompose {
    fn name(&self) -> &'static str {
        match &self.0 {
            Which::Ops(name, _) => name,
            Which::Refused(_) => "decompose",
        }
    }

    fn run(&self, graph: Graph) -> Result<Graph, GraphError> {
        Rewriter::run(&graph, |r, index| {
            let node = r.old_node(index);
            if self.accepts(&graph, node) {
                return Ok(false);
            }
            let Some((parts, outputs)) = self.parts(&graph, node)? else { return Ok(false) };
            let mut map: Vec<Option<ValueId>> = vec![None; parts.values.len()];
            for (i, &v) in node.inputs.iter().enumerate() {
                map[i] = Some(r.new_of(v)?);
            }
            for (i, value) in parts.values.iter().enumerate().skip(node.inputs.len()) {
                if let Def::Constant(tensor) = &value.def {
                    map[i] = Some(r.constant(tensor.as_ref().clone()));
                }
            }
            for part in &parts.nodes {
                let NodeOp::Op(op) = &part.op else { continue };
                let inputs: Vec<ValueId> = part.inputs.iter().filter_map(|v| map[v.index()]).collect();
                // A device must see a weight in it, whatever its shape.
                if let (Some(reshape), &[x]) = (op.as_any().downcast_ref::<Reshape>(), inputs.as_slice())
                    && r.is_new_static(x)
                    && let Ok(shape) = reshape.shape.eval(&Bindings::new())
                {
                    map[part.outputs[0].index()] = Some(r.reshaped(x, &shape)?);
                    continue;
                }
                let made = r.apply_all(op.clone(), &inputs, &node.path)?;
                for (v, new) in part.outputs.iter().zip(made) {
                    map[v.index()] = Some(new);
                }
            }
            for (&old, new) in node.outputs.iter().zip(outputs) {
                if let Some(new) = map[new.index()] {
                    r.replace(old, new)?;
                }
            }
            Ok(true)
        })
    }
}

struct Parts<'a> {
    graph: Graph,
    path: &'a str,
    accepts: &'a Decompose,
}

impl Parts<'_> {
    fn push(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).unwrap_or(u32::MAX));
        self.graph.values.push(value);
        id
    }

    /// Adds the steps of an op; its outputs, or `None` if it has no steps or one is not accepted.
    fn take_apart(
        &mut self,
        op: &Arc<dyn Op>,
        inputs: &[ValueId],
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let fail = |source| GraphError::Op { path: self.path.to_owned(), source };
        let types: Vec<&ValueType> = inputs.iter().map(|v| &self.graph.values[v.index()].ty).collect();
        let Some(steps) = op.decompose(&types).map_err(fail)? else { return Ok(None) };
        let constants: Vec<ValueId> = steps
            .constants
            .iter()
            .map(|t| {
                let ty = ValueType::new(t.dtype(), Shape::fixed(t.shape()));
                self.push(Value { ty, name: None, def: Def::Constant(t.clone()) })
            })
            .collect();
        let mut made: Vec<Vec<ValueId>> = Vec::new();
        let of = |part: Part, made: &[Vec<ValueId>]| match part {
            Part::Input(i) => inputs.get(i).copied(),
            Part::Constant(i) => constants.get(i).copied(),
            Part::Step(s, i) => made.get(s).and_then(|v| v.get(i)).copied(),
        };
        for step in &steps.steps {
            let operands: Option<Vec<ValueId>> = step.inputs.iter().map(|&p| of(p, &made)).collect();
            let Some(operands) = operands else { return Ok(None) };
            match self.step(&step.op, &operands, &step.types)? {
                Some(outputs) => made.push(outputs),
                None => return Ok(None),
            }
        }
        Ok(steps.outputs.iter().map(|&p| of(p, &made)).collect())
    }

    /// Adds one step, as it is if it is accepted, taken apart if not.
    fn step(
        &mut self,
        op: &Arc<dyn Op>,
        inputs: &[ValueId],
        types: &[ValueType],
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let index = self.graph.nodes.len();
        let before = self.graph.values.len();
        let outputs: SmallVec<[ValueId; 2]> = types
            .iter()
            .enumerate()
            .map(|(i, ty)| self.push(Value { ty: ty.clone(), name: None, def: Def::Node(index, i) }))
            .collect();
        let (op, inputs) = (op.clone(), SmallVec::from_slice(inputs));
        let node =
            Node { op: NodeOp::Op(op.clone()), inputs, outputs: outputs.clone(), path: self.path.to_owned() };
        self.graph.nodes.push(node);
        // A view is never refused: it stays where its input is.
        let accepted = op.is_view()
            || self.graph.nodes.last().is_some_and(|node| self.accepts.accepts(&self.graph, node));
        if accepted {
            return Ok(Some(outputs.to_vec()));
        }
        let Some(node) = self.graph.nodes.pop() else { return Ok(None) };
        self.graph.values.truncate(before);
        self.take_apart(&op, &node.inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::testing::{check, count, noise};
    use crate::passes::{FuseAttention, LowerConv, Passes};
    use crate::{GraphBuilder, MemoryWeights, Partial, Weights};
    use conure_ops::{AttentionMask, Glu, LayerNorm, RelPosAttention};
    use conure_tensor::{Axis, DType, Dim, Symbol, Tensor};

    const T: Symbol = Symbol::new("T");

    /// Attention with what surrounds it in a Conformer.
    fn attention(mask: AttentionMask, named: bool) -> (Graph, Vec<(&'static str, Tensor)>) {
        let (b, t, heads, width) = (2, 19, 3, 8);
        let d = heads * width;
        let weights = MemoryWeights::new()
            .with("u", noise(1, &[heads, width], DType::F32))
            .with("v", noise(2, &[heads, width], DType::F16))
            .with("gamma", noise(3, &[d], DType::F32));
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let time = Dim::from(T);
        let rows = match mask {
            AttentionMask::Banded { left, right } => Dim::from(left + right + 1),
            _ => (&time * &Dim::from(2)).plus(-1),
        };
        let frames = Shape::new([(Axis::B, Dim::from(b)), (Axis::T, time.clone()), (Axis::D, Dim::from(d))]);
        let p = Shape::new([(Axis::P, rows.clone()), (Axis::D, Dim::from(d))]);
        let mut values = Vec::new();
        let mut inputs = Vec::new();
        for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
            values.push(g.input(name, ValueType::f32(frames.clone())));
            inputs.push((name, noise(4 + i as u64, &[b, t, d], DType::F32)));
        }
        values.push(g.input("p", ValueType::f32(p)));
        let count = rows.eval(&Bindings::new().with(T, t)).unwrap();
        inputs.push(("p", noise(8, &[count, d], DType::F32)));
        let gamma = g.weight("gamma", &[d]).unwrap();
        values[0] = g.apply(LayerNorm { eps: 1e-5 }, &[values[0], gamma, gamma]).unwrap();
        values.push(g.weight("u", &[heads, width]).unwrap());
        values.push(g.weight("v", &[heads, width]).unwrap());
        let lengths = ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(b))]));
        values.push(g.input("lengths", lengths));
        inputs.push(("lengths", Tensor::from_slice(&[b], &[19i32, 11]).unwrap()));
        let y = g.apply(RelPosAttention { heads, mask, context: 0 }, &values).unwrap();
        if named {
            g.name(y, "attended");
        }
        let y = g.apply(Glu, &[y]).unwrap();
        g.output("y", y);
        (g.finish().unwrap(), inputs)
    }

    const MASKS: [AttentionMask; 4] = [
        AttentionMask::Full,
        AttentionMask::Banded { left: 5, right: 2 },
        AttentionMask::Banded { left: 30, right: 30 },
        AttentionMask::ChunkedLimited { left: Some(6), right: 2 },
    ];

    #[test]
    fn attention_taken_apart_is_found_again() {
        let bound = Bindings::new().with(T, 19);
        for mask in MASKS {
            for named in [false, true] {
                let (graph, inputs) = attention(mask, named);
                let apart =
                    Decompose::ops(&["rel_pos_attention", "glu", "layer_norm"]).run(graph.clone()).unwrap();
                for op in ["rel_pos_attention", "glu", "layer_norm"] {
                    assert_eq!(count(&apart, op), 0, "{mask:?}");
                }
                check(&format!("{mask:?} apart"), &graph, &apart, &bound, &inputs, 1e-11);
                for passes in [Passes::default(), Passes::without(&["fold_constants"]).unwrap()] {
                    let again = passes.run(apart.clone()).unwrap();
                    assert_eq!(count(&again, "rel_pos_attention"), 1, "{mask:?}");
                    assert_eq!(count(&again, "softmax"), 0, "{mask:?}");
                    check(&format!("{mask:?} again"), &graph, &again, &bound, &inputs, 1e-11);
                }
                let again = FuseAttention.run(apart.clone()).unwrap();
                assert_eq!((count(&again, "rel_pos_attention"), count(&again, "matmul")), (1, 0), "{mask:?}");
            }
        }
    }

    #[test]
    fn a_device_gets_what_it_takes() {
        let (graph, inputs) = attention(AttentionMask::Full, false);
        let bound = Bindings::new().with(T, 19);
        let all = ["slice", "unary", "binary", "linear", "matmul", "softmax", "rel_shift", "mask_scores"];
        let moves = ["mask_time", "transpose", "reshape", "scale"];
        // Everything simple; no softmax, so that attention stays whole; nothing.
        for (lacks, left) in [("", [0, 0, 0]), ("softmax", [1, 0, 0]), ("binary", [1, 1, 1])] {
            let takes: Vec<&str> = all.into_iter().chain(moves).filter(|&o| o != lacks).collect();
            let device = Device::new(Arc::new(Partial::ops(&takes).unwrap()));
            let fitted = Passes::none().for_device(&device).run(graph.clone()).unwrap();
            assert_eq!(fitted.nodes().len(), graph.nodes().len(), "`none` is none");
            let fitted = Decompose::refused_by(&device).run(graph.clone()).unwrap();
            let found = ["rel_pos_attention", "glu", "layer_norm"].map(|op| count(&fitted, op));
            assert_eq!(found, left, "without {lacks}");
            check(lacks, &graph, &fitted, &bound, &inputs, 1e-11);
        }
        let fitted = Decompose::refused_by(&Device::cpu()).run(graph.clone()).unwrap();
        assert_eq!(fitted.nodes().len(), graph.nodes().len());
    }

    #[test]
    fn convolutions_lowered_are_fused_again() {
        use conure_ops::{Activation, Conv2d, DepthwiseConv1d};
        let weights = MemoryWeights::new()
            .with("full", noise(1, &[6, 4, 3, 3], DType::F16))
            .with("grouped", noise(2, &[6, 3, 3, 1], DType::F32))
            .with("depthwise", noise(3, &[6, 1, 5], DType::F32))
            .with("bias", noise(4, &[6], DType::F32));
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let shape = Shape::new([
            (Axis::B, 2.into()),
            (Axis::T, Dim::from(T)),
            (Axis::F, 9.into()),
            (Axis::C, 4.into()),
        ]);
        let x = g.input("x", ValueType::f32(shape));
        let conv = |groups, activation| Conv2d {
            stride: [2, 1],
            pad: [1, 1, 1, 0],
            dilation: [1, 2],
            groups,
            activation,
            bias: true,
        };
        let (w, b) = (g.weight("full", &[6, 4, 3, 3]).unwrap(), g.weight("bias", &[6]).unwrap());
        let x = g.apply(conv(1, Activation::Relu), &[x, w, b]).unwrap();
        let w = g.weight("grouped", &[6, 3, 3, 1]).unwrap();
        let x = g.apply(conv(2, Activation::Silu), &[x, w, b]).unwrap();
        g.name(x, "grouped");
        let (rows, shape) = (g.ty(x).unwrap().shape.clone(), |s: &Shape| {
            let time = s.get(1).cloned().unwrap();
            let bins = s.get(2).cloned().unwrap();
            Shape::new([(Axis::B, Dim::from(2)), (Axis::T, &time * &bins), (Axis::C, Dim::from(6))])
        });
        let x = g.apply(conure_ops::Reshape { shape: shape(&rows) }, &[x]).unwrap();
        let w = g.weight("depthwise", &[6, 1, 5]).unwrap();
        let depthwise = DepthwiseConv1d {
            pad_before: 4,
            pad_after: 0,
            bias: true,
            scale_shift: true,
            activation: Activation::Silu,
        };
        let y = g.apply(depthwise, &[x, w, b, b, b]).unwrap();
        g.output("y", y);
        let graph = g.finish().unwrap();
        let (bound, inputs) = (Bindings::new().with(T, 11), [("x", noise(7, &[2, 11, 9, 4], DType::F32))]);
        let lowered = LowerConv.run(graph.clone()).unwrap();
        assert_eq!((count(&lowered, "conv2d"), count(&lowered, "depthwise_conv1d")), (0, 0));
        assert_eq!(count(&lowered, "im2col"), 3);
        check("lowered", &graph, &lowered, &bound, &inputs, 1e-12);
        let fused = Passes::default().run(lowered).unwrap();
        assert_eq!((count(&fused, "conv2d"), count(&fused, "im2col")), (3, 0));
        check("fused again", &graph, &fused, &bound, &inputs, 1e-12);
    }
}
