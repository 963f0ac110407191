"Helpers of several test files that inspect a model from outside"
import random
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def state(model):
    "Return everything that inspecting `model` must not change: modes, gradients, random states, attention, hooks"
    return ([m.training for m in model.modules()], [p.requires_grad for p in model.parameters()],
            [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(),
            model.config._attn_implementation,
            [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()])


def same(a, b):
    "Return whether two states are equal"
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, np.ndarray): return (a == b).all()
    return a == b


def at_step(model, n, happens):
    "Return `model`, which calls `happens` before the forward pass of its training step `n`"
    steps = []
    def hook(module, args):
        if module.training: steps.append(1)
        if module.training and len(steps) == n: happens()
    model.register_forward_pre_hook(hook)
    return model


def word_tokenizer(texts, *extra, longest):
    "Return a tokenizer with a token for every word of `texts`, and for those in `extra`"
    words = ['[PAD]', '[CLS]', '[SEP]', '[UNK]', *sorted({w for t in texts for w in t.split()}), *extra]
    fast = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='[UNK]'))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]',
                                                        special_tokens=[('[CLS]', 1), ('[SEP]', 2)])
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token='[PAD]', cls_token='[CLS]', sep_token='[SEP]',
                                   unk_token='[UNK]', model_max_length=longest)


def alike(ours, theirs, size=64, dtype=None):
    """Check that two tensors are equal up to rounding, and return True

    Bits are equal only if the same operations run on the same shapes on the same machine, because other kernels may sum
    in another order. So entries may differ by `size` units in the last place of the largest entry, as after a few
    layers with sums of dozens of products. `dtype`: the coarsest precision of an intermediate result, if it is not that
    of the tensors."""
    assert ours.dtype == theirs.dtype
    if not ours.is_floating_point():
        assert torch.equal(ours, theirs)
        return True
    largest = theirs.detach().abs().max().item() if theirs.numel() else 0.
    eps = torch.finfo(dtype or ours.dtype).eps
    if ours.element_size() == 2: size = min(size, 8) # half precision is summed in float32 and rounded once
    torch.testing.assert_close(ours, theirs, rtol=0, atol=size * eps * largest)
    return True


def all_alike(ours, theirs, **how):
    "Call `alike` for two lists of tensors, relative to the largest entry of all: a gradient may be zero in theory"
    ours, theirs = list(ours), list(theirs)
    assert [x is None for x in ours] == [x is None for x in theirs]
    ours, theirs = ([x for x in xs if x is not None] for xs in (ours, theirs))
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    return alike(*(torch.cat([x.flatten() for x in xs]) for xs in (ours, theirs)), **how)


def descended(model, loss_of, batches, steps=10, rate=.1):
    """Train `model` by plain gradient descent on `loss_of(model, batch, step)`; return all losses and parameters

    Adam would divide gradients that are zero in theory by their own rounding errors."""
    losses = []
    for step in range(steps):
        loss = loss_of(model, batches[step % len(batches)], step)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None: p -= rate*p.grad
        losses.append(loss.detach())
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])


def breaking_at(step, method):
    "Return `method`, which is interrupted before that step"
    plan = method.plan
    def interrupted(model, batch, progress):
        if progress is not None and progress.step == step and model.training: raise KeyboardInterrupt
        return plan(model, batch, progress)
    method.plan = interrupted
    return method


def with_shifted_split(data, correct):
    "Return `data` with a fourth split, 12 of its rows, of which `correct` have the right label"
    import datasets
    ood = data['train'].select(range(12))
    swapped = ood.map(lambda row, i: dict(label=row['label'] if i < correct else 1 - row['label']), with_indices=True)
    return datasets.DatasetDict({**data, 'ood': swapped.cast(ood.features)})


@contextmanager
def full_disk(most=500):
    "Let no file grow beyond `most` bytes inside the block: a write fails in the middle, as on a full disk"
    limits, without_bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True # Python would store half of a module that is imported inside the block
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try: yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = without_bytecode


def is_running(pid):
    "Return whether a process `pid` is running; an ended process that nobody waited for is a zombie and counts as ended"
    try: return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError: return False
