//! A folder of files that were costly to make, each under a key: whole and right, or not there.
//!
//! ```text
//!   KEY-CHECKSUM.blob     the bytes
//!   KEY.entry             written last: size and checksum of the bytes, and what the maker wants to remember
//! ```
//!
//! Both are written under names that no other process uses, brought to the disk, and renamed. A process that is killed, a
//! disk that is full, or two processes that make the same thing leave behind files that nobody looks at, never an entry
//! that is wrong; those files go when the folder is next tidied. An entry is used only if its bytes have the size and the
//! checksum that it names. The folder has a bound: what was used longest ago goes first.
//!
//! Entries that are of no use alone stay and go together: `KEY.kept` goes when `KEY` goes, and is as old as the younger of them.

use crate::map::{MapError, MappedFile};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The first line of an entry.
const MAGIC: &str = "conure store 1";
/// The last line: an entry that was cut off lacks it.
const END: &str = "end";
/// Parts that are older than this are left from something that failed. A younger one may still be written.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Bytes that no entry names and that are older than this were replaced: their entry appears as soon as they do.
const REPLACED: Duration = Duration::from_secs(60);

/// What a maker wants to remember with the bytes: names without spaces and values of one line.
pub type About = Vec<(String, String)>;

/// Why something is not in the store, or cannot be put there.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// What is there is not what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The bytes cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The maker failed.
    #[error("{0}")]
    Make(String),
    /// The bytes are more than the store may hold.
    #[error("{} may hold {bound} bytes, and this has {bytes}", folder.display())]
    TooLarge {
        /// The store.
        folder: PathBuf,
        /// Its bound.
        bound: u64,
        /// Bytes to keep.
        bytes: u64,
    },
}

/// An entry of a [`Store`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Bytes on the disk.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
    /// What its maker remembers.
    pub about: About,
}

/// What is kept in one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
    bound: u64,
}

/// An entry's file as it was read.
struct Manifest {
    size: u64,
    checksum: u64,
    about: About,
}

impl Store {
    /// The store in `folder`, which is made when something is kept; it may hold `bound` bytes.
    pub fn new(folder: impl Into<PathBuf>, bound: u64) -> Store {
        Store { folder: folder.into(), bound }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bytes kept under `key`, checked, and what was remembered; `None` if there is nothing. They stay valid while they
    /// are held, even if the entry is removed.
    ///
    /// # Errors
    /// An entry that is damaged; it is removed if it can be.
    pub fn load(&self, key: &str) -> Result<Option<(MappedFile, About)>, StoreError> {
        let path = self.entry(key);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(source) => return Err(StoreError::Io { action: "read", path, source }),
        };
        let found = Manifest::parse(&text, key)
            .map_err(|what| StoreError::Damaged { path: path.clone(), what })
            .and_then(|manifest| Ok((self.checked(key, &manifest)?, manifest.about)));
        match found {
            Ok(found) => {
                // What is used stays; a folder that cannot be written has no order to keep.
                let _ =
                    File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
                Ok(Some(found))
            }
            Err(error) => {
                self.remove(key);
                Err(error)
            }
        }
    }

    fn checked(&self, key: &str, manifest: &Manifest) -> Result<MappedFile, StoreError> {
        let path = self.blob(key, manifest.checksum);
        let map = MappedFile::open(&path)?;
        let damaged = |what: String| StoreError::Damaged { path: path.clone(), what };
        if map.len() as u64 != manifest.size {
            return Err(damaged(format!("it has {} bytes, not {}", map.len(), manifest.size)));
        }
        if checksum(map.bytes()) != manifest.checksum {
            return Err(damaged("its bytes are not those that were written".into()));
        }
        Ok(map)
    }

