"""Which headers cmake/header_chains.py compiles one after another."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
from header_chains import chains  # noqa: E402


def chained(headers, others=None):
    """The chains of headers that include what they are given with; `others` are includes of files that are not headers
    to check."""
    texts = {name: "#pragma once\n" + "".join(f"#include {included}\n" for included in includes.split())
             for name, includes in {**(others or {}), **headers}.items()}
    return chains(list(headers), texts.get)


class HeaderChains(unittest.TestCase):
    def test_a_header_stands_behind_the_one_that_it_includes(self):
        self.assertEqual(chained({"b": '"a"', "a": "<x>"}), [["a", "b"]])

    def test_two_that_do_not_include_each_other_never_share_a_chain(self):
        self.assertEqual(chained({"a": "<x>", "b": "<y>"}), [["a"], ["b"]])

    def test_what_is_included_through_others_counts(self):
        self.assertEqual(chained({"a": "<x>", "c": '"b"'}, others={"b": '"a" <y>'}), [["a", "c"]])

    def test_a_standard_header_that_only_the_first_includes_keeps_them_apart(self):
        # b includes what a defines, from elsewhere, and would find <x> only because a came before.
        self.assertEqual(chained({"a": '"values" <x>', "b": '"values" <y> <z>'}, others={"values": ""}), [["a"], ["b"]])

    def test_a_header_continues_the_chain_that_it_shares_the_most_with(self):
        found = chained({"a": "<x>", "b": "<y> <z>", "c": '"a" "b"'})
        self.assertEqual(found, [["a"], ["b", "c"]])

    def test_headers_that_include_each_other_end(self):
        self.assertEqual(sorted(sum(chained({"a": '"b"', "b": '"a"'}), [])), ["a", "b"])

    def test_each_header_of_the_tree_sees_in_its_chain_what_it_includes_and_nothing_else(self):
        root = Path(__file__).resolve().parents[2]
        headers = [str(path.relative_to(root)) for path in sorted((root / "core").glob("**/*.hpp"))]
        self.assertGreater(len(headers), 100)
        made = chains(headers, lambda name: (root / name).read_text() if (root / name).is_file() else None)
        self.assertEqual(sorted(sum(made, [])), headers)

        def seen(path):
            """As a preprocessor goes: depth first, each file once."""
            if path in entered:
                return
            entered.add(path)
            for line in (root / path).read_text().splitlines() if (root / path).is_file() else []:
                if line.startswith("#include "):
                    seen(line.split()[1].strip('"'))
        for chain in made:
            together = set()
            for header in chain:
                entered = set()
                seen(header)
                together |= entered
                self.assertEqual(together, entered, f"{header} of {chain}")


if __name__ == "__main__":
    unittest.main()
