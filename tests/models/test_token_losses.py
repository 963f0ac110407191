"The loss of token tasks against a float64 loop over tokens, and the operators that compute it"
import math
from types import SimpleNamespace

import pytest
import torch
from helpers import alike
from torch.utils._python_dispatch import TorchDispatchMode

from salviz.models.tasks import _token_losses, tasks

def token_by_token(logits, labels):
    "Return the cross-entropy of each token in float64, 0 without a label"
    losses = []
    for row, row_labels in zip(logits.double().tolist(), labels.tolist()):
        losses.append([0. if label == -100 else math.log(sum(math.exp(x - scores[label]) for x in scores))
                       for scores, label in zip(row, row_labels)])
    return torch.tensor(losses, dtype=torch.float64)

@pytest.fixture
def drawn():
    "Return logits [batch, tokens, words], and labels with padding on the left, on the right, and everywhere in a row"
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 6, 11, generator=generator)
    labels = torch.randint(11, (3, 6), generator=generator)
    labels[0, :2] = labels[1, 3:] = labels[2] = -100
    return logits, labels

def test_token_losses_equal_a_loop_over_tokens(drawn):
    logits, labels = drawn
    alike(_token_losses(logits, labels).double(), token_by_token(logits, labels), dtype=torch.float32)
    alike(_token_losses(logits.double(), labels), token_by_token(logits, labels))

@pytest.mark.parametrize('name', ['causal_lm', 'masked_lm'])
def test_the_loss_of_words_is_a_mean_over_the_labels_of_each_row(name, drawn):
    logits, labels = drawn
    exact = token_by_token(logits, labels)
    mean = torch.stack([x[y != -100].mean() if (y != -100).any() else x.new_zeros(()) for x, y in zip(exact, labels)])
    alike(tasks[name].loss(SimpleNamespace(logits=logits), dict(labels=labels)).double(), mean,
          dtype=torch.float32)

class Operators(TorchDispatchMode):
    "The names of the operators that run in a block"
    def __init__(self):
        super().__init__()
        self.names = set()
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))

@pytest.mark.parametrize('name', ['causal_lm', 'masked_lm', 'token_classification'])
def test_token_losses_read_flat_rows_instead_of_a_transposed_view(name, drawn):
    logits, labels = drawn
    batch = dict(labels=labels, attention_mask=torch.ones_like(labels))
    with Operators() as operators:
        tasks[name].loss(SimpleNamespace(logits=logits), batch)
        tasks[name].read_by_metrics(SimpleNamespace(logits=logits), batch)
    assert 'nll_loss_forward' in operators.names and 'nll_loss2d_forward' not in operators.names
