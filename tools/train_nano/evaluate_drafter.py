"""Measures a drafter of nano on its own answers to unseen instances, without the engine.

    evaluate_drafter.py models/nano DRAFTER_DIR --data DIR [--instances 8]           CPU or GPU

DRAFTER_DIR holds mtp.safetensors and dspark_config.json. nano answers each prompt greedily and at temperature 1. A walk along the
answer then replays speculative decoding: at T = 0 a draft is accepted when it is the best one, at T = 1 with probability min(1, q / p) of
the token that came, which given the output is the law of rejection sampling. Steps that run past the end of the answer count what
was left. Prompts longer than --length / 2 are drawn again, so recall is measured on its shorter lists.
"""
import argparse
import os
import random
from collections import defaultdict

import torch

import bpe
import chat
import drafter
import evaluate
import load
import samples
import tasks

CASES = evaluate.CASES + [("talk", 0.9), ("talk", 0.0), ("turns", 0.9), ("define", 0.9)]
MEASURED = {"arithmetic", "copy", "sort", "recall", "talk"}                         # what the acceptance of the README is the mean of


def prompts(world, tok, count, longest, cases=CASES):
    """[(case, prompt)]"""
    out = []
    for kind, effort in cases:
        short = [p for p in (t.prompt(tok) for t in evaluate.instances(world, kind, effort, 6 * count)) if len(p) <= longest]
        out += [((kind, effort), p) for p in short[:count]]
    return out


def answers(writer, asked, temperature, seconds=float("inf")):
    """[(case, length of the prompt, document)] of those that came to their end."""
    documents = writer.answer([p for _, p in asked], [temperature] * len(asked), seconds)
    stop = writer.stop
    return [(case, len(p), d) for (case, p), d in zip(asked, documents) if d is not None and (d[-1] & chat.ID_MASK) == stop]


@torch.no_grad()
def accepted_counts(net, draft, rows, temperature, chunk=256):
    """How many drafts of the block at each position would be accepted: [B, T], 0 where the model does not go on speaking."""
    K, out = draft.config["block_size"], torch.zeros_like(rows.ids)
    goes_on = rows.said[:, :-1] & rows.said[:, 1:] & (rows.doc[:, :-1] == rows.doc[:, 1:])
    for b in range(len(rows.ids)):
        one = drafter.Rows(*(x[b:b + 1] for x in rows))
        for anchors in goes_on[b].nonzero()[:, 0].split(chunk):
            anchors = anchors[None]
            logits, _ = draft(one, anchors)
            labels, valid = drafter.labels_of(one, anchors, K)
            if temperature == 0:
                good = logits[..., :net.config["unpadded_vocab_size"]].argmax(-1) == labels
            else:
                p, q = drafter.target_probabilities(net, one, anchors, K), torch.softmax(logits.float() / temperature, -1)
                at = lambda x: x.gather(-1, labels[..., None]).squeeze(-1)
                good = torch.rand(labels.shape, device=labels.device) * at(p) < at(q)
            out[b, anchors[0]] = (good & valid).long().cumprod(-1).sum(-1)[0]
    return out


def walk(accepted, first, end, block, tally):
    """accepted: of one document; its answer is [first, end). tally: steps, tokens, steps that tried and passed each draft."""
    at = first
    while at < end - 1:
        count, most = int(accepted[at]), min(block, end - 1 - at)
        tally["steps"] += 1
        tally["tokens"] += min(count + 1, end - 1 - at)
        for k in range(min(count + 1, most)):
            tally["tried", k] += 1
            tally["passed", k] += k < count
        at += count + 1


def measure(net, draft, answered, temperature, length):
    """-> {case: tally}, and the tally of the measured tasks under None."""
    tallies, device = defaultdict(lambda: defaultdict(int)), net.embed.device
    for i in range(0, len(answered), 32):
        part = answered[i:i + 32]
        table = torch.from_numpy(samples.packed([d for _, _, d in part], length).astype("int32")).long().to(device)
        rows = drafter.target_rows(net, *chat_rows(table), draft.config["target_layer_ids"])
        accepted, begin = accepted_counts(net, draft, rows, temperature).cpu(), (table & chat.START > 0).nonzero().tolist()
        for (case, first, document), (b, at) in zip(part, begin_of_documents(begin, part, length)):
            for key in [case] + [None] * (case[0].split()[0] in MEASURED):
                walk(accepted[b, at:at + len(document)], first, len(document), draft.config["block_size"], tallies[key])
    return tallies


def begin_of_documents(begin, part, length):
    """Places of the documents among all starts; the rest of a row starts too, after its last document."""
    out, n = [], 0
    for b, at in begin:
        if n < len(part) and at + len(part[n][2]) <= length:
            out.append((b, at))
            n += 1
    return out


def chat_rows(table):
    """chat.py's marks -> ids, said, doc."""
    return table & chat.ID_MASK, (table & chat.TARGET) > 0, ((table & chat.START) > 0).cumsum(1)


def length_of(tally):
    return tally["tokens"] / max(1, tally["steps"])


def report(tallies, title):
    total = tallies[None]
    rates = [total["passed", k] / max(1, total["tried", k]) for k in range(32) if total["tried", k]]
    print(f"{title}: acceptance length {length_of(total):.2f} ({total['steps']} steps); by position " + " ".join(f"{r:.2f}" for r in rates))
    print("   " + ", ".join(f"{k} {e}: {length_of(t):.2f}" for (k, e), t in ((key, t) for key, t in tallies.items() if key)), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model")
    ap.add_argument("drafter")
    ap.add_argument("--data", required=True, help="what make_data.py wrote")
    ap.add_argument("--instances", type=int, default=8)
    ap.add_argument("--slots", type=int, default=48)
    ap.add_argument("--length", type=int, default=512)
    opt = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.Tensor.bfloat16 = torch.Tensor.float       # FP32 throughout: BF16 is slow there
    torch.manual_seed(1)
    random.seed(1)
    net = load.network(opt.model, device)
    draft, tok = drafter.read(opt.drafter, net).to(device), bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    world = tasks.load_world(tok, opt.data, opt.model)
    writer = samples.Writer(net, opt.slots, opt.length, tok.control["<|content_model_end_sampling|>"])
    asked = prompts(world, tok, opt.instances, opt.length // 2)
    for temperature in (0.0, 1.0):
        report(measure(net, draft, answers(writer, asked, temperature), temperature, opt.length), f"temperature {temperature}")


if __name__ == "__main__":
    main()
