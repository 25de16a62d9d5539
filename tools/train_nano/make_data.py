"""Makes what nano learns from: make_data.py OUT_DIR --packages DIR [--model models/nano].

DIR holds the unpacked Debian packages dict-wn, dict-jargon and dict-elements (`apt-get download` them, `dpkg -x X.deb DIR`). Writes
  OUT_DIR/texts.npy        dictionary entries as documents (format: chat.py), uint16, at most 24 MB
  OUT_DIR/glosses.json     short definitions of frequent words, for the tasks of tasks.py
  MODEL/eval/words.txt     the word list of the sorting, recall and copying tasks
  MODEL/eval/heldout.txt   dictionary entries that no training text contains, separated by blank lines
  MODEL/eval/heldout_pairs.txt   operands of the arithmetic task that training never sees together
Everything follows from the packages alone; there is no randomness.
"""
import argparse
import collections
import glob
import gzip
import hashlib
import json
import os
import re

import numpy as np

import bpe
import chat

NUM_WORDS, NUM_GLOSSES, HELDOUT_BYTES = 512, 4000, 50_000
TEXTS_LIMIT_BYTES = 24_000_000
NOT_IN_LISTS = set("sex sexual kill killed killing dead death die war attack enemy blood body jewish christian islamic hitler naked drunk drug "
                   "disease cancer tumor murder weapon crime church jesus god holy devil hell slave black white race racial penis are used being breast urine feces corpse poison".split())


def read_package(root, name):
    path, = glob.glob(os.path.join(root, "**", f"{name}.dict.dz"), recursive=True)
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as fh:
        return fh.read()


def join_lines(lines):
    """Undoes the wrapping of lines; a word cut at a hyphen is joined without a space."""
    text = ""
    for line in lines:
        line = line.strip()
        text += line if not text or text.endswith("-") else " " + line
    return text


def wordnet_entries(text):
    """(headword, [(part of speech or '', gloss)]) for each entry."""
    for block in re.split(r"\n(?=\S)", text[text.index("\n'hood"):]):
        word, _, body = block.strip("\n").partition("\n")
        senses = []
        for line in body.split("\n"):
            start = re.match(r"\s+(?:(n|v|adj|adv|s) )?(\d+)?:? ?(.*)", line)
            if re.match(r"\s+(?:(?:n|v|adj|adv) )?\d+: |\s+(?:n|v|adj|adv) *: ", line):
                senses.append([start.group(1) or "", [start.group(3).lstrip(": ")]])
            elif senses:
                senses[-1][1].append(line)
        yield word.strip(), [(part, re.sub(r"[{}]", "", join_lines(lines))) for part, lines in senses]


def bare(gloss):
    """A gloss without its synonym lists and examples."""
    gloss = re.sub(r"\s*\[(?:syn|ant|also): .*?\]", "", gloss)
    return re.split(r'; "', gloss)[0].strip()


def entry_text(word, senses):
    lines = [f"{part + ' ' if part else ''}{i}: {gloss}" for i, (part, gloss) in enumerate(senses, 1)]
    return word + "\n" + "\n".join(lines)


def is_heldout(word):
    return hashlib.sha256(word.encode()).digest()[0] == 7 and hashlib.sha256(word.encode()).digest()[1] < 128


def heldout_pairs():
    """About one pair in ninety, so that every combination of digits stays in training."""
    rule = lambda a, b: (a * 31 + b * 17) % 10 == 3 and hashlib.sha256(f"{a} {b}".encode()).digest()[0] % 10 == 3
    return [(a, b) for a in range(10, 100) for b in range(a, 100) if rule(a, b)]


def simple_entries(text):
    """Entries of the other dictionaries: an unindented headword line, then an indented or plain body up to a blank line."""
    for block in re.split(r"\n\n(?=[^\s])", text):
        block = re.sub(r"[{}]", "", block.strip())
        if "\n" in block and not block.startswith("00-") and len(block) < 4000:
            word, body = block.split("\n", 1)
            paragraphs = [join_lines(p.split("\n")) for p in re.split(r"\n\s*\n", body)]
            yield word.strip() + "\n" + "\n".join(p for p in paragraphs if p)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out")
    ap.add_argument("--packages", required=True)
    ap.add_argument("--model", default="models/nano")
    opt = ap.parse_args()
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    entries = [(word, senses) for word, senses in wordnet_entries(read_package(opt.packages, "wn")) if senses]

    heldout, heldout_glosses, size = [], set(), 0
    for word, senses in entries:
        text = entry_text(word, senses)
        if is_heldout(word) and size + len(text.encode()) + 2 <= HELDOUT_BYTES:
            heldout.append(text)
            size += len(text.encode()) + 2
            heldout_glosses.update(bare(gloss) for _, gloss in senses)
    kept = [(word, senses) for word, senses in entries if not any(bare(gloss) in heldout_glosses for _, gloss in senses)]
    texts = [entry_text(word, senses) for word, senses in kept]
    for name in ("elements", "jargon"):
        texts += list(simple_entries(read_package(opt.packages, name)))

    frequency = collections.Counter(w for _, senses in kept for _, gloss in senses for w in re.findall(r"\b[a-z]+\b", bare(gloss)))
    senses_of = {word: senses for word, senses in kept if re.fullmatch(r"[a-z]{3,}", word)}
    ranked = [w for w, _ in sorted(frequency.items(), key=lambda t: (-t[1], t[0])) if w in senses_of and w not in NOT_IN_LISTS]
    nouns = [w for w in ranked if 3 <= len(w) <= 8 and senses_of[w][0][0] == "n" and not w.endswith(("ing", "ed"))]
    words = sorted(nouns[:NUM_WORDS])
    glosses = {w: [senses_of[w][0][0], bare(senses_of[w][0][1])] for w in ranked if len(bare(senses_of[w][0][1])) <= 120}
    glosses = dict(list(glosses.items())[:NUM_GLOSSES])

    os.makedirs(opt.out, exist_ok=True)
    os.makedirs(os.path.join(opt.model, "eval"), exist_ok=True)
    tokens = np.concatenate([chat.plain(tok, text) for text in texts])
    assert tokens.nbytes <= TEXTS_LIMIT_BYTES, tokens.nbytes
    np.save(os.path.join(opt.out, "texts.npy"), tokens)
    with open(os.path.join(opt.out, "glosses.json"), "w") as fh:
        json.dump(glosses, fh, ensure_ascii=False, indent=0)
    with open(os.path.join(opt.model, "eval", "words.txt"), "w") as fh:
        fh.write("\n".join(words) + "\n")
    with open(os.path.join(opt.model, "eval", "heldout.txt"), "w") as fh:
        fh.write("\n\n".join(heldout) + "\n")
    with open(os.path.join(opt.model, "eval", "heldout_pairs.txt"), "w") as fh:
        fh.writelines(f"{a} {b}\n" for a, b in heldout_pairs())
    text_bytes = sum(len(t.encode()) for t in texts)
    print(f"{len(texts)} texts, {text_bytes} bytes, {len(tokens)} tokens, {text_bytes / len(tokens):.2f} bytes a token; "
          f"{len(heldout)} held-out entries, {size} bytes; {len(entries) - len(kept)} entries left out")


if __name__ == "__main__":
    main()
