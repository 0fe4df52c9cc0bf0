#!/usr/bin/env python3
"""Our tokenizer gives the tokens of Hugging Face's:  tokenizer_test.py TOKENIZER_PROBE

Small vocabularies are trained on the text below and read by both, with the arrangements of GPT-2, Llama 3, Qwen2, Llama
2, Mistral and others, and with added tokens of every kind.
With --golden DIRECTORY instead, the vocabularies and what Hugging Face makes of a few texts are written there, for the
tests that need no Python.
"""

import json
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TOKENIZER_PROBE = ""

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEXT = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness
was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be
light: and there was light. I'll say that it's 1234 or 56789 times what we've had, don't you think? They'd known.

Übung macht den Meister; naïve café déjà vu. Ça va? Привет, мир! 你好，世界。こんにちは 안녕하세요 שלום مرحبا \U0001f600\U0001f1e9\U0001f1ea
    def f(x):\n\treturn x ** 2  # twice\n\n\n"""
CASES = [
    "", " ", "  ", "\n", " \n ", "\t\t x", "Hello world", " Hello  world ", "it's IT'S It\u2019s we'LL I'\u017f 'D'd",
    "1234567 12 3\u00bd\u0663\u2167", "a\u0301 e\u0301 \u00e9 \u212b \ufb01 \u1e9b\u0323 \ud55c \u1112\u1161\u11ab",
    "x\u00a0y\u3000z\u2028w\u0085v\u180eu\u200bt\u000bs", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea!!\n\n  ok",
    "<|end|>x<|end|><|start|> <|end", "tool <tool>call</tool> <tool", "\r\n\r\nif (a[0] == '\\n') {\n    b--;\n}\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\u0000\u0001\u007f\u00ad\ufeff\ufffd", "the the  the   the\n the",
]


def trained(pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + 160, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def llama3():
    tokenizer = trained(split(LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    start = tokenizer.token_to_id("<|start|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|start|> $A", pair="<|start|> $A <|start|> $B",
                                      special_tokens=[("<|start|>", start)])])
    return tokenizer


def qwen2():
    tokenizer = trained(split(QWEN2))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=True)])
    return tokenizer


def smollm():
    tokenizer = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=True)]))
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


SPECIALS = ["<unk>", "<s>", "</s>"]
BLANK = "\u2581"
OLD_FORM = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK},
                                                {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]}


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": splits}


def flags(content, **changes):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **changes}


def template(before, after):
    around = [[{"SpecialToken": {"id": SPECIALS[number], "type_id": 0}} for number in some] for some in (before, after)]
    return {"type": "TemplateProcessing", "single": [*around[0], {"Sequence": {"id": "A", "type_id": 0}}, *around[1]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIALS[n]: {"id": SPECIALS[n], "ids": [n], "tokens": [SPECIALS[n]]}
                               for n in {*before, *after}}}


def with_added(description, added):
    """Numbers as tokenizers gives them."""
    for one in added:
        known = description["model"]["vocab"].get(one["content"])
        number = len(description["model"]["vocab"]) + sum(
            other["content"] not in description["model"]["vocab"] for other in description["added_tokens"])
        description["added_tokens"].append({"id": number if known is None else known, **one})
    return description


def sentencepiece(normalizer=None, pre_tokenizer=None, added=(), missing_bytes=(), post_processor=None, **model):
    """The form of Llama 2, Mistral, Mixtral and TinyLlama have it: BPE of characters with a token for each byte."""
    trained_model = Tokenizer(models.BPE())
    trained_model.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trained_model.train_from_iterator([TEXT.replace("\u00fc", "")], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    own = json.loads(trained_model.to_str())["model"]
    names = SPECIALS + ["<0x%02X>" % byte for byte in range(256) if byte not in missing_bytes] + list(own["vocab"])
    description = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor or template([1], []),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {name: number for number, name in enumerate(names)}, "merges": own["merges"], **model}}
    return with_added(description, [flags(name, special=True) for name in SPECIALS] + list(added))


