//! As SVG.

use super::layout::{Layout, Size, layout};
use super::{Drawing, DrawnNode, dot};
use std::collections::HashSet;
use std::fmt::Write;

/// Sizes of text in pixels: a line, and about a character of the usual sans-serif fonts at 11 pixels.
const LINE: f64 = 14.0;
const CHARACTER: f64 = 6.2;
const PADDING: f64 = 8.0;

const HEAD: &str = "<style>text{font:11px sans-serif;fill:#222}.op{font-weight:bold}.small{fill:#666}\
    .line{fill:none;stroke:#888}.tile{fill:none;stroke:#999;stroke-dasharray:6 4}</style>\n\
    <defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
    orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#888\"/></marker></defs>\n";

/// Background of a box, by what the op is.
fn colour(op: &str) -> &'static str {
    match op {
        "input" | "output" | "state" => "#ffffff",
        "linear" | "matmul" | "lstm_cell" => "#cfe2f3",
        op if op.contains("conv") || op == "im2col" => "#d9ead3",
        op if op.contains("attention") || op.contains("softmax") => "#ead1dc",
        op if op.contains("norm") => "#fff2cc",
        "reshape" | "transpose" | "slice" | "concat" | "broadcast" | "cast" | "mask_time" | "embedding" => {
            "#eeeeee"
        }
        _ => "#fce5cd",
    }
}

/// The drawing as a picture.
pub(super) fn write(drawing: &Drawing) -> String {
    let texts: Vec<Vec<String>> = drawing.nodes.iter().map(dot::lines).collect();
    let sizes: Vec<Size> = texts.iter().map(|lines| size(lines)).collect();
    let mut edges: Vec<(usize, usize)> = drawing.edges.iter().map(|e| (e.from, e.to)).collect();
    edges.sort_unstable();
    edges.dedup();
    let placed = layout(&sizes, &edges);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0}\" height=\"{1:.0}\" viewBox=\"0 0 {0:.0} {1:.0}\">\n",
        placed.width.ceil(),
        placed.height.ceil()
    );
    out.push_str(HEAD);
    let _ = writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
    for (number, text) in drawing.tiles.iter().enumerate() {
        tile(&mut out, drawing, &placed, &sizes, number, text);
    }
    // The lines of one value share their way, which is drawn once.
    let mut drawn = HashSet::new();
    for route in &placed.routes {
        let key = |pair: &[(f64, f64)]| {
            pair.iter().flat_map(|p| [p.0.to_bits(), p.1.to_bits()]).collect::<Vec<_>>()
        };
        let known = route.windows(2).take_while(|pair| !drawn.insert(key(pair))).count();
        drawn.extend(route.windows(2).map(key));
        line(&mut out, &route[known.min(route.len().saturating_sub(2))..]);
    }
    for (((node, lines), size), centre) in drawing.nodes.iter().zip(&texts).zip(&sizes).zip(&placed.centres) {
        boxed(&mut out, node, lines, *size, *centre);
    }
    out.push_str("</svg>\n");
    out
}

fn size(lines: &[String]) -> Size {
    let longest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    Size { width: longest as f64 * CHARACTER + 2.0 * PADDING, height: lines.len() as f64 * LINE + PADDING }
}

fn boxed(out: &mut String, node: &DrawnNode, lines: &[String], size: Size, (x, y): (f64, f64)) {
    let end = matches!(node.op.as_str(), "input" | "output" | "state");
    let elsewhere = node.device.as_ref().is_some_and(|d| d != "cpu");
    let _ = write!(
        out,
        "<g><title>{}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{}\" fill=\"{}\" \
         stroke=\"{}\" stroke-width=\"{}\"/>",
        escaped(&title(node)),
        x - size.width / 2.0,
        y - size.height / 2.0,
        size.width,
        size.height,
        if end { 10 } else { 3 },
        colour(&node.op),
        if elsewhere { "#c00" } else { "#666" },
        if elsewhere { 2.5 } else { 1.0 },
    );
    let last = lines.len().saturating_sub(1);
    for (i, text) in lines.iter().enumerate() {
        let class = match i {
            0 => " class=\"op\"",
            i if i == last || i == 1 => "",
            _ => " class=\"small\"",
        };
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\"{class}>{}</text>",
            y - size.height / 2.0 + PADDING / 2.0 + LINE * (i as f64 + 0.8),
            escaped(text)
        );
    }
    out.push_str("</g>\n");
}

/// What a viewer shows while the mouse rests on a node.
fn title(node: &DrawnNode) -> String {
    let attrs: Vec<String> = node.attrs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    format!("{} {}\n{}", node.op, node.path, attrs.join("\n"))
}

/// A line through points, vertical at each.
fn line(out: &mut String, points: &[(f64, f64)]) {
    let Some(&(x, y)) = points.first() else { return };
    let _ = write!(out, "<path class=\"line\" marker-end=\"url(#end)\" d=\"M{x:.1} {y:.1}");
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        if (x0 - x1).abs() < 0.05 {
            let _ = write!(out, "V{y1:.1}");
        } else {
            let middle = (y0 + y1) / 2.0;
            let _ = write!(out, "C{x0:.1} {middle:.1} {x1:.1} {middle:.1} {x1:.1} {y1:.1}");
        }
    }
    out.push_str("\"/>\n");
}

/// A frame around the nodes of a tiled body.
fn tile(out: &mut String, drawing: &Drawing, placed: &Layout, sizes: &[Size], number: usize, text: &str) {
    let inside = drawing.nodes.iter().zip(&placed.centres).zip(sizes);
    let mut bounds: Option<[f64; 4]> = None;
    for ((_, &(x, y)), size) in inside.filter(|((node, _), _)| node.tile == Some(number)) {
        let b = bounds.get_or_insert([f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY]);
        b[0] = b[0].min(x - size.width / 2.0);
        b[1] = b[1].min(y - size.height / 2.0);
        b[2] = b[2].max(x + size.width / 2.0);
        b[3] = b[3].max(y + size.height / 2.0);
    }
    let Some([left, top, right, bottom]) = bounds else { return };
    let _ = writeln!(
        out,
        "<rect class=\"tile\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"6\"/>\
         <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left - 10.0,
        top - 12.0,
        right - left + 20.0,
        bottom - top + 24.0,
        left - 10.0,
        top - 16.0,
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
