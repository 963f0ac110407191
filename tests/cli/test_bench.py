"""The benchmark: FLOPs compared with a manual count, order of rounds, medians, the A/A rule, memory, tables. No test
asserts a time."""
import copy
import itertools
import json
import subprocess
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from salviz.benchmarks import bench as code
from salviz.benchmarks.bench import (Peak, _bench_table, _check_fused, _cost_lines, _count_flops, _in_status,
                          _measure_explanations, _measure_memory, _measure_steps, _missed_goals, _padded_tokens,
                          _peak_alone, _recording_fraction, _report, _rows, _rows_for, _settings_of, _settled_rounds,
                          _steps_of, _turns, _write_found, bench, check_bench, cost_table, free_folder,
                          measure_row_supervision, relative, row_steps, timed_rounds, trainer_for)
from salviz.methods import FineTuning
from salviz.training.trainer import load_model, train

quiet = dict(say=lambda *messages: None)

# A small BERT whose FLOPs are counted manually: matrix products only, 2 FLOPs per multiplication and addition.
B, n, h, inner, L, C = 4, 10, 32, 48, 2, 2
dense = {'query': h*h, 'key': h*h, 'value': h*h, 'output': h*h, 'up': h*inner, 'down': inner*h}
head = 2 * B * (h*h + h*C)                 # pooler and classifier, on one row of each example
product = 2 * B * n * n * h                # one product in attention, all heads together

behind = 'output', 'up', 'down'            # applied to each row after attention

def linear(*names, rows=n): return sum(2 * B * rows * dense[k] for k in names)

def forward(layers=range(L)): return sum(linear(*dense) + 2*product for _ in layers) + head

# saved by a pass for the class, forward or backward: all rows of the last layer except the one that is read
unread = linear(*behind, rows=n - 1)

def training(eager=()):
    """Return the FLOPs of a forward and backward pass with gradients of inputs and weights; the fused kernel recomputes
    the scores in its backward pass"""
    total = 3 * head
    for l in range(L): total += 3 * linear(*dense) + (2 + (4 if l in eager else 5)) * product
    return total

def backward_to(lowest, eager):
    "Return the FLOPs of the gradient with respect to the maps down to layer `lowest`, a leaf; no gradient of weights"
    total = head
    for l in range(lowest, L):
        total += linear(*behind)
        if l == lowest: total += product # gradient of A only
        else: total += linear('query', 'key', 'value') + (4 if l in eager else 5) * product
    return total

both = range(L)
by_hand = dict(
    plain=training(), again=training(), eager=training(eager=both),
    ga=forward() + backward_to(0, eager=both) - 2*unread + training(),
    ga_first=forward() + backward_to(0, eager=[0]) - 2*unread + training(),
    aa=forward() - unread + training(),
    rd=training(),
    iga_first_20=forward() - unread + 20 * (forward() + backward_to(0, eager=[0]) - 2*unread) + training(),
    iga_first_5=forward() - unread + 5 * (forward() + backward_to(0, eager=[0]) - 2*unread) + training())

def texts(words, many): return [' '.join(['the film'] * words) + ' .' for _ in range(many)]

@pytest.fixture(scope='module')
def batch_of_words():
    "Return data whose texts have more than `n` tokens"
    features = datasets.Features(dict(text=datasets.Value('string'), label=datasets.ClassLabel(names=['one', 'other'])))
    def part(k):
        return datasets.Dataset.from_list([dict(text=t, label=i % 2) for i, t in enumerate(texts(8, k))],
                                          features=features)
    return datasets.DatasetDict(train=part(B), validation=part(2), test=part(2))

@pytest.fixture
def tiny_shape(monkeypatch, tiny_bert, tiny_tokenizer):
    "Use a small BERT in place of MiniLM, for texts of at most 64 tokens"
    def make(dropout): return tiny_bert(num_hidden_layers=L, attention_probs_dropout_prob=dropout), tiny_tokenizer
    monkeypatch.setitem(code.model_shapes, 'minilm', make)

