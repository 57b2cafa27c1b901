//! For Graphviz.

use super::{Drawing, DrawnNode};
use std::fmt::Write;

/// The graph in the language of `dot`.
pub(super) fn write(drawing: &Drawing) -> String {
    let mut out =
        String::from("digraph conure {\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n");
    for (number, tile) in drawing.tiles.iter().enumerate() {
        let _ =
            writeln!(out, "  subgraph cluster_{number} {{\n    label={};\n    style=dashed;", quoted(tile));
        for (i, _) in drawing.nodes.iter().enumerate().filter(|(_, n)| n.tile == Some(number)) {
            let _ = writeln!(out, "    n{i};");
        }
        out.push_str("  }\n");
    }
    for (i, node) in drawing.nodes.iter().enumerate() {
        let style = if node.device.as_ref().is_some_and(|d| d != "cpu") { ", style=bold" } else { "" };
        let _ = writeln!(out, "  n{i} [label={}{style}];", quoted(&lines(node).join("\n")));
    }
    for edge in &drawing.edges {
        let _ = writeln!(out, "  n{} -> n{} [tooltip={}];", edge.from, edge.to, quoted(&edge.ty));
    }
    out.push_str("}\n");
    out
}

/// What a node's box says.
pub(super) fn lines(node: &DrawnNode) -> Vec<String> {
    let mut lines = vec![node.op.clone()];
    if let Some(device) = &node.device {
        lines[0].push_str(&format!(" ({device})"));
    }
    lines.push(node.path.clone());
    lines.extend(node.weights.iter().cloned());
    lines.push(format!("\u{2192} {}", node.outputs.join(", ")));
    lines.retain(|l| !l.is_empty());
    lines
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
