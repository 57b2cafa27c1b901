#!/usr/bin/env python3
"""Makes tests/data/language/strings.json: hashes of what Hugging Face's tokenizers make of 10,000 strings.

The strings are made of the fragments below by a generator that the test has too: ten scripts, code, emoji, what is left of
invalid UTF-8. Needs tokenizers 0.23. Run from the repository after make_language_goldens.py.
"""
import json
import pathlib

from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/language"
FRAGMENTS = [
    "The", " old", " man", " the", "sea", " ", "  ", "     ", "\n", "\n\n", "\t", "\r\n", " \n ", "don't", "I'LL", "we'Ve", "'s",
    "123", "4", "10:30", "3.14159", "1,000,000", "x = y", "def f(a, b):\n    return a", "{\"k\": [1, 2]}", "<b>", "/* c */", "!=",
    "...", "?!", "--", "__init__", "C++", "#$%", "Größe", "naïve", "Ünïcödé", "Привет", " мир", "Ελλάδα", "שלום", "مرحبا",
    "नमस्ते", "สวัสดี", "你好", "世界", "こんにちは", "カタカナ", "안녕", "Việt Nam", "ქართული", "🙂", "👩‍👩‍👧", "🇩🇪", "e\u0301",
    "\u00a0", "\u200b", "\ufffd", "\ufffd\ufffd", "A", "z", "ſ", "ǅ", "Ⅷ", "½", "۴", "\u2028",
]


def strings():
    state = 1
    for _ in range(10_000):
        text = ""
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        for _ in range(1 + (state >> 33) % 8):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text += FRAGMENTS[(state >> 33) % len(FRAGMENTS)]
        yield text


def main():
    goldens = {"fragments": FRAGMENTS, "hashes": {}}
    for name in ["llama", "gemma3", "llama3", "qwen2"]:
        tokenizer = Tokenizer.from_file(str(OUT / f"hf-{name}/tokenizer.json"))
        hashes = []
        for i, text in enumerate(strings()):
            if i % 250 == 0:
                hashes.append(0xCBF29CE484222325)
            for id in tokenizer.encode(text, add_special_tokens=False).ids + [2**32 - 1]:
                hashes[-1] = (hashes[-1] ^ id) * 0x100000001B3 % 2**64
        # As text: JSON numbers are floats to many readers.
        goldens["hashes"][name] = [f"{h:016x}" for h in hashes]
    (OUT / "strings.json").write_text(json.dumps(goldens, indent=0) + "\n")


if __name__ == "__main__":
    main()
