//! Caches of keys and values as layers: inputs or states of the model, and what attention gets of them (`caches.rs`).

use super::emit::{as_port, output};
use super::lower::{Lowering, build, port_of};
use super::weights::element;
use crate::error::GraphError;
use crate::graph::{Graph, Node, ValueId};
use conure_device::openvino::ir::Output;
use conure_device::openvino::{Element, OpenVinoError};
use conure_ops::ValueType;
use conure_ops::openvino::{Cache, Port};
use conure_tensor::{DType, Dim};
use std::collections::HashMap;

impl Lowering<'_> {
    /// Columns of a cache that were there before: `[B, E, G, K]`, of which runs give as many as attention needs. A cache that the
    /// device keeps begins with them, as `[B, G, E, K]`.
    pub(super) fn cache(&mut self, name: &str, ty: &ValueType) -> Result<Port, GraphError> {
        let (items, columns) = (self.cache_items(), self.fixed.and(self.caches.as_ref()).map(|c| c.capacity));
        let of = |(axis, length): (usize, &Dim)| match axis {
            0 => items,
            1 => columns,
            _ => length.as_constant(),
        };
        let dims: Vec<Option<usize>> = ty.shape.iter().map(|(_, d)| d).enumerate().map(of).collect();
        if self.fixed.is_some() || !self.options.keeps_caches(ty.dtype) {
            let element = element(ty.dtype).unwrap_or(Element::F32);
            return Ok(as_port(self.writer.parameter(name, element, &dims)));
        }
        // Heads before columns: so OpenVINO's attention knows it, as do queries and keys that leave its rotary embedding.
        let dims = match dims[..] {
            [items, columns, groups, width] => [items, groups, columns, width],
            _ => [None; 4],
        };
        let first = self.writer.parameter(name, Element::F32, &dims);
        let shape: Vec<String> = dims.iter().map(|d| d.map_or("?".into(), |d| d.to_string())).collect();
        let attrs = [("variable_id", name), ("variable_type", "f32"), ("variable_shape", &shape.join(","))];
        let kept = self.writer.layer("ReadValue", "opset6", &attrs, &[first], 1);
        let items =
            self.items.get_or_insert_with(|| as_port(self.writer.parameter("items", Element::I32, &[None])));
        // What the device's attention is known by, beside the states: a choice of items, here of all in their order.
        let axis = self.writer.literal(Element::I64, &[], &0i64.to_le_bytes()).map_err(build)?;
        let chosen = [kept, output(*items), axis];
        Ok(as_port(self.writer.layer("Gather", "opset8", &[("batch_dims", "0")], &chosen, 1)))
    }

    /// Sequences of a run, if all runs have as many.
    fn cache_items(&self) -> Option<usize> {
        let at = self.caches.as_ref().and_then(|caches| self.input_types.get(caches.at))?;
        self.fixed.and_then(|_| at.shape.get(0).and_then(|d| self.known(d)))
    }

    /// Rows that a run appends for each, if all runs have as many.
    fn rows_of_run(&self, graph: &Graph, node: &Node) -> Option<usize> {
        let rows = node.inputs.first().and_then(|v| graph.value(*v))?;
        self.fixed.and_then(|_| rows.ty.shape.get(1).and_then(|d| self.known(d)))
    }

    /// `[B, T, G, K]` as `[B, G, T, K]`.
    fn heads_first(&mut self, rows: Port) -> Result<Output, OpenVinoError> {
        const PERM: [usize; 4] = [0, 2, 1, 3];
        if let Some((source, perm)) = self.transposed.get(&rows)
            && perm.as_slice() == PERM
        {
            return Ok(output(*source));
        }
        let order: Vec<u8> = PERM.iter().flat_map(|&a| i64::try_from(a).unwrap_or(0).to_le_bytes()).collect();
        let order = self.writer.literal(Element::I64, &[PERM.len()], &order)?;
        Ok(self.writer.layer("Transpose", "opset1", &[], &[output(rows), order], 1))
    }

    /// What attention gets of a cache: the columns that were there, then the rows of the run.
    pub(super) fn columns(
        &mut self,
        graph: &Graph,
        node: &Node,
        state: usize,
        values: &HashMap<ValueId, Port>,
    ) -> Result<Port, GraphError> {
        let (Some(&rows), Some(&made)) = (node.inputs.first(), node.outputs.first()) else {
            return Err(GraphError::Build { what: "append takes rows and gives a cache".into() });
        };
        let rows = port_of(values, rows, node)?;
        let mut before = output(self.states[state]);
        let kept = self.items.is_some();
        if !kept && self.caches.as_ref().is_some_and(|c| c.dtype != DType::F32) {
            before = self.writer.layer("Convert", "opset1", &[("destination_type", "f32")], &[before], 1);
        }
        let rows = if kept { self.heads_first(rows).map_err(build)? } else { output(rows) };
        let axis = if kept { "2" } else { "1" };
        let joined = self.writer.layer("Concat", "opset1", &[("axis", axis)], &[before, rows], 1);
        if kept {
            let attrs = [("variable_id", format!("s{state}"))];
            let attrs = attrs.each_ref().map(|(name, value)| (*name, value.as_str()));
            self.writer.layer("Assign", "opset6", &attrs, &[joined], 0);
        }
        // One table for all: a parameter that is written once.
        let places = match self.columns.values().next() {
            Some(cache) => cache.places,
            None => {
                let new = self.rows_of_run(graph, node);
                let columns = self.caches.as_ref().zip(new).map(|(caches, new)| caches.capacity + new);
                let items = self.cache_items();
                as_port(self.writer.parameter("places", Element::I32, &[items, columns]))
            }
        };
        self.columns.insert(made, Cache { places, kept });
        Ok(as_port(joined))
    }
}
