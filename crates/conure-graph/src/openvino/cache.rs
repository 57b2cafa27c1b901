//! Compiled models kept for the next start: under which key, and whether what is found is right.
//!
//! The key is the hash of all that decides what is compiled: the layers with their shapes, the bytes of constants, what
//! tells the weights from others, the device with its instruction sets, every property, and OpenVINO's build. A key that
//! is found means that nothing has to be re-laid, converted or compiled.
//!
//! Weights are told apart by the hash of their file's bytes, so that neither its name nor its place matters, and two files
//! of the same size and date are never taken for each other. Reading a file for that takes as long as reading it always
//! does; the hash is therefore noted under the file system's own numbers for the file and its times of change
//! ([`MappedFile::stamp`]), and the next start reads nothing. Weights that lie in no file are hashed one by one.

use super::lower::Outline;
use super::weights::FORM;
use crate::weights::Weights;
use conure_device::map::MappedFile;
use conure_device::store::{About, Store, StoreError};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::sync::Arc;
use std::thread;

/// Changes whenever a compiled model of the same key is used in another way.
const VERSION: u32 = 2;

/// What came of the self-test, in what is remembered of a model.
const TESTED: &str = "self-test";

/// Which part of its graph a model is, in what is remembered of it.
pub(super) const PART: &str = "part";

/// The place of one compiled model, and of the one that makes what it keeps, if there is one.
#[derive(Debug)]
pub(super) struct Place<'a> {
    store: &'a Store,
    key: String,
    keeps: bool,
}

/// The bytes of compiled models.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub main: Arc<MappedFile>,
    pub kept: Option<Arc<MappedFile>>,
}

/// What a place holds.
pub(super) enum Kept {
    Nothing,
    /// A compiled model, and whether it was tested.
    Model(Files, bool),
    /// The model failed its self-test, with what was found.
    Wrong(String),
    /// What was there is of no use, and why.
    Damaged(String),
}

impl<'a> Place<'a> {
    /// The place of the model of `outline` over `used` of `weights`, which `keeps` something or not; `circumstances` are device,
    /// properties and build.
    pub(super) fn new(
        store: &'a Store,
        (outline, keeps): (&Outline, bool),
        (weights, used): (&Weights, &[usize]),
        circumstances: &[(String, String)],
    ) -> Place<'a> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(format!("conure {VERSION} {FORM}").as_bytes());
        for (name, value) in circumstances {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        part(outline.text.as_bytes());
        part(&outline.constants);
        match weights.identity(|file| identity(file, store)) {
            Some(identity) => part(identity.as_bytes()),
            None => used.iter().for_each(|&index| part(weights.bytes(index))),
        }
        Place { store, key: hex(&hash.finalize()), keeps }
    }

    pub(super) fn load(&self) -> Kept {
        if let Some(what) = self.store.note(&self.wrong()) {
            return Kept::Wrong(what);
        }
        match self.files() {
            Ok(None) => Kept::Nothing,
            Ok(Some((files, about))) => {
                let tested = about.iter().any(|(name, _)| name == TESTED);
                Kept::Model(files, tested)
            }
            Err(error) => Kept::Damaged(error.to_string()),
        }
    }

    fn files(&self) -> Result<Option<(Files, About)>, StoreError> {
        let Some((main, about)) = self.store.load(&self.key)? else { return Ok(None) };
        let kept = match self.keeps.then(|| self.store.load(&self.key_of_kept())).transpose()? {
            Some(None) => return Ok(None),
            Some(Some((file, _))) => Some(Arc::new(file)),
            None => None,
        };
        Ok(Some((Files { main: Arc::new(main), kept }, about)))
    }

    /// Forgets what is kept.
    pub(super) fn remove(&self) {
        self.store.remove(&self.key);
    }

    /// Keeps what `export` writes of the model and, if it says so, of the other one. Neither is of use without the other.
    pub(super) fn save(
        &self,
        mut about: About,
        verdict: Option<String>,
        export: impl Fn(bool, &std::path::Path) -> Result<(), String>,
    ) -> Result<(), String> {
        about.extend(verdict.map(|verdict| (TESTED.into(), verdict)));
        let save = |key: &str, about: &About, kept: bool| {
            self.store.save(key, about, |path| export(kept, path)).map_err(|e| e.to_string())
        };
        save(&self.key, &about, false)?;
        if self.keeps {
            let part = about.iter_mut().filter(|(name, _)| name == PART);
            part.for_each(|(_, part)| part.push_str(": what lengths alone decide"));
            save(&self.key_of_kept(), &about, true).inspect_err(|_| self.remove())?;
        }
        Ok(())
    }

    /// Notes that the model fails its self-test, so that the next start need not find out again.
    pub(super) fn save_wrong(&self, what: &str) {
        self.store.set_note(&self.wrong(), what);
    }

