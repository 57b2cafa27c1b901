#!/usr/bin/env python3
"""Makes tests/data/language/hf-*: tiny language models with random weights, and what transformers computes of them.

Needs torch, transformers 5.24.0, tokenizers and safetensors (`pip install torch transformers==5.24.0`). Run from the
repository: python3 scripts/make_language_goldens.py [NAME...]
"""
import json
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/language"
TEXT = [
    "The sea was calm, and the old man rowed home with 12 fish.",
    "def add(a, b):\n    return a + b  # sums\n",
    "Größe, naïve café; Привет, мир! 你好，世界",
    "It's what they'd said: we'll see you at 10:30, won't we?",
] * 4
PROMPTS = ["The old man", "return a + b\n", "Größe 42 🙂 你"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def sentencepiece_like(prefix, specials):
    """Byte-pair encoding with byte fallback, as Llama's and Gemma's tokenizer.json have it."""
    steps = [normalizers.Replace(" ", "▁")]
    if prefix:
        steps.insert(0, normalizers.Prepend("▁"))
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence(steps)
    learner.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=.)(?=▁)"), "isolated")
    learner.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    pieces = specials + [f"<0x{b:02X}>" for b in range(256)]
    merges = [tuple(m) for m in learnt["merges"]]
    chars = [p for p in learnt["vocab"] if len(p) == 1]
    # SentencePiece orders pieces by merge, so that a piece's number says when it is made; single characters come last.
    made = [a + b for a, b in merges]
    pieces += list(dict.fromkeys(made)) + [c for c in chars if c not in made]
    vocab = {p: i for i, p in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tail = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    return tokenizer


def byte_level(pattern, specials):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(specials)
    return tokenizer


def spm_files(folder, bos, eos, prefix, specials):
    tokenizer = sentencepiece_like(prefix, specials)
    tokenizer.add_special_tokens([s for s in specials if s != "<unk>"] + ["<unk>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"add_bos_token": True, "add_eos_token": False, "bos_token": bos, "eos_token": eos, "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    return tokenizer, tokenizer.token_to_id(bos)


def bpe_files(folder, pattern, bos, eos):
    tokenizer = byte_level(pattern, [t for t in [bos, eos] if t])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"add_bos_token": bos is not None, "bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    return tokenizer, tokenizer.token_to_id(bos) if bos else None


QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")


LLAMA = lambda folder: spm_files(folder, "<s>", "</s>", True, ["<unk>", "<s>", "</s>"])
GEMMA = lambda folder: spm_files(folder, "<bos>", "<eos>", False, ["<pad>", "<eos>", "<bos>", "<unk>"])
QWEN = lambda folder: bpe_files(folder, QWEN2, None, "<|endoftext|>")
QWEN_3_5 = lambda folder: bpe_files(folder, QWEN35, None, "<|endoftext|>")
GPT_OSS = lambda folder: bpe_files(folder, O200K, None, "<|return|>")


def qwen3_vl(v):
    """A model that also sees pictures; goldens are of texts."""
    sections = {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    text = dict(vocab_size=v, head_dim=16, rope_parameters=sections, tie_word_embeddings=False, **SMALL)
    seen = dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=4,
        num_position_embeddings=4, deepstack_visual_indexes=[0],
    )
    return hf.Qwen3VLConfig(text_config=text, vision_config=seen, tie_word_embeddings=False)


def qwen35(v):
    """Three of four layers by the gated delta rule, with two heads of values for each of keys."""
    sections = {
        "rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
    return hf.Qwen3_5TextConfig(
        vocab_size=v,
        head_dim=16,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters=sections,
        **{**SMALL, "num_hidden_layers": 4},
    )


def gpt_oss(v):
    """Even layers see 4 positions. `truncate` as every reader of GGUF has it."""
    return hf.GptOssConfig(
        vocab_size=v,
        head_dim=16,
        num_local_experts=5,
        num_experts_per_tok=3,
        sliding_window=4,
        eos_token_id=0,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": True, "original_max_position_embeddings": 64,
        },
        max_position_embeddings=2048,
        **{**SMALL, "intermediate_size": 32},
    )
MODELS = {
    "llama": (LLAMA, lambda v: hf.LlamaConfig(vocab_size=v, **SMALL)),
    "llama3": (
        lambda folder: bpe_files(folder, LLAMA3, "<|begin_of_text|>", "<|end_of_text|>"),
        lambda v: hf.LlamaConfig(
            vocab_size=v,
            tie_word_embeddings=True,
            head_dim=16,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
            **SMALL,
        ),
    ),
    "mistral": (LLAMA, lambda v: hf.MistralConfig(vocab_size=v, sliding_window=None, head_dim=8, **SMALL)),
    "qwen2": (QWEN, lambda v: hf.Qwen2Config(vocab_size=v, tie_word_embeddings=True, **SMALL)),
    "qwen3": (QWEN, lambda v: hf.Qwen3Config(vocab_size=v, head_dim=16, **SMALL)),
    "mixtral": (
        LLAMA,
        lambda v: hf.MixtralConfig(vocab_size=v, num_local_experts=4, sliding_window=None, **{**SMALL, "intermediate_size": 32}),
    ),
    "qwen3moe": (
        QWEN,
        lambda v: hf.Qwen3MoeConfig(
            vocab_size=v,
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            **SMALL,
        ),
    ),
    "qwen3vl": (QWEN, qwen3_vl),
    "qwen35": (QWEN_3_5, qwen35),
    "gpt-oss": (GPT_OSS, gpt_oss),
    "gpt-oss-mxfp4": (GPT_OSS, gpt_oss),
    "phi3": (LLAMA, lambda v: hf.Phi3Config(vocab_size=v, pad_token_id=0, **SMALL)),
    "gemma2": (
        GEMMA,
        lambda v: hf.Gemma2Config(vocab_size=v, head_dim=16, query_pre_attn_scalar=16, sliding_window=4, **SMALL),
    ),
    "gemma3": (
        GEMMA,
        lambda v: hf.Gemma3TextConfig(
            vocab_size=v,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=4,
            **{**SMALL, "num_hidden_layers": 3},
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
    ),
}


def mxfp4(values):
    """Blocks of 32 along the last axis, as OpenAI's checkpoints keep them: nibbles of neighbours in a byte, and exponents."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    blocks = values.unflatten(-1, (-1, 32))
    exponents = blocks.abs().amax(-1).log2().floor() - 2
    scales = 2.0 ** exponents
    quanta = ((blocks / scales[..., None])[..., None] - table).abs().argmin(-1)
    decoded = (table[quanta] * scales[..., None]).flatten(-2)
    pairs = quanta.unflatten(-1, (16, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8), decoded


def in_blocks(model, folder):
    """Rounds the experts of a model to MXFP4; what replaces them in its checkpoint."""
    changed = {}
    for i, layer in enumerate(model.model.layers):
        for name in ["gate_up_proj", "down_proj"]:
            weight = getattr(layer.mlp.experts, name)  # [E, in, out]
            blocks, scales, decoded = mxfp4(weight.transpose(1, 2).contiguous())
            weight.copy_(decoded.transpose(1, 2))
            path = f"model.layers.{i}.mlp.experts.{name}"
            changed |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
    return changed


def replace_tensors(folder, changed):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in changed:
        tensors.pop(name.removesuffix("_blocks").removesuffix("_scales"), None)
    save_file(tensors | changed, str(path), {"format": "pt"})


def main():
    for name in sys.argv[1:] or MODELS:
        files, configure = MODELS[name]
        folder = OUT / f"hf-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer, bos = files(folder)
        config = configure(tokenizer.get_vocab_size())
        factory = hf.AutoModelForImageTextToText if name == "qwen3vl" else hf.AutoModelForCausalLM
        torch.manual_seed(len(name) + sum(map(ord, name)))
        config._attn_implementation = "eager"
        model = factory.from_config(config).float().eval()
        with torch.no_grad():
            for key, tensor in model.named_parameters():
                norm = "norm" in key
                # These store norms as what they differ from 1 by, but for the one behind the gated delta rule.
                around = 0.0 if not norm or name.startswith("gemma") else 1.0
                if name == "qwen35" and norm and "linear_attn" not in key:
                    around = 0.0
                tensor.copy_(around + torch.randn_like(tensor) * (0.1 if norm else 0.25))
            changed = in_blocks(model, folder) if name.endswith("mxfp4") else {}
        # One in several files, as large models are.
        model.save_pretrained(folder, max_shard_size="60KB" if name == "mixtral" else "5GB")
        if changed:
            replace_tensors(folder, changed)
        (folder / "generation_config.json").unlink(missing_ok=True)
        goldens, prompts = {}, []
        for i, text in enumerate(PROMPTS):
            ids = ([bos] if bos is not None else []) + tokenizer.encode(text, add_special_tokens=False).ids
            with torch.no_grad():
                goldens[f"logits.{i}"] = model(torch.tensor([ids])).logits[0].contiguous()
            prompts.append({"text": text, "ids": ids})
        save_file(goldens, str(folder / "goldens.safetensors"))
        (folder / "goldens.json").write_text(json.dumps({"prompts": prompts}, indent=1) + "\n")
        spread = goldens["logits.0"].std().item()
        print(name, tokenizer.get_vocab_size(), "tokens,", "logits spread", round(spread, 2))


main()
