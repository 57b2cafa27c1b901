//! Running a compiled model on the caller's own memory.

#![allow(unsafe_code)]

use super::Element;
use super::error::OpenVinoError;
use super::ffi::{PortHandle, ProfilesC, RequestHandle, ShapeC, TensorHandle};
use super::runtime::{CompiledModel, c_text, check, non_null, text};
use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// An input of a run: the caller's bytes, read where they are.
#[derive(Clone, Copy, Debug)]
pub struct HostInput<'a> {
    /// Element type.
    pub element: Element,
    /// Lengths, slowest axis first.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

/// An output of a run: the caller's bytes, written where they are.
#[derive(Debug)]
pub struct HostOutput<'a> {
    /// Element type.
    pub element: Element,
    /// Lengths, slowest axis first.
    pub shape: &'a [usize],
    /// Room for the elements.
    pub bytes: &'a mut [u8],
}

/// What a layer of the compiled model cost in the last run.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name, which begins with the place in the graph that it comes from.
    pub name: String,
    /// What it does.
    pub kind: String,
    /// The kernel that ran.
    pub kernel: String,
    /// Microseconds.
    pub micros: i64,
}

/// A tensor of the caller's memory, as OpenVINO holds it: valid only while the memory is.
struct Bound {
    handle: NonNull<TensorHandle>,
    at: usize,
    shape: Vec<usize>,
    element: Element,
}

/// One input or output of the model.
struct Slot {
    port: Option<NonNull<PortHandle>>,
    bound: Option<Bound>,
}

/// A compiled model in use by one caller.
pub struct Request {
    handle: NonNull<RequestHandle>,
    model: Arc<CompiledModel>,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
}

// SAFETY: a request may move between threads; `&mut` keeps it to one at a time.
unsafe impl Send for Request {}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} inputs, {} outputs)", self.inputs.len(), self.outputs.len())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let api = &self.model.runtime.api;
        // SAFETY: every handle is this request's own and is freed once; the model outlives it.
        unsafe {
            (api.ov_infer_request_free)(self.handle.as_ptr());
            for slot in self.inputs.iter_mut().chain(&mut self.outputs) {
                if let Some(bound) = slot.bound.take() {
                    (api.ov_tensor_free)(bound.handle.as_ptr());
                }
                if let Some(port) = slot.port {
                    (api.ov_output_const_port_free)(port.as_ptr());
                }
            }
        }
    }
}

impl Request {
    pub(super) fn new(
        model: Arc<CompiledModel>,
        inputs: &[&str],
        outputs: &[&str],
    ) -> Result<Request, OpenVinoError> {
        let api = &model.runtime.api;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is where the call writes its result.
        let status =
            unsafe { (api.ov_compiled_model_create_infer_request)(model.handle.as_ptr(), &mut handle) };
        check(api, "request", status)?;
        let handle = non_null("request", handle)?;
        let mut request = Request { handle, model: model.clone(), inputs: Vec::new(), outputs: Vec::new() };
        for name in inputs {
            let port = port(&model, name, true)?;
            request.inputs.push(Slot { port, bound: None });
        }
        for name in outputs {
            let port = port(&model, name, false)?;
            if port.is_none() {
                let message = format!("the compiled model has no output {name}");
                return Err(OpenVinoError::Call { call: "request", message });
            }
            request.outputs.push(Slot { port, bound: None });
        }
        Ok(request)
    }