    /// With a point, so that the store lets both go together.
    fn key_of_kept(&self) -> String {
        format!("{}.kept", self.key)
    }

    fn wrong(&self) -> String {
        format!("{}-wrong", self.key)
    }
}

/// The hash of a file's bytes, from the store's notes if they have it.
fn identity(file: &MappedFile, store: &Store) -> String {
    let Some(stamp) = file.stamp() else { return digest(file.bytes()) };
    let name = format!("file-{}", hex(&Sha256::digest(stamp.as_bytes())));
    if let Some(known) =
        store.note(&name).filter(|n| n.len() == 64 && n.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return known;
    }
    let found = digest(file.bytes());
    // A file that was changed meanwhile has another stamp now.
    if file.stamp().as_ref() == Some(&stamp) {
        store.set_note(&name, &found);
    }
    found
}

/// Bytes hashed by one thread at a time.
const CHUNK: usize = 8 << 20;

/// The hash of the hashes of chunks: as many threads as there are processors hash them, since one alone would take longer
/// than importing a model does.
fn digest(bytes: &[u8]) -> String {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let chunks: Vec<&[u8]> = bytes.chunks(CHUNK).collect();
    let mut digests = vec![[0u8; 32]; chunks.len()];
    let share = chunks.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (chunks, digests) in chunks.chunks(share).zip(digests.chunks_mut(share)) {
            scope.spawn(move || {
                for (chunk, digest) in chunks.iter().zip(digests) {
                    *digest = Sha256::digest(chunk).into();
                }
            });
        }
    });
    let mut all = Sha256::new();
    all.update((bytes.len() as u64).to_le_bytes());
    digests.iter().for_each(|d| all.update(d));
    hex(&all.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::MemoryWeights;
    use conure_tensor::Tensor;

    fn weights(values: &[f32]) -> Arc<Weights> {
        let tensor = Tensor::from_slice(&[values.len()], values).unwrap();
        Weights::new(Arc::new(MemoryWeights::new().with("a", tensor.clone()).with("b", tensor)))
    }

    #[test]
    fn all_that_matters_is_in_the_key() {
        let store = Store::new("nowhere", 0);
        let key = |text: &str,
                   constants: &[u8],
                   weights: &Weights,
                   used: &[usize],
                   circumstances: &[(&str, &str)]| {
            let outline = Outline { text: text.into(), constants: constants.to_vec() };
            let c: Vec<_> = circumstances.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            Place::new(&store, (&outline, false), (weights, used), &c).key
        };
        let (one, two) = (weights(&[1.0, 2.0]), weights(&[1.0, 3.0]));
        let keys = [
            key("x", b"", &one, &[0], &[("a", "b")]),
            key("y", b"", &one, &[0], &[("a", "b")]),
            key("x", b"c", &one, &[0], &[("a", "b")]),
            key("xc", b"", &one, &[0], &[("a", "b")]),
            key("x", b"", &two, &[0], &[("a", "b")]),
            key("x", b"", &one, &[0, 1], &[("a", "b")]),
            key("x", b"", &one, &[0], &[("a", "c")]),
            key("x", b"", &one, &[0], &[("ab", "")]),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys.iter().skip(i + 1).all(|b| a != b), "{i}");
        }
        assert_eq!(keys[0], key("x", b"", &weights(&[1.0, 2.0]), &[0], &[("a", "b")]));
    }

    #[test]
    fn a_file_is_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("cache"), 0);
        let of = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            identity(&MappedFile::open(&path).unwrap(), &store)
        };
        let (a, again, b) = (of("a", b"some bytes"), of("elsewhere", b"some bytes"), of("c", b"some bytez"));
        assert!(a == again && a != b);
        let mut large = vec![3u8; 3 * CHUNK + 5];
        let whole = digest(&large);
        for at in [0, CHUNK - 1, CHUNK, 3 * CHUNK + 4] {
            large[at] ^= 1;
            assert_ne!(digest(&large), whole, "byte {at}");
            large[at] ^= 1;
        }
        assert_eq!(digest(&large), whole);
        assert_ne!(digest(&large[..3 * CHUNK]), whole);
    }

    /// A file that is there since long is hashed once: the note under its stamp is believed.
    #[cfg(unix)]
    #[test]
    fn a_file_that_did_not_change_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), 0);
        let file = MappedFile::open(std::env::current_exe().unwrap()).unwrap();
        let Some(stamp) = file.stamp() else { return };
        let found = identity(&file, &store);
        let name = format!("file-{}", hex(&Sha256::digest(stamp.as_bytes())));
        assert_eq!(store.note(&name).as_deref(), Some(found.as_str()));
        let other = "0".repeat(64);
        store.set_note(&name, &other);
        assert_eq!(identity(&file, &store), other);
        store.set_note(&name, "not a hash");
        assert_eq!(identity(&file, &store), found);
    }
}
