"The comparison with other libraries: equal values, pages, missing tools. No test asserts a time."
import itertools
import json

import numpy as np
import pytest
import torch

from salviz.benchmarks import peers as code
from salviz.cli import main
from salviz.benchmarks.peers import (Work, _compared, _disagreement, _explaining, _explaining_next, _looking,
                                     _peers_report, _seconds_to_paint, _small_llama, _training, _training_causal)

quiet = dict(say=lambda line: None)

@pytest.fixture
def clock(): return itertools.count().__next__

def test_a_library_that_computes_different_values_is_not_timed(clock):
    right, wrong = Work(lambda: [np.ones(3)]), Work(lambda: [np.array([1., 1., 1.1])])
    with pytest.raises(RuntimeError, match='other and salviz compute different values'):
        _compared(dict(salviz=right, other=wrong), 2, clock, True)
    table = _compared(dict(salviz=right, other=right), 2, clock, True)
    assert table['other']['ratio'] == 1 and table['other']['difference'] == 0

@pytest.mark.numeric
def test_all_ways_of_explaining_agree_on_sentences_of_different_lengths(tiny_bert, tiny_tokenizer):
    model, tokenizer = tiny_bert(), tiny_tokenizer
    texts = ['good film', ' '.join(['a bad film and a good one'] * 6), 'bad', 'a film that is good and bad']
    for what, works in _explaining(model.eval(), tokenizer, texts, steps=3).items():
        values = {who: work() for who, work in works.items()}
        for who, x in values.items(): assert _disagreement(x, values['salviz']) < 1e-3, (what, who)

def test_the_plain_loop_trains_the_same_model(tiny_bert, tiny_tokenizer):
    model, tokenizer = tiny_bert(), tiny_tokenizer
    before = [p.detach().clone() for p in model.parameters()]
    with _training(model, tokenizer, tokens=12, size=4) as both:
        works, = both.values()
        for work in works.values(): work()
    assert any(not (a == b).all() for a, b in zip(before, model.parameters()))

@pytest.mark.numeric
def test_the_plain_loop_explains_the_next_token_with_the_same_numbers(tiny_tokenizer):
    model = _small_llama(tiny_tokenizer, hidden=16, layers=2, heads=2).eval().requires_grad_(False)
    ids = torch.tensor([tiny_tokenizer('a bad film and a good one')['input_ids']])
    (_, works), = _explaining_next(model, ids, steps=4).items()
    assert _disagreement(works['a plain loop'](), works['salviz']()) < 1e-4

def test_every_causal_step_has_a_plain_loop_that_trains_the_model(tiny_tokenizer):
    model = _small_llama(tiny_tokenizer, hidden=16, layers=1, heads=2)
    with _training_causal(model, tiny_tokenizer, tokens=12, size=4) as steps:
        names = [what.split(', ')[0].removeprefix('causal language model: ') for what in steps]
        assert names == ['plain step', 'AD-DROP GA step', 'AD-DROP AA step', 'saliency guided step']
        for works in steps.values():
            for work in works.values():
                before = [p.detach().clone() for p in model.parameters()]
                work()
                assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))

def test_pages_are_written_and_not_timed_without_a_browser(tmp_path, monkeypatch):
    from salviz.explorer.widget import Explorer
    files = _looking(Explorer('ad-drop').selected().snapshot, tmp_path)
    assert all(path.stat().st_size > 10_000 for path, _ in files.values())
    monkeypatch.setattr(code, '_browser', lambda: None)
    assert _seconds_to_paint(files) == {}

@pytest.mark.slow
def test_the_command_writes_its_measurements(tmp_path, monkeypatch, capsys):
    measured = {'salviz': dict(seconds=1., ratio=1., difference=None),
                'other': dict(seconds=2., ratio=2., difference=0.)}
    monkeypatch.setattr(code, '_compared', lambda *a: measured)
    monkeypatch.setattr(code, '_looked_at', lambda rounds: dict(of='one layer', pages={'x': dict(bytes=5, seconds=.5)}))
    monkeypatch.setattr(code, '_small_llama', lambda tokenizer: _small_llama(tokenizer, hidden=16, layers=1, heads=2))
    main(['bench', '--peers', '--quick', '--out', str(tmp_path/'out')])
    there = json.loads((tmp_path/'out'/'peers.json').read_text())
    assert there['sentences'] == 8 and len(there['works']) == 8 and there['versions']['captum']
    assert (tmp_path/'out'/'peers.md').read_text() == _peers_report(there)
    assert '| other | 2.000 | 2.00 |' in capsys.readouterr().out
    assert main(['bench', '--peers', '--quick', '--out', str(tmp_path/'out')])
    assert 'peers.json already exists' in capsys.readouterr().err
    with pytest.raises(ValueError, match="use device='cpu'"): code.peers(tmp_path/'other', device='cuda', **quiet)