    /// Keeps under `key` what `make` writes into the file that it is given.
    ///
    /// # Errors
    /// What `make` or the file system says. Nothing is changed then.
    pub fn save(
        &self,
        key: &str,
        about: &[(String, String)],
        make: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), StoreError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { action, path, source }
        };
        fs::create_dir_all(&self.folder).map_err(failed("make", &self.folder))?;
        let blob = Part::new(&self.folder, key);
        // `make` may not say why it cannot write.
        let tried = File::create(&blob.path).and_then(|_| fs::remove_file(&blob.path));
        tried.map_err(failed("write into", &self.folder))?;
        make(&blob.path).map_err(StoreError::Make)?;
        settle(&blob.path).map_err(failed("write", &blob.path))?;
        let (size, checksum) = {
            let map = MappedFile::open(&blob.path)?;
            (map.len() as u64, checksum(map.bytes()))
        };
        if size > self.bound {
            return Err(StoreError::TooLarge { folder: self.folder.clone(), bound: self.bound, bytes: size });
        }
        let entry = Part::new(&self.folder, key);
        let text = Manifest { size, checksum, about: about.to_vec() }.text(key);
        let write = || -> io::Result<()> {
            let mut file = File::create(&entry.path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(failed("write", &entry.path))?;
        blob.publish(&self.blob(key, checksum)).map_err(failed("rename", &blob.path))?;
        entry.publish(&self.entry(key)).map_err(failed("rename", &entry.path))?;
        // The names are on the disk once the folder is.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        self.tidy(key);
        Ok(())
    }

    /// All entries, the one used last first. What cannot be read is left out.
    pub fn list(&self) -> Vec<Entry> {
        self.survey().0
    }

    /// How many files, of how many bytes, [`Store::clear`] removes besides entries: notes, bytes that were replaced, parts.
    pub fn rest(&self) -> (usize, u64) {
        let rest = self.survey().1;
        (rest.len(), rest.values().map(fs::Metadata::len).sum())
    }

    /// The entries, the one used last first, and the store's other files.
    fn survey(&self) -> (Vec<Entry>, HashMap<String, fs::Metadata>) {
        let mut rest: HashMap<String, fs::Metadata> = self.own_files().collect();
        let names: Vec<String> = rest.keys().filter(|name| name.ends_with(".entry")).cloned().collect();
        let mut entries: Vec<Entry> = names
            .into_iter()
            .filter_map(|name| {
                let key = name.strip_suffix(".entry")?;
                let manifest = Manifest::parse(&fs::read(self.folder.join(&name)).ok()?, key).ok()?;
                let used = rest.get(&name)?.modified().ok()?;
                let bytes = [name.clone(), blob_name(key, manifest.checksum)];
                let bytes = bytes.iter().filter_map(|name| rest.remove(name)).map(|meta| meta.len()).sum();
                Some(Entry { key: key.to_owned(), bytes, used, about: manifest.about })
            })
            .collect();
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
        (entries, rest)
    }

    /// Removes the entry of this key and those that go with it, if there are such and the file system lets them go.
    pub fn remove(&self, key: &str) {
        let goes = |name: &str| match name.strip_prefix(key) {
            Some(rest) if rest.starts_with('.') => rest.ends_with(".entry") || rest.ends_with(".blob"),
            Some(rest) => rest.starts_with('-') && rest.ends_with(".blob"),
            None => false,
        };
        for (name, _) in self.files().filter(|(name, _)| goes(name)) {
            let _ = fs::remove_file(self.folder.join(name));
        }
    }

    /// Removes everything, also what belongs to no entry; how many entries and bytes that were.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn clear(&self) -> Result<(usize, u64), StoreError> {
        let (mut entries, mut bytes) = (0, 0);
        for (name, meta) in self.own_files() {
            let path = self.folder.join(&name);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::Io { action: "remove", path, source }),
            }
            entries += usize::from(name.ends_with(".entry"));
            bytes += meta.len();
        }
        Ok((entries, bytes))
    }

    /// A short text kept under `key` beside the entries, such as what was found out about a file. One that cannot be read or
    /// kept is as if it were not there.
    pub fn note(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.join(format!("{key}.note"))).ok()?;
        let text = text.strip_prefix(MAGIC)?.strip_suffix(END)?;
        Some(text.trim().to_owned())
    }

    /// Keeps a text that [`Store::note`] gives back. What cannot be kept is found out again.
    pub fn set_note(&self, key: &str, text: &str) {
        let part = Part::new(&self.folder, key);
        let _ = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&part.path, format!("{MAGIC}\n{text}\n{END}")))
            .and_then(|()| part.publish(&self.folder.join(format!("{key}.note"))));
    }

    /// Removes what is abandoned or was replaced, and what was used longest ago until the rest is within the bound; never `kept`.
    fn tidy(&self, kept: &str) {
        let now = SystemTime::now();
        let (entries, rest) = self.survey();
        for (name, meta) in rest {
            let most = match name.rsplit('.').next() {
                Some("part") => ABANDONED,
                Some("blob") => REPLACED,
                _ => continue,
            };
            let age = meta.modified().ok().and_then(|written| now.duration_since(written).ok());
            if age.is_some_and(|age| age > most) {
                let _ = fs::remove_file(self.folder.join(name));
            }
        }
        // Of what goes together, whether it is whole, and when it was used last.
        let mut groups: BTreeMap<&str, (bool, SystemTime)> = BTreeMap::new();
        for entry in &entries {
            let owner = owner(&entry.key);
            let (whole, used) = groups.entry(owner).or_insert((false, entry.used));
            (*whole, *used) = (*whole || owner == entry.key, (*used).max(entry.used));
        }
        let mut oldest: Vec<_> = groups.into_iter().filter(|(key, _)| *key != owner(kept)).collect();
        oldest.sort_by_key(|&(_, age)| age);
        for (key, (whole, _)) in oldest {
            if whole && self.held() <= self.bound {
                return;
            }
            self.remove(key);
        }
    }

    /// Bytes of all its files.
    fn held(&self) -> u64 {
        self.own_files().map(|(_, meta)| meta.len()).sum()
    }

    /// The files that are the store's.
    fn own_files(&self) -> impl Iterator<Item = (String, fs::Metadata)> {
        self.files().filter(|(name, meta)| meta.is_file() && is_own(&self.folder, name))
    }

    fn files(&self) -> impl Iterator<Item = (String, fs::Metadata)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|e| Some((e.file_name().into_string().ok()?, e.metadata().ok()?)))
    }

    fn entry(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.entry"))
    }

    fn blob(&self, key: &str, checksum: u64) -> PathBuf {
        self.folder.join(blob_name(key, checksum))
    }
}

