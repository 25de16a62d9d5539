"""Trains a DSpark drafter for nano: train_drafter.py --data DIR --work DIR --seconds 560 [--resume FILE] [--samples FILE].

nano first answers prompts of the training mix, most at temperature 1, some greedily. Half of the rows of each step are those answers,
half are fresh conversations of the generators. The drafter learns nano's distribution at every token, computed in the same step.
--seconds is everything: start, answers, training, measuring. WORK holds state.pt (to go on from), samples.npy and export/.
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
import drafter
import evaluate_drafter
import load
import model
import samples
import tasks
import train

BEGIN = time.time()
MUON_LR, ADAM_LR, W_LR = 0.02, 0.002, 0.004
MUON_NAMES = ("fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "joint_proj")
GREEDY_SHARE = 0.25


def log(text):
    print(f"[{time.time() - BEGIN:5.0f} s] {text}", flush=True)


def make_prompts(queue, seed, count, opt):
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    world, rng, out = tasks.load_world(tok, opt.data, opt.model), random.Random(seed), []
    while len(out) < count:
        prompt = world.sample(rng).prompt(tok)
        if len(prompt) <= opt.sample_length // 2:
            out.append(prompt)
    queue.put(out)


class Prompts:
    """Made by processes of their own while this one starts."""

    def __init__(self, opt):
        context = multiprocessing.get_context("fork")
        self.queue, self.workers = context.Queue(), opt.workers
        for i in range(opt.workers):
            context.Process(target=make_prompts, args=(self.queue, 77_000 + i, -(-opt.prompts // opt.workers), opt), daemon=True).start()

    def get(self):
        return [p for _ in range(self.workers) for p in self.queue.get()]


def to_device(table, device):
    table = torch.from_numpy(table.astype(np.int32))
    return (table.pin_memory().to(device, non_blocking=True) if device == "cuda" else table).long()


class Trainer:
    def __init__(self, net, draft, opt):
        self.net, self.draft, self.opt = net, draft, opt
        named = dict(draft.named_parameters())
        self.muon = train.Muon([p for n, p in named.items() if n.split(".")[-1] in MUON_NAMES])
        groups = [{"params": [p], "base": W_LR if n.startswith("markov") else ADAM_LR} for n, p in named.items() if n.split(".")[-1] not in MUON_NAMES]
        self.adam = torch.optim.AdamW(groups, lr=ADAM_LR, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)

    def rows(self, table):
        return drafter.target_rows(self.net, *evaluate_drafter.chat_rows(table), self.draft.config["target_layer_ids"])

    def step(self, table, rate):
        """-> loss, 1 - TV by position summed over the blocks, products of it, how many blocks."""
        K = self.draft.config["block_size"]
        rows = self.rows(table)
        anchors, real = drafter.choose_anchors(rows, self.opt.anchors)
        labels, valid = drafter.labels_of(rows, anchors, K)
        valid = valid & real[..., None]
        logits, confidence = self.draft(rows, anchors)
        loss, overlap = drafter.losses(logits, confidence, drafter.target_probabilities(self.net, rows, anchors, K), labels, valid)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self.muon.step(MUON_LR * rate)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * rate
        self.adam.step()
        self.draft.zero_grad(set_to_none=True)
        full = valid.all(-1)                             # blocks that the answer fills
        chosen = overlap * full[..., None]
        return loss.detach(), chosen.sum((0, 1)), chosen.cumprod(-1).sum((0, 1)), full.sum()


def save(draft, progress, opt):
    """state.pt and export/ always hold a complete version: both are replaced by renaming."""
    path = os.path.join(opt.work, "state.pt")
    torch.save({"drafter": {k: v.detach().cpu() for k, v in draft.state_dict().items()}, "progress": progress}, path + ".tmp")
    os.replace(path + ".tmp", path)
    fresh, final = os.path.join(opt.work, "export.tmp"), os.path.join(opt.work, "export")
    drafter.write(draft, fresh)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(fresh, final)


def own_rows(net, stop, prompts, opt):
    """Rows of nano's own answers, and answers to unseen instances to measure with."""
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    world = tasks.load_world(tok, opt.data, opt.model)
    writer = samples.Writer(net, opt.slots, opt.sample_length, stop)
    asked = evaluate_drafter.prompts(world, tok, opt.instances, opt.sample_length // 2)
    heldout = {t: evaluate_drafter.answers(writer, asked, t, 20 + opt.sample_seconds / 4) for t in (0.0, 1.0)}
    if opt.samples:
        return np.load(opt.samples), heldout
    prompts = prompts.get()
    log(f"{len(prompts)} prompts")
    temperatures = [float(i % 100 >= 100 * GREEDY_SHARE) for i in range(len(prompts))]
    documents = [d for d in writer.answer(prompts, temperatures, opt.sample_seconds) if d is not None]
    rows = samples.packed(documents, opt.length)
    np.save(os.path.join(opt.work, "samples.npy"), rows[:15_000_000 // rows[0].nbytes])
    log(f"{len(documents)} documents of nano's own in {len(rows)} rows")
    return rows, heldout


def compile_target(trainer, table):
    """Without a compiler the training is only slower."""
    try:
        torch._dynamo.config.cache_size_limit = 64
        model.Compile.on = True
        trainer.rows(table)
        log("target compiled")
    except Exception as error:
        model.Compile.on = False
        log(f"the target runs uncompiled: {error}")


def finish():
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--data", required=True)
    ap.add_argument("--model", default="models/nano")
    ap.add_argument("--work", required=True)
    ap.add_argument("--seconds", type=float, default=560)
    ap.add_argument("--sample-seconds", type=float, default=60)
    ap.add_argument("--measure-seconds", type=float, default=40, help="kept free at the end")
    ap.add_argument("--save-seconds", type=float, default=120)
    ap.add_argument("--rows", type=int, default=8, help="of each of the two kinds, in a step")
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--anchors", type=int, default=256, help="blocks of a row")
    ap.add_argument("--slots", type=int, default=2048, help="answers written at once")
    ap.add_argument("--sample-length", type=int, default=512)
    ap.add_argument("--prompts", type=int, default=84_000)
    ap.add_argument("--instances", type=int, default=48, help="unseen instances of each case, to measure with")
    ap.add_argument("--text-share", type=float, default=0.03, help="dictionary texts among the tokens of fresh rows")
    ap.add_argument("--workers", type=int, default=14)
    ap.add_argument("--compile", action="store_true", help="the target's functions; about 40 s")
    ap.add_argument("--resume")
    ap.add_argument("--from-progress", type=float, help="with --resume: where in the schedule to go on")
    ap.add_argument("--samples", help="samples.npy of an earlier run")
    opt = ap.parse_args()
    os.makedirs(opt.work, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prompts = None if opt.samples else Prompts(opt)      # processes begin before CUDA does
    batches = train.Batches(opt, seed=3)
    if device == "cpu":
        torch.Tensor.bfloat16 = torch.Tensor.float
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("high")
    tok = bpe.Tokenizer(os.path.join(opt.model, "tokenizer.json"))
    stop = tok.control["<|content_model_end_sampling|>"]
    net = load.network(opt.model, device)
    log(f"nano loaded on {device}")
    own, heldout = own_rows(net, stop, prompts, opt)
    saved = torch.load(opt.resume, map_location="cpu") if opt.resume else {"progress": 0.0}
    draft = drafter.Drafter(drafter.drafter_config(net.config), net).to(device)
    trainer, rng = Trainer(net, draft, opt), np.random.default_rng(9)
    if opt.resume:
        draft.load_state_dict(saved["drafter"])
    else:
        draft.adapt_to(trainer.rows(to_device(own[:2], device)).context)
    log(f"{sum(p.numel() for p in draft.parameters())} parameters")
    if opt.compile:
        compile_target(trainer, to_device(np.concatenate([own[np.arange(opt.rows) % len(own)], batches.next_table()]), device))
    first, begin = saved["progress"] if opt.from_progress is None else opt.from_progress, time.time()
    seconds = max(1.0, opt.seconds - opt.measure_seconds - (begin - BEGIN))
    step, last_save, seen = 0, begin, []
    while True:
        progress = first + (1 - first) * (time.time() - begin) / seconds
        if progress >= 1:
            break
        table = np.concatenate([own[rng.integers(0, len(own), opt.rows)], batches.next_table()])
        seen.append(trainer.step(to_device(table, device), train.rate(progress) * min(1.0, (step + 1) / 50)))
        step += 1
        if step in (1, 2, 5, 20, 50) or step % 100 == 0:
            loss, overlap, products, blocks = (sum(x).float() for x in zip(*seen))
            blocks = blocks.clamp(min=1)
            log(f"step {step} progress {progress:.3f} loss {loss / len(seen):.3f}, tau {1 + (products / blocks).sum():.3f}, 1 - TV by position "
                + " ".join(f"{x:.3f}" for x in (overlap / blocks).tolist()))
            if not loss < 1e6:
                sys.exit("the loss is not a number any more")
            seen = []
        if time.time() - last_save > opt.save_seconds:
            save(draft, progress, opt)
            last_save = time.time()
    save(draft, 1.0, opt)
    log(f"trained {step} steps; {torch.cuda.max_memory_allocated() >> 30 if device == 'cuda' else 0} GiB")
    model.Compile.on = False
    if device == "cuda":
        torch.cuda.empty_cache()
    draft = drafter.read(os.path.join(opt.work, "export"), net).to(device)                   # as exported, in BF16
    for temperature, answered in heldout.items():
        evaluate_drafter.report(evaluate_drafter.measure(net, draft, answered, temperature, opt.length), f"temperature {temperature}")
    log("finished")
    finish()


if __name__ == "__main__":
    main()
