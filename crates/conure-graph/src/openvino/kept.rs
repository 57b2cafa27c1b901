//! What depends on lengths only: made by a model of its own when lengths change, and kept from run to run meanwhile.
//!
//! ```text
//!   lengths ─▶ changed? ──yes──▶ their model ─▶ values, kept ─┐
//!      │         └──no─────────────────────────▶ values, kept ─┴▶ inputs k0, k1, ..
//!      └────────────────────────────────────────────────────────▶ inputs n0, n1, ..  ─▶ the model
//! ```
//!
//! Positions through the projections of all layers are 13 of the 227 GFLOP of the 110M encoder at 60 s of audio, and with what puts
//! them in the order in which attention meets them 3.7 of 44 ms a layer. The memory is that of the longest run so far, between
//! runs [`AT_MOST`]: 10 KiB for each frame and layer at a width of 512 (130 MB at 60 s with 17 layers).

use super::lower::Lowered;
use crate::error::GraphError;
use conure_device::arena::AlignedBytes;
use conure_device::openvino::{CompiledModel, Element, HostInput, HostOutput, Profile, Request};
use conure_tensor::{Bindings, Dims};
use std::sync::Arc;

/// Bytes that are kept from run to run at most: 88 s of audio with 17 layers of 512. What is more is made in every run, as it was
/// before; that costs a twelfth of the run, and a session would hold 870 MB after 400 s.
const AT_MOST: usize = 192 << 20;

/// The values of one session.
#[derive(Debug)]
pub(super) struct KeptValues {
    request: Request,
    lowered: Arc<Lowered>,
    device: String,
    /// The lengths that the values are for; `None`: there are no values.
    lengths: Option<Vec<[u8; 8]>>,
    shapes: Vec<Dims>,
    values: Vec<AlignedBytes>,
    /// Whether the last run made them anew.
    made: bool,
}

impl KeptValues {
    /// No values yet, to be made by `model`.
    pub(super) fn new(
        model: &Arc<CompiledModel>,
        lowered: Arc<Lowered>,
        device: &str,
    ) -> Result<KeptValues, GraphError> {
        let numbered = |letter: char, count: usize| (0..count).map(move |i| format!("{letter}{i}"));
        let inputs: Vec<String> = numbered('n', lowered.lengths.len()).collect();
        let outputs: Vec<String> = numbered('k', lowered.kept.len()).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let request = model.request(&inputs, &outputs.iter().map(String::as_str).collect::<Vec<_>>());
        let request =
            request.map_err(|e| GraphError::Device { device: device.to_owned(), what: e.to_string() })?;
        let values = lowered.kept.iter().map(|_| AlignedBytes::default()).collect();
        let device = device.to_owned();
        Ok(KeptValues { request, lowered, device, lengths: None, shapes: Vec::new(), values, made: false })
    }

    /// Makes the values for a run of these lengths, unless they are there.
    pub(super) fn prepare(&mut self, lengths: &[[u8; 8]], bindings: &Bindings) -> Result<(), GraphError> {
        self.made = self.lengths.as_deref() != Some(lengths);
        if !self.made {
            return Ok(());
        }
        self.lengths = None;
        self.shapes.clear();
        for of in &self.lowered.kept {
            let shape = of.ty.shape.eval(bindings);
            self.shapes.push(shape.map_err(|source| GraphError::Dim { path: self.device.clone(), source })?);
        }
        for ((of, shape), room) in self.lowered.kept.iter().zip(&self.shapes).zip(&mut self.values) {
            let bytes = of.bytes(shape);
            if room.len() < bytes {
                // The old goes first: both at once would be more than is ever needed.
                *room = AlignedBytes::default();
                *room = AlignedBytes::zeroed(bytes).map_err(|source| GraphError::StateMemory {
                    state: format!("what is kept for a length on {}", self.device),
                    bytes,
                    source,
                })?;
            }
        }
        let inputs: Vec<HostInput<'_>> = lengths.iter().map(length_input).collect();
        let of = self.lowered.kept.iter().zip(&self.shapes).zip(&mut self.values);
        let mut outputs: Vec<HostOutput<'_>> = of
            .map(|((of, shape), room)| {
                let bytes = room.as_mut_slice().get_mut(..of.bytes(shape)).unwrap_or_default();
                HostOutput { element: of.element, shape, bytes }
            })
            .collect();
        self.request
            .run(&inputs, &mut outputs)
            .map_err(|e| GraphError::Device { device: self.device.clone(), what: e.to_string() })?;
        self.lengths = Some(lengths.to_vec());
        Ok(())
    }

    /// The values as inputs of the model.
    pub(super) fn inputs(&self) -> impl Iterator<Item = HostInput<'_>> {
        self.lowered.kept.iter().zip(&self.shapes).zip(&self.values).map(|((of, shape), room)| {
            let bytes = room.as_slice().get(..of.bytes(shape)).unwrap_or_default();
            HostInput { element: of.element, shape, bytes }
        })
    }

    /// What the layers of their model cost in the last run, if it made them.
    pub(super) fn profile(&self) -> Vec<Profile> {
        if self.made { self.request.profile().unwrap_or_default() } else { Vec::new() }
    }

    /// Bytes that are held.
    pub(super) fn len(&self) -> usize {
        self.values.iter().map(AlignedBytes::len).sum()
    }

    /// Gives them back if they are many: the run that needed them is over.
    pub(super) fn trim(&mut self) {
        if self.len() > AT_MOST {
            self.forget();
        }
    }

    /// Gives them back.
    pub(super) fn forget(&mut self) {
        self.lengths = None;
        self.values.iter_mut().for_each(|value| *value = AlignedBytes::default());
    }
}

/// A length as models take it.
pub(super) fn length_input(length: &[u8; 8]) -> HostInput<'_> {
    HostInput { element: Element::I64, shape: &[1], bytes: length }
}
