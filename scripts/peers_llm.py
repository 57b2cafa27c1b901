"""Reading a prompt and token after token: Conure beside llama.cpp and OpenVINO's own reader of GGUF.

Called by `cargo xtask peers --llm`. Every engine is a process that does a round when it is asked to, so that all take turns: what
the machine does meanwhile meets all alike. All read the same tokens.
"""

import argparse
import json
import os
import sys
import time

from engines import Engine, median

BEFORE = 16  # tokens that are there before single ones are timed, as in examples/language_speed.rs
CONTEXT = 1024


def token(at):
    return 1000 + at * 37 % 5000


def resident():
    with open("/proc/self/status") as status:
        kib = {l.split(":")[0]: int(l.split()[1]) for l in status if l.startswith(("VmRSS", "VmHWM"))}
    return f"{kib['VmRSS'] / 1024:.1f} {kib['VmHWM'] / 1024:.1f}"


class LlamaCpp:
    def __init__(self, path, threads):
        import llama_cpp

        self.llm = llama_cpp.Llama(
            path, n_ctx=CONTEXT, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def reset(self):
        self.llm.reset()

    def read(self, ids):
        self.llm.eval(ids)


class OpenVino:
    """Through the front end for GGUF in OpenVINO's own package, with the caches of its graph made states."""

    def __init__(self, path, threads):
        import glob

        import numpy
        import openvino as ov
        from openvino.frontend import FrontEndManager

        self.np, core, fronts = numpy, ov.Core(), FrontEndManager()
        (library,) = glob.glob(os.path.join(os.path.dirname(ov.__file__), "libs", "libopenvino_gguf_frontend.so*"))
        fronts.register_front_end("gguf", library)
        front = fronts.load_by_framework("gguf")
        model = front.convert(front.load(path))
        model = self.make_stateful(ov, model)
        config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        self.request = core.compile_model(model, "CPU", config).create_infer_request()
        self.inputs = {i.get_any_name() for i in model.inputs}
        self.past = 0

    def make_stateful(self, ov, model):
        """New rows are joined to states instead of written into inputs."""
        from openvino import opset13 as ops

        sinks = []
        for node in model.get_ordered_ops():
            if node.get_type_name() != "ScatterUpdate":
                continue
            cache = node.input_value(0).get_node()
            rows = node.input_value(2).get_node().input_value(0)
            name, shape = cache.get_friendly_name(), list(cache.get_output_partial_shape(0))
            empty = self.np.zeros([0 if d.is_dynamic else d.get_length() for d in shape], self.np.float16)
            read = ops.read_value(ops.constant(empty), name, cache.get_element_type(), cache.get_output_partial_shape(0))
            lengths = [-1 if d.is_dynamic else d.get_length() for d in shape]
            rows = ops.reshape(rows, ops.constant(self.np.array(lengths, self.np.int64)), False)
            joined = ops.concat([read, rows], [d.is_dynamic for d in shape].index(True))
            sinks.append(ops.assign(joined, name))
            for target in node.output(0).get_target_inputs():
                if target.get_node().get_type_name() == "Result":
                    model.remove_result(target.get_node())
                else:
                    target.replace_source_output(joined.output(0))
            model.remove_parameter(cache)
        model.remove_parameter(model.input("inp_kv_idx").get_node())
        return ov.Model(model.get_results(), sinks, model.get_parameters())

    def reset(self):
        self.request.reset_state()
        self.past = 0

    def read(self, ids):
        np, n = self.np, len(ids)
        at = np.arange(self.past, self.past + n, dtype=np.int32)
        mask = np.where(np.arange(self.past + n)[None, :] <= at[:, None], 0, -np.inf).astype(np.float32)[None, None]
        row = lambda x: np.asarray(x, np.int32)[None, None, None]  # noqa: E731
        feed = {"inp_tokens": row(ids), "inp_pos": row(at), "inp_out_ids": row([n - 1])}
        # Never longer than the window of local layers, which then see what the others see.
        feed |= {"self_kq_mask": mask, "self_kq_mask_swa": mask, "token_len_per_seq": np.array([n], np.int64)}
        self.request.infer({k: v for k, v in feed.items() if k in self.inputs}, share_inputs=True)
        self.last = self.request.get_output_tensor(0).data
        self.past += n


def worker(engine, path, threads):
    """One peer: answers lines as `language_speed` does."""
    model = {"llama.cpp": LlamaCpp, "OpenVINO": OpenVino}[engine](path, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "rss":
            print(resident(), flush=True)
            continue
        count = int(rest[0])
        model.reset()
        if what == "decode":
            model.read([token(i) for i in range(BEFORE)])
            model.read([token(BEFORE)])
            start = time.perf_counter()
            for at in range(count):
                model.read([token(BEFORE + 1 + at)])
        else:
            ids = [token(i) for i in range(count)]
            start = time.perf_counter()
            model.read(ids)
        print(f"{(time.perf_counter() - start) * 1e3:.3f}", flush=True)


def measure(options):
    """Rounds in which every engine reads a prompt and decodes, in turn: a row of each, the machine's bandwidth, what a token reads."""
    threads = str(options.threads)
    conure = [options.conure, options.model, "--threads", threads]
    engines = [
        Engine("Conure, fast", conure + ["--precision", "fast"]),
        Engine("Conure, exact", conure + ["--precision", "exact"]),
        Engine("Conure on openvino:CPU", conure + ["--device", "openvino:CPU"]),
    ]
    for peer in ["llama.cpp", "OpenVINO"]:
        command = [sys.executable, __file__, "--worker", peer, options.model, threads]
        name = "OpenVINO's reader of GGUF" if peer == "OpenVINO" else peer
        engines.append(Engine(name, command))
    for engine in engines:
        # Packs, plans, compiles.
        engine.ask(f"prefill {options.prompt}")
        engine.ask("decode 4")
        engine.rss = engine.ask("rss").split()
        engine.prefill, engine.decode = [], []
    # Before and after, the better: the rate that the machine has at best.
    bandwidth = lambda: [float(x) for x in engines[0].ask("bandwidth").split()]  # noqa: E731
    before = bandwidth()
    for _ in range(options.rounds):
        for engine in engines:
            # Threads of the engine before may still spin; they are asleep after this.
            time.sleep(0.05)
            engine.ask("decode 2")  # its weights come back into the caches
            engine.decode.append(float(engine.ask(f"decode {options.tokens}")) / options.tokens)
            engine.prefill.append(float(engine.ask(f"prefill {options.prompt}")))
    best, weights = max(before, bandwidth())
    rows = []
    for engine in engines:
        prefill, decode = median(engine.prefill), median(engine.decode)
        row = {"engine": engine.name, "prefill_ms": prefill, "prefill_per_second": options.prompt / prefill * 1e3}
        row |= {"decode_ms": decode, "decode_per_second": 1e3 / decode}
        row |= {"resident_mib": float(engine.rss[0]), "peak_mib": float(engine.rss[1])}
        rows.append(row)
        engine.close()
    return rows, best, weights


def table(options, rows, bandwidth, weights):
    lines = [
        f"| {options.threads} threads | prefill of {options.prompt}, tok/s | decode, tok/s | of memory bandwidth | MiB after "
        "the first run | MiB at most |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        part = weights * r["decode_per_second"] / bandwidth
        lines.append(
            f"| {r['engine']} | {r['prefill_per_second']:.0f} | {r['decode_per_second']:.1f} | {part * 100:.0f} % | "
            f"{r['resident_mib']:.0f} | {r['peak_mib']:.0f} |"
        )
    lines.append("")
    lines.append(
        f"A token reads {weights / 1e6:.0f} MB of weights; two threads read a buffer of that size at {bandwidth / 1e9:.1f} GB/s."
    )
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--worker"]:
        engine, path, threads = sys.argv[2:]
        return worker(engine, path, int(threads))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conure", required=True, help="the example language_speed, built in release")
    parser.add_argument("--work", required=True, help="a folder for results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("model", help="the GGUF file")
    options = parser.parse_args()
    rows, bandwidth, weights = measure(options)
    with open(os.path.join(options.work, "peers-llm.json"), "w") as out:
        json.dump({"rows": rows, "bandwidth": bandwidth, "weights": weights}, out, indent=1)
    print(table(options, rows, bandwidth, weights))


if __name__ == "__main__":
    main()
