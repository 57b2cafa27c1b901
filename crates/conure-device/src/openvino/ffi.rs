//! The symbols of OpenVINO's C API that Conure calls, with the types that they take.

#![allow(unsafe_code)]

use super::error::OpenVinoError;
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

/// What every call returns; 0 is success.
pub(super) type Status = c_int;

/// A handle whose inside is OpenVINO's.
macro_rules! handles {
    ($($name:ident),*) => { $(
        #[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        }
    )* };
}

handles!(CoreHandle, ModelHandle, CompiledHandle, RequestHandle, TensorHandle, PortHandle);

/// `ov_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ShapeC {
    pub rank: i64,
    pub dims: *mut i64,
}

/// `ov_version_t`.
#[repr(C)]
pub(super) struct VersionC {
    pub build: *const c_char,
    pub description: *const c_char,
}

/// `ov_available_devices_t`.
#[repr(C)]
pub(super) struct DevicesC {
    pub names: *mut *mut c_char,
    pub size: usize,
}

/// `ov_property_t`.
#[repr(C)]
pub(super) struct PropertyC {
    pub key: *const c_char,
    pub value: *const c_void,
}

/// `ov_profiling_info_t`.
#[repr(C)]
pub(super) struct ProfileC {
    pub status: c_int,
    pub real_time: i64,
    pub cpu_time: i64,
    pub node_name: *const c_char,
    pub exec_type: *const c_char,
    pub node_type: *const c_char,
}

/// `ov_profiling_info_list_t`.
#[repr(C)]
pub(super) struct ProfilesC {
    pub infos: *mut ProfileC,
    pub size: usize,
}

/// Writes the table of functions and how it is filled.
macro_rules! symbols {
    ($($name:ident($($arg:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        /// The functions, and the library that they are in, which is never unloaded: its threads may still run.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Api {
            /// Opens the library at `path` and finds every function.
            pub(super) fn open(path: &Path) -> Result<Api, OpenVinoError> {
                let failed = |source| OpenVinoError::Open { path: path.to_owned(), source };
                // SAFETY: opening runs the library's initialisers. The path was named by the user or lies where OpenVINO
                // is installed, and its initialisers are those of every program that uses it.
                let library = unsafe { Library::new(path) }.map_err(failed)?;
                // The table must stay valid for good, and so must the code that it points to.
                let library: &'static Library = Box::leak(Box::new(library));
                Ok(Api { $($name: {
                    // SAFETY: the types are those of `openvino/c/*.h`, which are the same from 2025.1 to 2026.4.
                    let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    *symbol.map_err(|_: libloading::Error| OpenVinoError::Symbol {
                        path: path.to_owned(),
                        symbol: stringify!($name),
                    })?
                },)* })
            }
        }
    };
}

symbols! {
    ov_get_openvino_version(*mut VersionC) -> Status;
    ov_version_free(*mut VersionC);
    ov_get_error_info(Status) -> *const c_char;
    ov_get_last_err_msg() -> *const c_char;
    ov_free(*const c_char);
    ov_core_create(*mut *mut CoreHandle) -> Status;
    ov_core_get_available_devices(*const CoreHandle, *mut DevicesC) -> Status;
    ov_available_devices_free(*mut DevicesC);
    ov_core_get_property(*const CoreHandle, *const c_char, *const c_char, *mut *mut c_char) -> Status;
    ov_core_set_properties(*const CoreHandle, *const c_char, usize, *const PropertyC) -> Status;
    ov_core_read_model_from_memory_buffer(
        *const CoreHandle, *const c_char, usize, *const TensorHandle, *mut *mut ModelHandle,
    ) -> Status;
    ov_core_compile_model_props(
        *const CoreHandle, *const ModelHandle, *const c_char, usize, *const PropertyC, *mut *mut CompiledHandle,
    ) -> Status;
    ov_core_import_model(*const CoreHandle, *const c_char, usize, *const c_char, *mut *mut CompiledHandle) -> Status;
    ov_model_free(*mut ModelHandle);
    ov_compiled_model_free(*mut CompiledHandle);
    ov_compiled_model_export_model(*const CompiledHandle, *const c_char) -> Status;
    ov_compiled_model_get_property(*const CompiledHandle, *const c_char, *mut *mut c_char) -> Status;
    ov_compiled_model_input_by_name(*const CompiledHandle, *const c_char, *mut *mut PortHandle) -> Status;
    ov_compiled_model_output_by_name(*const CompiledHandle, *const c_char, *mut *mut PortHandle) -> Status;
    ov_compiled_model_create_infer_request(*const CompiledHandle, *mut *mut RequestHandle) -> Status;
    ov_output_const_port_free(*mut PortHandle);
    ov_infer_request_set_tensor_by_const_port(*mut RequestHandle, *const PortHandle, *const TensorHandle) -> Status;
    ov_infer_request_infer(*mut RequestHandle) -> Status;
    ov_infer_request_free(*mut RequestHandle);
    ov_infer_request_get_profiling_info(*const RequestHandle, *mut ProfilesC) -> Status;
    ov_profiling_info_list_free(*mut ProfilesC);
    ov_tensor_create_from_host_ptr(c_int, ShapeC, *mut c_void, *mut *mut TensorHandle) -> Status;
    ov_tensor_free(*mut TensorHandle);
}
