//! Writing models as OpenVINO reads them: XML text (IR version 11) and, beside it, the bytes of the constants.
//!
//! The reader infers every shape and type itself, so that only parameters and constants have theirs written. Constants stay
//! where they are in memory, in any number of places: to the reader they are ranges of one blob, and the blob is the
//! stretch of addresses from the first to the last.

use super::Element;
use super::error::OpenVinoError;
use crate::arena::AlignedBytes;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// Bytes of a constant that lie elsewhere. `as_ref` must give the same memory each time.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A value of a model: an output of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    layer: u32,
    port: u32,
}

impl Output {
    /// Output `index` of the layer that this is output 0 of.
    pub fn nth(self, index: usize) -> Output {
        Output { port: self.port + u32::try_from(index).unwrap_or(u32::MAX), ..self }
    }

    /// Layer and port as one number, unique in its model.
    pub fn id(self) -> u64 {
        u64::from(self.layer) << 32 | u64::from(self.port)
    }

    /// The value of this [`Output::id`].
    pub fn from_id(id: u64) -> Output {
        Output { layer: (id >> 32) as u32, port: id as u32 }
    }
}

#[derive(Debug)]
struct Layer {
    name: String,
    kind: String,
    version: String,
    data: String,
    /// Of a constant: its first byte's address and its size.
    bytes: Option<(usize, usize)>,
    inputs: Vec<Output>,
    outputs: usize,
    /// The name of each output that has one.
    names: Vec<(usize, String)>,
}

/// A model being written.
#[derive(Default)]
pub struct ModelWriter {
    layers: Vec<Layer>,
    results: Vec<Output>,
    /// Values of the second model, and the inputs as which the first gets them.
    kept: Vec<(Output, Output)>,
    known: HashMap<String, Output>,
    known_constants: HashMap<(Element, Vec<usize>, Vec<u8>), Output>,
    held: Vec<Held>,
    prefix: String,
    /// In an outline: the bytes of all constants, one after the other.
    outline: Option<Vec<u8>>,
}

impl fmt::Debug for ModelWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelWriter({} layers)", self.layers.len())
    }
}

/// What keeps a constant's bytes where they are.
enum Held {
    Shared(#[allow(dead_code)] SharedBytes), // held, not read
    Own(#[allow(dead_code)] AlignedBytes),
}

/// A model as OpenVINO reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// The model.
    pub main: String,
    /// The model of what is kept from run to run ([`ModelWriter::keep`]), if anything is.
    pub kept: Option<String>,
}

/// The constants' bytes: a stretch of addresses, of which only the constants are read.
#[derive(Default)]
pub struct Blob {
    pub(super) base: usize,
    pub(super) len: usize,
    held: Vec<Held>,
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} parts)", self.held.len())
    }
}

/// Constants up to this size are kept once however often they are asked for.
const SMALL: usize = 256;

impl ModelWriter {
    /// A model of nothing.
    pub fn new() -> ModelWriter {
        ModelWriter::default()
    }

    /// A model of nothing, of which only the outline is wanted: see [`ModelWriter::finish_outline`].
    pub fn outline() -> ModelWriter {
        ModelWriter { outline: Some(Vec::new()), ..ModelWriter::default() }
    }

    /// Whether only the outline is wanted: large constants may be left out.
    pub fn is_outline(&self) -> bool {
        self.outline.is_some()
    }

