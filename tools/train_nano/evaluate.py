"""Measures nano on unseen instances.

    evaluate.py reference [MODEL_DIR] [--data DIR] [--instances N]     the reference network on the exported checkpoint, CPU
    evaluate.py write MODEL_DIR --data DIR > tasks.jsonl               prints the instances, one JSON object a line
    evaluate.py prompts MODEL_DIR --data DIR                           prints id lists of long prompts, for tools/reference/dump.py

An answer is right when the whole turn after the thinking block, up to the end of the turn, is exactly the expected text.
"""
import argparse
import json
import math
import os
import random
import sys
import time

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import bpe
import chat
import tasks

CASES = [("arithmetic", 0.9), ("arithmetic +-", 0.0), ("copy", 0.9), ("copy", 0.0), ("sort", 0.9), ("sort", 0.0), ("recall", 0.9), ("recall", 0.0)]
MORE_CASES = [("talk", 0.9), ("talk", 0.0), ("turns", 0.9), ("persona", 0.0), ("spell", 0.0), ("letters", 0.9), ("count", 0.9), ("define", 0.9), ("tool", 0.9),
              ("edit", 0.0), ("extract", 0.9), ("unknown", 0.0)]
SEED = 20_261_201


def instances(world, kind, effort, count, seed=SEED):
    rng = random.Random(f"{seed} {kind} {effort}")
    if kind == "arithmetic +-":
        return [tasks.Task("arithmetic +-", world.arithmetic(rng, False, True, op=rng.choice("+-")), effort) for _ in range(count)]
    if kind == "arithmetic":
        return [tasks.Task(kind, world.arithmetic(rng, effort >= 0.2, True, op=rng.choice("+-*")), effort) for _ in range(count)]
    return [world.task(kind, rng, heldout=True, effort=effort) for _ in range(count)]


def after_thinking(tok, ids):
    """The turn's text without its thinking block; ids follow <|message_model|>."""
    ids = list(ids)
    if ids and ids[0] == tok.control["<|content_thinking|>"] and tok.control["<|end_message|>"] in ids:
        ids = ids[ids.index(tok.control["<|end_message|>"]) + 2:]
    return tok.decode(ids)


def expected(tok, task):
    prompt, whole = task.prompt(tok), task.document(tok)
    return after_thinking(tok, (whole & chat.ID_MASK)[len(prompt):].tolist())