    /// Runs the model: inputs and outputs in the order in which the request was made.
    ///
    /// # Errors
    /// Tensors that are not what the model takes, or what the device said.
    pub fn run(
        &mut self,
        inputs: &[HostInput<'_>],
        outputs: &mut [HostOutput<'_>],
    ) -> Result<(), OpenVinoError> {
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            let message = format!("{} inputs and {} outputs were given", inputs.len(), outputs.len());
            return Err(OpenVinoError::Call { call: "run", message });
        }
        for (i, input) in inputs.iter().enumerate() {
            // OpenVINO reads an input and never writes it.
            let at = input.bytes.as_ptr().cast_mut();
            self.bind(true, i, input.element, input.shape, at, input.bytes.len())?;
        }
        for (i, output) in outputs.iter_mut().enumerate() {
            let len = output.bytes.len();
            self.bind(false, i, output.element, output.shape, output.bytes.as_mut_ptr(), len)?;
        }
        let api = &self.model.runtime.api;
        // SAFETY: every tensor of the request is one of this call's: memory of at least the size of its shape, borrowed until
        // the call has ended, outputs exclusively. The call waits for the run's end.
        let status = unsafe { (api.ov_infer_request_infer)(self.handle.as_ptr()) };
        check(api, "run", status)
    }

    /// Binds memory to a slot. What is bound already stays: the same address, type and shape mean the same tensor.
    fn bind(
        &mut self,
        is_input: bool,
        index: usize,
        element: Element,
        shape: &[usize],
        at: *mut u8,
        len: usize,
    ) -> Result<(), OpenVinoError> {
        let expected = element.bytes(shape).unwrap_or(usize::MAX);
        if expected != len {
            return Err(OpenVinoError::Size { shape: shape.to_vec(), expected, found: len });
        }
        let slots = if is_input { &mut self.inputs } else { &mut self.outputs };
        let slot = &mut slots[index];
        let Some(port) = slot.port else { return Ok(()) };
        if let Some(b) = &slot.bound
            && b.at == at as usize
            && b.element == element
            && b.shape == shape
        {
            return Ok(());
        }
        let api = &self.model.runtime.api;
        let mut dims: Vec<i64> = shape.iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect();
        let c_shape = ShapeC {
            rank: i64::try_from(dims.len()).unwrap_or(0),
            dims: if dims.is_empty() { ptr::null_mut() } else { dims.as_mut_ptr() },
        };
        let mut tensor = ptr::null_mut();
        // SAFETY: the call stores the pointer and the shape; the memory is used by `run` alone, which has it borrowed.
        let status = unsafe {
            (api.ov_tensor_create_from_host_ptr)(element.code(), c_shape, at.cast::<c_void>(), &mut tensor)
        };
        check(api, "tensor", status)?;
        let handle = non_null("tensor", tensor)?;
        // SAFETY: request, port and tensor are alive; the request keeps a reference of its own.
        let status = unsafe {
            (api.ov_infer_request_set_tensor_by_const_port)(
                self.handle.as_ptr(),
                port.as_ptr(),
                handle.as_ptr(),
            )
        };
        let old = slot.bound.replace(Bound { handle, at: at as usize, shape: shape.to_vec(), element });
        if let Some(old) = old {
            // SAFETY: the handle was made by an earlier call of this function and is freed once.
            unsafe { (api.ov_tensor_free)(old.handle.as_ptr()) };
        }
        if status != 0 {
            // What is bound now is unknown: the next run binds anew.
            let error = check(api, "tensor", status);
            if let Some(bound) = slot.bound.take() {
                // SAFETY: as above.
                unsafe { (api.ov_tensor_free)(bound.handle.as_ptr()) };
            }
            return error;
        }
        Ok(())
    }

    /// What the layers cost in the last run; empty unless the model was compiled with `PERF_COUNT`.
    ///
    /// # Errors
    /// What the device said.
    pub fn profile(&self) -> Result<Vec<Profile>, OpenVinoError> {
        let api = &self.model.runtime.api;
        let mut list = ProfilesC { infos: ptr::null_mut(), size: 0 };
        // SAFETY: `list` is where the call writes its result.
        let status = unsafe { (api.ov_infer_request_get_profiling_info)(self.handle.as_ptr(), &mut list) };
        check(api, "profile", status)?;
        let mut out = Vec::new();
        if !list.infos.is_null() {
            for i in 0..list.size {
                // SAFETY: the call gave `size` entries at `infos`, with texts that end with a zero.
                let entry = unsafe {
                    let p = &*list.infos.add(i);
                    let executed = p.status == 2;
                    executed.then(|| Profile {
                        name: text(p.node_name),
                        kind: text(p.node_type),
                        kernel: text(p.exec_type),
                        micros: p.real_time,
                    })
                };
                out.extend(entry);
            }
        }
        // SAFETY: the list is freed once, and not used after.
        unsafe { (api.ov_profiling_info_list_free)(&mut list) };
        Ok(out)
    }
}

fn port(
    model: &CompiledModel,
    name: &str,
    is_input: bool,
) -> Result<Option<NonNull<PortHandle>>, OpenVinoError> {
    let name = c_text("name", name)?;
    let api = &model.runtime.api;
    let by_name =
        if is_input { api.ov_compiled_model_input_by_name } else { api.ov_compiled_model_output_by_name };
    let mut port = ptr::null_mut();
    // SAFETY: the text ends with a zero and lives through the call; `port` is where it writes its result.
    let status = unsafe { by_name(model.handle.as_ptr(), name.as_ptr(), &mut port) };
    Ok(if status == 0 { NonNull::new(port) } else { None })
}