def counted(names, model, tokenizer, data, tokens, folder):
    "Return {name: FLOPs of a step}"
    found = {}
    for name, s in _steps_of(names, model, tokenizer, data, tokens, folder).items():
        with s.set_up() as step: found[name] = sum(_count_flops(step).values())
    return found

def test_flops_equal_a_manual_count(tiny_bert, tiny_tokenizer, batch_of_words, tmp_path):
    model = tiny_bert(hidden_size=h, intermediate_size=inner, num_hidden_layers=L, attention_probs_dropout_prob=0.)
    assert counted(list(by_hand), model, tiny_tokenizer, batch_of_words, n, tmp_path) == by_hand

def test_iga_in_all_layers_computes_nothing_below_each_layer(tiny_bert, tiny_tokenizer, batch_of_words, tmp_path):
    """Per node, layer 1 costs only itself and the head; the states of the layers below are computed once, which costs
    at most a forward pass"""
    model = tiny_bert(hidden_size=h, intermediate_size=inner, num_hidden_layers=L, attention_probs_dropout_prob=0.)
    nodes = sum(5 * (forward(range(l, L)) + backward_to(l, eager=[l]) - 2*unread) for l in both)
    least = forward() - unread + nodes + training() # dropped positions stay on the fused kernel
    found = counted(['iga_5'], model, tiny_tokenizer, batch_of_words, n, tmp_path)['iga_5']
    assert least <= found <= least + forward()

@pytest.mark.slow
@pytest.mark.parametrize('tokens', [32, 128])
def test_every_method_reaches_its_flops_at_minilms_shape(tokens, tmp_path):
    "With one example per batch: all FLOPs are proportional to the batch size, so the ratios are the same"
    model, tokenizer = code.model_shapes['minilm'](0.)
    names = [k for k in _rows_for() if _rows[k].flops]
    found = counted(names, model, tokenizer, code.bench_data(tokenizer, tokens, 1), tokens, tmp_path)
    assert {k: round(found[k] / found['plain'], 2) for k in names
            if round(found[k] / found['plain'], 2) > _rows[k].flops} == {}
    assert len(names) == 13

def test_plain_fine_tuning_is_fused_only_without_attention_dropout(tiny_bert, tiny_tokenizer, batch_of_words,
                                                                         tmp_path):
    ran = {}
    for dropout in (0., .1):
        model = tiny_bert(num_hidden_layers=L, attention_probs_dropout_prob=dropout)
        ran[dropout] = _count_flops(_steps_of(['plain'], model, tiny_tokenizer, batch_of_words, n,
                                            tmp_path/str(dropout))['plain'])
    assert _check_fused(ran[0.]) == '_scaled_dot_product_flash_attention_for_cpu'
    assert ran[0.]['_scaled_dot_product_flash_attention_for_cpu_backward'] > 0
    assert ran[.1]['bmm'] > 0
    with pytest.raises(RuntimeError, match='did not use fused attention .operations: .*bmm'): _check_fused(ran[.1])

@pytest.mark.filterwarnings('ignore:.* were cut')
def test_a_step_gives_the_weights_of_a_training_step(tiny_bert, tiny_tokenizer, batch_of_words, tmp_path):
    still = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
    mine, trained = tiny_bert(**still), tiny_bert(**still)
    trainer = trainer_for(FineTuning(), mine, tiny_tokenizer, batch_of_words, n, tmp_path/'mine', learning_rate=1e-3)
    trainer.create_optimizer()
    code.Step(trainer, trainer.first_batch())()
    train(trained, tiny_tokenizer, batch_of_words, epochs=1, batch_size=B, max_length=n, learning_rate=1e-3, probes=1,
          snapshots=0, progress=False,
          run_dir=tmp_path/'trained', args=dict(use_cpu=True))
    before = tiny_bert(**still).state_dict()
    after, there = mine.state_dict(), load_model(tmp_path/'trained', 'last')[0].state_dict()
    assert all(torch.allclose(after[k], there[k], atol=1e-7) for k in after)
    assert not torch.allclose(before['bert.pooler.dense.weight'], after['bert.pooler.dense.weight'])

