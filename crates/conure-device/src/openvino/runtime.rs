//! The library, and models compiled by it.

#![allow(unsafe_code)]

use super::error::OpenVinoError;
use super::ffi::{
    Api, CompiledHandle, CoreHandle, DevicesC, ModelHandle, PropertyC, ShapeC, Status, VersionC,
};
use super::ir::Blob;
use super::locate::{Machine, VARIABLE, candidates};
use super::request::Request;
use super::{Element, locate};
use crate::map::MappedFile;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The oldest release whose type numbers are those that Conure uses.
const OLDEST: [u64; 2] = [2025, 1];

/// OpenVINO, opened once per process.
pub struct Runtime {
    pub(super) api: Api,
    core: NonNull<CoreHandle>,
    path: PathBuf,
    version: String,
    /// Held while properties of the core and what depends on them must not be changed by another thread.
    importing: Mutex<()>,
}

// SAFETY: OpenVINO's core may be used by any number of threads; the handle is only passed on.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime({} at {})", self.version, self.path.display())
    }
}

impl Runtime {
    /// The library of this machine: opened the first time, the same ever after.
    ///
    /// # Errors
    /// [`OpenVinoError::NotFound`], or what is wrong with the one that was found.
    pub fn get() -> Result<&'static Arc<Runtime>, &'static OpenVinoError> {
        static RUNTIME: OnceLock<Result<Arc<Runtime>, OpenVinoError>> = OnceLock::new();
        RUNTIME.get_or_init(|| Runtime::find(&Machine::this()).map(Arc::new)).as_ref()
    }

    /// The first of the candidates that can be used; the first one's fault if none can.
    fn find(machine: &Machine) -> Result<Runtime, OpenVinoError> {
        let mut fault = None;
        for path in locate::candidates(machine) {
            match Runtime::open(&path) {
                Ok(runtime) => return Ok(runtime),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        Err(fault.unwrap_or_else(|| match (machine.variable)(VARIABLE) {
            Some(dir) => OpenVinoError::NotInDir { dir: dir.into() },
            None => OpenVinoError::NotFound,
        }))
    }

    /// Whether a library is there to be opened. Opens nothing.
    pub fn is_installed() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| !candidates(&Machine::this()).is_empty())
    }

    /// Opens the library at `path` and checks its version.
    ///
    /// # Errors
    /// That it cannot be opened, lacks a function, or is too old.
    fn open(path: &Path) -> Result<Runtime, OpenVinoError> {
        let api = Api::open(path)?;
        let version = version(&api)?;
        if numbers(&version) < OLDEST.to_vec() {
            return Err(OpenVinoError::Version { path: path.to_owned(), found: version });
        }
        let mut core = ptr::null_mut();
        // SAFETY: `core` is where the call writes its result.
        let status = unsafe { (api.ov_core_create)(&mut core) };
        check(&api, "core", status)?;
        let core = non_null("core", core)?;
        Ok(Runtime { api, core, path: path.to_owned(), version, importing: Mutex::new(()) })
    }

    /// Its build, as `2026.4.1-22109-...`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The devices that it can use: `CPU`, `GPU`, `GPU.0`, `NPU`.
    ///
    /// # Errors
    /// What a plugin said.
    pub fn devices(&self) -> Result<Vec<String>, OpenVinoError> {
        let mut list = DevicesC { names: ptr::null_mut(), size: 0 };
        // SAFETY: `list` is where the call writes its result.
        let status = unsafe { (self.api.ov_core_get_available_devices)(self.core.as_ptr(), &mut list) };
        check(&self.api, "devices", status)?;
        let mut names = Vec::new();
        if !list.names.is_null() {
            for i in 0..list.size {
                // SAFETY: the call gave `size` pointers at `names`, each to a text that ends with a zero.
                names.push(unsafe { text(*list.names.add(i)) });
            }
        }
        // SAFETY: the list is freed once, and not used after.
        unsafe { (self.api.ov_available_devices_free)(&mut list) };
        Ok(names)
    }

    /// A property of a device.
    ///
    /// # Errors
    /// That there is none of this name, or no such device, with the device's own reason.
    pub fn property(&self, device: &str, key: &str) -> Result<String, OpenVinoError> {
        let (device, key) = (c_text("device", device)?, c_text("property", key)?);
        let mut value = ptr::null_mut();
        // SAFETY: the texts end with a zero and live through the call; `value` is where it writes its result.
        let status = unsafe {
            (self.api.ov_core_get_property)(self.core.as_ptr(), device.as_ptr(), key.as_ptr(), &mut value)
        };
        check(&self.api, "property", status)?;
        Ok(self.take_text(value))
    }

    fn take_text(&self, value: *mut c_char) -> String {
        // SAFETY: a text of OpenVINO's, which ends with a zero, or null; freed once, and not used after.
        unsafe {
            let out = text(value);
            (self.api.ov_free)(value);
            out
        }
    }

