"""Trains nano on one GPU: train.py --data DIR --model models/nano --work DIR --seconds 600 [--resume FILE].

DIR of --data is what make_data.py wrote. Worker processes make fresh task instances from fixed seeds and mix them with the dictionary
texts. The learning rate follows the share of --seconds that has passed; the time of compiling before it does not count. Every --save-seconds
and at the end WORK holds state.pt, to go on from, and WORK/export, a finished checkpoint.
"""
import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time

import numpy as np
import torch

import bpe
import chat
import evaluate
import export
import model
import tasks

QUANT_FROM = 0.5                                     # share of the time after which experts are rounded
DECAY_FROM, WARMUP = 0.5, 0.02
MUON_LR, MUON_DECAY, MOMENTUM = 0.02, 0.05, 0.95
ADAM_LR = dict(embed=0.01, unembed=0.003, table=0.005, router=0.003, attn_query=0.004, mlp_query=0.004, out_query=0.004)
ADAM_LR_OTHER = 0.003                                # norms, taps, tap generators, sink
BIAS_RATE = 0.002                                    # step of the routing bias towards an even load


class Rows:
    """Rows of T tokens filled with whole documents."""

    def __init__(self, world, texts, text_share, T, seed):
        self.world, self.T, self.rng, self.texts, self.text_share = world, T, random.Random(seed), texts, text_share
        self.begin = np.flatnonzero(texts & chat.START)
        self.end = np.append(self.begin[1:], len(texts))
        self.waiting, self.text_tokens, self.all_tokens = [], 0, 1

    def document(self):
        if self.text_tokens < self.text_share * self.all_tokens:
            i = self.rng.randrange(len(self.begin))
            doc = self.texts[self.begin[i]:self.end[i]][:self.T]
            self.text_tokens += len(doc)
        else:
            doc = self.world.sample(self.rng).document(self.world.tok)
        self.all_tokens += len(doc)
        return doc

    def row(self):
        row, used = np.zeros(self.T, np.uint16), 0
        for _ in range(400):
            fit = next((i for i, d in enumerate(self.waiting) if len(d) <= self.T - used), None)
            if fit is not None:
                doc = self.waiting.pop(fit)
            else:
                doc = self.document()
                if len(doc) > self.T - used:
                    if len(doc) <= self.T:
                        self.waiting.append(doc)
                    if len(self.waiting) > 8:
                        break
                    continue
            row[used:used + len(doc)] = doc
            used += len(doc)
            if used == self.T:
                break
        if used < self.T:
            row[used] |= chat.START
        return row


def produce(queue, seed, opt):
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    rows = Rows(tasks.load_world(tok, opt.data, opt.model), np.load(os.path.join(opt.data, "texts.npy")), opt.text_share, opt.length, seed)
    while True:
        queue.put(np.stack([rows.row() for _ in range(opt.rows)]))


class Batches:
    """Batch s comes from worker s mod W, so the order does not depend on who is fast."""

    def __init__(self, opt, seed):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(maxsize=6) for _ in range(opt.workers)]
        for i, queue in enumerate(self.queues):
            context.Process(target=produce, args=(queue, seed * 1000 + i, opt), daemon=True).start()
        self.step = 0

    def next_table(self):
        batch = self.queues[self.step % len(self.queues)].get()
        self.step += 1
        return batch

    def next(self):
        return torch.from_numpy(self.next_table().astype(np.int32)).pin_memory().cuda(non_blocking=True).long()