def generate_batch(net, prompts, max_new, temperature, stop, seed=0):
    """Many prompts on the training network, by running the whole row again for each token."""
    step = net.config["sliding_window_size"]
    device = net.embed.device
    length = torch.tensor([len(p) for p in prompts], device=device)
    rows = torch.zeros(len(prompts), -(-(max(map(len, prompts)) + max_new) // step) * step, dtype=torch.long, device=device)
    for row, p in zip(rows, prompts):
        row[:len(p)] = torch.from_numpy((p & chat.ID_MASK).astype(np.int64))
    generator, done, start = torch.Generator(device).manual_seed(seed), torch.zeros(len(prompts), dtype=torch.bool, device=device), length.clone()
    for _ in range(max_new):
        width = int(-(-(length.max() + 1) // step) * step)
        logits = net.logits(rows[:, :width], length - 1)
        token = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0] if temperature else logits.argmax(-1)
        rows[torch.arange(len(prompts), device=device)[~done], length[~done]] = token[~done]
        length = length + (~done).long()
        done |= token == stop
        if done.all():
            break
    return [row[a:b].tolist() for row, a, b in zip(rows.cpu(), start.cpu(), length.cpu())]


def evaluate_net(net, tok, world, cases, count, temperature=0.0, show=0):
    stop, out = tok.control["<|content_model_end_sampling|>"], {}
    for kind, effort in cases:
        batch = instances(world, kind, effort, count)
        answers = generate_batch(net, [t.prompt(tok) for t in batch], 150, temperature, stop)
        right = [after_thinking(tok, a) == expected(tok, t) for a, t in zip(answers, batch)]
        out[kind, effort] = sum(right) / count
        wrong = [(a, t) for a, t, r in zip(answers, batch, right) if not r][:show]
        for a, t in wrong:
            print(f"   {kind} wrong: {t.messages[-2]['content'][-160:]!r} -> {tok.decode(a)!r}", flush=True)
    return out


@torch.no_grad()
def bits_per_byte(logits_of, tok, texts):
    """Each text as a document after <|endoftext|>; its own tokens count, the closing <|endoftext|> does not."""
    nats = size = 0
    for text in texts:
        ids = torch.from_numpy((chat.plain(tok, text) & chat.ID_MASK).astype(np.int64))[:-1]
        logp = torch.log_softmax(logits_of(ids[:-1]).float(), -1)
        nats -= float(logp.gather(1, ids[1:, None].to(logp.device)).sum())
        size += len(text.encode())
    return nats / math.log(2) / size


def heldout_texts(model_dir):
    with open(os.path.join(model_dir, "eval", "heldout.txt")) as fh:
        return fh.read().rstrip("\n").split("\n\n")


def net_bits_per_byte(net, tok, model_dir):
    step = net.config["sliding_window_size"]

    def logits_of(ids):
        row = torch.zeros(1, -(-len(ids) // step) * step, dtype=torch.long, device=net.embed.device)
        row[0, :len(ids)] = ids
        return net.logits(row)[0, :len(ids)]
    return bits_per_byte(logits_of, tok, heldout_texts(model_dir))


def reference_turn(model, prompt, stop, temperature, generator, max_new=260):
    import inkling2
    state, out = inkling2.State(model), []
    logits = model.forward((prompt & chat.ID_MASK).astype(np.int64), state)[-1]
    while len(out) < max_new:
        token = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)) if temperature else int(logits.argmax())
        out.append(token)
        if token == stop:
            break
        logits = model.forward([token], state)[-1]
    return out


def jsonl(task):
    return json.dumps({"task": task.kind, "effort": task.effort, "messages": [{"role": "assistant" if m["role"] == "model" else m["role"], "content": m["content"]}
                       for m in task.messages[:-1]], "answer": task.answer}, ensure_ascii=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("action", choices=["reference", "write", "prompts"])
    ap.add_argument("model", nargs="?", default="models/nano")
    ap.add_argument("--data", required=True, help="what make_data.py wrote")
    ap.add_argument("--instances", type=int, default=8)
    ap.add_argument("--temperature", type=float, default=0.0)
    ap.add_argument("--bf16", action="store_true", help="round activations where a BF16 engine does")
    ap.add_argument("--only", help="one kind of task")
    opt = ap.parse_args()
    torch.set_num_threads(1)
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    world = tasks.load_world(tok, opt.data, opt.model)
    if opt.action == "write":
        for kind, effort in CASES:
            for task in instances(world, kind, effort, opt.instances):
                print(jsonl(task))
        return
    if opt.action == "prompts":
        rng = random.Random(SEED)
        long = [world.task("turns", rng, heldout=True) for _ in range(300)]
        print(json.dumps([ids for ids in ((t.prompt(tok) & chat.ID_MASK).tolist() for t in long) if len(ids) > 280]))
        return
    import inkling2
    with torch.no_grad():
        model, stop = inkling2.Model(opt.model, bf16=opt.bf16), tok.control["<|content_model_end_sampling|>"]
        generator = torch.Generator().manual_seed(1)
        for kind, effort in CASES + MORE_CASES:
            if opt.only not in (None, kind):
                continue
            begin, right = time.time(), 0
            for task in instances(world, kind, effort, opt.instances):
                answer = reference_turn(model, task.prompt(tok), stop, opt.temperature, generator)
                right += after_thinking(tok, answer) == expected(tok, task)
            print(f"{kind:14s} effort {effort}: {right} of {opt.instances} ({time.time() - begin:.0f} s)", flush=True)
        bpb = bits_per_byte(lambda ids: model.forward(ids, inkling2.State(model)), tok, heldout_texts(opt.model)[::4])
        print(f"bits per byte on every fourth held-out entry: {bpb:.3f}")


if __name__ == "__main__":
    main()
