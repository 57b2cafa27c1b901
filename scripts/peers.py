#!/usr/bin/env python3
"""Times the encoder of a GGUF model with its CTC head in Conure, onnxruntime and OpenVINO, taking turns.

`cargo xtask peers` runs it with what it needs installed (numpy, onnx, onnxruntime, openvino, pinned there):

    peers.py --conure PROGRAM --work FOLDER F32.gguf [OTHER.gguf ...]

The graph is written to ONNX from the same weights, for each length of audio by itself, which lets the peers fold what
depends on the length only. Every engine lives in a process of its own; in a round each runs once, one after the other.
"""

import argparse
import json
import os
import struct
import sys
import time

import numpy as np

from engines import Engine, median


def read_gguf(path):
    """The metadata and the f32 tensors of a GGUF file; others are left out."""
    data = np.memmap(path, np.uint8, "r")
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return bytes(data[at - length : at]).decode()

    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(forms[kind])

    take("I"), take("I")
    tensors, keys = take("Q"), take("Q")
    meta = {}
    for _ in range(keys):
        key = text()
        meta[key] = value(take("I"))
    infos = []
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    align = meta.get("general.alignment", 32)
    base = (at + align - 1) // align * align
    out = {}
    for name, dims, kind, offset in infos:
        if kind == 0:
            count = int(np.prod(dims))
            raw = data[base + offset : base + offset + 4 * count]
            out[name] = np.frombuffer(raw, np.float32).reshape(dims[::-1])
    return meta, out


class Onnx:
    """An ONNX graph while it is written."""

    def __init__(self, weights_int8):
        import onnx

        self.onnx = onnx
        self.nodes, self.initialisers, self.count = [], [], 0
        self.weights_int8 = weights_int8

    def constant(self, array):
        self.count += 1
        name = f"c{self.count}"
        self.initialisers.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def __call__(self, op, *inputs, **attributes):
        self.count += 1
        name = f"v{self.count}"
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [name], **attributes))
        return name

    def product(self, x, weight):
        """x times the transpose of weight [N, K]; in eight bits with a scale for each output where that is asked for."""
        weight = weight.reshape(weight.shape[0], -1)
        if not self.weights_int8:
            return self("MatMul", x, weight.T)
        scale = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
        quanta = np.clip(np.rint(weight / scale[:, None]), -127, 127).astype(np.int8)
        zero = np.zeros(len(scale), np.int8)
        return self("MatMul", x, self("DequantizeLinear", quanta.T, scale, zero, axis=1))


def i64(*values):
    return np.array(values, np.int64)