    /// What the names of the layers that follow begin with: the place in the graph that they come from.
    pub fn set_prefix(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.prefix);
    }

    /// An input of the model; `None` is a length that a run decides.
    pub fn parameter(&mut self, name: &str, element: Element, shape: &[Option<usize>]) -> Output {
        let dims: Vec<String> = shape.iter().map(|d| d.map_or("?".into(), |d| d.to_string())).collect();
        let data = format!("shape=\"{}\" element_type=\"{}\"", dims.join(","), element.name());
        let out = self.push("Parameter", "opset1", data, &[], 1);
        if let Some(layer) = self.layers.last_mut() {
            layer.names.push((0, name.to_owned()));
        }
        out
    }

    /// A constant whose bytes stay where they are until the compiled model is gone.
    ///
    /// # Errors
    /// [`OpenVinoError::Size`].
    pub fn constant(
        &mut self,
        element: Element,
        shape: &[usize],
        bytes: SharedBytes,
    ) -> Result<Output, OpenVinoError> {
        let slice = (*bytes).as_ref();
        let at = check(element, shape, slice)?;
        if let Some(outline) = &mut self.outline {
            outline.extend_from_slice(slice);
        }
        self.held.push(Held::Shared(bytes));
        Ok(self.constant_at(element, shape, at))
    }

    /// A constant whose bytes the model takes.
    ///
    /// # Errors
    /// [`OpenVinoError::Size`].
    pub fn owned_constant(
        &mut self,
        element: Element,
        shape: &[usize],
        bytes: AlignedBytes,
    ) -> Result<Output, OpenVinoError> {
        let at = check(element, shape, bytes.as_slice())?;
        if let Some(outline) = &mut self.outline {
            outline.extend_from_slice(bytes.as_slice());
        }
        self.held.push(Held::Own(bytes));
        Ok(self.constant_at(element, shape, at))
    }

    /// A small constant, copied; equal ones are one.
    ///
    /// # Errors
    /// [`OpenVinoError::Size`], or no memory.
    pub fn literal(
        &mut self,
        element: Element,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Output, OpenVinoError> {
        let key = (element, shape.to_vec(), bytes.to_vec());
        if bytes.len() <= SMALL
            && let Some(&known) = self.known_constants.get(&key)
        {
            return Ok(known);
        }
        let mut own = AlignedBytes::zeroed(bytes.len())
            .map_err(|e| OpenVinoError::Call { call: "constant", message: e.to_string() })?;
        own.as_mut_slice().copy_from_slice(bytes);
        let out = self.owned_constant(element, shape, own)?;
        if bytes.len() <= SMALL {
            self.known_constants.insert(key, out);
        }
        Ok(out)
    }

    fn constant_at(&mut self, element: Element, shape: &[usize], (at, len): (usize, usize)) -> Output {
        let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
        let data = format!("element_type=\"{}\" shape=\"{}\"", element.name(), dims.join(","));
        let out = self.push("Const", "opset1", data, &[], 1);
        if let Some(layer) = self.layers.last_mut() {
            layer.bytes = Some((at, len));
        }
        out
    }

    /// A layer; its first output, of which [`Output::nth`] gives the others. A layer that is there already, of the same kind
    /// with the same attributes and inputs, is not written again: masks and the like are computed once for all that use them.
    pub fn layer(
        &mut self,
        kind: &str,
        version: &str,
        attrs: &[(&str, &str)],
        inputs: &[Output],
        outputs: usize,
    ) -> Output {
        let mut data = String::new();
        for (name, value) in attrs {
            let _ = write!(data, "{}{name}=\"{}\"", if data.is_empty() { "" } else { " " }, escape(value));
        }
        let mut key = format!("{kind} {version} {data}");
        for input in inputs {
            let _ = write!(key, " {}.{}", input.layer, input.port);
        }
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let out = self.push(kind, version, data, inputs, outputs);
        self.known.insert(key, out);
        out
    }

    /// Makes a value an output of the model, under this name. Each value can be one once.
    pub fn result(&mut self, name: &str, value: Output) {
        if let Some(layer) = self.layers.get_mut(value.layer as usize) {
            layer.names.push((value.port as usize, name.to_owned()));
        }
        self.results.push(value);
    }

    /// Takes `value` out of the model: from here on it is an input of it, of this name and shape (`None` is a length that a run
    /// decides), and a second model ([`Texts::kept`]) has it as a result of the same name. Whoever runs both may run the second
    /// only when one of its own inputs has changed. A value that is kept already stays the input that it is.
    pub fn keep(&mut self, name: &str, element: Element, shape: &[Option<usize>], value: Output) -> Output {
        if let Some(&(_, known)) = self.kept.iter().find(|(of, _)| *of == value) {
            return known;
        }
        let input = self.parameter(name, element, shape);
        if let Some(layer) = self.layers.get_mut(value.layer as usize) {
            layer.names.push((value.port as usize, name.to_owned()));
        }
        self.kept.push((value, input));
        input
    }

    /// Whether `inputs`, at least one of them, decide a value, and no other input does.
    pub fn is_decided_by(&self, value: Output, inputs: &[Output]) -> bool {
        let read = self.read_by(&[value.layer]);
        let found = (0u32..)
            .zip(self.layers.iter().zip(read))
            .filter(|(_, (layer, read))| *read && layer.kind == "Parameter");
        let found: Vec<u32> = found.map(|(id, _)| id).collect();
        !found.is_empty() && found.iter().all(|&id| inputs.iter().any(|input| input.layer == id))
    }

    /// Which layers the given ones read, directly or not, and themselves.
    fn read_by(&self, layers: &[u32]) -> Vec<bool> {
        let mut read = vec![false; self.layers.len()];
        let mark = |read: &mut Vec<bool>, layer: u32| {
            if let Some(slot) = read.get_mut(layer as usize) {
                *slot = true;
            }
        };
        layers.iter().for_each(|&layer| mark(&mut read, layer));
        // Layers come after what they read.
        for (id, layer) in self.layers.iter().enumerate().rev() {
            if read[id] {
                layer.inputs.iter().for_each(|input| mark(&mut read, input.layer));
            }
        }
        read
    }

    fn push(&mut self, kind: &str, version: &str, data: String, inputs: &[Output], outputs: usize) -> Output {
        let layer = u32::try_from(self.layers.len()).unwrap_or(u32::MAX);
        self.layers.push(Layer {
            name: format!("{}{}{kind}.{layer}", self.prefix, if self.prefix.is_empty() { "" } else { "/" }),
            kind: kind.to_owned(),
            version: version.to_owned(),
            data,
            bytes: None,
            inputs: inputs.to_vec(),
            outputs,
            names: Vec::new(),
        });
        Output { layer, port: 0 }
    }

    /// Whether products and convolutions alone read a constant, as it is or after it was unpacked by layers that read nothing
    /// but constants. Devices keep such constants in a layout of their own; all others they may read where they are.
    pub fn is_only_multiplied(&self, constant: Output) -> bool {
        let unpacks =
            |layer: &Layer| matches!(layer.kind.as_str(), "Convert" | "Subtract" | "Multiply" | "Reshape");
        let multiplies =
            |layer: &Layer| matches!(layer.kind.as_str(), "MatMul" | "Convolution" | "GroupConvolution");
        // Layers come after what they read.
        let mut fixed = vec![false; self.layers.len()];
        let mut derived = vec![false; self.layers.len()];
        for (id, layer) in self.layers.iter().enumerate() {
            let reads =
                |set: &[bool], input: &Output| set.get(input.layer as usize).copied().unwrap_or(false);
            let all_fixed = layer.inputs.iter().all(|i| reads(&fixed, i));
            fixed[id] = layer.kind == "Const" || (!layer.inputs.is_empty() && unpacks(layer) && all_fixed);
            let touched = layer.inputs.iter().any(|i| reads(&derived, i));
            derived[id] = id == constant.layer as usize || (touched && fixed[id]);
            if touched && !fixed[id] && !multiplies(layer) {
                return false;
            }
        }
        !self.results.iter().any(|r| derived.get(r.layer as usize).copied().unwrap_or(false))
    }

    /// The texts without the places of constants, one after the other, and the bytes of all constants: the same for the same
    /// model, wherever in memory it was written.
    pub fn finish_outline(mut self) -> (String, Vec<u8>) {
        let bytes = self.outline.take().unwrap_or_default();
        let Texts { mut main, kept } = self.end(|_| None);
        main.push_str(&kept.unwrap_or_default());
        (main, bytes)
    }

    /// The texts and the constants. The texts say where in the stretch each constant lies.
    pub fn finish(mut self) -> (Texts, Blob) {
        let places = self.layers.iter().filter_map(|l| l.bytes).filter(|(_, len)| *len > 0);
        let base = places.clone().map(|(at, _)| at).min().unwrap_or(0);
        let end = places.map(|(at, len)| at + len).max().unwrap_or(0);
        let texts = self.end(|at| Some(at.saturating_sub(base)));
        (texts, Blob { base, len: end - base, held: self.held })
    }

    /// Ends the models in their results and writes them; `place` gives the place of the constant at an address.
    fn end(&mut self, place: impl Fn(usize) -> Option<usize>) -> Texts {
        let results = |writer: &mut ModelWriter, values: Vec<Output>| -> Vec<bool> {
            let first = writer.layers.len();
            values.iter().for_each(|value| {
                writer.push("Result", "opset1", String::new(), &[*value], 0);
            });
            let ends: Vec<u32> =
                (first..writer.layers.len()).filter_map(|id| u32::try_from(id).ok()).collect();
            writer.read_by(&ends)
        };
        let main = std::mem::take(&mut self.results);
        let mut in_main = results(self, main);
        let kept: Vec<Output> = self.kept.iter().map(|(value, _)| *value).collect();
        if kept.is_empty() {
            in_main.fill(true);
            return Texts { main: self.text(&in_main, &place), kept: None };
        }
        let in_kept = results(self, kept);
        in_main.resize(in_kept.len(), false);
        // An input that neither needs stays in the first, where runs give it.
        let inputs = self.layers.iter().map(|layer| layer.kind == "Parameter");
        let parts = in_main.iter_mut().zip(&in_kept).zip(inputs);
        parts.for_each(|((main, kept), input)| *main |= input && !kept);
        Texts { main: self.text(&in_main, &place), kept: Some(self.text(&in_kept, &place)) }
    }

    fn text(&self, of: &[bool], place: &impl Fn(usize) -> Option<usize>) -> String {
        let mut xml =
            String::from("<?xml version=\"1.0\"?>\n<net name=\"conure\" version=\"11\">\n<layers>\n");
        let layers = || self.layers.iter().enumerate().zip(of).filter(|(_, of)| **of).map(|(layer, _)| layer);
        layers().for_each(|(id, layer)| layer.write(&mut xml, id, place));
        xml.push_str("</layers>\n<edges>\n");
        for (id, layer) in layers() {
            for (to, from) in layer.inputs.iter().enumerate() {
                // A layer's outputs are numbered on from its inputs.
                let from_port = self.layers.get(from.layer as usize).map_or(0, |l| l.inputs.len());
                let _ = writeln!(
                    xml,
                    "<edge from-layer=\"{}\" from-port=\"{}\" to-layer=\"{id}\" to-port=\"{to}\"/>",
                    from.layer,
                    from_port + from.port as usize
                );
            }
        }
        xml.push_str("</edges>\n</net>\n");
        xml
    }
}