def test_a_row_without_fused_kernels_restores_the_model(tiny_bert, tiny_tokenizer, batch_of_words, tmp_path):
    model = tiny_bert(attention_probs_dropout_prob=0.)
    steps = _steps_of(['plain', 'eager'], model, tiny_tokenizer, batch_of_words, n, tmp_path)
    with steps['eager'].set_up() as step: assert 'bmm' in _count_flops(step)
    with steps['plain'].set_up() as step: assert 'bmm' not in _count_flops(step)

# Time, with a clock that the steps advance

class Invented:
    def __init__(self, clock, log, name, *seconds):
        self.clock, self.log, self.name, self.seconds = clock, log, name, itertools.cycle(seconds)
    def __call__(self): self.clock[0] += next(self.seconds); self.log.append(self.name)
    def set_up(self): return self
    def __enter__(self): self.clock[0] += 100; return self # must not be counted
    def __exit__(self, *args): self.clock[0] += 100

def invented(**seconds):
    clock, log = [0.], []
    return {k: Invented(clock, log, k, *x) for k, x in seconds.items()}, lambda: clock[0], log

@pytest.mark.slow
def test_steps_of_a_llama_with_adapters_are_counted_and_timed(tiny_tokenizer, batch_of_words, monkeypatch):
    "The saliency pass starts at a leaf, which PyTorch's own FLOP counter does not support"
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    monkeypatch.setitem(code.model_shapes, 'llama',
                        lambda dropout: (code._llama_classifier(tiny_tokenizer, dropout, **small), tiny_tokenizer))
    monkeypatch.setattr(code, 'bench_data', lambda *a, **kw: batch_of_words)
    found = code._measure_steps(['plain', 'again', 'ga', 'guided', 'guided_reuse', 'sallm', 'iga_first_5'], 'llama', 16,
                          precision='bf16', rounds=1, clock=iter(range(10**6)).__next__, say=lambda *messages: None)
    rows = found['rows']
    assert rows['plain']['flops'] > 0 and rows['ga']['flops_ratio'] > 1.2 and rows['guided']['flops_ratio'] > 1.5

def test_rounds_are_interleaved_and_rotated():
    steps, clock, log = invented(a=[1.], b=[2.], c=[3.])
    times = timed_rounds(steps, 4, clock)
    assert log == list('abc' 'bca' 'cab' 'abc') and times == dict(a=[1.] * 4, b=[2.] * 4, c=[3.] * 4)
    assert sorted(_turns(list('abcde'), 7)) == list('abcde')

def test_the_ratio_is_the_median_of_ratios_within_rounds():
    times = dict(plain=[1., 2., 4., 5., 6.], ga=[5., 3.4, 7.6, 8.5, 6.])
    assert relative(times, 'ga') == pytest.approx(1.7) # the middle one of 1, 1.7, 1.7, 1.9, 5
    assert np.median(times['ga']) / np.median(times['plain']) == 1.5

def test_a_steady_run_is_timed_once():
    steps, clock, log = invented(plain=[1.], again=[1.04], ga=[2.])
    found = _settled_rounds(steps, 2, clock, **quiet)
    assert found['steady'] and found['again'] == pytest.approx([1.04]) and len(log) == 6

def test_a_noisy_run_is_repeated_and_the_steady_attempt_is_returned():
    steps, clock, log = invented(plain=[1.], again=[1.1, 1.1, .97, .97], ga=[2., 2., 3., 3.])
    said = []
    found = _settled_rounds(steps, 2, clock, say=said.append)
    assert found['steady']
    assert found['again'] == pytest.approx([1.1, .97])
    assert found['rounds']['ga'] == pytest.approx([3., 3.])
    assert len(said) == 1 and '1.100, outside 0.96 to 1.04: repeating' in said[0]

