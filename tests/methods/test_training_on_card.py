"""Every method on a GPU: all tensors of a step, a recording or a score are on the GPU, and the results are those of the
CPU. The GPU is emulated (emulated_card.py), or real with SALVIZ_DEVICE=cuda."""
import traceback
from pathlib import Path

import numpy as np
import pytest
from test_tasks import examples, build, model_for, quick, rows, tokens, without_dropout  # noqa: F401, a fixture

import emulated_card
from emulated_card import training_on_card
from salviz.benchmarks.bench import Step
from salviz.methods.base import method_classes
from salviz.models.tasks import tasks
from salviz.training.control import Control
from salviz.training.job import open_job
from salviz.training.settings import Settings
from salviz.training.trainer import make_trainer, train

one_kind = {task: kind for task, kind in reversed(rows)} # the first of each task
quickly = [('classification', name) for name in ('ADDrop', 'SalLM', 'SaliencyGuided', 'AttentionGuidance',
                                                  'RationaleGuided')] + [('causal_lm', 'ADDrop')]
cases = [pytest.param(task, name, marks=() if (task, name) in quickly else pytest.mark.slow)
         for name, kind in method_classes().items() for task in one_kind
         if task in (kind.supported_tasks or tasks) and task != 'series_classification']

def alike(ours, theirs, what, tolerance):
    "Check that two values of a run are equal up to rounding; `what` is in the error message"
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), what
        for k in ours: alike(ours[k], theirs[k], f'{what} {k}', tolerance)
    elif isinstance(ours, (float, np.ndarray)):
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance, err_msg=what)
    else: assert ours == theirs, what

@pytest.mark.sample(1)
@pytest.mark.numeric
@pytest.mark.parametrize('task, name', cases)
def test_training_on_a_card_equals_training_on_the_processor(task, name, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    tokenizer = tokens if tasks[task].modality == 'text' else None
    def trained(where, **more):
        model = without_dropout(model_for(task, one_kind[task], data, tokens))
        return train(model, tokenizer, data, build(name, task), run_dir=tmp_path/where, **quick, **more)
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

class Places(list):
    "The operations that waited for the GPU, each with the line of salviz that called it; without those of transformers"
    def append(self, operation):
        lines = [f for f in traceback.extract_stack() if '/salviz/' in f.filename or '/transformers/' in f.filename]
        if '/salviz/' in lines[-1].filename:
            super().append(f'{operation} {Path(lines[-1].filename).stem}: {lines[-1].line}')

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', ['FineTuning', 'ADDrop', 'SaliencyGuided', 'AttentionGuidance', 'SalLM',
                                  'RationaleGuided', 'RationaleGuided of attention', 'RationaleGuided by contrast'])
def test_steps_never_synchronise_with_the_card(name, tmp_path, tiny_data, tokens, monkeypatch):
    "Reading a number on the CPU would stop the queue of the GPU in every step"
    data = examples('classification', tiny_data)
    model = without_dropout(model_for('classification', 'bert', data, tokens)).float()
    with training_on_card():
        settings = Settings(epochs=1, batch_size=8, probes=2, snapshots=0)
        trainer = make_trainer(open_job(model, tokens, data, build(name, 'classification'), tmp_path/'run', settings),
                               Control())
        trainer.state.max_steps = 10
        trainer.create_optimizer()
        trainer.method.prepare(trainer)
        step = Step(trainer, trainer.first_batch())
        step()
        monkeypatch.setattr(emulated_card, 'transfers', places := Places())
        step()
    assert not places, '\n'.join(places)
