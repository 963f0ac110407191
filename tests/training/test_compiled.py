"With torch_compile, plain passes run compiled and observed passes do not; the numbers are the same."
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from helpers import alike
from salviz.attribution.saliency import input_saliency
from salviz.data.texts import Collator, encode, model_inputs
from salviz.methods import ADDrop, AttentionGuidance, FineTuning, SaliencyGuided
from salviz.models.attention import eager_passes, cached_layers, observe, query_key
from salviz.models.tasks import task_of
from salviz.training import job as code
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)
still = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)

class Counting:
    "A backend that needs no compiler, and counts the graphs that it receives and their runs"
    def __init__(self): self.graphs = self.runs = 0
    def __call__(self, module, inputs):
        self.graphs += 1
        def run(*args):
            self.runs += 1
            return module.forward(*args)
        return run

@pytest.fixture
def backend():
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()

@pytest.fixture
def inputs(tiny_tokenizer, tiny_data):
    rows = encode(tiny_data, tiny_tokenizer)['train']
    return model_inputs(Collator(tiny_tokenizer)([rows[i] for i in range(4)]))

methods = dict(plain=FineTuning, guided=lambda: SaliencyGuided(mask_fraction=.4),
               ad_drop=lambda: ADDrop(p=.4, q=.5), guidance=lambda: AttentionGuidance(head_fraction=.5, alpha=10.))

slow = [pytest.param(*row, marks=pytest.mark.slow) for row in (('ad_drop', False), ('guidance', True))]

@pytest.mark.slow
@pytest.mark.parametrize('name, lora', [('plain', True), ('guided', False), *slow])
def test_compiled_training_has_the_same_losses(name, lora, tmp_path, tiny_bert, tiny_tokenizer, tiny_data, backend):
    runs = []
    for args in ({}, dict(torch_compile_backend=backend)):
        model = tiny_bert(**still).double()
        torch.manual_seed(0)
        if lora: model = get_peft_model(model, LoraConfig(task_type='SEQ_CLS', r=2, target_modules=['query'])).double()
        runs.append(train(model, tiny_tokenizer, tiny_data, methods[name](), run_dir=tmp_path/str(len(runs)),
                          **{**quick, 'epochs': 2 if name == 'ad_drop' else 1, 'args': args}))
    a, b = ([r['loss'] for r in run.train_rows] for run in runs)
    assert np.allclose(a, b, rtol=1e-9)
    assert np.allclose([r['loss'] for r in runs[0].eval_rows], [r['loss'] for r in runs[1].eval_rows], rtol=1e-9)
    for s, t in zip(*(run.snapshots() for run in runs)):
        assert s.arrays.keys() == t.arrays.keys()
        np.testing.assert_allclose(s.arrays['attention'], t.arrays['attention'], rtol=1e-2, atol=1e-6)
    assert backend.graphs and backend.runs

@pytest.mark.slow
def test_only_steps_with_guided_attention_run_uncompiled(tmp_path, tiny_bert, tiny_tokenizer, tiny_data, backend):
    runs = {}
    for name in ('guidance', 'plain'):
        before = backend.runs
        train(tiny_bert(), tiny_tokenizer, tiny_data, methods[name](), run_dir=tmp_path/name,
              **{**quick, 'snapshots': 0, 'args': dict(torch_compile=True, torch_compile_backend=backend)})
        runs[name] = backend.runs - before
    assert runs['guidance'] < runs['plain'] # only evaluation runs compiled

@pytest.mark.slow
def test_compiled_model_is_observed_uncompiled(tiny_bert, inputs, backend):
    model = tiny_bert().eval()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad(): plain = compiled(**inputs).logits
    assert task_of(compiled) == 'classification' and (graphs := backend.graphs) and (runs := backend.runs)
    with torch.no_grad(), observe(model) as expected: logits = model(**inputs).logits
    for call in (compiled, model):
        with torch.no_grad(), observe(compiled) as maps: assert torch.equal(call(**inputs).logits, logits)
        assert torch.equal(maps.stacked(), expected.stacked())
    assert torch.equal(query_key(compiled, inputs, 0, 0).scores, query_key(model, inputs, 0, 0).scores)
    assert torch.equal(*(input_saliency(m, inputs, 'input_x_gradient') for m in (compiled, model)))
    with cached_layers(compiled, inputs) as start, torch.no_grad():
        start(1)
        assert alike(compiled(**inputs).logits, logits)
    assert (backend.graphs, backend.runs) == (graphs, runs)
    with torch.no_grad(): assert alike(compiled(**inputs).logits, plain)
    assert backend.runs > runs

@pytest.mark.slow
def test_overlapping_eager_passes_restore_compilation(tiny_bert, inputs, backend):
    one, other = eager_passes(), eager_passes()
    one.__enter__(); other.__enter__()
    one.__exit__(None, None, None); other.__exit__(None, None, None)
    with torch.no_grad(): torch.compile(tiny_bert().eval(), backend=backend)(**inputs)
    assert backend.runs

@pytest.mark.slow
def test_model_compiled_in_place_can_be_observed(tiny_bert, inputs, backend):
    model = tiny_bert().eval()
    with torch.no_grad(), observe(model) as expected: model(**inputs)
    model.compile(backend=backend)
    with torch.no_grad(): model(**inputs)
    runs = backend.runs
    with torch.no_grad(), observe(model) as maps: model(**inputs)
    assert torch.equal(maps.stacked(), expected.stacked()) and backend.runs == runs > 0

@pytest.mark.slow
def test_compiled_training_does_not_affect_the_next_training(tmp_path, tiny_bert, tiny_tokenizer, tiny_data, backend):
    settings = {**quick, 'snapshots': 0, 'epochs': 1}
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'a', **settings,
                args=dict(torch_compile_backend=backend))
    runs = backend.runs
    train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'b', **settings)
    assert backend.runs == runs > 0 and load_model(run)

def test_inductor_without_a_compiler_raises(tmp_path, tiny_bert, tiny_tokenizer, tiny_data, monkeypatch):
    monkeypatch.setattr(code.shutil, 'which', lambda name: None)
    with pytest.raises(ValueError, match=r'torch_compile requires a C\+\+ compiler .* which was not found'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', args=dict(torch_compile=True), **quick)
    assert not (tmp_path/'run').exists()
