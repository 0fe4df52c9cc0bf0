#!/usr/bin/env python3
"""Our tokenizer gives the tokens of Hugging Face's:  tokenizer_test.py TOKENIZER_PROBE

Small vocabularies are trained on the text below and read by both, with the arrangements of GPT-2, Llama 3 and Qwen2.
With --golden DIRECTORY instead, the vocabularies and what Hugging Face makes of a few texts are written there, for the
tests that need no Python.
"""

import json
import random
import subprocess
import sys
import tempfile
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


KINDS = {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "smollm": smollm}


def random_texts(count, seed):
    """Of words, and of what is anything but words."""
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
                parts.append("".join(chr(choose.randint(low, high)) for _ in range(choose.randrange(1, 6))))
            parts.append(choose.choice(["", " ", "  ", "\n", "<|end|>", "</tool>", "'s"]))
        yield "".join(parts)


def write_golden(directory):
    for name, make in KINDS.items():
        tokenizer = make()
        (directory / name).mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(directory / name / "tokenizer.json"), pretty=False)
        cases = []
        for text in CASES + [TEXT]:
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "tokens": tokens, "decoded": tokenizer.decode(tokens)})
        (directory / name / "cases.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


class TokenizerTest(unittest.TestCase):
    def test_tokens_and_text_agree(self):
        for name, make in KINDS.items():
            with self.subTest(kind=name), tempfile.TemporaryDirectory() as folder:
                tokenizer = make()
                path = Path(folder) / "tokenizer.json"
                tokenizer.save(str(path))
                self.compare(tokenizer, path, CASES + [TEXT] + list(random_texts(3000, 7)))

    def compare(self, tokenizer, path, texts):
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        done = subprocess.run([TOKENIZER_PROBE, path], input=lines, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        self.assertEqual(len(answers), len(texts))
        for text, answer in zip(texts, answers):
            wanted = tokenizer.encode(text)
            self.assertEqual(answer["tokens"], wanted.ids, repr(text))
            self.assertEqual(answer["text"], tokenizer.decode(wanted.ids, skip_special_tokens=False), repr(text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--golden"]:
        write_golden(Path(sys.argv[2]))
    else:
        TOKENIZER_PROBE = sys.argv.pop(1)
        unittest.main()
