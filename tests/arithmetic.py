"""The arithmetic of other processors, for tests: kernels round differently, and differently for every shape.

With SALVIZ_ARITHMETIC=noisy, the result of each product, convolution, softmax and normalisation is multiplied by 1 + a
few units in the last place. This noise is determined by the operation and the shapes of its inputs. The same operations
on the same shapes therefore give the same bits, as on any machine. A sentence alone differs in its last bits from the
same sentence in a batch, as on some machines. Tests that pass here and with the plain kernels do not depend on the
kernels of one processor.

With SALVIZ_ARITHMETIC=card, the same operations, and also sums, sorting and common functions, run on the device
SALVIZ_DEVICE (default: cuda). Their arguments and results stay on the processor. In this way, tests that were written
for the processor check the kernels of a GPU (`make gpu`)."""
import contextlib
import os
import threading
import zlib
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
rounding = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.convolution, aten._softmax,
            aten._log_softmax,
            aten._softmax_backward_data, aten._log_softmax_backward_data, aten.native_layer_norm,
            aten.native_layer_norm_backward, aten._scaled_dot_product_flash_attention_for_cpu, aten.mkldnn_linear,
            aten._scaled_dot_product_flash_attention_for_cpu_backward, aten.convolution_backward}


class Noisy(TorchDispatchMode):
    "A mode in which results of the operations in `rounding` deviate by a few units in the last place"
    def __init__(self):
        super().__init__()
        self.factors = {}

    def factor(self, key, x):
        "Return 1 + noise for the tensor `x`, the same for the same `key`"
        if key not in self.factors:
            if len(self.factors) > 500: self.factors.clear()
            generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
            noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
            units = 1 if x.element_size() == 2 else 2 # sums in half precision are computed in float32 and rounded once
            self.factors[key] = (1 + noise * units * torch.finfo(x.dtype).eps).to(x.dtype)
        return self.factors[key]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in rounding: return result
        shapes = tuple(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))
        for i, x in enumerate(result if isinstance(result, tuple) else [result]):
            if isinstance(x, torch.Tensor) and x.device.type == 'cpu' and x.is_floating_point():
                x.mul_(self.factor((str(func), i, shapes, tuple(x.shape), x.dtype), x))
        return result


on_card = rounding | {aten.exp, aten.log, aten.tanh, aten.sigmoid, aten.gelu, aten.gelu_backward, aten.tanh_backward,
                      aten.silu, aten.silu_backward, aten.sum, aten.mean, aten.logsumexp, aten.cumsum, aten.sort,
                      aten.argsort, aten.topk, aten.argmax, aten.embedding_dense_backward, aten.scatter_add,
                      aten.index_add,
                      aten.var, aten.std, aten.pow, aten.rsqrt, aten.cat, aten.gather, aten.index}


class OnCard(TorchDispatchMode):
    "A mode in which the operations in `on_card` run on `device` and their results are copied back to the processor"
    def __init__(self, device):
        super().__init__()
        self.device = torch.device(device)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = str(func), kwargs or {}
        here = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        ours = func.overloadpacket in on_card and 'out' not in kwargs and 'mkldnn' not in name and 'for_cpu' not in name
        if not (ours and here and all(x.device.type == 'cpu' for x in here)): return func(*args, **kwargs)
        there = tree_map_only(torch.Tensor, lambda x: x.to(self.device), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda x: x.to('cpu'), func(*there[0], **there[1]))


@contextlib.contextmanager
def everywhere(mode):
    """Use the dispatch mode of `mode()` in this thread and in every thread that starts inside the block, because a mode
    applies to one thread only"""
    run = threading.Thread.run
    def in_mode(thread):
        with mode(): run(thread)
    threading.Thread.run = in_mode
    try:
        with mode(): yield
    finally: threading.Thread.run = run

def noise(): return everywhere(Noisy)


def chosen():
    "Return a context manager for the arithmetic that SALVIZ_ARITHMETIC names"
    name = os.environ.get('SALVIZ_ARITHMETIC', 'plain')
    made = dict(plain=contextlib.nullcontext, noisy=noise,
                card=lambda: everywhere(partial(OnCard, os.environ.get('SALVIZ_DEVICE', 'cuda'))))
    assert name in made, f"SALVIZ_ARITHMETIC must be one of {', '.join(made)}, got {name!r}"
    return made[name]()
