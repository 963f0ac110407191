"""An emulated CUDA GPU for tests: its tensors report the device `card:0` and are computed on the processor.

Operations that fail on a GPU fail here too: an operation on tensors of both devices, and conversion to numpy of a
tensor that was not copied to the host. `transfers` lists the operations that make a program wait for the GPU. Kernels,
speed and rounding of a GPU are not emulated; `make gpu` runs the same tests on a real one."""
import contextlib
import os
from unittest import mock

import torch
from arithmetic import everywhere
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

class _Backend:
    "The module of device functions that torch requires; random numbers come from the host"
    def is_available(self): return True
    def is_initialized(self): return True
    def _is_in_bad_fork(self): return False
    def device_count(self): return 1
    def current_device(self): return 0
    def set_device(self, device): pass
    def synchronize(self, device=None): pass
    def manual_seed_all(self, seed): pass
    def get_rng_state(self, device=None): return torch.zeros(16, dtype=torch.uint8)
    def set_rng_state(self, state, device=None): pass
    def get_amp_supported_dtype(self): return [torch.bfloat16, torch.float16]


if torch._C._get_privateuse1_backend_name() != 'card': _setup_privateuseone_for_python_backend('card', _Backend())

# autocast is accepted and casts nothing
_autocast = torch.library.Library('_', 'IMPL', 'AutocastPrivateUse1')
_autocast.fallback(torch.library.fallthrough_kernel)

aten, card = torch.ops.aten, torch.device('card', 0)
transfers = [] # operations that waited for the card, in order
indexing = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index,
            aten._unsafe_index_put}
waiting = {aten._local_scalar_dense, aten.nonzero, aten.equal, aten.unique_dim, aten._unique2, aten.masked_select,
           aten.bincount}


class OnCard(torch.Tensor):
    "A tensor on the emulated card; its numbers are in `host`"
    @staticmethod
    def __new__(cls, host, requires_grad=False):
        self = torch.Tensor._make_subclass(cls, host, requires_grad, dispatch_device=True, device_for_backend_keys=card)
        self.host = host
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self): return card

    def numpy(self, *, force=False):
        if force: return self.detach().cpu().numpy()
        raise TypeError("can't convert card:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                        'memory first.')

    def tolist(self):
        transfers.append('tolist')
        return self.host.tolist()

    def __repr__(self): return f'OnCard({self.host!r})'
    def __deepcopy__(self, memo):
        made = OnCard(self.host.clone(), self.requires_grad) if not getattr(self, '_is_param', False) else \
            torch.nn.Parameter(OnCard(self.host.clone()), self.requires_grad)
        memo[id(self)] = made
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})


def _is_card(device): return device is not None and torch.device(device).type == 'card'

def _refuse_both(func, flat):
    "Raise the error of CUDA if an operation gets tensors of both devices"
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    ours, others = [x for x in tensors if isinstance(x, OnCard)], [x for x in tensors if not isinstance(x, OnCard)]
    if not ours or not others or func.overloadpacket in (aten.copy_, aten._to_copy): return
    if func.overloadpacket in indexing and isinstance(flat[0], OnCard): return # indices may come from the host
    if any(x.dim() for x in others) or not any(x.dim() for x in ours) and isinstance(flat[0], torch.Tensor) and \
            not isinstance(flat[0], OnCard) and flat[0].dim():
        raise RuntimeError(f'{func}: Expected all tensors to be on the same device, but found at least two devices, '
                           'card:0 and cpu')

def run(func, args, kwargs):
    "Run `func` as a GPU would"
    if func is torch.ops.prim.device.default: return card
    flat, spec = tree_flatten((args, kwargs))
    ours = any(isinstance(x, OnCard) for x in flat)
    asked = kwargs.get('device')
    if not ours and not _is_card(asked): return func(*args, **kwargs)
    _refuse_both(func, flat)
    if func.overloadpacket in waiting or ours and asked is not None and not _is_card(asked) or \
            func.overloadpacket is aten.copy_ and not isinstance(args[0], OnCard): transfers.append(str(func))
    if func.overloadpacket is aten._fused_sdp_choice: return 0 # attention by products and a softmax
    host_args, host_kwargs = tree_unflatten([x.host if isinstance(x, OnCard) else x for x in flat], spec)
    if asked is not None: host_kwargs = {**host_kwargs, 'device': torch.device('cpu')}
    host_kwargs.pop('pin_memory', None)
    result = func(*host_args, **host_kwargs)
    to_host = asked is not None and not _is_card(asked) or func.overloadpacket is aten.copy_ and not isinstance(
        args[0], OnCard)
    if to_host: return args[0] if func.overloadpacket is aten.copy_ else result.clone() if any(
        result is x for x in tree_flatten(host_args)[0]) else result
    out = tree_map(lambda x: OnCard(x) if isinstance(x, torch.Tensor) else x, result)
    return return_and_correct_aliasing(func, args, kwargs, out) if ours else out


class Emulated(TorchDispatchMode):
    "A mode in which the device `card` is emulated"
    def __enter__(self):
        self.before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True) # so that torch.tensor(..., device=card) is emulated too
        return super().__enter__()

    def __exit__(self, *raised):
        torch._C._set_only_lift_cpu_tensors(self.before)
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})


_to = torch.nn.Module.to

def _to_keeping_ties(module, *args, **kwargs):
    "Call `Module.to`, then tie the weights again that shared a parameter; a GPU's parameters are changed in place"
    names = {}
    for name, p in module.named_parameters(remove_duplicate=False): names.setdefault(id(p), []).append(name)
    _to(module, *args, **kwargs)
    for first, *others in names.values():
        for name in others:
            owner, _, last = name.rpartition('.')
            setattr(module.get_submodule(owner), last, module.get_parameter(first))
    return module


@contextlib.contextmanager
def emulated_card():
    "Emulate the card for torch inside the block"
    with everywhere(Emulated), mock.patch.object(torch.nn.Module, 'to', _to_keeping_ties): yield card


@contextlib.contextmanager
def training_on_card():
    """Let transformers' Trainer train on a card inside the block: the emulated one, or a real one with
    SALVIZ_DEVICE=cuda"""
    if os.environ.get('SALVIZ_DEVICE') == 'cuda': yield torch.device('cuda', 0)
    else:
        with mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=str(card)), emulated_card(): yield card