def test_a_run_that_remains_noisy_returns_its_best_attempt_and_reports_it():
    steps, clock, log = invented(plain=[1.], again=[1.2, .9, 1.3])
    said = []
    found = _settled_rounds(steps, 1, clock, say=said.append)
    assert not found['steady']
    assert len(found['again']) == 3
    assert found['rounds']['again'] == pytest.approx([.9])
    assert 'NOT STEADY' in said[-1]

# Memory

def test_the_high_water_mark_is_read_from_the_status_of_the_process(tmp_path):
    (tmp_path/'status').write_text('Name:\tpython\nVmPeak:\t 9000 kB\nVmHWM:\t  2000 kB\nVmRSS:\t  1500 kB\n')
    peak = Peak(proc=tmp_path)
    peak.reset()
    assert (tmp_path/'clear_refs').read_text() == '5'
    assert peak.megabytes() == 2.048
    assert 'reset after the first step' in peak.how
    with pytest.raises(ValueError, match='no field VmLow'): _in_status('VmHWM: 1 kB', 'VmLow')

def test_a_high_water_mark_that_cannot_be_reset_is_reported(tmp_path):
    (tmp_path/'clear_refs').mkdir()
    peak = Peak(proc=tmp_path)
    peak.reset()
    assert 'could not be reset' in peak.how and peak.megabytes() > 10

@pytest.mark.slow
def test_a_peak_is_measured_in_a_separate_process():
    found = _peak_alone('plain', tokens=16)
    assert found['megabytes'] > 300 and 'resident memory' in found['how']

def test_a_failed_process_raises_an_error_with_its_last_message(monkeypatch):
    monkeypatch.setattr(subprocess, 'run',
                        lambda *a, **kw: subprocess.CompletedProcess(a, 1, '', 'Traceback\nMemoryError: too large\n'))
    with pytest.raises(RuntimeError, match="the memory of 'plain' failed: MemoryError: too large"):
        _peak_alone('plain', tokens=16)

def test_memory_is_relative_to_plain_fine_tuning():
    mb = dict(plain=800., ga=1000.)
    found = _measure_memory(['plain', 'ga'], lambda name, tokens: dict(megabytes=mb[name], how='invented'), tokens=128,
                           **quiet)
    assert found['rows']['ga'] == dict(megabytes=1000., ratio=1.25)
    assert found['tokens'] == 128
    assert found['how'] == 'invented'

# Costs outside the training steps

def test_recording_is_extrapolated_to_an_epoch_and_saliency_counts_apart():
    metrics = [dict(kind='train', seconds=s)
               for s in (9., .1, .1)] + [dict(kind='record', seconds=.6, saliency_seconds=.4)] * 3 + [dict(kind='eval')]
    found = _recording_fraction(metrics, 500)
    assert found['share'] == pytest.approx(20 * .2 / 50) and found['saliency_share'] == pytest.approx(20 * .4 / 50)

def test_throughput_of_explanations_counts_examples_times_steps(tiny_shape):
    "Each reading advances this clock by one second: a pass over all steps takes as long as one forward-backward pass"
    assert _measure_explanations(tokens=12, nodes=3, rounds=2, clock=itertools.count().__next__, **quiet)['ratio'] == 3

def test_padded_tokens_are_the_tokens_of_the_collated_batches():
    rng = np.random.default_rng(0)
    lengths, order = rng.integers(3, 40, 83), rng.permutation(83)
    slow = 0
    for i in range(0, 83, 16):
        batch = [lengths[j] for j in order[i:i + 16]]
        slow += len(batch) * max(batch)
    assert _padded_tokens(lengths, order, 16) == slow

