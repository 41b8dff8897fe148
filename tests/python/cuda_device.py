"""The CUDA device of the tests, and numpy arrays that go there and back as torch tensors."""

import importlib.util

import ml_dtypes
import numpy as np

from kdelta import ops


def why_not():
    """Why there is none; empty where there is one."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:  # the folder of tests beside this file is none
        return "no torch"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        ops.Context("cuda")
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return ""


class Cpu:
    context = None

    def put(self, array):
        return array

    get = put


class Cuda:
    """exact: there, too, no bit of a row depends on the rows beside it."""

    def __init__(self):
        self.context = ops.Context("cuda", exact=True)

    def put(self, array):
        import torch

        array = np.ascontiguousarray(array)
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    def get(self, tensor):
        import torch

        if tensor.dtype == torch.bfloat16:
            return tensor.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.cpu().numpy()