fn blob_name(key: &str, checksum: u64) -> String {
    format!("{key}-{checksum:016x}.blob")
}

/// The key with which an entry goes: what is before the first `.`.
fn owner(key: &str) -> &str {
    key.split_once('.').map_or(key, |(owner, _)| owner)
}

/// Brings a file to the disk, and finds out whether its maker stopped early without saying so, as a stream does that meets a
/// disk without room: then no more can be written to it either.
fn settle(path: &Path) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    let length = file.metadata()?.len();
    file.write_all(&[0; 4096])?;
    file.sync_all()?;
    file.set_len(length)?;
    file.sync_all()
}

/// Whether a file in `folder` is the store's: it has a name that only the store gives, or begins as its texts do. Others may
/// keep files of these endings in the same folder.
fn is_own(folder: &Path, name: &str) -> bool {
    let hex = |text: &str, digits: usize| {
        text.get(..digits).is_some_and(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match name.rsplit_once('.') {
        Some((stem, "blob")) => stem.rsplit_once('-').is_some_and(|(_, sum)| sum.len() == 16 && hex(sum, 16)),
        Some((stem, "part")) => {
            stem.starts_with('.') && stem.rsplit('.').take(3).filter(|n| number(n)).count() == 3
        }
        Some((stem, "entry" | "note")) => {
            // A damaged one no longer begins so.
            hex(stem.strip_prefix("file-").unwrap_or(stem), 64) || begins_as_ours(&folder.join(name))
        }
        _ => false,
    }
}

fn begins_as_ours(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *MAGIC.as_bytes()
}

impl Manifest {
    fn text(&self, key: &str) -> String {
        let mut text = format!("{MAGIC}\nkey {key}\nsize {}\nchecksum {:016x}\n", self.size, self.checksum);
        for (name, value) in &self.about {
            text.push_str(&format!("about {name} {}\n", value.replace(['\n', '\r'], " ")));
        }
        text + END + "\n"
    }

    /// What is wrong with it, if it is not one.
    fn parse(text: &[u8], key: &str) -> Result<Manifest, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) || text.lines().last() != Some(END) {
            return Err("it is cut off, or of another program".into());
        }
        let mut field = |name: &str| -> Result<&str, String> {
            let found = lines.next().and_then(|l| l.strip_prefix(name)).and_then(|l| l.strip_prefix(' '));
            found.ok_or_else(|| format!("it has no {name}"))
        };
        let of = field("key")?;
        if of != key {
            return Err(format!("it is of another key, {of}"));
        }
        let size = field("size")?.parse().map_err(|_| "its size is no number".to_owned())?;
        let checksum = u64::from_str_radix(field("checksum")?, 16);
        let checksum = checksum.map_err(|_| "its checksum is no number".to_owned())?;
        let about = lines
            .filter_map(|l| l.strip_prefix("about ")?.split_once(' '))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Ok(Manifest { size, checksum, about })
    }
}

