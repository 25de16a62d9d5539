"""Writes tokenizer.json and tokenizer_config.json of nano: make_tokenizer.py o200k_base.json OUT_DIR.

o200k_base.json is the rank file in the npm package tiktoken (encoders/o200k_base.json). nano keeps its first 8,192 ranks, which are
closed under merging, and puts the control tokens of the Inkling format right behind them.
"""
import base64
import json
import os
import sys

from bpe import byte_alphabet, merge

ORDINARY = 8192
CONTROL = """endoftext message_user message_model message_system message_tool content_text content_image content_model_end_sampling
content_thinking end_message content_audio_input content_tool_error content_xml audio_end content_invoke_tool_json unused_200053
unused_200054 content_invoke_tool_text""".split()


def main(rank_file, out_dir):
    with open(rank_file) as fh:
        source = json.load(fh)
    tokens, rank = {}, 0
    for line in source["bpe_ranks"].splitlines():
        _, first, *words = line.split(" ")
        for rank, word in enumerate(words, int(first)):
            tokens[rank] = base64.b64decode(word)
    ranks = {tokens[i]: i for i in range(ORDINARY)}
    merges = []
    for token, i in ranks.items():
        if len(token) > 1:
            parts = merge([bytes([b]) for b in token], ranks, limit=i)
            assert len(parts) == 2, token
            merges.append(parts)
    alphabet = byte_alphabet()
    spell = lambda token: "".join(alphabet[b] for b in token)
    control = [{"id": ORDINARY + i, "content": f"<|{name}|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, name in enumerate(CONTROL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": source["pat_str"]}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": control, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {spell(t): i for t, i in ranks.items()}, "merges": [[spell(a), spell(b)] for a, b in merges]}}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "model_max_length": 262144,
              "eos_token": "<|content_model_end_sampling|>",
              "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in control}}
    for name, data, indent in (("tokenizer.json", tokenizer, None), ("tokenizer_config.json", config, 1)):
        with open(os.path.join(out_dir, name), "w") as fh:
            json.dump(data, fh, ensure_ascii=False, indent=indent, separators=(",", ":") if indent is None else None)
            fh.write("\n")
    print(f"{len(ranks)} ordinary tokens, {len(merges)} merges, {len(control)} control tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
