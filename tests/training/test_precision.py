"precision='bf16': it raises without hardware support, and its attention kernel is measured once and recorded."
import pytest
import torch

from salviz.cli import _parser
from salviz.core.runs import Run
from salviz.methods import ADDrop, FineTuning
from salviz.training import job, trainer
from salviz.training.trainer import train

quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, probes=3, snapshots=0)


@pytest.fixture
def able(monkeypatch):
    "Report hardware support for bf16; emulation gives the same kind of numbers"
    monkeypatch.setattr(job, 'has_bf16', lambda device: True)


@pytest.fixture
def quickest(monkeypatch):
    "Set which kernel is the faster one; `quickest.calls` counts the measurements"
    class FakeTimes:
        name, calls, seconds, fp32 = 'eager', 0, .5, 9.
        def __call__(self, acts):
            self.calls, self.names = self.calls + 1, [*acts]
            for act in acts.values(): act()
            return {name: self.seconds if name == self.name else 1. for name in acts} | dict(fp32=self.fp32)
    times = FakeTimes()
    monkeypatch.setattr(trainer, 'least_seconds', times)
    return times


def seen_by(model):
    "Return a set that receives (kernel, dtype of a query, train mode) of each pass of `model`"
    seen = set()
    query = model.bert.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda m, i, out: seen.add((model.config._attn_implementation, out.dtype, m.training)))
    return seen


def weights(model): return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_bf16_without_hardware_support_raises(tmp_path, monkeypatch, tiny_bert, tiny_tokenizer, tiny_data):
    def refused(message, **kwargs):
        with pytest.raises(ValueError, match=message):
            train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **{**quick, **kwargs})
        assert not (tmp_path/'run').exists()
    monkeypatch.setattr(job, 'has_bf16', lambda device: False)
    refused("precision='bf16' requires hardware support for bf16 .* use precision='fp32'", precision='bf16')
    monkeypatch.setattr(job, 'has_bf16', lambda device: True)
    refused("precision must be 'fp32' or 'bf16', got 'half'", precision='half')
    refused('args contains bf16, which duplicates precision=.bf16.', precision='bf16', args=dict(bf16=True))
    refused(r"attention_kernel must be 'sdpa' \(fused\), 'eager', or None, got 'flash'", attention_kernel='flash')


def test_bf16_training_keeps_weights_in_full_precision_and_records_its_precision(
    tmp_path, able, quickest, tiny_bert, tiny_tokenizer, tiny_data):
    model = tiny_bert()
    seen = seen_by(model)
    run = train(model, tiny_tokenizer, tiny_data, ADDrop(p=.4, q=.5, cross_tuning=False), run_dir=tmp_path/'run',
                precision='bf16', **quick)
    kinds = {dtype for _, dtype, training in seen if training}
    assert torch.bfloat16 in kinds and weights(model).dtype == torch.float32
    assert run.config['settings']['precision'] == 'bf16'


def test_default_precision_neither_measures_nor_records_a_kernel(tmp_path, quickest, tiny_bert, tiny_tokenizer,
                                                                 tiny_data):
    model = tiny_bert()
    seen = seen_by(model)
    run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
    assert {kind[:2] for kind in seen} == {('sdpa', torch.float32)} and not quickest.calls
    assert not {'precision', 'attention_kernel'} & {*run.config['settings'], *run.state}


@pytest.mark.slow
@pytest.mark.parametrize('kernel', ['eager', 'sdpa'])
def test_measuring_the_faster_kernel_has_no_effect_and_is_recorded(kernel, tmp_path, able, quickest, tiny_bert,
                                                                   tiny_tokenizer, tiny_data):
    quickest.name, ends = kernel, []
    for name, kwargs in (('measured', {}), ('named', dict(attention_kernel=kernel))):
        model = tiny_bert(attention_probs_dropout_prob=0.)
        run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/name, precision='bf16', **kwargs, **quick)
        assert model.config._attn_implementation == 'sdpa', 'the kernel of the model must be restored'
        ends.append((weights(model), [row['loss'] for row in run.train_rows], run.scores('test')))
    assert quickest.calls == 1 and Run(tmp_path/'measured').state['attention_kernel'] == kernel
    assert run.config['settings']['attention_kernel'] == kernel
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1:] == ends[1][1:]


def test_kernel_with_different_losses_is_not_chosen(tmp_path, monkeypatch, able, quickest, tiny_bert, tiny_tokenizer,
                                                    tiny_data):
    losses = trainer._losses_by
    def different_losses(of, name, *rest): return losses(of, name, *rest) + (.01 if name == 'eager' else 0)
    monkeypatch.setattr(trainer, '_losses_by', different_losses)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', precision='bf16', **quick)
    assert run.state['attention_kernel'] == 'sdpa' and quickest.names == ['sdpa', 'fp32']


def test_slightly_faster_kernel_is_not_chosen_and_slow_bf16_warns(tmp_path, able, quickest, tiny_bert, tiny_tokenizer,
                                                                  tiny_data):
    quickest.seconds, quickest.fp32 = .95, .5
    with pytest.warns(UserWarning, match="in bf16 takes 1.90 times as long as in fp32; use precision='fp32'"):
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', precision='bf16', **quick)
    assert run.state['attention_kernel'] == 'sdpa'


@pytest.mark.slow
def test_kernels_differ_by_rounding_only(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    losses = []
    for kernel in ('sdpa', 'eager'):
        run = train(tiny_bert(attention_probs_dropout_prob=0.), tiny_tokenizer, tiny_data, run_dir=tmp_path/kernel,
                    attention_kernel=kernel, **quick)
        losses.append([row['loss'] for row in run.train_rows])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class Breaks(FineTuning):
    "Plain fine-tuning that raises before the step `at`"
    at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: raise KeyboardInterrupt
        return super().plan(model, batch, progress)


@pytest.mark.slow
def test_resumed_run_keeps_its_kernel(tmp_path, able, quickest, tiny_bert, tiny_tokenizer, tiny_data):
    def trained(name, method, **kw):
        model = tiny_bert(attention_probs_dropout_prob=0.)
        seen = seen_by(model)
        return train(model, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/name, precision='bf16', **quick,
                     **kw), weights(model), {kernel for kernel, *_ in seen}
    whole, wanted, _ = trained('whole', Breaks())
    broken = Breaks()
    broken.at = 7
    with pytest.raises(KeyboardInterrupt): trained('run', broken)
    assert Run(tmp_path/'run').state['attention_kernel'] == 'eager'
    quickest.name, quickest.calls = 'sdpa', 0
    run, got, kernels = trained('run', Breaks(), resume=True)
    assert kernels == {'eager'} and not quickest.calls and run.state['attention_kernel'] == 'eager'
    assert torch.equal(got, wanted) and [r['loss'] for r in run.train_rows] == [r['loss'] for r in whole.train_rows]
    with pytest.raises(ValueError, match='different values for settings'):
        trained('run', Breaks(), resume=True, attention_kernel='sdpa')


def test_command_line_has_options_for_precision_and_kernel():
    args = _parser().parse_args(['train', '--precision', 'bf16', '--attention-kernel', 'eager'])
    assert (args.precision, args.attention_kernel) == ('bf16', 'eager')
    defaults = _parser().parse_args(['train'])
    assert (defaults.precision, defaults.attention_kernel) == ('fp32', None)
