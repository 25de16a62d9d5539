"""Writes reference outputs of a checkpoint as data for tests: dump.py DIR OUT.safetensors PROMPTS.json [--lengths 1,43,270].

PROMPTS.json is a list of id lists. For every length the first prompt is taken, cut to that length, that leaves room for rounding: no
router choice closer than --gap and, for the longest, no greedy token closer than --margin. Computed in float64, stored as F32:
  ids_T [T] I64, logits_T [rows, valid vocabulary], the intermediates of inkling2.Model.forward by name for the last rows of the
  layers --layers, and greedy [12] I64, the tokens that follow the longest prompt.
"""
import argparse
import json
import os

import torch

import inkling2
import safetensors


def router_gap(model, trace):
    """Smallest distance between the weakest chosen and the strongest rejected expert, over all layers and tokens."""
    c, gap = model.config, 1.0
    for l, layer in enumerate(model.layers):
        ranked = (torch.sigmoid(trace[f"x_{l}_mlp"] @ layer.router.T) + layer.bias).sort(1, descending=True)[0]
        gap = min(gap, float((ranked[:, c.num_experts_per_tok - 1] - ranked[:, c.num_experts_per_tok]).min()))
    return gap


def greedy(model, state, logits, count):
    tokens, margin = [], float("inf")
    for _ in range(count):
        best = logits[-1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        logits = model.forward(tokens[-1:], state)
    return tokens, margin


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("dir")
    ap.add_argument("out")
    ap.add_argument("prompts")
    ap.add_argument("--lengths", default="1,43,270")
    ap.add_argument("--rows", type=int, default=3, help="rows of the logits to keep")
    ap.add_argument("--layers", default="0,5,6,11", help="layers whose intermediates are kept, for the last two rows")
    ap.add_argument("--gap", type=float, default=4e-6)
    ap.add_argument("--margin", type=float, default=1e-2)
    opt = ap.parse_args()
    torch.set_num_threads(1)
    model = inkling2.Model(opt.dir, torch.float64)
    with open(opt.prompts) as fh:
        prompts = json.load(fh)
    lengths, out = sorted(int(n) for n in opt.lengths.split(",")), {}
    keep = {f"_{l}_" for l in opt.layers.split(",")}
    for T in lengths:
        for number, ids in enumerate(p[:T] for p in prompts if len(p) >= T):
            state, trace = inkling2.State(model), {}
            logits, (tokens, margin) = model.forward(ids, state, trace), ([], float("inf"))
            gap = router_gap(model, trace)
            if gap >= opt.gap and T == lengths[-1]:
                tokens, margin = greedy(model, state, logits, 12)
            if gap >= opt.gap and margin >= opt.margin:
                break
        else:
            raise SystemExit(f"no prompt of {T} tokens without a near-tie")
        print(f"T={T}: prompt {number}, smallest router gap {gap:.2g}" + (f", smallest greedy margin {margin:.2g}" if tokens else ""))
        out[f"ids_{T}"] = ("I64", torch.tensor(ids).numpy())
        for name, x in trace.items():
            if name == "logits" or name in ("P_final", "h_final") or any(k in name + "_" for k in keep):
                x = x[-(opt.rows if name == "logits" else 2):]
                out[f"{name}_{T}"] = ("I64" if "ids" in name else "F32", x.numpy())
        if tokens:
            out["greedy"] = ("I64", torch.tensor(tokens).numpy())
    safetensors.write(opt.out, out)
    print(f"{len(out)} tensors, {os.path.getsize(opt.out)} bytes")


if __name__ == "__main__":
    main()
