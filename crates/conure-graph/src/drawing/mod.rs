//! Graphs as pictures: nodes with op, path and shapes, as JSON, for Graphviz, or drawn here as SVG.

mod dot;
mod layout;
mod svg;

use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp, TileTime, ValueId};
use crate::place::Placed;
use conure_ops::{Attr, ValueType};
use conure_tensor::Bindings;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a [`Drawing`] shows besides the graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrawOptions<'a> {
    /// Lengths: shapes are numbers then, symbols otherwise. Tiles keep their symbols, since they are of several lengths.
    pub bindings: Option<&'a Bindings>,
    /// Where each node runs.
    pub placed: Option<&'a Placed>,
}

/// A graph to be looked at. Nodes of a tiled body stand among the others, with [`DrawnNode::tile`] set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drawing {
    /// Inputs, nodes in the order in which they run, and outputs.
    pub nodes: Vec<DrawnNode>,
    /// Values on their way from node to node.
    pub edges: Vec<DrawnEdge>,
    /// Bodies that run tile by tile, in words.
    pub tiles: Vec<String>,
}

/// A node of a [`Drawing`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DrawnNode {
    /// Its op; `input`, `state` or `output` for the ends of the graph.
    pub op: String,
    /// The scopes it was built in, or the name of the input or output.
    pub path: String,
    /// The op's attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attrs: BTreeMap<String, String>,
    /// Weights and constants that it reads: name and type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<String>,
    /// Types of its outputs.
    pub outputs: Vec<String>,
    /// The number of the tiled body that it is of, in [`Drawing::tiles`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    /// The device that runs it, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A value on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrawnEdge {
    /// The node that made it.
    pub from: usize,
    /// The node that reads it.
    pub to: usize,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
}

impl Drawing {
    /// A picture of `graph`.
    ///
    /// # Errors
    /// A symbol that the bindings of the options leave without a value.
    pub fn new(graph: &Graph, options: &DrawOptions<'_>) -> Result<Drawing, GraphError> {
        let empty = Drawing { nodes: Vec::new(), edges: Vec::new(), tiles: Vec::new() };
        let mut artist = Artist { drawing: empty, placement: options.placed.map(Placement::of) };
        let page = Page { graph, bindings: options.bindings, tile: None };
        let mut makers = HashMap::new();
        for (i, &v) in graph.inputs.iter().enumerate() {
            let name = graph.inputs().nth(i).map_or("", |(name, _)| name);
            makers.insert(v, artist.end("input", name, page.shown(v, name)?));
        }
        artist.body(&page, &mut makers)?;
        for (name, v) in &graph.outputs {
            let ty = page.shown(*v, name)?;
            let at = artist.end("output", name, ty.clone());
            artist.edge(makers.get(v).copied(), at, &ty);
        }
        Ok(artist.drawing)
    }

    /// For Graphviz.
    pub fn to_dot(&self) -> String {
        dot::write(self)
    }

    /// As SVG, laid out in layers from inputs above to outputs below.
    pub fn to_svg(&self) -> String {
        svg::write(self)
    }
}

/// Which of a graph's nodes the CPU runs, and who runs the rest.
struct Placement<'a> {
    device: &'a str,
    on_cpu: HashSet<ValueId>,
}

impl Placement<'_> {
    fn of(placed: &Placed) -> Placement<'_> {
        let nodes = placed.graph.nodes().iter().filter(|n| !matches!(n.op, NodeOp::Piece(_)));
        let on_cpu = nodes.filter_map(|n| n.outputs.first().copied()).collect();
        Placement { device: &placed.placement().device, on_cpu }
    }

    fn device(&self, node: &Node) -> String {
        let on_cpu = node.outputs.first().is_some_and(|v| self.on_cpu.contains(v));
        if on_cpu { "cpu".to_owned() } else { self.device.to_owned() }
    }
}

/// A graph, or the body of one of its nodes, while it is drawn.
struct Page<'a> {
    graph: &'a Graph,
    bindings: Option<&'a Bindings>,
    tile: Option<(usize, Option<String>)>,
}

impl Page<'_> {
    fn ty(&self, ty: &ValueType, path: &str) -> Result<String, GraphError> {
        let Some(bindings) = self.bindings else { return Ok(ty.to_string()) };
        let dims =
            ty.shape.eval(bindings).map_err(|source| GraphError::Dim { path: path.to_owned(), source })?;
        let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
        Ok(format!("{} [{}]", ty.dtype, dims.join(", ")))
    }

    fn shown(&self, v: ValueId, path: &str) -> Result<String, GraphError> {
        self.graph.value(v).map_or(Ok(String::new()), |value| self.ty(&value.ty, path))
    }
}

struct Artist<'a> {
    drawing: Drawing,
    placement: Option<Placement<'a>>,
}