def test_bf16_rows_are_skipped_if_bf16_would_be_emulated(monkeypatch):
    monkeypatch.setattr(code, 'has_bf16', lambda device: False)
    assert not any('bf16' in k for k in _rows_for())
    assert _settings_of([32], 0, 'cuda') == [dict(tokens=32, dropout=0., precision='fp32')]
    monkeypatch.setattr(code, 'has_bf16', lambda device: True)
    assert set(_rows_for()) == set(_rows) and [s['precision'] for s in _settings_of([32], 0, 'cuda')] == ['fp32',
                                                                                                          'bf16']
    assert [s['precision'] for s in _settings_of([32], 0, 'cpu')] == ['fp32']

@pytest.mark.slow
def test_steps_in_bf16_run_under_autocast(tiny_shape):
    found = _measure_steps(['plain', 'again', 'ga', 'bf16', 'bf16_eager', 'ga_bf16', 'iga_bf16'], tokens=12, rounds=1,
                          clock=itertools.count().__next__, **quiet)
    assert found['rows']['ga_bf16']['flops'] == found['rows']['ga']['flops']
    assert found['rows']['bf16']['flops'] == found['rows']['plain']['flops']
    assert 'bmm' in found['rows']['bf16_eager']['operators']
    under = _measure_steps(['plain', 'again', 'ga'], tokens=12, precision='bf16', rounds=1,
                          clock=itertools.count().__next__, **quiet)
    assert under['rows']['ga']['flops'] == found['rows']['ga']['flops'] and under['precision'] == 'bf16'

# Tables and files

kept = []

@pytest.fixture
def found(tiny_shape, monkeypatch, tmp_path):
    """Return a whole benchmark of a small model with invented times and memory; it runs once, and its files are written
    for each test"""
    if kept:
        _write_found(kept[0], tmp_path/'out')
        return copy.deepcopy(kept[0])
    monkeypatch.setattr(code, 'clock_of', lambda device: itertools.count().__next__)
    monkeypatch.setattr(code, '_measure_memory',
                        lambda names, say, **setting: dict(setting, how='invented',
                                                           rows={k: dict(megabytes=500., ratio=1.25) for k in names}))
    def beside(found, *args):
        found |= dict(explanations=dict(ratio=.5, goal=1.), buckets=dict(ratio=.6, sentences=8484),
                      region=dict(kept=.993),
                      recording=dict(plain=_recording_fraction([dict(kind='train', seconds=1.),
                                                            dict(kind='record', seconds=90., saliency_seconds=40.)],
                                                           500)))
    monkeypatch.setattr(code, '_measure_beside', beside)
    kept.append(bench(tmp_path/'out', tokens=(16, 12), methods=['ga', 'rd'], rounds=2, **quiet))
    return copy.deepcopy(kept[0])

@pytest.mark.slow
def test_a_bench_writes_what_it_found_as_json_and_markdown(found, tmp_path):
    there = json.loads((tmp_path/'out'/'bench.json').read_text())
    assert there == json.loads(json.dumps(found)) and (tmp_path/'out'/'bench.md').read_text() == _report(there)
    assert [(t['tokens'], t['dropout']) for t in there['tables']] == [(12, 0.), (16, 0.), (16, .1)]
    assert there['tables'][0]['kernel'] == '_scaled_dot_product_flash_attention_for_cpu'
    assert there['tables'][2]['kernel'] == ''
    assert len(there['tables'][0]['rows']['ga']['rounds']) == 2
    assert there['threads'] == 1
    assert there['versions']['torch'] == torch.__version__
    assert all(there[k] for k in ('date', 'processor', 'goals'))

