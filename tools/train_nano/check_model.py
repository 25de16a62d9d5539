"""Shows that the training network and the reference compute the same: check_model.py. CPU, FP32, a small random model.

Exports the random model (with its experts rounded), runs the reference on the files and compares logits, for one document alone and
for two documents packed into one row.
"""
import os
import sys
import tempfile

import torch

torch.Tensor.bfloat16 = torch.Tensor.float           # the training code in FP32: nothing is rounded
import export
import model

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import chat
import inkling2
import quantize


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    c = {**export.training_config(), "vocab_size": 320, "unpadded_vocab_size": 300, "hidden_size": 64, "moe_intermediate_size": 32, "head_dim": 16,
         "sliding_window_size": 16, "rel_extent": 16, "d_rel": 4, "q_l2_clip": 3.5, "k_l2_clip": 4.0, "rel_l2_clip": 1.8, "situ_beta": 1.0,
         "situ_linear_beta": 1.2, "final_logit_softcapping": 3.0}
    net = model.Net(c)
    with torch.no_grad():
        for name, x in net.named_parameters():
            if "query" in name:
                x.normal_(0, 0.3)
            elif "norm" in name:
                x.add_(0.2 * torch.randn_like(x))
            elif name in ("table", "unembed", "wz", "k_generator", "v_generator"):
                x.normal_(0, 0.3)
        net.bias.normal_(0, 0.1)
        for name, x in net.named_parameters():               # what the file can hold
            if "query" not in name and name not in ("w13", "w2"):
                x.copy_(x.to(torch.bfloat16).float())
        net.w13[:c["nvfp4_layers"]] = quantize.nvfp4_round(net.w13[:c["nvfp4_layers"]])
        net.w13[c["nvfp4_layers"]:] = quantize.mxfp8_round(net.w13[c["nvfp4_layers"]:])
        net.w2[:c["nvfp4_layers"]] = quantize.nvfp4_round(net.w2[:c["nvfp4_layers"]])
        net.w2[c["nvfp4_layers"]:] = quantize.mxfp8_round(net.w2[c["nvfp4_layers"]:])
    ids = torch.randint(0, 300, (64,))
    with tempfile.TemporaryDirectory() as folder:
        export.write_checkpoint(net.state_dict(), c, folder, 0)
        reference = inkling2.Model(folder)
        want = reference.forward(ids, inkling2.State(reference))
        want_second = reference.forward(ids[24:], inkling2.State(reference))
    alone = (net.logits(ids[None])[0] - want).abs().max().item()
    doc = torch.ones(1, 64, dtype=torch.long)
    doc[:, 24:] = 2
    with torch.no_grad():
        h, _ = net.body(ids[None], doc)
    packed = 3.0 * torch.tanh(h[0].float() @ net.unembed[:300].T / 3.0)
    together = max((packed[:24] - want[:24]).abs().max().item(), (packed[24:] - want_second).abs().max().item())
    print(f"logits up to {want.abs().max():.2f}; largest difference: one document {alone:.2g}, two packed {together:.2g}")
    net.fake_quant = True
    rounded = (net.logits(ids[None])[0] - want).abs().max().item()
    print(f"with fake quantisation of already rounded experts: {rounded:.2g}")
    row = ids[None] | chat.TARGET
    row[0, 0] |= chat.START
    net.loss(row)[0].backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    print("parameters without gradient:", silent)
    return 0 if max(alone, together) < 1e-4 and not silent else 1


if __name__ == "__main__":
    sys.exit(main())
