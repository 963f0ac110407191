"""Another processor's arithmetic, for tests: kernels round in another way, and in another way for every shape.

With SALVIZ_ARITHMETIC=noisy each product, convolution, softmax and normalisation is multiplied by 1 + a few units in
the last place, drawn from the operation and the shapes that go into it. So the same operations on the same shapes give
the same bits, as on any machine, and a sentence alone differs in its last bits from the same sentence in a batch, as on
some machines. What passes here and with the plain kernels does not lean on the kernels of one processor.

With SALVIZ_ARITHMETIC=card the same operations, and sums, sorting and the usual functions beside them, run on the
device SALVIZ_DEVICE (cuda), with their arguments and results on the processor: tests that were written for the
processor are then held against a card's kernels (`make gpu`)."""
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
    "Inside, results of the operations in `rounding` differ from the processor's by some units in the last place"
    def __init__(self):
        super().__init__()
        self.factors = {}

    def factor(self, key, x):
        "1 + noise for the tensor `x`, the same for the same `key`"
        if key not in self.factors:
            if len(self.factors) > 500: self.factors.clear()
            generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
            noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
            units = 1 if x.element_size() == 2 else 2 # sums of half precision are taken in float32 and rounded once
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
    "Inside, the operations in `on_card` run on `device`, their results come back to the processor"
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
    "The dispatch mode that `mode()` makes, here and in every thread that begins inside: a mode belongs to its thread"
    run = threading.Thread.run
    def in_mode(thread):
        with mode(): run(thread)
    threading.Thread.run = in_mode
    try:
        with mode(): yield
    finally: threading.Thread.run = run

def noise(): return everywhere(Noisy)


def chosen():
    "The arithmetic that SALVIZ_ARITHMETIC names, as a context"
    name = os.environ.get('SALVIZ_ARITHMETIC', 'plain')
    made = dict(plain=contextlib.nullcontext, noisy=noise,
                card=lambda: everywhere(partial(OnCard, os.environ.get('SALVIZ_DEVICE', 'cuda'))))
    assert name in made, f"SALVIZ_ARITHMETIC must be one of {', '.join(made)}, got {name!r}"
    return made[name]()
