//! Taking models apart and putting them together again, right or wrong.
#![allow(dead_code)]

use conure_convert::section::Section;
use conure_convert::torch::TorchFile;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle").join(name)
}

pub type Parts = Vec<(String, Vec<u8>)>;

/// The members of a `.nemo`.
pub fn parts(name: &str) -> Parts {
    let bytes = std::fs::read(data(name)).unwrap();
    let mut out = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut body = Vec::new();
        entry.read_to_end(&mut body).unwrap();
        if entry.header().entry_type().is_file() {
            out.push((name, body));
        }
    }
    out
}

pub fn part<'a>(parts: &'a mut Parts, suffix: &str) -> &'a mut Vec<u8> {
    &mut parts.iter_mut().find(|(n, _)| n.ends_with(suffix)).unwrap().1
}

/// A `.nemo` of these members.
pub fn nemo(parts: &Parts) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, body) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(body.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &body[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The entries of a zip archive.
pub fn unzip(bytes: &[u8]) -> Parts {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    (0..archive.len())
        .map(|i| {
            let mut file = archive.by_index(i).unwrap();
            let name = file.name().unwrap().into_owned();
            let mut body = Vec::new();
            file.read_to_end(&mut body).unwrap();
            (name, body)
        })
        .collect()
}

pub fn zip(entries: &Parts, method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, body) in entries {
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(body).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A tensor to put into a checkpoint: its storage class, and the storage's bytes.
#[derive(Clone)]
pub struct TestTensor {
    pub name: String,
    pub class: &'static str,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl TestTensor {
    pub fn f32(name: &str, shape: &[usize], values: &[f32]) -> TestTensor {
        let mut stride = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            stride[i - 1] = stride[i] * shape[i];
        }
        TestTensor {
            name: name.into(),
            class: "FloatStorage",
            shape: shape.to_vec(),
            stride,
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn element(&self) -> usize {
        match self.class {
            "DoubleStorage" | "LongStorage" => 8,
            "HalfStorage" | "BFloat16Storage" => 2,
            "BoolStorage" => 1,
            _ => 4,
        }
    }
}

/// The tensors of a checkpoint, all as f32.
pub fn tensors(checkpoint: &[u8]) -> Vec<TestTensor> {
    let file = TorchFile::open(&Section::of_bytes(checkpoint.to_vec())).unwrap();
    let list = file.tensors();
    list.iter()
        .enumerate()
        .map(|(i, t)| TestTensor::f32(&t.name, &t.shape, &file.read_f32(i).unwrap()))
        .collect()
}

/// A protocol-2 pickle as `torch.save` writes it.
pub fn pickle(tensors: &[TestTensor]) -> Vec<u8> {
    let mut p = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
    let text = |p: &mut Vec<u8>, s: &str| {
        p.push(b'X');
        p.extend_from_slice(&(s.len() as u32).to_le_bytes());
        p.extend_from_slice(s.as_bytes());
    };
    let int = |p: &mut Vec<u8>, n: usize| {
        p.push(b'J');
        p.extend_from_slice(&(n as i32).to_le_bytes());
    };
    for (i, t) in tensors.iter().enumerate() {
        text(&mut p, &t.name);
        p.extend_from_slice(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut p, "storage");
        p.extend_from_slice(format!("ctorch\n{}\n", t.class).as_bytes());
        text(&mut p, &i.to_string());
        text(&mut p, "cpu");
        int(&mut p, t.bytes.len() / t.element());
        p.extend_from_slice(b"tQK\x00");
        for list in [&t.shape, &t.stride] {
            p.push(b'(');
            list.iter().for_each(|&n| int(&mut p, n));
            p.push(b't');
        }
        p.extend_from_slice(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    p.extend_from_slice(b"u}X\x09\0\0\0_metadata}sb.");
    p
}

pub fn checkpoint_entries(tensors: &[TestTensor]) -> Parts {
    let mut entries =
        vec![("m/data.pkl".to_owned(), pickle(tensors)), ("m/byteorder".to_owned(), b"little".to_vec())];
    entries.extend(tensors.iter().enumerate().map(|(i, t)| (format!("m/data/{i}"), t.bytes.clone())));
    entries.push(("m/version".to_owned(), b"3\n".to_vec()));
    entries
}

pub fn checkpoint(tensors: &[TestTensor]) -> Vec<u8> {
    zip(&checkpoint_entries(tensors), CompressionMethod::Stored)
}