# Blanks, words and normal forms beside tokens of every kind.
ADDED = [flags("<|user|>", rstrip=True), flags("<mask>", lstrip=True, special=True), flags("<w>", single_word=True),
         flags("<both>", lstrip=True, rstrip=True), flags("<n>", normalized=True), flags("the light", single_word=True),
         flags("<nl>", normalized=True, lstrip=True, rstrip=True), flags("de\u0301ja\u0300", normalized=True, single_word=True),
         flags("  ", rstrip=True), flags("\n\n\n", special=True), flags("<|end|>", special=True), flags("<|end|>x")]


def byte_level(base, added=(), normalizer=None, missing_bytes="", **model):
    description = json.loads(base().to_str())
    description["normalizer"] = normalizer or description["normalizer"]
    description["added_tokens"] = []
    for letter in missing_bytes:
        del description["model"]["vocab"][letter]
    description["model"]["merges"] = [merge for merge in description["model"]["merges"]
                                      if not set("".join(merge)) & set(missing_bytes)]
    kept = [name for name in description["model"]["vocab"] if not set(name) & set(missing_bytes)]
    description["model"]["vocab"] = {name: number for number, name in enumerate(kept)}
    description["model"].update(model)
    if description["model"]["unk_token"]:
        description["model"]["vocab"][description["model"]["unk_token"]] = len(kept)
    description["post_processor"] = None
    return with_added(description, added)


def splits(*steps):
    """A tokenizer with a split for each (pattern, behaviour, inverted)."""
    tokenizer = trained(pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behaviour, invert) for pattern, behaviour, invert in steps]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    return json.loads(tokenizer.to_str())


O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

KINDS = {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "smollm": smollm,
         "llama2": lambda: sentencepiece(OLD_FORM), "mistral": lambda: sentencepiece(None, metaspace("first", False)),
         "added": lambda: byte_level(gpt2, ADDED), "added_llama2": lambda: sentencepiece(OLD_FORM, added=ADDED)}
