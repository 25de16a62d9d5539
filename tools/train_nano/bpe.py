"""Byte-level BPE by rank with the o200k split pattern, standard library only. Fast enough for data making: words are cached.

    tok = Tokenizer("models/nano/tokenizer.json")
    ids = tok.encode("plain text")                  # control tokens are never recognised in text
    tok.control["<|end_message|>"]                  # their ids, by spelling
    text = tok.decode(ids)                          # control tokens keep their spelling
"""
import json
import re
import sys
import unicodedata

WHITE_SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


def byte_alphabet():
    """The printable stand-in of each byte in tokenizer.json files."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare, table = 256, {}
    for b in range(256):
        table[b] = chr(b) if b in plain else chr(spare)
        spare += b not in plain
    return table


def category_ranges(*categories):
    """The inside of a character class that holds every character of these Unicode categories."""
    out, first, last = [], None, None
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(categories):
            if last != code - 1:
                if first is not None:
                    out.append((first, last))
                first = code
            last = code
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in [*out, (first, last)])


def split_pattern():
    """The split pattern of tokenizer.json in the dialect of `re`."""
    letter, number = category_ranges("L"), category_ranges("N")
    upper, lower = category_ranges("Lu", "Lt", "Lm", "Lo", "M"), category_ranges("Ll", "Lm", "Lo", "M")
    suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return re.compile("|".join([
        f"[^\\r\\n{letter}{number}]?[{upper}]*[{lower}]+{suffix}", f"[^\\r\\n{letter}{number}]?[{upper}]+[{lower}]*{suffix}",
        f"[{number}]{{1,3}}", f" ?[^{WHITE_SPACE}{letter}{number}]+[\\r\\n/]*", f"[{WHITE_SPACE}]*[\\r\\n]+",
        f"[{WHITE_SPACE}]+(?![^{WHITE_SPACE}])", f"[{WHITE_SPACE}]+"]))


def merge(parts, ranks, limit=None):
    """Joins the pair of lowest rank (below limit) again and again; ranks: {bytes: rank}."""
    while len(parts) > 1:
        rank, at = min((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        if rank >= (1 << 30 if limit is None else limit):
            break
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


class Tokenizer:
    def __init__(self, path):
        with open(path) as fh:
            data = json.load(fh)
        to_byte = {char: b for b, char in byte_alphabet().items()}
        self.ranks = {bytes(to_byte[c] for c in token): i for token, i in data["model"]["vocab"].items()}
        self.control = {t["content"]: t["id"] for t in data["added_tokens"]}
        self.spelling = {**{i: token for token, i in self.ranks.items()}, **{i: s.encode() for s, i in self.control.items()}}
        self.pattern, self.words = split_pattern(), {}

    def word(self, text):
        parts = merge([bytes([b]) for b in text.encode()], self.ranks)
        ids = self.words[text] = [self.ranks[p] for p in parts]
        return ids

    def encode(self, text):
        words, out = self.words, []
        for piece in self.pattern.findall(text):
            out += words.get(piece) or self.word(piece)
        return out

    def decode(self, ids):
        return b"".join(self.spelling[i] for i in ids).decode(errors="replace")