/// A file that is being written, under a name that nobody else uses; removed unless it is published.
struct Part {
    path: PathBuf,
}

impl Part {
    fn new(folder: &Path, key: &str) -> Part {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Part { path: folder.join(format!(".{key}.{}.{nanos}.{count}.part", std::process::id())) }
    }

    fn publish(&self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A number that tells damaged bytes from whole ones; no protection against somebody who means harm, who could as well
/// change the program. Reads memory as fast as it comes: eight sums at once, each step of which no change survives.
pub fn checksum(bytes: &[u8]) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum ^ word).rotate_left(29).wrapping_mul(STEP);
    let mut sums = [1u64, 2, 3, 4, 5, 6, 7, 8];
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = mix(*sum, u64::from_le_bytes(*word));
        }
    }
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    for (sum, word) in sums.iter_mut().zip(last.as_chunks::<8>().0) {
        *sum = mix(*sum, u64::from_le_bytes(*word));
    }
    sums.iter().fold(bytes.len() as u64, |all, &sum| mix(mix(all, sum), sum >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("a/b"), 1 << 20);
        (dir, store)
    }

    fn writes(bytes: &'static [u8]) -> impl FnOnce(&Path) -> Result<(), String> {
        move |path| fs::write(path, bytes).map_err(|e| e.to_string())
    }

    fn about(value: &str) -> About {
        vec![("what".into(), value.into())]
    }

    fn names(store: &Store) -> Vec<String> {
        let mut names: Vec<String> = store.files().map(|(n, _)| n).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_kept_comes_back() {
        let (_dir, store) = store();
        assert!(store.load("k").unwrap().is_none());
        assert!(store.list().is_empty());
        store.save("k", &about("two words\nand a line"), writes(b"bytes")).unwrap();
        let (map, found) = store.load("k").unwrap().unwrap();
        assert_eq!((map.bytes(), found), (&b"bytes"[..], about("two words and a line")));
        store.save("k", &about("new"), writes(b"other bytes")).unwrap();
        assert_eq!(map.bytes(), b"bytes");
        assert_eq!(store.load("k").unwrap().unwrap().0.bytes(), b"other bytes");
        assert!(store.load("kk").unwrap().is_none());
        store.set_note("f", "it is so");
        assert_eq!((store.note("f").as_deref(), store.note("g")), (Some("it is so"), None));
        assert_eq!(store.list().len(), 1);
        assert_eq!(store.clear().unwrap().0, 1);
        assert!(names(&store).is_empty());
    }

    #[test]
    fn what_was_changed_is_refused_and_removed() {
        type Change = fn(&Path, &Path);
        let cases: [(&str, Change); 8] = [
            ("a flipped bit", |blob, _| {
                let mut bytes = fs::read(blob).unwrap();
                bytes[700] ^= 0x80;
                fs::write(blob, bytes).unwrap();
            }),
            ("a shorter blob", |blob, _| {
                let bytes = fs::read(blob).unwrap();
                fs::write(blob, &bytes[..999]).unwrap();
            }),
            ("an empty blob", |blob, _| fs::write(blob, b"").unwrap()),
            ("no blob", |blob, _| fs::remove_file(blob).unwrap()),
            ("a shorter entry", |_, entry| {
                let text = fs::read(entry).unwrap();
                fs::write(entry, &text[..text.len() - 5]).unwrap();
            }),
            ("an empty entry", |_, entry| fs::write(entry, b"").unwrap()),
            ("noise", |_, entry| fs::write(entry, [0xff; 100]).unwrap()),
            ("another key", |_, entry| {
                let text = fs::read_to_string(entry).unwrap();
                fs::write(entry, text.replace("key k", "key j")).unwrap();
            }),
        ];
        for (name, change) in cases {
            let (_dir, store) = store();
            store.save("k", &[], |path| fs::write(path, [7; 1000]).map_err(|e| e.to_string())).unwrap();
            let blob = names(&store).into_iter().find(|n| n.ends_with(".blob")).unwrap();
            change(&store.folder.join(blob), &store.entry("k"));
            assert!(store.load("k").is_err(), "{name}");
            assert!(store.load("k").unwrap().is_none(), "{name}: it is still there");
        }
    }

    #[test]
    fn a_maker_that_fails_leaves_nothing() {
        let (_dir, store) = store();
        store.save("k", &about("old"), writes(b"old")).unwrap();
        let half = |path: &Path| {
            fs::write(path, b"half of").unwrap();
            Err("no space left".to_owned())
        };
        assert_eq!(store.save("k", &about("new"), half).unwrap_err().to_string(), "no space left");
        assert!(matches!(store.save("k", &[], |_| Ok(())), Err(StoreError::Io { .. })));
        let big = |path: &Path| fs::write(path, vec![0; (1 << 20) + 1]).map_err(|e| e.to_string());
        assert!(matches!(store.save("k", &[], big), Err(StoreError::TooLarge { .. })));
        assert_eq!(store.load("k").unwrap().unwrap().0.bytes(), b"old");
        assert!(!names(&store).iter().any(|n| n.ends_with(".part")), "{:?}", names(&store));
    }

    #[test]
    fn many_writers_of_one_key_leave_one_of_theirs() {
        let (_dir, store) = store();
        std::thread::scope(|scope| {
            for t in 0..4u8 {
                let store = &store;
                scope.spawn(move || {
                    for i in 0..20u8 {
                        let bytes = vec![t ^ i; 4096 + usize::from(t)];
                        store
                            .save("k", &about(&t.to_string()), |p| {
                                fs::write(p, &bytes).map_err(|e| e.to_string())
                            })
                            .unwrap();
                        let (map, about) = store.load("k").unwrap().unwrap();
                        let writer: usize = about[0].1.parse().unwrap();
                        assert_eq!(map.len(), 4096 + writer);
                        assert!(map.bytes().iter().all(|b| *b == map.bytes()[0]));
                    }
                });
            }
        });
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let (_dir, store) = store();
        let save = |key: &str| {
            store
                .save(key, &[], |path| fs::write(path, vec![1; 400_000]).map_err(|e| e.to_string()))
                .unwrap();
        };
        let age = |key: &str, seconds| {
            let file = File::options().append(true).open(store.entry(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        save("a");
        save("b");
        age("a", 50);
        age("b", 100);
        // The load makes b the younger.
        assert!(store.load("b").unwrap().is_some());
        save("c");
        let keys: Vec<String> = store.list().into_iter().map(|e| e.key).collect();
        assert_eq!(keys, ["c", "b"]);
        assert_eq!(names(&store).len(), 4);
    }

    #[test]
    fn what_is_of_no_use_alone_goes_together() {
        let keys = |store: &Store| {
            let mut keys: Vec<String> = store.list().into_iter().map(|e| e.key).collect();
            keys.sort();
            keys
        };
        let save = |store: &Store, key: &str| {
            store
                .save(key, &[], |path| fs::write(path, vec![1; 300_000]).map_err(|e| e.to_string()))
                .unwrap();
        };
        let age = |store: &Store, key: &str, seconds| {
            let file = File::options().append(true).open(store.entry(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        // Either of the two that belong together was used last.
        for (main, kept, gone) in [(50, 300, "c"), (300, 50, "c"), (200, 300, "a"), (300, 200, "a")] {
            let (_dir, store) = store();
            for (key, seconds) in [("a", main), ("a.kept", kept), ("c", 100)] {
                save(&store, key);
                age(&store, key, seconds);
            }
            save(&store, "d");
            let left: &[&str] = if gone == "a" { &["c", "d"] } else { &["a", "a.kept", "d"] };
            assert_eq!(keys(&store), left, "{main} {kept}");
        }
        let (_dir, store) = store();
        ["a", "a.kept", "ab"].iter().for_each(|key| save(&store, key));
        store.remove("a");
        assert_eq!((keys(&store), names(&store).len()), (vec!["ab".into()], 2));
        // One that is left alone goes even where there is room.
        save(&store, "x.kept");
        save(&store, "y");
        assert_eq!(keys(&store), ["ab", "y"]);
    }

    #[test]
    fn all_that_is_removed_is_counted_before() {
        let (_dir, store) = store();
        let long =
            |bytes: usize| move |path: &Path| fs::write(path, vec![3; bytes]).map_err(|e| e.to_string());
        store.save("a", &[], long(100)).unwrap();
        store.save("a", &[], long(2000)).unwrap();
        store.save("b", &[], long(10)).unwrap();
        store.set_note("n", "x");
        fs::write(store.folder.join(".c.1.2.3.part"), b"1234").unwrap();
        fs::write(store.folder.join(format!("{}.entry", "0a".repeat(32))), b"12").unwrap();
        let others = ["1234.blob", "a.blob", "film.part", "list.note", "my.entry", "other.txt"];
        others.iter().for_each(|name| fs::write(store.folder.join(name), b"of somebody else").unwrap());
        let listed: u64 = store.list().iter().map(|e| e.bytes).sum();
        let (files, bytes) = store.rest();
        assert!(files == 4 && listed > 2010, "{files} {listed}: {:?}", names(&store));
        assert_eq!(store.clear().unwrap().1, listed + bytes);
        assert_eq!((store.rest(), names(&store)), ((0, 0), others.map(String::from).to_vec()));
    }

    #[test]
    fn bytes_that_were_replaced_do_not_stay_long() {
        let (_dir, store) = store();
        let old = |store: &Store, name: &str| {
            let file = File::options().append(true).open(store.folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(90)).unwrap();
        };
        store.save("a", &[], writes(b"first")).unwrap();
        let first = names(&store).into_iter().find(|n| n.ends_with(".blob")).unwrap();
        store.save("a", &[], writes(b"second")).unwrap();
        assert!(names(&store).contains(&first), "another process may be about to read it");
        old(&store, &first);
        store.save("b", &[], writes(b"b")).unwrap();
        assert!(!names(&store).contains(&first));
        assert_eq!(store.load("a").unwrap().unwrap().0.bytes(), b"second");
    }

    #[test]
    fn what_is_abandoned_goes_in_time() {
        let (_dir, store) = store();
        fs::create_dir_all(&store.folder).unwrap();
        let others = ["1234.blob", ".film.mkv.part", "other.txt"];
        let ours = [(".x.1.2.3.part", 4000), (".y.1.2.3.part", 5), ("z-0000000000000000.blob", 4000)];
        for (name, seconds) in ours.into_iter().chain(others.map(|name| (name, 4000))) {
            let path = store.folder.join(name);
            fs::write(&path, b"x").unwrap();
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        }
        store.save("k", &[], writes(b"x")).unwrap();
        let left: Vec<String> = names(&store).into_iter().filter(|n| !n.starts_with('k')).collect();
        assert_eq!(left, [".film.mkv.part", ".y.1.2.3.part", "1234.blob", "other.txt"]);
        store.clear().unwrap();
        assert_eq!(names(&store), [".film.mkv.part", "1234.blob", "other.txt"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_cannot_be_written_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let store = Store::new(file.join("below"), 1 << 20);
        let error = store.save("k", &[], writes(b"x")).unwrap_err().to_string();
        assert!(error.starts_with("cannot make "), "{error}");
        assert!(store.list().is_empty() && store.note("k").is_none());
        store.set_note("k", "x");
    }

    #[test]
    fn every_byte_counts() {
        let bytes: Vec<u8> = (0..200u8).collect();
        let whole = checksum(&bytes);
        for i in 0..bytes.len() {
            for bit in [1u8, 0x80] {
                let mut other = bytes.clone();
                other[i] ^= bit;
                assert_ne!(checksum(&other), whole, "byte {i}");
            }
            assert_ne!(checksum(&bytes[..i]), whole);
        }
        // The same bit in two words of one sum.
        let (mut a, zeros) = ([0u8; 256], [0u8; 256]);
        (a[7], a[71]) = (0x80, 0x80);
        assert_ne!(checksum(&a), checksum(&zeros));
        assert_ne!(checksum(&[0; 5]), checksum(&[0; 6]));
    }
}
