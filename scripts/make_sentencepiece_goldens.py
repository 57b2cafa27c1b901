#!/usr/bin/env python3
"""Makes tests/data/language/sentencepiece/: small SentencePiece models, and hashes of what they make of 10,000 strings.

The strings are those of make_tokenizer_goldens.py. Needs sentencepiece 0.2. Run from the repository.
"""
import io
import json
import pathlib
import tempfile

import sentencepiece
from make_tokenizer_goldens import OUT, strings

TEXT = (OUT / "gpl3.txt").read_text().splitlines() + [
    "The sea was calm, and the old man rowed home with 12 fish.", "def add(a, b): return a + b  # sums",
    "Größe, naïve café; Привет, мир! 你好，世界", "It's what they'd said: we'll see you at 10:30, won't we?",
] * 20
# Rules of every kind: one character by one, by several, several by one, by a space, by nothing.
RULES = [
    ("ſ", "s"), ("ǅ", "Dž"), ("½", "1/2"), ("e\u0301", "é"), ("\u00a0", " "), ("\u2028", " "), ("\t", " "), ("\n", " "),
    ("\r", " "), ("\u200b", ""), ("Ⅷ", "VIII"), ("...", "…"),
]
MODELS = {
    "unigram": dict(model_type="unigram", vocab_size=400, byte_fallback=True, rules=True),
    "unigram_unknown": dict(
        model_type="unigram", vocab_size=300, add_dummy_prefix=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    ),
    "bpe": dict(
        model_type="bpe", vocab_size=400, byte_fallback=True, remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    ),
}


def main():
    folder = OUT / "sentencepiece"
    folder.mkdir(exist_ok=True)
    goldens = {}
    for name, settings in MODELS.items():
        with tempfile.TemporaryDirectory() as temporary:
            if settings.pop("rules", False):
                rules = pathlib.Path(temporary) / "rules.tsv"
                points = lambda text: " ".join(f"{ord(c):X}" for c in text)
                rules.write_text("".join(f"{points(a)}\t{points(b)}\n" for a, b in RULES))
                settings["normalization_rule_tsv"] = str(rules)
            model = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(TEXT), model_writer=model, hard_vocab_limit=False, minloglevel=2, num_threads=1,
                **settings,
            )
        (folder / f"{name}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        hashes = []
        for i, text in enumerate(strings()):
            if i % 250 == 0:
                hashes.append(0xCBF29CE484222325)
            for id in processor.encode(text) + [2**32 - 1]:
                hashes[-1] = (hashes[-1] ^ id) * 0x100000001B3 % 2**64
        goldens[name] = [f"{h:016x}" for h in hashes]
        print(name, processor.get_piece_size(), "pieces,", len(model.getvalue()), "bytes")
    (folder / "goldens.json").write_text(json.dumps(goldens, indent=0) + "\n")


if __name__ == "__main__":
    main()
