"""Another processor's arithmetic, for tests: kernels round in another way, and in another way for every shape.

With SALVIZ_ARITHMETIC=noisy each product, convolution, softmax and normalisation is multiplied by 1 + a few units in
the last place, drawn from the operation and the shapes that go into it. So the same operations on the same shapes give
the same bits, as on any machine, and a sentence alone differs in its last bits from the same sentence in a batch, as on
some machines. What passes here and with the plain kernels does not lean on the kernels of one processor."""
import contextlib
import os
import threading
import zlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


@contextlib.contextmanager
def noise():
    "Noisy here and in every thread that begins inside: a mode belongs to its thread"
    run = threading.Thread.run
    def in_noise(thread):
        with Noisy(): run(thread)
    threading.Thread.run = in_noise
    try:
        with Noisy(): yield
    finally: threading.Thread.run = run


def chosen():
    "The arithmetic that SALVIZ_ARITHMETIC names, as a context"
    name = os.environ.get('SALVIZ_ARITHMETIC', 'plain')
    assert name in ('plain', 'noisy'), f"SALVIZ_ARITHMETIC must be 'plain' or 'noisy', got {name!r}"
    return noise() if name == 'noisy' else contextlib.nullcontext()
