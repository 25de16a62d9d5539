"""Compares the reference network with stored outputs: check.py DIR [--reference FILE] [--float64] [--chunks N].

DIR holds a checkpoint, FILE (default DIR/reference.safetensors) ids_T, logits_T, intermediates by name and greedy. Exit code 0: every error is below
2e-5 of the largest number in its tensor, or of 1 if all are smaller.
"""
import argparse
import os
import re
import sys

import torch

import inkling2
import safetensors

TOLERANCE = 2e-5


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("dir")
    ap.add_argument("--reference")
    ap.add_argument("--float64", action="store_true")
    ap.add_argument("--chunks", type=int, default=1, help="run every prompt in this many pieces")
    opt = ap.parse_args()
    torch.set_num_threads(1)
    model = inkling2.Model(opt.dir, torch.float64 if opt.float64 else torch.float32)
    ref = {name: torch.from_numpy(t.array.copy()) for name, t in safetensors.read(opt.reference or os.path.join(opt.dir, "reference.safetensors")).items()}
    worst, state, logits = 0.0, None, None
    for T in sorted(int(name[4:]) for name in ref if name.startswith("ids_")):
        ids, state, pieces = ref[f"ids_{T}"], inkling2.State(model), []
        for piece in ids.chunk(opt.chunks):
            pieces.append({})
            model.forward(piece, state, pieces[-1])
        trace = {name: torch.cat([p[name] for p in pieces]) for name in pieces[0]}
        kinds = {}
        for name, want in ref.items():
            if name.endswith(f"_{T}") and not name.startswith("ids_"):
                got = trace[name[:-len(f"_{T}")]][-len(want):]
                kind = re.sub(r"_\d+", "", name)
                error = (got.double() - want.double()).abs().max() / want.abs().max().clamp(min=1)
                kinds[kind] = max(kinds.get(kind, 0.0), float(error))
        print(f"T={T}: largest error " + ", ".join(f"{k} {v:.2g}" for k, v in sorted(kinds.items())))
        worst, logits = max([worst, *kinds.values()]), trace["logits"]
    greedy = []
    for _ in ref.get("greedy", ()):
        greedy.append(int(logits[-1].argmax()))
        logits = model.forward(greedy[-1:], state)
    equal = greedy == [int(t) for t in ref.get("greedy", ())]
    ok = worst < TOLERANCE and equal
    print("PASS" if ok else "FAIL", f"worst {worst:.3g},", "greedy equal" if equal else "greedy differs")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