def write_onnx(path, meta, w, frames, weights_int8=False):
    """The encoder with its CTC head for `frames` frames of log-mel."""
    key = lambda name: meta["parakeet." + name]  # noqa: E731
    mels, d, heads = key("encoder.feat_in"), key("encoder.d_model"), key("encoder.n_heads")
    dk = d // heads
    g = Onnx(weights_int8)

    def linear(name, x):
        y = g.product(x, w[name + ".weight"])
        return g("Add", y, w[name + ".bias"]) if name + ".bias" in w else y

    def norm(name, x):
        return g("LayerNormalization", x, w[name + ".weight"], w[name + ".bias"], axis=-1, epsilon=1e-5)

    def silu(x):
        return g("Mul", x, g("Sigmoid", x))

    def conv(name, x, groups, stride, pad):
        weight = w[name + ".weight"]
        return g("Conv", x, weight, w[name + ".bias"], group=groups, strides=[stride] * 2, pads=[pad] * 4)

    channels = key("encoder.subsampling_conv_channels")
    p = "encoder.pre_encode."
    x = g("Reshape", "log_mel", i64(1, 1, frames, mels))
    x = g("Relu", conv(p + "conv.0", x, 1, 2, 1))
    for depthwise, pointwise in [(2, 3), (5, 6)]:
        x = conv(f"{p}conv.{depthwise}", x, channels, 2, 1)
        x = g("Relu", conv(f"{p}conv.{pointwise}", x, 1, 1, 0))
    t = frames
    for _ in range(3):
        t = (t - 1) // 2 + 1
    x = linear(p + "out", g("Reshape", g("Transpose", x, perm=[0, 2, 1, 3]), i64(1, t, -1)))

    position = np.arange(t - 1, -t, -1)[:, None]
    angle = position * np.exp(np.arange(0, d, 2) * -(np.log(10000.0) / d))
    table = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(2 * t - 1, d).astype(np.float32)

    def split(x, perm=(0, 2, 1, 3)):
        return g("Transpose", g("Reshape", x, i64(1, -1, heads, dk)), perm=list(perm))

    def attention(l, x):
        q = g("Reshape", linear(l + "linear_q", x), i64(1, t, heads, dk))
        k = split(linear(l + "linear_k", x), (0, 2, 3, 1))
        v = split(linear(l + "linear_v", x))
        pos = split(linear(l + "linear_pos", g.constant(table)), (0, 2, 3, 1))
        with_bias = lambda b: g("Transpose", g("Add", q, w[l + b]), perm=[0, 2, 1, 3])  # noqa: E731
        content = g("MatMul", with_bias("pos_bias_u"), k)
        shifted = g("MatMul", with_bias("pos_bias_v"), pos)
        # Row i is to begin at column t - 1 - i: one more column in front, read as rows one element longer.
        shifted = g("Pad", shifted, i64(0, 0, 0, 1, 0, 0, 0, 0), np.float32(0))
        shifted = g("Slice", g("Reshape", shifted, i64(1, heads, 2 * t, t)), i64(1), i64(2 * t), i64(2))
        shifted = g("Slice", g("Reshape", shifted, i64(1, heads, t, 2 * t - 1)), i64(0), i64(t), i64(3))
        scores = g("Mul", g("Add", content, shifted), np.float32(dk**-0.5))
        y = g("MatMul", g("Softmax", scores, axis=-1), v)
        return linear(l + "linear_out", g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), i64(1, t, d)))

    def convolution(l, x):
        y = linear(l + "pointwise_conv1", x)
        a, b = (g("Slice", y, *[i64(v) for v in at], i64(2)) for at in [(0, d), (d, 2 * d)])
        x = g("Transpose", g("Mul", a, g("Sigmoid", b)), perm=[0, 2, 1])
        weight, name = w[l + "depthwise_conv.weight"], l + "depthwise_conv.bias"
        taps = weight.shape[-1]
        bias = [w[name]] if name in w else []
        x = g("Conv", x, weight, *bias, group=d, pads=[(taps - 1) // 2] * 2)
        stats = [w[l + "batch_norm." + s] for s in ["weight", "bias", "running_mean", "running_var"]]
        x = silu(g("BatchNormalization", x, *stats, epsilon=1e-5))
        return linear(l + "pointwise_conv2", g("Transpose", x, perm=[0, 2, 1]))

    def feed_forward(l, n, x):
        y = linear(f"{l}feed_forward{n}.linear1", norm(f"{l}norm_feed_forward{n}", x))
        y = linear(f"{l}feed_forward{n}.linear2", silu(y))
        return g("Add", x, g("Mul", y, np.float32(0.5)))

    for layer in range(key("encoder.n_layers")):
        l = f"encoder.layers.{layer}."
        x = feed_forward(l, 1, x)
        x = g("Add", x, attention(l + "self_attn.", norm(l + "norm_self_att", x)))
        x = g("Add", x, convolution(l + "conv.", norm(l + "norm_conv", x)))
        x = norm(l + "norm_out", feed_forward(l, 2, x))
    head = "ctc_decoder.decoder_layers.0" if "ctc_decoder.decoder_layers.0.weight" in w else "decoder.decoder_layers.0"
    logits = linear(head, x)
    g.nodes.append(g.onnx.helper.make_node("LogSoftmax", [logits], ["log_probs"], axis=-1))

    info = g.onnx.helper.make_tensor_value_info
    real = g.onnx.TensorProto.FLOAT
    graph = g.onnx.helper.make_graph(
        g.nodes,
        "encoder",
        [info("log_mel", real, [1, frames, mels])],
        [info("log_probs", real, [1, t, w[head + ".weight"].shape[0]])],
        g.initialisers,
    )
    opset = g.onnx.helper.make_opsetid("", 17)
    model = g.onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    # A file of ONNX ends at 2 GiB; weights of more lie beside it.
    large = sum(len(i.raw_data) for i in g.initialisers) > 3 << 29
    beside = {"save_as_external_data": True, "location": os.path.basename(path) + ".data"} if large else {}
    g.onnx.save(model, path, **beside)


def features(frames, mels):
    """As examples/encoder_speed.rs makes them."""
    i = np.arange(frames * mels, dtype=np.int64) % 10007
    return (np.sin(i.astype(np.float32) * np.float32(0.731)) * np.float32(1.5)).reshape(1, frames, mels)


def peak_rss():
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) / 1024 for l in status if l.startswith("VmHWM"))