    /// Asks for a property that not every release has. Whether it was taken; nothing has changed if it was not.
    ///
    /// # Errors
    /// A zero within a text.
    pub fn prefer(&self, device: &str, key: &str, value: &str) -> Result<bool, OpenVinoError> {
        let device = c_text("device", device)?;
        let properties = Properties::new(&[(key.to_owned(), value.to_owned())])?;
        let _alone = self.importing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.set(&device, &properties).is_ok())
    }

    /// Sets properties of a device for all that is compiled from now on.
    fn set(&self, device: &CString, properties: &Properties) -> Result<(), OpenVinoError> {
        // SAFETY: texts and properties live through the call.
        let status = unsafe {
            (self.api.ov_core_set_properties)(
                self.core.as_ptr(),
                device.as_ptr(),
                properties.list.len(),
                properties.list.as_ptr(),
            )
        };
        check(&self.api, "set_properties", status)
    }

    /// Compiles a model for a device.
    ///
    /// # Errors
    /// What the reader or the device refused, naming the layer.
    pub fn compile(
        self: &Arc<Self>,
        xml: &str,
        blob: Arc<Blob>,
        device: &str,
        properties: &[(String, String)],
    ) -> Result<CompiledModel, OpenVinoError> {
        let (api, core) = (&self.api, self.core.as_ptr());
        let device = c_text("device", device)?;
        let properties = Properties::new(properties)?;
        // The stretch of addresses from the first constant to the last. The reader looks at the constants' ranges alone,
        // which `blob` keeps alive, and writes nowhere.
        let mut dims = [i64::try_from(blob.len).unwrap_or(i64::MAX)];
        let shape = ShapeC { rank: 1, dims: dims.as_mut_ptr() };
        let base = if blob.base == 0 { ptr::dangling_mut::<u8>() } else { blob.base as *mut u8 };
        let mut weights = ptr::null_mut();
        // SAFETY: the call stores pointer and shape, and reads nothing; the result is freed below.
        let status = unsafe {
            (api.ov_tensor_create_from_host_ptr)(Element::U8.code(), shape, base.cast(), &mut weights)
        };
        check(api, "constants", status)?;
        let mut model: *mut ModelHandle = ptr::null_mut();
        // SAFETY: the text is given with its length; the tensor is the one just made. Of its memory the reader uses the
        // ranges that the text names: constants, alive as long as `blob` is, which the compiled model holds.
        let status = unsafe {
            let status = (api.ov_core_read_model_from_memory_buffer)(
                core,
                xml.as_ptr().cast(),
                xml.len(),
                weights,
                &mut model,
            );
            (api.ov_tensor_free)(weights);
            status
        };
        check(api, "model", status)?;
        let mut compiled = ptr::null_mut();
        // SAFETY: the model was just read and is freed once; texts and properties live through the call.
        let status = unsafe {
            let status = (api.ov_core_compile_model_props)(
                core,
                model,
                device.as_ptr(),
                properties.list.len(),
                properties.list.as_ptr(),
                &mut compiled,
            );
            (api.ov_model_free)(model);
            status
        };
        check(api, "compile", status)?;
        let handle = non_null("compile", compiled)?;
        Ok(CompiledModel { handle, runtime: self.clone(), _held: Memory::Constants(blob) })
    }

    /// A compiled model that was exported earlier. It holds the bytes, which it may read as long as it lives.
    ///
    /// The properties are set on the device as well, and stay set: what is exported does not hold them, and without them a
    /// model compiled for f32 would run in bf16.
    ///
    /// # Errors
    /// That the bytes are not a model of this release and machine.
    pub fn import(
        self: &Arc<Self>,
        file: Arc<MappedFile>,
        device: &str,
        properties: &[(String, String)],
    ) -> Result<CompiledModel, OpenVinoError> {
        let device = c_text("device", device)?;
        let properties = Properties::new(properties)?;
        let _alone = self.importing.lock().unwrap_or_else(PoisonError::into_inner);
        let core = self.core.as_ptr();
        self.set(&device, &properties)?;
        let mut compiled = ptr::null_mut();
        let bytes = file.bytes();
        // SAFETY: the bytes are given with their length; the file they are of is held by the model that is made of them.
        let status = unsafe {
            (self.api.ov_core_import_model)(
                core,
                bytes.as_ptr().cast(),
                bytes.len(),
                device.as_ptr(),
                &mut compiled,
            )
        };
        check(&self.api, "import", status)?;
        let handle = non_null("import", compiled)?;
        Ok(CompiledModel { handle, runtime: self.clone(), _held: Memory::File(file) })
    }
}

/// A model compiled for a device. Freed when it and all its requests are gone.
pub struct CompiledModel {
    pub(super) handle: NonNull<CompiledHandle>,
    pub(super) runtime: Arc<Runtime>,
    /// Declared last, so that it goes after the handle.
    _held: Memory,
}

