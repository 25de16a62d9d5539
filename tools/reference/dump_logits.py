"""Writes reference logits of a checkpoint: dump_logits.py DIR OUT [--ids FILE] [--bf16] [--cut N].

FILE (default DIR/reference.safetensors) names the prompts, ids_T. OUT gets ids_T and logits_T; with --cut of at most N ids.
Sums are taken in double precision; with --bf16 activations are rounded where a BF16 engine rounds them. Where such a rounding tips the
router two right engines part, so --cut keeps a prompt short of the first near-tie.
"""
import argparse
import json
import os

import torch

import inkling
import inkling2
import safetensors


def logits_of(folder, bf16):
    with open(os.path.join(folder, "config.json")) as fh:
        second = "n_layers_per_attnres_block" in json.dumps(json.load(fh))
    if not second:
        return inkling.Model(folder, torch.float64, bf16).forward
    model = inkling2.Model(folder, torch.float64, bf16)
    return lambda ids: model.forward(ids, inkling2.State(model))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("dir")
    ap.add_argument("out")
    ap.add_argument("--ids")
    ap.add_argument("--bf16", action="store_true")
    ap.add_argument("--cut", type=int)
    opt = ap.parse_args()
    forward, out = logits_of(opt.dir, opt.bf16), {}
    for name, tensor in safetensors.read(opt.ids or os.path.join(opt.dir, "reference.safetensors")).items():
        if name.startswith("ids_"):
            ids = tensor.array[:opt.cut].copy()
            out[f"ids_{len(ids)}"], out[f"logits_{len(ids)}"] = ("I64", ids), ("F32", forward(ids).numpy())
    safetensors.write(opt.out, out)


if __name__ == "__main__":
    main()
