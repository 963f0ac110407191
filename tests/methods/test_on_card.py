"""Every method on a card: nothing that a step, a recording or a score needs is left behind on the processor, and what
comes out is what the processor gives. Emulated (emulated_card.py), or with SALVIZ_DEVICE=cuda a real one."""
import math

import numpy as np
import pytest
import torch
from test_tasks import examples, made, model_for, quick, rows, tokens, without_dropout  # noqa: F401, a fixture

from emulated_card import training_on_card
from salviz.methods.base import served
from salviz.models.tasks import tasks
from salviz.training.trainer import train

one_kind = {task: kind for task, kind in reversed(rows)} # the first of each task
quickly = [('classification', name) for name in ('ADDrop', 'SalLM', 'SaliencyGuided', 'AttentionGuidance',
                                                  'RationaleGuided')] + [('causal_lm', 'ADDrop')]
cases = [pytest.param(task, name, marks=() if (task, name) in quickly else pytest.mark.slow)
         for name in served for task in one_kind if task in served[name] and task != 'series_classification']

def alike(ours, theirs, what, tolerance):
    "Are two values of a run the same but for rounding? Says which is not"
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), what
        for k in ours: alike(ours[k], theirs[k], f'{what} {k}', tolerance)
    elif isinstance(ours, (float, np.ndarray)):
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance, err_msg=what)
    else: assert ours == theirs, what

@pytest.mark.numeric
@pytest.mark.parametrize('task, name', cases)
def test_a_training_on_a_card_is_the_training_on_the_processor(task, name, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    tokenizer = tokens if tasks[task].modality == 'text' else None
    def trained(where, **more):
        model = without_dropout(model_for(task, one_kind[task], data, tokens))
        return train(model, tokenizer, data, made(name, task), run_dir=tmp_path/where, **quick, **more)
    ours = trained('host', args=dict(use_cpu=True))
    with training_on_card() as card:
        theirs = trained('card')
        assert card.type in str(theirs.config['hardware']) # it did not stay on the processor
    for a, b in zip(ours.metrics, theirs.metrics, strict=True):
        alike(*({k: x for k, x in row.items() if not k.endswith('seconds')} for row in (a, b)), 'metrics', 1e-6)
    for step in ours.steps:
        a, b = ours.snapshot(step, 0), theirs.snapshot(step, 0)
        alike(a.losses, b.losses, 'losses', 1e-6)
        alike(a.arrays, b.arrays, f'step {step}:', 1e-5)