def test_the_readme_table_is_made_of_the_file_alone(found, tmp_path):
    lines = _bench_table(json.loads((tmp_path/'out'/'bench.json').read_text())).splitlines()
    assert lines[0] == '| step | FLOPs at 12/16 tokens | goal | time at 12/16 tokens | goal | published | peak memory |'
    assert [l.split(' | ')[0] for l in lines[2:6]] == ['| plain fine-tuning', '| plain fine-tuning again (A/A)',
                                                       '| AD-DROP GA, all layers', '| AD-DROP RD']
    ga = found['tables'][0]['rows']['ga']['flops_ratio'], found['tables'][1]['rows']['ga']['flops_ratio']
    assert lines[
        4] == f'| AD-DROP GA, all layers | {ga[0]:.2f}, {ga[1]:.2f} | 1.7 | 1.00, 1.00 | 1.7 | 3.6 to 4.5 | 1.25 |'
    with pytest.raises(ValueError, match='results contain no measurement with attention dropout 0'):
        _bench_table(dict(found, tables=found['tables'][2:]))

def test_the_supervision_of_one_row_is_measured_and_reported(found):
    ticks = iter([0, 2, 2, 5, 5, 9, 9, 11]) # plain 2 s, row 3 s; then row 4 s, plain 2 s
    rows = measure_row_supervision([24], rounds=2, clock=ticks.__next__, **quiet)
    assert rows[0]['tokens'] == 24 and rows[0]['rows']['row']['rounds'] == [3, 4]
    assert rows[0]['rows']['row']['ratio'] == 1.75 and rows[0]['rows']['row']['megabytes'] > 0
    found = dict(found, row_supervision=rows)
    assert 'time of supervising one attention row at 24 tokens: 1.75, goal 1.05' in _missed_goals(found)
    assert 'Supervision of one attention row, 24 tokens: 1.75 times the time' in _report(found)

def test_the_loss_on_a_row_reaches_the_queries_and_keys():
    gradients = {}
    for name, step in row_steps(24, whole={}).items():
        model = step.model.eval()
        model.zero_grad = lambda set_to_none: None
        for p in model.parameters(): p.grad = None
        torch.manual_seed(0)
        step()
        gradients[name] = model.bert.encoder.layer[0].attention.self.query.weight.grad.clone()
    assert not torch.allclose(gradients['row'], gradients['plain'])
    torch.testing.assert_close(gradients['row'], gradients['whole'], rtol=1e-4, atol=1e-5)

def test_missed_goals_are_named(found):
    assert _missed_goals(found) == ["throughput of SalLM's explanations: 0.50, goal 1",
                                   'recording of plain fine-tuning: 200.0% of training time, goal 5%']
    found['tables'][0]['rows']['ga'].update(flops_ratio=1.7049, time_ratio=1.706)
    found['tables'][1].update(steady=False, again=[1.2, 1.1, 1.3])
    said = _missed_goals(found)
    assert 'time of AD-DROP GA, all layers at 12 tokens: 1.71, goal 1.7' in said
    assert not any(s.startswith('FLOPs') for s in said)
    assert 'A/A at 16 tokens (fp32, attention dropout 0) is NOT STEADY: 1.200, 1.100, 1.300' in said[-1]
    assert said[-1] in _report(found)

def test_earlier_results_are_not_overwritten(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match='bench.json already exists'): free_folder('out')
    assert free_folder('out', force=True).name == 'out' and str(free_folder()) == 'runs/bench'
    (tmp_path/'runs'/'bench').mkdir(parents=True)
    assert str(free_folder()) == 'runs/bench-2'
    (tmp_path/'file').write_text('mine')
    for force in (False, True):
        with pytest.raises(FileExistsError, match='file is a file; choose another'): free_folder('file', force=force)

refused = [(dict(methods=['gaa']), 'unknown methods: gaa; available: plain, again, ga'),
           (dict(tokens=[]), 'at least one length'), (dict(tokens=[4]), 'from 8 to 512, got 4'),
           (dict(tokens=[32.]), 'whole numbers'), (dict(rounds=0), 'rounds must be'),
           (dict(rounds=True), 'rounds must be'), (dict(device='gpu'), "'cpu' or 'cuda', got 'gpu'"),
           (dict(shape='gpt'), "'minilm', 'bert-base', 'llama', got 'gpt'"),
           (dict(dropout=1), 'at least 0 and below 1'),
           (dict(dropout='a'), 'at least 0 and below 1')]