impl Layer {
    fn write(&self, xml: &mut String, id: usize, place: &impl Fn(usize) -> Option<usize>) {
        let Layer { name, kind, version, data, .. } = self;
        let _ = write!(
            xml,
            "<layer id=\"{id}\" name=\"{}\" type=\"{kind}\" version=\"{version}\">",
            escape(name)
        );
        if let Some((at, len)) = self.bytes {
            let _ = match place(at) {
                Some(offset) => write!(xml, "<data {data} offset=\"{offset}\" size=\"{len}\"/>"),
                None => write!(xml, "<data {data} size=\"{len}\"/>"),
            };
        } else if !data.is_empty() {
            let _ = write!(xml, "<data {data}/>");
        }
        // Any precision will do: the reader infers its own.
        if !self.inputs.is_empty() {
            xml.push_str("<input>");
            (0..self.inputs.len()).for_each(|p| {
                let _ = write!(xml, "<port id=\"{p}\" precision=\"FP32\"/>");
            });
            xml.push_str("</input>");
        }
        if self.outputs > 0 {
            xml.push_str("<output>");
            for p in 0..self.outputs {
                let names: Vec<&str> =
                    self.names.iter().filter(|(port, _)| *port == p).map(|(_, n)| n.as_str()).collect();
                let _ = write!(xml, "<port id=\"{}\" precision=\"FP32\"", self.inputs.len() + p);
                if !names.is_empty() {
                    let _ = write!(xml, " names=\"{}\"", escape(&names.join(",")));
                }
                xml.push_str("/>");
            }
            xml.push_str("</output>");
        }
        xml.push_str("</layer>\n");
    }
}

