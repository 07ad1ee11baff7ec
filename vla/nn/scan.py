"""Linear recurrences of whole episodes at once."""

import torch
from torch import Tensor


def scan(factor: Tensor, inputs: Tensor) -> Tensor:
    """Return h with h_t = factor_t h_(t-1) + inputs_t along axis 1, h_(-1) = 0.

    Hillis and Steele 1986: log2(t) products, each with twice the reach of the one before.
    """
    reach, length = 1, inputs.shape[1]
    factor = factor.expand_as(inputs)
    while reach < length:
        inputs = torch.cat(
            [inputs[:, :reach], factor[:, reach:] * inputs[:, :-reach] + inputs[:, reach:]], 1
        )
        factor = torch.cat([factor[:, :reach], factor[:, reach:] * factor[:, :-reach]], 1)
        reach *= 2
    return inputs