@pytest.mark.parametrize('given,said', refused, ids=lambda o: str(o)[:24])
def test_invalid_arguments_raise_before_anything_is_measured(given, said, tmp_path):
    with pytest.raises(ValueError, match=said): bench(tmp_path/'out', **given, **quiet)
    assert not (tmp_path/'out').exists()

def test_a_missing_gpu_raises_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(ValueError, match='no GPU'): check_bench([32], 7, 'cuda', 'minilm', 0)

@pytest.mark.slow
def test_the_cost_of_watching_is_measured_and_reported():
    w = code._measure_watching(steps=3, probes=1, say=lambda text: None)
    assert w['budget'] == .02 and w['recording_seconds'] > w['step_seconds']/50 and w['ratio'] > .5
    assert w['steps_within_budget']*w['step_seconds']*w['budget'] >= 2*w['recording_seconds']
    sentence, = [x for x in code._besides(dict(bf16=True, watching=w)) if x.startswith('Watching a training')]
    assert f'{w["steps_within_budget"]:,} steps on, all recordings take at most 2%' in sentence

def test_the_stored_bench_has_the_cost_of_watching():
    found = json.loads((Path(__file__).parents[2]/'nbs'/'13_cli'/'bench.json').read_text())
    assert found['watching']['budget'] == .02 and any(x.startswith('Watching a training') for x in code._besides(found))

def test_readme_quotes_the_times_of_the_stored_bench():
    root = Path(__file__).parents[2]
    found = json.loads((root/'nbs'/'13_cli'/'bench.json').read_text())
    readme = (root/'README.md').read_text()
    words = ' '.join(readme.split()) # its prose is wrapped
    assert all(line.strip() in words for line in _cost_lines(found))
    assert {t['tokens'] for t in found['tables']} == {32, 64, 128}
    assert found['rounds'] >= 7
    assert set(found['goals']) == set(code._rows)
    for t in found['tables']:
        for name, r in t['rows'].items():
            row = code._rows[name]
            assert row.flops is None or round(r['flops_ratio'], 2) <= row.flops, name

def test_the_cost_table_contains_the_numbers_of_the_file_also_in_latex():
    found = json.loads((Path(__file__).parents[2]/'nbs'/'13_cli'/'bench.json').read_text())
    table = cost_table(found, ['plain', 'rd', 'ga'])
    at = [t['tokens'] for t in found['tables'] if not t['dropout'] and t['precision'] == 'fp32']
    assert table.heads()[1] == [*(f'{what}, {n}' for what in ('FLOPs', 'time') for n in at), 'memory']
    names, cells = table.grid()[1]
    assert names == ['AD-DROP RD', '1.3 to 1.4']
    assert [c.mean for c in cells] == [*(f'{t["rows"]["rd"][key]:.2f}' for key in ('flops_ratio', 'time_ratio')
                                         for t in found['tables'] if not t['dropout'] and t['precision'] == 'fp32'),
                                       f'{found["memory"]["rows"]["rd"]["ratio"]:.2f}']
    latex = table.latex(wide=True, small='scriptsize')
    assert latex.count('\\toprule') == 1 and 'AD-DROP RD & 1.3 to 1.4 & 1.00' in latex and 'not steady' not in latex
    assert 'memory' not in cost_table({k: v for k, v in found.items() if k != 'memory'}).heads()[1]
    shaken = dict(found, tables=[dict(t, steady=i != 1) for i, t in enumerate(found['tables'])])
    assert f'Not steady at {found["tables"][1]["tokens"]} tokens' in cost_table(shaken).caption
    for rows, says in ((['sgt'], "'sgt' was not measured"), (['rd', 'rd'], 'is listed twice')):
        with pytest.raises(ValueError, match=says): cost_table(found, rows)
    with pytest.raises(ValueError, match='results contain no measurement'): cost_table(dict(found, tables=[]))