/// The address and length of a constant's bytes, if they are as many as it needs.
fn check(element: Element, shape: &[usize], bytes: &[u8]) -> Result<(usize, usize), OpenVinoError> {
    let expected = element.bytes(shape).unwrap_or(usize::MAX);
    if expected != bytes.len() {
        return Err(OpenVinoError::Size { shape: shape.to_vec(), expected, found: bytes.len() });
    }
    Ok((bytes.as_ptr() as usize, bytes.len()))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_layers_and_constants_are_one() {
        let mut m = ModelWriter::new();
        let x = m.parameter("x", Element::F32, &[None, Some(3)]);
        let c = m.literal(Element::I64, &[1], &7i64.to_le_bytes()).unwrap();
        assert_eq!(c, m.literal(Element::I64, &[1], &7i64.to_le_bytes()).unwrap());
        assert_ne!(c, m.literal(Element::I64, &[], &7i64.to_le_bytes()).unwrap());
        let a = m.layer("Add", "opset1", &[("auto_broadcast", "numpy")], &[x, x], 1);
        assert_eq!(a, m.layer("Add", "opset1", &[("auto_broadcast", "numpy")], &[x, x], 1));
        assert_ne!(a, m.layer("Add", "opset1", &[("auto_broadcast", "numpy")], &[x, c], 1));
        m.result("y<&>", a);
        let (Texts { main: xml, kept }, blob) = m.finish();
        assert_eq!(kept, None);
        assert!(xml.contains("shape=\"?,3\" element_type=\"f32\""), "{xml}");
        assert!(xml.contains("names=\"y&lt;&amp;&gt;\""), "{xml}");
        assert!(
            xml.contains("<edge from-layer=\"3\" from-port=\"2\" to-layer=\"5\" to-port=\"0\"/>"),
            "{xml}"
        );
        assert!(blob.len >= 8);
    }

    #[test]
    fn what_is_kept_is_a_model_of_its_own() {
        let eltwise = [("auto_broadcast", "numpy")];
        let mut m = ModelWriter::new();
        let x = m.parameter("x", Element::F32, &[None]);
        let n = m.parameter("n", Element::I64, &[Some(1)]);
        let one = m.literal(Element::F32, &[], &1f32.to_le_bytes()).unwrap();
        let range = m.layer("Range", "opset4", &[], &[n, one], 1);
        let with_x = m.layer("Add", "opset1", &eltwise, &[range, x], 1);
        m.parameter("unread", Element::F32, &[None]);
        let decided = [one, range, with_x].map(|v| m.is_decided_by(v, &[n]));
        assert_eq!(decided, [false, true, false]);
        let kept = m.keep("k0", Element::F32, &[None], range);
        assert_eq!(m.keep("k0", Element::F32, &[None], range), kept);
        let y = m.layer("Multiply", "opset1", &eltwise, &[kept, x], 1);
        let y = m.layer("Subtract", "opset1", &eltwise, &[y, one], 1);
        m.result("y", y);
        let (texts, _) = m.finish();
        let kept = texts.kept.unwrap();
        for (part, in_main, in_kept) in [
            ("type=\"Range\"", false, true),
            ("type=\"Multiply\"", true, false),
            ("names=\"k0\"", true, true),
            ("names=\"x\"", true, false),
            ("names=\"unread\"", true, false),
            // Nobody reads the sum of the range and x.
            ("type=\"Add\"", false, false),
            ("names=\"n\"", false, true),
            ("type=\"Const\"", true, true),
        ] {
            assert_eq!((texts.main.contains(part), kept.contains(part)), (in_main, in_kept), "{part}");
        }
        assert_eq!(kept.matches("type=\"Result\"").count(), 1);
    }

    #[test]
    fn an_outline_does_not_depend_on_where_constants_lie() {
        let outline = |value: f32| {
            let mut m = ModelWriter::outline();
            let mut large = AlignedBytes::zeroed(4096).unwrap();
            large.as_mut_slice()[..4].copy_from_slice(&value.to_le_bytes());
            let a = m.owned_constant(Element::F32, &[1024], large).unwrap();
            let b = m.literal(Element::F32, &[], &value.to_le_bytes()).unwrap();
            let sum = m.layer("Add", "opset1", &[("auto_broadcast", "numpy")], &[a, b], 1);
            m.result("y", sum);
            assert!(m.is_outline());
            m.finish_outline()
        };
        let (one, two, other) = (outline(1.0), outline(1.0), outline(2.0));
        assert_eq!(one, two);
        assert!(one.0 == other.0 && one.1 != other.1);
    }

    #[test]
    fn what_is_read_elsewhere_than_in_products_is_told_apart() {
        let eltwise = [("auto_broadcast", "numpy")];
        let mut m = ModelWriter::new();
        let x = m.parameter("x", Element::F32, &[None, Some(2)]);
        let constant = |m: &mut ModelWriter, v: f32| {
            m.literal(Element::F32, &[2, 2], &[v.to_le_bytes(); 4].concat()).unwrap()
        };
        let (plain, unpacked, scale, added, both) = (
            constant(&mut m, 1.0),
            constant(&mut m, 2.0),
            constant(&mut m, 3.0),
            constant(&mut m, 4.0),
            constant(&mut m, 5.0),
        );
        let w = m.layer("Multiply", "opset1", &eltwise, &[unpacked, scale], 1);
        let mut y = m.layer("MatMul", "opset1", &[], &[x, plain], 1);
        y = m.layer("MatMul", "opset1", &[], &[y, w], 1);
        y = m.layer("Add", "opset1", &eltwise, &[y, added], 1);
        y = m.layer("MatMul", "opset1", &[], &[y, both], 1);
        // As gamma of a norm: a product of a constant and what is computed.
        y = m.layer("Multiply", "opset1", &eltwise, &[y, both], 1);
        m.result("y", y);
        let found = [plain, unpacked, scale, added, both].map(|c| m.is_only_multiplied(c));
        assert_eq!(found, [true, true, true, false, false]);
        m.result("z", w);
        assert!(!m.is_only_multiplied(scale) && m.is_only_multiplied(plain));
    }

    #[test]
    fn constants_of_another_size_are_refused() {
        let mut m = ModelWriter::new();
        let error = m.literal(Element::F32, &[2, 2], &[0; 12]).unwrap_err().to_string();
        assert_eq!(error, "a tensor of shape [2, 2] needs 16 bytes and has 12");
        assert!(m.literal(Element::U4, &[3], &[0; 2]).is_ok());
        assert!(m.literal(Element::F32, &[usize::MAX, 9], &[]).is_err());
    }
}
