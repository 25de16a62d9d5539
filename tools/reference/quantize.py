"""The two expert formats of Inkling 2: NVFP4 (with the four-over-six choice) and MXFP8, for torch tensors [..., rows, K].

    packed, scale, amax = nvfp4_encode(w)           # U8 [..., K/2] low nibble first, E4M3 bits [..., K/16], F32 [...]
    w = nvfp4_decode(packed, scale, amax, 1536)
    codes, scale = mxfp8_encode(w)                  # E4M3 bits [..., K], E8M0 bits [..., K/32]
    w = mxfp8_decode(codes, scale)
    nvfp4_round(w), mxfp8_round(w)                  # decode(encode(w)) without the bits: what training sees

NVFP4 value = e2m1(code) * e4m3(scale) * fp32(amax / denominator). A block of 16 maps its largest value to code 6 or, with a scale
1.5 times larger, to code 4, whichever has the smaller sum of absolute errors; ties keep 6. Denominator 1536 = 6 * 256 leaves E4M3
room for that larger scale. MXFP8 value = e4m3(code) * 2^(scale - 127), the smallest exponent under which a block of 32 fits.
All arithmetic is FP32, rounding is to nearest with ties to even.
"""
import torch

DENOMINATOR = 1536.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def round_e2m1(a):
    """a >= 0, saturating at 6. Adding 2^22 leaves steps of 0.5, 2^23 steps of 1, 2^24 steps of 2."""
    a = a.clamp(max=6.0)
    magic = torch.where(a < 2, 2.0 ** 22, torch.where(a < 4, 2.0 ** 23, 2.0 ** 24)).to(torch.float32)
    return (a + magic) - magic


def round_e4m3(a):
    """a >= 0, saturating at 448. Normal numbers have steps of 2^(exponent-3), subnormal ones of 2^-9."""
    a = a.clamp(max=448.0)
    exponent = torch.floor(torch.log2(a.clamp(min=2.0 ** -6)))
    exponent = exponent + (a >= torch.exp2(exponent + 1)).float() - (a < torch.exp2(exponent)).float() * (a >= 2.0 ** -6).float()
    step = torch.exp2(exponent - 3)
    return torch.round(a / step) * step


def e4m3_bits(value):
    """Bits of non-negative numbers that E4M3 holds exactly."""
    exponent = torch.floor(torch.log2(value.clamp(min=2.0 ** -6)))
    subnormal = value < 2.0 ** -6
    normal_bits = (exponent + 7) * 8 + value / torch.exp2(exponent) * 8 - 8
    return torch.where(subnormal, value * 512, normal_bits).round().to(torch.uint8)


def e4m3_values():
    table = [(8 + b % 8) * 2.0 ** (b // 8 - 10) if b > 7 else b * 2.0 ** -9 for b in range(127)] + [float("nan")]
    return torch.tensor(table + [-v for v in table], dtype=torch.float32)


def _four_over_six(w, denominator):
    """w [..., rows, K] -> rounded magnitudes [..., rows, K/16, 16] in code units, scales [..., rows, K/16], outer [...]."""
    w = w.float()
    amax = w.abs().amax((-2, -1))
    outer = (amax / denominator).clamp(min=torch.finfo(torch.float32).tiny)
    x = w.abs().reshape(*w.shape[:-1], -1, 16)
    per_block = outer[..., None, None]
    top = x.amax(-1) / 6 / per_block
    best = None
    for factor in (1.0, 1.5):
        scale = round_e4m3(top * factor)
        unit = scale * per_block
        code = round_e2m1(x / unit.clamp(min=1e-38)[..., None]) * (scale > 0)[..., None]
        error = (code * unit[..., None] - x).abs().sum(-1)
        if best is None:
            best = code, scale, error
        else:
            win = error < best[2]
            best = torch.where(win[..., None], code, best[0]), torch.where(win, scale, best[1]), None
    return best[0], best[1], amax, outer


def nvfp4_round(w, denominator=DENOMINATOR):
    code, scale, _, outer = _four_over_six(w, denominator)
    value = code * (scale * outer[..., None, None])[..., None]
    return torch.copysign(value.reshape(w.shape), w.float())


def nvfp4_encode(w, denominator=DENOMINATOR):
    code, scale, amax, _ = _four_over_six(w, denominator)
    index = torch.where(code <= 2, code * 2, torch.where(code <= 4, code + 2, torch.full_like(code, 7.0)))    # position in E2M1
    nibble = index.reshape(w.shape).to(torch.uint8) + 8 * (w < 0).to(torch.uint8)
    return nibble[..., 0::2] | nibble[..., 1::2] << 4, e4m3_bits(scale), amax


def nvfp4_decode(packed, scale, amax, denominator):
    nibble = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1), dtype=torch.float32)
    if int(scale.max()) >= 127:
        raise ValueError("NVFP4 scale is negative or NaN")
    outer = (amax / torch.as_tensor(denominator, dtype=torch.float32)).float()[..., None, None, None]
    value = table[nibble].unflatten(-1, (-1, 16)) * e4m3_values()[scale.long()][..., None]
    return (value * outer).flatten(-2)


def _mx_exponent(x):
    amax = x.amax(-1)
    exponent = torch.ceil(torch.log2(amax.clamp(min=2.0 ** -126) / 448)).clamp(-127, 127)
    exponent = exponent + (amax > 448 * torch.exp2(exponent)).float()                    # guards the rounding of log2
    return torch.where(amax <= 448 * torch.exp2(exponent - 1), exponent - 1, exponent).clamp(-127, 127)


def mxfp8_round(w):
    x = w.float().abs().reshape(*w.shape[:-1], -1, 32)
    unit = torch.exp2(_mx_exponent(x))[..., None]
    return torch.copysign((round_e4m3(x / unit) * unit).reshape(w.shape), w.float())


def mxfp8_encode(w):
    x = w.float().abs().reshape(*w.shape[:-1], -1, 32)
    exponent = _mx_exponent(x)
    bits = e4m3_bits(round_e4m3(x / torch.exp2(exponent)[..., None])).reshape(w.shape)
    return bits + 128 * (w < 0).to(torch.uint8), (exponent + 127).to(torch.uint8)


def mxfp8_decode(codes, scale):
    value = e4m3_values()[codes.long()].unflatten(-1, (-1, 32))
    return (value * torch.exp2(scale.float() - 127)[..., None]).flatten(-2)