/// What a device may still read of memory that is not its own.
#[allow(dead_code)] // held, not read
enum Memory {
    Constants(Arc<Blob>),
    File(Arc<MappedFile>),
}

// SAFETY: a compiled model may be used by any number of threads; each request of it by one at a time.
unsafe impl Send for CompiledModel {}
// SAFETY: as above.
unsafe impl Sync for CompiledModel {}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompiledModel by {}", self.runtime.version)
    }
}

impl Drop for CompiledModel {
    fn drop(&mut self) {
        // SAFETY: the handle is the model's own and is freed once.
        unsafe { (self.runtime.api.ov_compiled_model_free)(self.handle.as_ptr()) };
    }
}

impl CompiledModel {
    /// A place to run it, for inputs and outputs of these names in this order. A name that the model does not have, because
    /// nothing depends on it, is passed over.
    ///
    /// # Errors
    /// What the device lacks.
    pub fn request(self: &Arc<Self>, inputs: &[&str], outputs: &[&str]) -> Result<Request, OpenVinoError> {
        Request::new(self.clone(), inputs, outputs)
    }

    /// Writes what [`Runtime::import`] reads.
    ///
    /// # Errors
    /// That the device cannot, or the file cannot be written.
    pub fn export(&self, path: &Path) -> Result<(), OpenVinoError> {
        let path = c_text("path", &path.to_string_lossy())?;
        let api = &self.runtime.api;
        // SAFETY: the text ends with a zero and lives through the call.
        let status = unsafe { (api.ov_compiled_model_export_model)(self.handle.as_ptr(), path.as_ptr()) };
        check(api, "export", status)
    }

    /// A property that it was compiled with.
    ///
    /// # Errors
    /// That there is none of this name.
    pub fn property(&self, key: &str) -> Result<String, OpenVinoError> {
        let key = c_text("property", key)?;
        let mut value = ptr::null_mut();
        let api = &self.runtime.api;
        // SAFETY: the text ends with a zero and lives through the call; `value` is where it writes its result.
        let status =
            unsafe { (api.ov_compiled_model_get_property)(self.handle.as_ptr(), key.as_ptr(), &mut value) };
        check(api, "property", status)?;
        Ok(self.runtime.take_text(value))
    }
}

/// Properties as the C API takes them, with the texts that they point to.
struct Properties {
    _texts: Vec<(CString, CString)>,
    list: Vec<PropertyC>,
}

impl Properties {
    fn new(properties: &[(String, String)]) -> Result<Properties, OpenVinoError> {
        let texts = properties
            .iter()
            .map(|(key, value)| Ok((c_text("property", key)?, c_text("property", value)?)))
            .collect::<Result<Vec<_>, OpenVinoError>>()?;
        let list =
            texts.iter().map(|(k, v)| PropertyC { key: k.as_ptr(), value: v.as_ptr().cast() }).collect();
        Ok(Properties { _texts: texts, list })
    }
}

fn version(api: &Api) -> Result<String, OpenVinoError> {
    let mut version = VersionC { build: ptr::null(), description: ptr::null() };
    // SAFETY: `version` is where the call writes its result; its texts end with a zero, are read once and freed once.
    unsafe {
        check(api, "version", (api.ov_get_openvino_version)(&mut version))?;
        let build = text(version.build);
        (api.ov_version_free)(&mut version);
        Ok(build)
    }
}

/// The leading numbers of a version: `2026.4.1-...` is 2026, 4, 1.
fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-']).map_while(|n| n.parse().ok()).collect()
}

/// The error of a call, if it is one.
pub(super) fn check(api: &Api, call: &'static str, status: Status) -> Result<(), OpenVinoError> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: both calls give a text that ends with a zero, or null; the first is ours to free, the second is not.
    let message = unsafe {
        let last = (api.ov_get_last_err_msg)();
        let said = text(last);
        if !last.is_null() {
            (api.ov_free)(last);
        }
        if said.is_empty() { text((api.ov_get_error_info)(status)) } else { said }
    };
    Err(OpenVinoError::Call { call, message: tidy(&message) })
}

/// The lines that say something, without the source files of OpenVINO that lead to them.
fn tidy(message: &str) -> String {
    let noise = |line: &str| {
        line.is_empty()
            || line.starts_with("Exception from ")
            || line.starts_with("Check '") && line.len() < 8
    };
    message.lines().map(str::trim).filter(|l| !noise(l)).collect::<Vec<_>>().join(": ")
}

/// A text of OpenVINO's; empty for null.
///
/// # Safety
/// `text` is null or points to bytes that end with a zero and do not change during the call.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub(super) fn c_text(what: &'static str, text: &str) -> Result<CString, OpenVinoError> {
    CString::new(text).map_err(|_| OpenVinoError::Zero { what })
}

pub(super) fn non_null<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>, OpenVinoError> {
    NonNull::new(pointer).ok_or_else(|| OpenVinoError::Call { call, message: "it gave nothing".into() })
}