def orthogonal(g, steps=5):
    """Newton-Schulz iteration towards the nearest matrix with orthonormal rows or columns. g [..., m, n]."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if flip else x


class Muon:
    def __init__(self, params):
        self.params, self.momentum = params, [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, lr):
        for p, m in zip(self.params, self.momentum):
            m.lerp_(p.grad, 1 - MOMENTUM)
            update = orthogonal(p.grad.lerp(m, MOMENTUM))
            p.mul_(1 - lr * MUON_DECAY)
            p.add_(update.float(), alpha=-lr * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)


def optimisers(net):
    muon_names = ("wq", "wk", "wv", "wr", "wg", "wo", "w13", "w2")
    named = dict(net.named_parameters())
    groups = [{"params": [p], "lr": ADAM_LR.get(n, ADAM_LR_OTHER), "base": ADAM_LR.get(n, ADAM_LR_OTHER)} for n, p in named.items() if n not in muon_names]
    return Muon([named[n] for n in muon_names]), torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True)


def rate(progress):
    if progress < WARMUP:
        return progress / WARMUP
    return 1.0 if progress < DECAY_FROM else max(0.0, (1 - progress) / (1 - DECAY_FROM))


def save(net, progress, opt, stop):
    """state.pt and export/ always hold a complete version: both are replaced by renaming."""
    state = {k: v.detach().cpu() for k, v in net.state_dict().items()}
    torch.save({"net": state, "progress": progress}, os.path.join(opt.work, "state.tmp"))
    os.replace(os.path.join(opt.work, "state.tmp"), os.path.join(opt.work, "state.pt"))
    fresh, final = os.path.join(opt.work, "export.tmp"), os.path.join(opt.work, "export")
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    export.write_checkpoint(state, export.training_config(), fresh, stop)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(fresh, final)


def report(net, tok, world, opt, cases, count, temperatures=(0.0,), show=0):
    model.Compile.on, quant = False, net.fake_quant
    net.fake_quant = True
    torch.cuda.empty_cache()
    for temperature in temperatures:
        scores = evaluate.evaluate_net(net, tok, world, cases, count, temperature, show)
        print(f"exact at temperature {temperature}: " + ", ".join(f"{k} {e}: {100 * v:.0f}%" for (k, e), v in scores.items()), flush=True)
    print(f"held-out bits per byte {evaluate.net_bits_per_byte(net, tok, opt.model):.3f}", flush=True)
    model.Compile.on, net.fake_quant = True, quant


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    ap.add_argument("--model", default="models/nano")
    ap.add_argument("--work", required=True)
    ap.add_argument("--seconds", type=float, default=600)
    ap.add_argument("--save-seconds", type=float, default=200)
    ap.add_argument("--rows", type=int, default=32)
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--workers", type=int, default=14)
    ap.add_argument("--text-share", type=float, default=0.3, help="dictionary texts among the tokens of every row")
    ap.add_argument("--resume")
    ap.add_argument("--from-progress", type=float, help="with --resume: where in the schedule to go on; --seconds is the length of the whole schedule")
    ap.add_argument("--final-instances", type=int, default=48)
    opt = ap.parse_args()
    begin = time.time()
    os.makedirs(opt.work, exist_ok=True)
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    world, stop = tasks.load_world(tok, opt.data, opt.model), tok.control["<|content_model_end_sampling|>"]
    saved = torch.load(opt.resume, map_location="cpu") if opt.resume else None
    batches = Batches(opt, seed=2 if saved else 1)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.cache_size_limit = 64           # mix_norm alone has five forms
    net = model.Net(export.training_config()).cuda()
    model.Compile.on = True
    first = 0.0
    if saved:
        net.load_state_dict({k: v.float() for k, v in saved["net"].items()})
        first = saved["progress"] if opt.from_progress is None else opt.from_progress
    muon, adam = optimisers(net)
    last_save, last_log, step, tokens, losses = time.time(), time.time(), 0, 0, []
    print(f"{sum(p.numel() for p in net.parameters())} parameters, progress {first:.2f}", flush=True)
    while True:
        if step == 2:                                    # the compiler has finished
            torch.cuda.synchronize()
            print(f"ready to train after {time.time() - begin:.0f} s", flush=True)
            begin = last_save = time.time()
        progress = first + (time.time() - begin) / opt.seconds if step >= 2 else first
        if progress >= 1:
            break
        net.fake_quant = progress >= QUANT_FROM or step == 1
        loss, loads, _ = net.loss(batches.next())
        loss.backward()
        factor = rate(progress) * min(1.0, (step + 1) / 50)
        muon.step(MUON_LR * factor)
        for group in adam.param_groups:
            group["lr"] = group["base"] * factor
        adam.step()
        net.zero_grad(set_to_none=True)
        net.bias.add_(torch.sign(loads.mean(1, keepdim=True) - loads) * BIAS_RATE * factor)
        step, tokens = step + 1, tokens + opt.rows * opt.length
        losses.append(loss.detach())
        if step % 100 == 0 or step in (1, 2, 5, 20, 50):
            mean = torch.stack(losses).mean().item()
            now = time.time()
            print(f"step {step} progress {progress:.3f} loss {mean:.4f} {tokens / (now - last_log) / 1e3:.0f} ktok/s, "
                  f"load {loads.min().item():.3f}..{loads.max().item():.3f}, {torch.cuda.max_memory_allocated() >> 30} GiB", flush=True)
            last_log, tokens, losses = now, 0, []
            if not mean < 20:
                sys.exit("the loss is not a number any more")
        if time.time() - last_save > opt.save_seconds:
            save(net, progress, opt, stop)
            report(net, tok, world, opt, evaluate.CASES[::2], 16, show=1)
            last_save = last_log = time.time()
    save(net, progress, opt, stop)
    print(f"trained {step} steps in {time.time() - begin:.0f} s", flush=True)
    if opt.final_instances:
        report(net, tok, world, opt, evaluate.CASES, opt.final_instances, show=2)
    print("finished", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
