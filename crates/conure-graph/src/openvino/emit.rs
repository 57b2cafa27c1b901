//! The layers of one node: what `conure-ops` writes with.

use super::lower::Lowering;
use super::weights::element;
use crate::graph::{Def, Graph, Node, ValueId};
use conure_device::openvino::ir::Output;
use conure_ops::OpError;
use conure_ops::openvino::{Cache, Choices, Emit, Perm, Port};
use conure_tensor::{DType, Dim, Shape, TensorView};
use half::{bf16, f16};
use std::collections::HashMap;

/// A node of a graph, and the values that are written so far.
pub(super) struct NodeEmit<'a, 'b> {
    pub lowering: &'a mut Lowering<'b>,
    pub graph: &'a Graph,
    pub node: &'a Node,
    pub values: &'a mut HashMap<ValueId, Port>,
    /// Whether inputs of `graph` are the model's own: a body's are not.
    pub outermost: bool,
}

pub(super) fn output(port: Port) -> Output {
    Output::from_id(port.0)
}

pub(super) fn as_port(output: Output) -> Port {
    Port(output.id())
}

impl NodeEmit<'_, '_> {
    fn refuse(&self, what: impl ToString) -> OpError {
        OpError::Kernel { op: self.node.op_name(), what: what.to_string() }
    }

    fn value(&self, index: usize) -> Result<ValueId, OpError> {
        self.node.inputs.get(index).copied().ok_or_else(|| self.refuse(format!("there is no input {index}")))
    }
}

impl Emit for NodeEmit<'_, '_> {
    fn choices(&self) -> Choices {
        self.lowering.options.choices
    }

    fn layer(
        &mut self,
        kind: &'static str,
        version: &'static str,
        attrs: &[(&'static str, &str)],
        inputs: &[Port],
        outputs: usize,
    ) -> Port {
        let inputs: Vec<Output> = inputs.iter().map(|&p| output(p)).collect();
        as_port(self.lowering.writer.layer(kind, version, attrs, &inputs, outputs))
    }

    fn literal(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Port, OpError> {
        let element = element(dtype).ok_or_else(|| self.refuse(format!("a constant of {dtype}")))?;
        self.lowering.writer.literal(element, shape, bytes).map(as_port).map_err(|e| self.refuse(e))
    }

    fn input(&mut self, index: usize, shape: Option<&[usize]>) -> Result<Port, OpError> {
        let id = self.value(index)?;
        let value = self.graph.value(id).ok_or_else(|| self.refuse("a value is not of this graph"))?;
        let fixed_shape = || -> Result<Vec<usize>, OpError> {
            let dims: Option<Vec<usize>> = value.ty.shape.iter().map(|(_, d)| d.as_constant()).collect();
            dims.ok_or_else(|| self.refuse("a weight whose shape is not fixed"))
        };
        match &value.def {
            Def::Weight(weight) => {
                let stored = fixed_shape()?;
                let shape = shape.map_or_else(|| stored.clone(), <[usize]>::to_vec);
                let port = self.lowering.weight(*weight, value.ty.dtype, &stored, &shape);
                port.map_err(|e| self.refuse(e))
            }
            Def::Constant(tensor) => {
                let shape = match shape {
                    Some(shape) => shape.to_vec(),
                    None => fixed_shape()?,
                };
                self.lowering.constant(tensor, &shape).map_err(|e| self.refuse(e))
            }
            _ => self.values.get(&id).copied().ok_or_else(|| self.refuse("an input has not been computed")),
        }
    }

    fn cache(&self, index: usize) -> Option<Cache> {
        self.node.inputs.get(index).and_then(|id| self.lowering.columns.get(id)).copied()
    }

    fn is_fixed(&self, index: usize) -> bool {
        let value = self.node.inputs.get(index).and_then(|v| self.graph.value(*v));
        matches!(value.map(|v| &v.def), Some(Def::Weight(_) | Def::Constant(_)))
    }

    fn values(&self, index: usize) -> Result<Vec<f32>, OpError> {
        let id = self.value(index)?;
        let value = self.graph.value(id).ok_or_else(|| self.refuse("a value is not of this graph"))?;
        let bytes = match &value.def {
            Def::Weight(weight) => self.lowering.weights.bytes(*weight),
            Def::Constant(tensor) => TensorView::bytes(&tensor.view()),
            _ => return Err(self.refuse(format!("input {index} is computed"))),
        };
        let f32_of = |b: &[u8; 4]| f32::from_le_bytes(*b);
        Ok(match value.ty.dtype {
            DType::F32 => bytes.as_chunks::<4>().0.iter().map(f32_of).collect(),
            DType::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            DType::BF16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            other => return Err(self.refuse(format!("input {index} is stored as {other}"))),
        })
    }

    fn length(&mut self, length: &Dim) -> Result<Port, OpError> {
        self.lowering.length(length).map_err(|e| self.refuse(e))
    }

    fn keep(&mut self, x: Port, shape: &Shape) -> Result<Port, OpError> {
        Ok(self.lowering.keep(x, shape))
    }

    fn at_most(&mut self, length: &Dim, most: usize, what: &'static str) {
        let path = self.node.path.clone();
        self.lowering.limits.push((
            length.clone(),
            most,
            format!("{path}: {}: at most {most} {what}", self.node.op_name()),
        ));
    }

    fn within(&mut self, index: usize, low: i32, high: i32, what: &'static str) {
        let Some(&id) = self.node.inputs.get(index) else { return };
        if let Some(Def::Input(input)) = self.graph.value(id).map(|v| &v.def)
            && self.outermost
        {
            self.lowering.ranges.push((
                *input,
                low,
                high,
                format!("{}: {}: {what}", self.node.path, self.node.op_name()),
            ));
        }
    }

    fn note_transposed(&mut self, out: Port, source: Port, perm: &[usize]) {
        self.lowering.transposed.insert(out, (source, Perm::from_slice(perm)));
    }

    fn transposed(&self, out: Port) -> Option<(Port, Perm)> {
        self.lowering.transposed.get(&out).cloned()
    }
}