impl Artist<'_> {
    /// Adds an end of the graph.
    fn end(&mut self, op: &str, name: &str, ty: String) -> usize {
        let node = DrawnNode { op: op.into(), path: name.into(), outputs: vec![ty], ..DrawnNode::default() };
        self.push(node)
    }

    fn push(&mut self, node: DrawnNode) -> usize {
        self.drawing.nodes.push(node);
        self.drawing.nodes.len() - 1
    }

    fn edge(&mut self, from: Option<usize>, to: usize, ty: &str) {
        if let Some(from) = from {
            self.drawing.edges.push(DrawnEdge { from, to, ty: ty.to_owned() });
        }
    }

    /// Adds the nodes of a graph whose inputs are made by `makers`.
    fn body(&mut self, page: &Page<'_>, makers: &mut HashMap<ValueId, usize>) -> Result<(), GraphError> {
        for node in page.graph.nodes() {
            if let NodeOp::TileTime(tile) = &node.op {
                self.tile(node, tile, makers)?;
                continue;
            }
            let mut drawn = DrawnNode {
                op: node.op_name().to_owned(),
                path: node.path.clone(),
                attrs: attrs(&node.op),
                tile: page.tile.as_ref().map(|t| t.0),
                device: match &page.tile {
                    Some((_, device)) => device.clone(),
                    None => self.placement.as_ref().map(|p| p.device(node)),
                },
                ..DrawnNode::default()
            };
            for &v in &node.outputs {
                drawn.outputs.push(page.shown(v, &node.path)?);
            }
            let at = self.push(drawn);
            for &v in &node.inputs {
                self.operand(page, v, at, &node.path, makers)?;
            }
            makers.extend(node.outputs.iter().map(|&v| (v, at)));
        }
        Ok(())
    }

    /// What a node reads: an edge, or a line in the node for what is fixed.
    fn operand(
        &mut self,
        page: &Page<'_>,
        v: ValueId,
        to: usize,
        path: &str,
        makers: &mut HashMap<ValueId, usize>,
    ) -> Result<(), GraphError> {
        let Some(value) = page.graph.value(v) else { return Ok(()) };
        let ty = page.ty(&value.ty, path)?;
        let name = value.name.as_deref();
        match &value.def {
            Def::Weight(_) | Def::Constant(_) => {
                let name = name.unwrap_or("constant");
                let short = name.strip_prefix(path).unwrap_or(name).trim_start_matches('.');
                let line = format!("{short} {ty}");
                if let Some(node) = self.drawing.nodes.get_mut(to) {
                    node.weights.push(line);
                }
            }
            Def::State(_) => {
                let from = match makers.get(&v) {
                    Some(&at) => at,
                    None => {
                        let at = self.end("state", name.unwrap_or(""), ty.clone());
                        makers.insert(v, at);
                        at
                    }
                };
                self.edge(Some(from), to, &ty);
            }
            _ => self.edge(makers.get(&v).copied(), to, &ty),
        }
        Ok(())
    }

    /// The body of a tiled node in its place.
    fn tile(
        &mut self,
        node: &Node,
        tile: &TileTime,
        makers: &mut HashMap<ValueId, usize>,
    ) -> Result<(), GraphError> {
        let number = self.drawing.tiles.len();
        self.drawing.tiles.push(format!(
            "tiles of {} frames, made from {} and a halo of {} + {} frames",
            tile.tile,
            tile.tile * tile.factor,
            tile.halo_before,
            tile.halo_after
        ));
        let device = self.placement.as_ref().map(|p| p.device(node));
        let inner = Page { graph: &tile.body, bindings: None, tile: Some((number, device)) };
        let outside = node.inputs.iter().map(|v| makers.get(v).copied());
        let mut inside: HashMap<ValueId, usize> =
            tile.body.inputs.iter().zip(outside).filter_map(|(&v, at)| Some((v, at?))).collect();
        self.body(&inner, &mut inside)?;
        let made = tile.body.outputs.iter().map(|(_, v)| inside.get(v).copied());
        makers.extend(node.outputs.iter().zip(made).filter_map(|(&v, at)| Some((v, at?))));
        Ok(())
    }
}

