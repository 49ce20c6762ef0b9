"""Which codec an optimizer's slot needs when weights are quantized."""

from __future__ import annotations

from holdfast.codec.base import Codec
from holdfast.codec.exact import Exact, Rounded
from holdfast.codec.quantized import Asymmetric, Logarithmic

# As torch.optim calls them. TorchRec's momentum1 is a sum of squares or an average, whatever the optimizer: not here.
_SQUARES = frozenset({"sum", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf"})
_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "grad_avg"})
_FLOATS = frozenset({"F32", "F64", "F16", "BF16"})


def slot_codec(name: str, dim: int, dtype: str, bits: int) -> Codec:
    """The codec for a slot of ``dim`` numbers per row of a table whose weights are stored in ``bits`` bits.

    One number per row (row-wise Adagrad's sum) in bfloat16: it enters a step by its root, so a step is off by at most
    a 512th. Sums and averages of squares on a logarithmic grid of 8 bits, whatever the weights have: they divide, so
    what counts is their relative error, and one that became zero would make the next step a leap. Averages of
    gradients on a plain grid of 8 bits, or of 4 beside weights of 4 bits or fewer. All others exactly.
    """
    if dtype not in _FLOATS:
        return Exact()
    if dim == 1:
        return Rounded()
    if name in _SQUARES:
        return Logarithmic(bits=8)
    if name in _MOMENTS:
        return Asymmetric(bits=8 if bits == 8 else 4)
    return Exact()