def worker(engine, path, threads, shape):
    """One peer: answers lines as `encoder_speed --serve` does."""
    x = features(*shape)
    if engine == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        run = lambda: session.run(None, {"log_mel": x})[0]  # noqa: E731
    else:
        import openvino as ov

        config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        config["INFERENCE_PRECISION_HINT"] = "f32"
        request = ov.Core().compile_model(path, "CPU", config).create_infer_request()

        def run():
            request.infer({"log_mel": x}, share_inputs=True)
            return request.get_output_tensor(0).data

    last = None

    def timed():
        nonlocal last
        start = time.perf_counter()
        last = run()
        return f"{(time.perf_counter() - start) * 1e3:.3f}"

    print(timed(), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["rss"]:
            print(f"{peak_rss():.1f}", flush=True)
        elif words[:1] == ["dump"]:
            np.asarray(last, np.float32).tofile(words[1])
            print("ok", flush=True)
        else:
            print(timed(), flush=True)


def quantise(path, to):
    """The f32 model with its products in eight bits, activations quantised as they come: onnxruntime's own way."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    how = {"weight_type": QuantType.QInt8, "op_types_to_quantize": ["MatMul"], "per_channel": False}
    quantize_dynamic(path, to, use_external_data_format=os.path.exists(path + ".data"), **how)


def prepare(options, meta, w, seconds):
    """The peers' models for this length, made once."""
    frames = int(seconds * 100) + 1
    name = os.path.basename(options.models[0]).split(".f32")[0]
    stem = os.path.join(options.work, f"{name}-{seconds:g}s")
    plain, weights8, dynamic8 = stem + "-f32.onnx", stem + "-weights8.onnx", stem + "-dynamic8.onnx"
    if not os.path.exists(plain):
        write_onnx(plain, meta, w, frames)
    if not os.path.exists(weights8):
        write_onnx(weights8, meta, w, frames, weights_int8=True)
    if not os.path.exists(dynamic8):
        quantise(plain, dynamic8)
    return frames, [
        ("onnxruntime", "f32", plain),
        ("OpenVINO", "f32", plain),
        ("onnxruntime", "int8 dynamic", dynamic8),
        ("OpenVINO", "int8 weights", weights8),
    ]


def compare(engines, work):
    """Largest differences of log-probabilities against onnxruntime in f32."""
    outputs = {}
    for engine in engines:
        path = os.path.join(work, "log_probs.f32")
        engine.ask("dump " + path)
        outputs[engine.name] = np.fromfile(path, np.float32)
    reference = outputs["onnxruntime f32"]
    return {name: float(np.abs(out - reference).max()) for name, out in outputs.items()}


def kind_of(path):
    """TYPE of NAME.TYPE.gguf."""
    return os.path.basename(path).rsplit(".", 2)[-2]


def measure(options, meta, w, seconds, threads):
    """All engines at one length with so many threads."""
    frames, peers = prepare(options, meta, w, seconds)
    mels = meta["parakeet.encoder.feat_in"]
    engines = []
    for path in options.models:
        name = "Conure " + kind_of(path)
        command = [options.conure, path, "--serve", "--threads", str(threads), "--seconds", str(seconds)]
        engines.append(Engine(name, command))
        # With activations rounded to 8 bits, as the peers do in int8: for each 32 a scale, or as theirs for each row or more.
        if kind_of(path) not in ["f32", "f16", "bf16"]:
            engines.append(Engine(name + " fast", command + ["--precision", "fast"]))
        if kind_of(path) in ["f32", "q8_0"]:
            engines.append(Engine(name + " int8", command + ["--precision", "int8"]))
        if options.cpu_only:
            continue
        # The same on OpenVINO, through Conure's own graph: beside OpenVINO's own reader of ONNX.
        engines.append(Engine(f"Conure on OpenVINO {kind_of(path)}", command + ["--device", "openvino:CPU"]))
    for engine, kind, path in peers:
        command = [sys.executable, __file__, "--worker", engine, path, str(threads), str(frames), str(mels)]
        engines.append(Engine(f"{engine} {kind}", command))
    times = {engine.name: [] for engine in engines}
    until = time.monotonic() + options.budget
    rounds = 0
    while rounds < 3 or (rounds < options.rounds and time.monotonic() < until):
        for engine in engines:
            # Threads of the engine before may still spin; they are asleep after this.
            time.sleep(0.05)
            engine.ask("run")  # its weights come back into the caches, as in a program that does nothing else
            times[engine.name].append(float(engine.ask("run")))
        rounds += 1
    differences = compare(engines, options.work) if seconds == options.seconds[0] else {}
    rows = []
    for engine in engines:
        taken = times[engine.name]
        row = {"engine": engine.name, "seconds": seconds, "threads": threads, "best_ms": min(taken)}
        row |= {"median_ms": median(taken), "rounds": rounds, "rss_mb": float(engine.ask("rss"))}
        row["difference"] = differences.get(engine.name)
        rows.append(row)
        engine.close()
    return rows


def table(options, rows):
    cases = [(s, t) for s in options.seconds for t in options.threads]
    head = [f"{s:g} s, {t} thr" for s, t in cases] + [f"MiB at {options.seconds[-1]:g} s", "largest difference"]
    lines = ["| median ms | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    names = list(dict.fromkeys(r["engine"] for r in rows))
    for name in names:
        mine = {(r["seconds"], r["threads"]): r for r in rows if r["engine"] == name}
        cells = [f"{mine[c]['median_ms']:.0f}" if c in mine else "-" for c in cases]
        last = mine[cases[-1]]
        difference = next((r["difference"] for r in mine.values() if r["difference"] is not None), None)
        cells += [f"{last['rss_mb']:.0f}", "-" if difference is None else f"{difference:.1e}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ours, peers = names[0], [n for n in names if n.endswith(" f32") and not n.startswith("Conure")]
    ratios = []
    for case in cases:
        of = {r["engine"]: r["median_ms"] for r in rows if (r["seconds"], r["threads"]) == case}
        ratios.append(f"{min(of[p] for p in peers) / of[ours]:.2f}")
    lines.append(f"| faster f32 peer / {ours} | " + " | ".join(ratios) + " | | |")
    for ours in ["Conure q8_0 fast", "Conure q8_0 int8", "Conure f32 int8"]:
        if ours not in names:
            continue
        cells = []
        for case in cases:
            of = {r["engine"]: r["median_ms"] for r in rows if (r["seconds"], r["threads"]) == case}
            fastest = min(of["onnxruntime int8 dynamic"], of["OpenVINO int8 weights"])
            cells.append(f"{fastest / of[ours]:.2f}")
        lines.append(f"| faster int8 peer / {ours} | " + " | ".join(cells) + " | | |")
    for reader, kind in [("OpenVINO f32", "f32"), ("OpenVINO int8 weights", "q8_0")]:
        through = f"Conure on OpenVINO {kind}"
        if reader in names and through in names:
            at = lambda name, case: next(  # noqa: E731
                r["median_ms"] for r in rows if r["engine"] == name and (r["seconds"], r["threads"]) == case
            )
            cells = [f"{at(reader, case) / at(through, case):.2f}" for case in cases]
            lines.append(f"| {reader} / {through} | " + " | ".join(cells) + " | | |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--worker"]:
        engine, path, threads, frames, mels = sys.argv[2:]
        return worker(engine, path, int(threads), (int(frames), int(mels)))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conure", required=True, help="the example encoder_speed, built in release")
    parser.add_argument("--work", required=True, help="a folder for models and results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=60, help="seconds for each length and number of threads")
    parser.add_argument("--seconds", type=float, nargs="+", default=[7.4, 60])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cpu-only", action="store_true", help="leave out Conure on OpenVINO")
    parser.add_argument("models", nargs="+", help="NAME.TYPE.gguf; the first is the f32 one that is exported")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    meta, w = read_gguf(options.models[0])
    rows = []
    for seconds in options.seconds:
        for threads in options.threads:
            rows += measure(options, meta, w, seconds, threads)
    with open(os.path.join(options.work, "peers.json"), "w") as out:
        json.dump(rows, out, indent=1)
    print(table(options, rows))


if __name__ == "__main__":
    main()
