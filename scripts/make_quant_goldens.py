#!/usr/bin/env python3
"""Makes tests/data/quant: what other implementations of the block formats make of the same data.

Needs the PyPI package `gguf` 0.19.0 (with numpy); it decodes every format and encodes all but the K-quants and IQ4_NL:

    python3 -m venv target/venv-quant && target/venv-quant/bin/pip install gguf==0.19.0
    target/venv-quant/bin/python scripts/make_quant_goldens.py [--ggml LIBGGML_BASE.so]

The K-quants and IQ4_NL are encoded by libggml itself, any build for plain x86-64 (one with fused multiply-adds differs in the
last bit of some blocks), for instance the one inside the PyPI wheel `pywhispercpp` 1.5.1. Without --ggml the
committed encodings stay as they are.

All files are raw little-endian arrays:
    values.f32             the values to encode: blocks of 256, see `values()`
    values.FORMAT          values.f32 encoded
    blocks.FORMAT          blocks to decode: random bytes with chosen scales
    blocks.FORMAT.f32      blocks.FORMAT decoded
"""

import argparse
import ctypes
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "quant"
# name: (type, bytes a block, offsets of the f16 scales in it)
FORMATS = {
    "f16": (T.F16, 2, []),
    "bf16": (T.BF16, 2, []),
    "q4_0": (T.Q4_0, 18, [0]),
    "q4_1": (T.Q4_1, 20, [0, 2]),
    "q5_0": (T.Q5_0, 22, [0]),
    "q5_1": (T.Q5_1, 24, [0, 2]),
    "q8_0": (T.Q8_0, 34, [0]),
    "q4_k": (T.Q4_K, 144, [0, 2]),
    "q5_k": (T.Q5_K, 176, [0, 2]),
    "q6_k": (T.Q6_K, 210, [208]),
    "iq4_nl": (T.IQ4_NL, 18, [0]),
    "mxfp4": (T.MXFP4, 17, []),
}
# What the package decodes and does not encode.
BY_GGML = ["q4_k", "q5_k", "q6_k", "iq4_nl"]


def values(rng):
    """Blocks of 256 of every kind that weights come in, and of the kinds that trip encoders.

    Blocks of -0.0 are left out: there `gguf` stores the scale 0.0 for q4_0 and q5_0, and libggml -0.0.
    """
    normal = rng.standard_normal(256)
    rows = [
        normal,
        normal * 0.02,
        rng.standard_t(2, 256),
        rng.uniform(-1, 1, 256),
        rng.uniform(0.5, 1.5, 256),
        rng.uniform(-1.5, -0.5, 256),
        np.zeros(256),
        np.full(256, 0.25),
        np.full(256, -3.0),
        np.where(np.arange(256) == 100, 1.0, 0.0),
        np.where(np.arange(256) % 37 == 0, -1e4, normal * 1e-3),
        np.repeat(rng.standard_normal(8), 32),
        np.arange(256) - 128.0,
        np.where(np.arange(256) < 128, 0.0, normal),
        np.sign(normal),
        np.round(normal * 2) / 2,
        normal * 1e-6,
        normal * 1e-9,
        normal * 1e4,
    ]
    rows += list(rng.standard_normal((12, 256)) * np.exp(rng.uniform(-6, 3, (12, 1))))
    return np.stack(rows).astype(np.float32)


def blocks(rng, size, scales, count):
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        d = rng.standard_normal(count) * np.exp(rng.uniform(-12, 6, count))
        d[:4] = [0.0, -0.0, 6e-8, 65504.0]
        raw[:, at : at + 2] = d.astype("<f2").view(np.uint8).reshape(count, 2)
    return raw


def ggml_encode(library, kind, data):
    lib = ctypes.CDLL(library)
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]
    out = np.zeros(data.size * 8, dtype=np.uint8)
    size = lib.ggml_quantize_chunk(
        int(kind), data.ctypes.data, out.ctypes.data, 0, data.shape[0], data.shape[1], None
    )
    return out[:size]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", help="a libggml-base.so that encodes the K-quants and IQ4_NL")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    data = values(rng)
    data.astype("<f4").tofile(OUT / "values.f32")
    for name, (kind, size, scales) in FORMATS.items():
        raw = blocks(rng, size, scales, 2048 if size == 2 else 24)
        decoded = quants.dequantize(raw.reshape(-1), kind)
        raw.tofile(OUT / f"blocks.{name}")
        decoded.astype("<f4").tofile(OUT / f"blocks.{name}.f32")
        if name in BY_GGML:
            if args.ggml:
                encoded = ggml_encode(args.ggml, kind, data)
            else:
                print(f"{name}: no --ggml, encoding left as it is")
                continue
        else:
            encoded = quants.quantize(data, kind)
            if args.ggml and name not in ("f16", "bf16"):
                same = ggml_encode(args.ggml, kind, data) == encoded.view(np.uint8).reshape(-1)
                print(f"{name}: gguf and libggml agree in {same.sum()} of {same.size} bytes")
        encoded.view(np.uint8).tofile(OUT / f"values.{name}")


if __name__ == "__main__":
    main()
