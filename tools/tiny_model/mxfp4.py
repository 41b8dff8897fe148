"""MXFP4 weights: E2M1 codes with one E8M0 exponent per 32 columns, exactly as the checkpoint stores them.

The block exponent is the smallest with which nothing saturates: ceil(log2(amax / 6)). It is read off the float's bits,
because log2 and pow on a GPU may be one ulp off and training must see the very weights that are exported.
"""
import torch

BLOCK = 32
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent + 127).clamp(1, 254) << 23).to(torch.int32).view(torch.float32)


def block_exponents(w: torch.Tensor) -> torch.Tensor:
    """[..., in] float32 -> [..., in/32] int32. 6 is 1.5 * 2^2: a larger mantissa needs one step more."""
    bits = w.detach().unflatten(-1, (-1, BLOCK)).abs().amax(-1).contiguous().view(torch.int32)
    return ((bits >> 23) - 129 + ((bits & 0x7FFFFF) > 0x400000).int()).clamp(min=-126)


def scaled_values(w: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Weights in units of their block scale, rounded to E2M1 (ties to the even code)."""
    x = w.detach().unflatten(-1, (-1, BLOCK)) * power_of_two(-exponents).unsqueeze(-1)
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
    return torch.round(x / step) * step


def fake_quantise(w: torch.Tensor) -> torch.Tensor:
    """The dequantised weights forward, the identity backward."""
    exponents = block_exponents(w)
    q = (scaled_values(w, exponents) * power_of_two(exponents).unsqueeze(-1)).flatten(-2)
    return q + (w - w.detach())  # the bracket is exactly zero


def pack(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] float32 -> (weight_packed U8 [out, in/2], weight_scale U8 [out, in/32])."""
    exponents = block_exponents(w)
    x = scaled_values(w, exponents).flatten(-2)
    code = torch.bucketize(x.abs(), torch.tensor(VALUES, device=w.device)).to(torch.uint8)
    code = code | (torch.signbit(x).to(torch.uint8) << 3)
    return code[..., 0::2] | (code[..., 1::2] << 4), (exponents + 127).to(torch.uint8)


def unpack(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(VALUES + [-v for v in VALUES], device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return (table[codes].unflatten(-1, (-1, BLOCK)) * power_of_two(scale.int() - 127).unsqueeze(-1)).flatten(-2)