# Compared with tokenizers only.
MORE_KINDS = {
    "always": lambda: sentencepiece(None, metaspace("always", True)),
    "always_whole": lambda: sentencepiece(None, metaspace("always", False), post_processor=template([1], [2])),
    "first_split": lambda: sentencepiece(None, metaspace("first", True), added=ADDED),
    "never": lambda: sentencepiece(None, metaspace("never", True), added=ADDED, ignore_merges=True),
    "never_whole": lambda: sentencepiece(None, metaspace("never", False), post_processor=template([1, 1], [2, 0])),
    "gemma": lambda: sentencepiece(OLD_FORM["normalizers"][1],
                                   {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                    "invert": False}),
    "old_nfkc": lambda: sentencepiece({"type": "Sequence", "normalizers": [{"type": "NFKC"}, *OLD_FORM["normalizers"]]},
                                      added=ADDED),
    "unknown_fused": lambda: sentencepiece(OLD_FORM, byte_fallback=False),
    "unknown": lambda: sentencepiece(OLD_FORM, byte_fallback=False, fuse_unk=False),
    "some_bytes": lambda: sentencepiece(OLD_FORM, missing_bytes=range(0xc0, 0xe1)),
    "some_bytes_unfused": lambda: sentencepiece(OLD_FORM, missing_bytes=range(0x80, 0xd0), fuse_unk=False),
    "ignore_merges": lambda: sentencepiece(None, metaspace("first", True), ignore_merges=True),
    "added_nfc": lambda: byte_level(llama3, ADDED, {"type": "NFC"}),
    "added_nfkd": lambda: byte_level(smollm, ADDED, {"type": "NFKD"}),
    "unknown_byte": lambda: byte_level(gpt2, missing_bytes="\u0122\u00c3\u00a9e", unk_token="<?>", fuse_unk=True),
    "o200k": lambda: splits((O200K, "isolated", False)),
    "o200k_removed": lambda: splits((O200K, "removed", True)),
    "deepseek": lambda: splits((r"\p{N}{1,3}", "isolated", False), ("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "isolated", False),
                               (DEEPSEEK, "isolated", False)),
    "with_next": lambda: splits((r"\s", "merged_with_next", False), (r"[aeiou]", "merged_with_previous", False)),
    "inverted": lambda: splits((r"\s+", "merged_with_previous", True), (r"[aeiou]", "contiguous", True)),
    "dropped": lambda: splits((r"[^\S\n]+", "removed", False), (r"\n|(?<=t)h", "contiguous", False)),
    "empty_matches": lambda: splits((r"(?=(?:\p{N}{3})+(?!\p{N}))", "isolated", False), (r"x*", "isolated", False)),
    "greed": lambda: splits((r"(?:the|t\w+?e|\w++d?|(?>\w+|.)x|[^\w]{2,3}?)|(?i:god|[s-u]{1,})", "isolated", False)),
}


def random_texts(count, seed):
    """Texts of words, and of anything but words that Python knows: its Unicode is that of Debian 12's Oniguruma, and
    tokenizers know more letters."""
    choose = random.Random(seed)
    words = TEXT.split(" ")
    planes = [(0x20, 0x7f), (0x20, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x900, 0xdff), (0x1100, 0x11ff),
              (0x2000, 0x206f), (0x2100, 0x21ff), (0x3000, 0x30ff), (0x4e00, 0x9fa5), (0xac00, 0xd7a3),
              (0x1f300, 0x1f64f), (0x09, 0x0d)]
    for _ in range(count):
        parts = []
        for _ in range(choose.randrange(1, 40)):
            if choose.random() < 0.5:
                parts.append(choose.choice(words))
            else:
                low, high = choose.choice(planes)
                letters = (chr(choose.randint(low, high)) for _ in range(choose.randrange(1, 6)))
                parts.append("".join(letter for letter in letters if unicodedata.category(letter) != "Cn"))
            parts.append(choose.choice(["", " ", "  ", "\n", "<|end|>", "</tool>", "'s", "<w>", "<mask>", "<|user|>",
                                       "<both>", "<n>", "<nl>", "the light", "</s>", "\u2581"]))
        yield "".join(parts)


def read(made):
    return made if isinstance(made, Tokenizer) else Tokenizer.from_str(json.dumps(made))


def any_characters(count, seed):
    """Texts of all of Unicode that Python and the normal forms of tokenizers know, which the others know too."""
    choose = random.Random(seed)
    compatible = normalizers.NFKD()
    known = [chr(code) for code in range(0x110000)
             if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
             and compatible.normalize_str(chr(code)) == unicodedata.normalize("NFKD", chr(code))]
    for _ in range(count):
        yield "".join(choose.choice(known) if choose.random() < 0.7 else choose.choice(" \n\tathe'0\u2581")
                      for _ in range(choose.randrange(1, 12)))


def long_runs():
    for unit in ("a", " ", "\n", "^", "\ud55c", "a ", "0", "\u0301", "<w>", "the ", "  \n", "\u2581", "A"):
        yield unit * 700
        yield "x" + unit * 333 + "y"


def write_golden(directory):
    for name, make in KINDS.items():
        tokenizer = read(make())
        (directory / name).mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(directory / name / "tokenizer.json"), pretty=False)
        cases = []
        for text in CASES + [TEXT]:
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "tokens": tokens, "decoded": tokenizer.decode(tokens)})
        (directory / name / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


class TokenizerTest(unittest.TestCase):
    def test_tokens_and_text_agree(self):
        texts = [*CASES, TEXT, *random_texts(6000, 7), *any_characters(4000, 8), *long_runs()]
        for name, make in (KINDS | MORE_KINDS).items():
            with self.subTest(kind=name), tempfile.TemporaryDirectory() as folder:
                tokenizer = make()
                path = Path(folder) / "tokenizer.json"
                path.write_text(tokenizer.to_str() if isinstance(tokenizer, Tokenizer) else json.dumps(tokenizer))
                self.compare(read(tokenizer), path, texts)

    def compare(self, tokenizer, path, texts):
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        done = subprocess.run([TOKENIZER_PROBE, path], input=lines, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        self.assertEqual(len(answers), len(texts))
        for text, answer in zip(texts, answers):
            wanted = tokenizer.encode(text)
            self.assertEqual(answer.get("tokens"), wanted.ids, repr(text))
            decoded = tokenizer.decode(wanted.ids, skip_special_tokens=False)
            if "\ufffd" not in decoded:  # what is not text is shown in different ways
                self.assertEqual(answer["text"], decoded, repr(text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--golden"]:
        write_golden(Path(sys.argv[2]))
    else:
        TOKENIZER_PROBE = sys.argv.pop(1)
        unittest.main()