fn attrs(op: &NodeOp) -> BTreeMap<String, String> {
    let NodeOp::Op(op) = op else { return BTreeMap::new() };
    let text = |attr: &Attr| match attr {
        Attr::Int(i) => i.to_string(),
        Attr::Float(x) => x.to_string(),
        Attr::Text(t) => (*t).to_owned(),
        Attr::Ints(list) => format!("{list:?}"),
        Attr::Shape(s) => s.to_string(),
    };
    op.attrs().iter().map(|(name, attr)| ((*name).to_owned(), text(attr))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, GraphBuilder, MemoryWeights, Partial, Program, Weights};
    use conure_ops::{Activation, Linear, Scale, Unary, UnaryKind};
    use conure_tensor::{Axis, DType, Dim, Shape, Symbol, Tensor};
    use std::sync::Arc;

    const T: Symbol = Symbol::new("T");
    const B: Symbol = Symbol::new("B");

    /// `y = relu(w tile(2 x))`, the tile's body a sigmoid.
    fn graph() -> Graph {
        let weights =
            MemoryWeights::new().with("up.weight", Tensor::from_slice(&[3, 2], &[0f32; 6]).unwrap());
        let weights = Weights::new(Arc::new(weights));
        let rows = ValueType::f32(Shape::new([
            (Axis::B, Dim::from(B)),
            (Axis::T, Dim::from(T)),
            (Axis::D, Dim::from(2)),
        ]));
        let lengths = ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))]));
        let mut body = GraphBuilder::new(weights.clone());
        let x = body.input("x", rows.clone());
        body.input("lengths", lengths.clone());
        let y = body.apply(Unary { kind: UnaryKind::Sigmoid }, &[x]).unwrap();
        body.output("y", y);
        let body = body.finish().unwrap();
        let mut g = GraphBuilder::new(weights);
        let (x, lengths) = (g.input("x", rows), g.input("lengths", lengths));
        let x = g.apply(Scale { factor: 2.0 }, &[x]).unwrap();
        let tile = TileTime { body, time: T, batch: B, factor: 1, halo_before: 0, halo_after: 0, tile: 4 };
        let x = g.tile_time(tile, x, lengths).unwrap();
        let y = g
            .scoped("up", |g| {
                let w = g.weight("weight", &[3, 2])?;
                g.apply(Linear { activation: Activation::Relu, bias: false, residual: None }, &[x, w])
            })
            .unwrap();
        g.output("y", y);
        g.finish().unwrap()
    }

    #[test]
    fn nodes_edges_and_tiles_are_those_of_the_graph() {
        let drawing = Drawing::new(&graph(), &DrawOptions::default()).unwrap();
        let ops: Vec<&str> = drawing.nodes.iter().map(|n| n.op.as_str()).collect();
        assert_eq!(ops, ["input", "input", "scale", "unary", "linear", "output"]);
        let edges: Vec<(usize, usize)> = drawing.edges.iter().map(|e| (e.from, e.to)).collect();
        assert_eq!(edges, [(0, 2), (2, 3), (3, 4), (4, 5)]);
        let linear = &drawing.nodes[4];
        assert_eq!((linear.path.as_str(), linear.weights[0].as_str()), ("up", "weight f32 [3, 2]"));
        assert_eq!(
            (linear.outputs[0].as_str(), linear.attrs["activation"].as_str()),
            ("f32 [B, T, N 3]", "relu")
        );
        assert_eq!((drawing.nodes[3].tile, drawing.tiles.len()), (Some(0), 1));
        let bindings = Bindings::new().with(T, 7).with(B, 1);
        let bound = DrawOptions { bindings: Some(&bindings), placed: None };
        assert_eq!(Drawing::new(&graph(), &bound).unwrap().nodes[4].outputs, ["f32 [1, 7, 3]"]);
        let part = Bindings::new().with(T, 7);
        let error = Drawing::new(&graph(), &DrawOptions { bindings: Some(&part), placed: None }).unwrap_err();
        assert!(error.to_string().contains("needs a value for B"), "{error}");
    }

    #[test]
    fn a_placed_graph_says_who_runs_what() {
        let program = Program::new(graph());
        let device = Device::new(Arc::new(Partial::by_name("partial:linear").unwrap().unwrap()));
        let placed = program.placed(&device, &[]).unwrap();
        let options = DrawOptions { bindings: None, placed: Some(&placed) };
        let drawing = Drawing::new(program.graph(), &options).unwrap();
        let devices: Vec<Option<&str>> = drawing.nodes.iter().map(|n| n.device.as_deref()).collect();
        let name = Some(device.name());
        assert_eq!(devices, [None, None, Some("cpu"), Some("cpu"), name, None]);
    }

    #[test]
    fn pictures_hold_every_node_and_escape_what_they_must() {
        let mut drawing = Drawing::new(&graph(), &DrawOptions::default()).unwrap();
        drawing.nodes[2].path = "a<b>&\"c\"".into();
        let svg = drawing.to_svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!((svg.matches("<g>").count(), svg.matches("class=\"tile\"").count()), (6, 1));
        assert_eq!(svg.matches("class=\"line\"").count(), 4);
        assert!(svg.contains("a&lt;b&gt;&amp;&quot;c&quot;") && !svg.contains("a<b>"));
        let dot = drawing.to_dot();
        assert!(dot.contains("label=\"scale\\na<b>&\\\"c\\\"") && dot.contains("n3 -> n4"), "{dot}");
        assert!(dot.contains("subgraph cluster_0"), "{dot}");
    }
}
