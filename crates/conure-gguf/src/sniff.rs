//! What a file that is not GGUF is instead: people save web pages, pointers and archives under a model's name.

/// Says what bytes look like that do not start as a GGUF file, with advice.
pub(crate) fn looks_like(bytes: &[u8]) -> String {
    const STARTS: [(&[u8], &str); 20] = [
        (b"\x1f\x8b", "it is gzip data; unpack it first"),
        (
            b"PK\x03\x04",
            "it is a zip archive or a PyTorch checkpoint; unpack or convert it (`conure convert`)",
        ),
        (b"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself (`git lfs pull`)"),
        (b"lmgg", "it is a model in the GGML format of 2022; get a GGUF file of it"),
        (b"fmgg", "it is a model in the GGMF format of 2023; get a GGUF file of it"),
        (b"tjgg", "it is a model in the GGJT format of 2023; get a GGUF file of it"),
        (b"algg", "it is a GGLA adapter of 2023; get a GGUF file of it"),
        (b"FUGG", "it starts with GGUF backwards and is damaged"),
        (b"RIFF", "it is a WAV or other RIFF file; is the audio given where the model belongs?"),
        (b"fLaC", "it is FLAC audio; is the audio given where the model belongs?"),
        (b"OggS", "it is Ogg audio; is the audio given where the model belongs?"),
        (b"ID3", "it is MP3 audio; is the audio given where the model belongs?"),
        (b"\x28\xb5\x2f\xfd", "it is zstd data; unpack it first"),
        (b"\xfd7zXZ", "it is xz data; unpack it first"),
        (b"BZh", "it is bzip2 data; unpack it first"),
        (b"7z\xbc\xaf", "it is a 7-Zip archive; unpack it first"),
        (b"%PDF", "it is a PDF document"),
        (b"\x89PNG", "it is a PNG picture"),
        (b"\x7fELF", "it is a program"),
        (b"\x80\x02", "it is a Python pickle; convert it (`conure convert`)"),
    ];
    if bytes.is_empty() {
        return "it is empty; the download failed".to_owned();
    }
    if let Some((_, what)) = STARTS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return (*what).to_owned();
    }
    if bytes.len() < 4 && b"GGUF".starts_with(bytes) {
        return format!("it ends after {} bytes; the download is incomplete", bytes.len());
    }
    if is_safetensors(bytes) {
        return "it is a safetensors file; convert it (`conure convert`)".to_owned();
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return "it is a tar archive; a .nemo checkpoint is one: convert it (`conure convert`)".to_owned();
    }
    // The start suffices to tell text; a file may be huge.
    let start = &bytes[..bytes.len().min(4096)];
    if start.iter().all(|&b| b == 0) {
        return "it starts with zeros only; the download failed after reserving its place".to_owned();
    }
    text(start).unwrap_or_else(|| format!("it starts with the bytes {:02x?}", &bytes[..bytes.len().min(8)]))
}

/// A header length, and JSON behind it.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk() else { return false };
    u64::from_le_bytes(*len) < 1 << 27 && rest.starts_with(b"{\"")
}

/// What kind of text it is; `None` if it is not text.
fn text(start: &[u8]) -> Option<String> {
    if start.iter().any(|&b| b < 9 || (b > 13 && b < 32)) {
        return None;
    }
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The cut may fall into a character.
        Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 => {
            str::from_utf8(&start[..e.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let lower = text.get(..200).unwrap_or(text).to_ascii_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<head") {
        return Some(
            "it is a web page (HTML); the address is that of a page, or asks for a login; download the file itself"
                .to_owned(),
        );
    }
    let line: String = text.lines().next().unwrap_or_default().chars().take(60).collect();
    let kind = if lower.starts_with('{') || lower.starts_with('[') {
        "JSON"
    } else if lower.starts_with('<') {
        "XML"
    } else {
        "text"
    };
    Some(format!("it is {kind}, perhaps a message instead of the file: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_people_have() {
        let mut tar = vec![0; 512];
        tar[..4].copy_from_slice(b"./mo");
        tar[257..262].copy_from_slice(b"ustar");
        let mut safetensors = 100u64.to_le_bytes().to_vec();
        safetensors.extend(b"{\"__metadata__\":{}}");
        let cases: Vec<(&[u8], &str)> = vec![
            (b"", "empty"),
            (b"GG", "ends after 2 bytes"),
            (b"<!DOCTYPE html>\n<html lang=\"en\">", "HTML"),
            (b"\xef\xbb\xbf \n<HTML>", "HTML"),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied", "XML"),
            (
                b"{\"error\":\"Repository not found\"}",
                "JSON, perhaps a message instead of the file: \"{\\\"error",
            ),
            (b"Entry not found", "text, perhaps a message instead of the file: \"Entry not found\""),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
            (b"\x1f\x8b\x08\x00", "gzip"),
            (b"PK\x03\x04\x00", "zip archive or a PyTorch checkpoint"),
            (b"RIFF\x24\x00\x00\x00WAVE", "WAV"),
            (b"lmgg\x01\x00", "GGML format of 2022"),
            (&tar, ".nemo"),
            (&safetensors, "safetensors"),
            (&[0; 5000], "zeros only"),
            (b"\x01\x02\x03\xff", "starts with the bytes [01, 02, 03, ff]"),
            (b"\xff", "[ff]"),
        ];
        for (bytes, expected) in cases {
            let said = looks_like(bytes);
            assert!(said.contains(expected), "{bytes:x?}: {said}");
        }
    }
}
