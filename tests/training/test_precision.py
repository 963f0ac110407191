"bf16 by name: refused where it would be emulated, and its attention kernel measured once, kept, and named."
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
    "A processor that calculates in bf16, or says so: what it emulates gives the same kind of numbers"
    monkeypatch.setattr(job, 'has_bf16', lambda device: True)


@pytest.fixture
def quickest(monkeypatch):
    "Decide which kernel is found to be the faster one; `quickest.asked` counts the measurements"
    class Decided:
        name, asked, share, fp32 = 'eager', 0, .5, 9.
        def __call__(self, acts):
            self.asked, self.names = self.asked + 1, [*acts]
            for act in acts.values(): act()
            return {name: self.share if name == self.name else 1. for name in acts} | dict(fp32=self.fp32)
    decided = Decided()
    monkeypatch.setattr(trainer, 'least_seconds', decided)
    return decided


def seen_by(model):
    "What a training of `model` runs on: {(kernel, dtype of a query, is it training?)}"
    seen = set()
    query = model.bert.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda m, i, out: seen.add((model.config._attn_implementation, out.dtype, m.training)))
    return seen


def weights(model): return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_bf16_is_refused_where_the_processor_has_no_instructions_for_it(tmp_path, monkeypatch, tiny_bert,
                                                                        tiny_tokenizer, tiny_data):
    def refused(said, **asked):
        with pytest.raises(ValueError, match=said):
            train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **{**quick, **asked})
        assert not (tmp_path/'run').exists()
    monkeypatch.setattr(job, 'has_bf16', lambda device: False)
    refused("precision='bf16' needs a processor that calculates in bf16 .* use precision='fp32'", precision='bf16')
    monkeypatch.setattr(job, 'has_bf16', lambda device: True)
    refused("precision must be 'fp32' or 'bf16', got 'half'", precision='half')
    refused('args has bf16, and precision=.bf16. says that already', precision='bf16', args=dict(bf16=True))
    refused(r"attention_kernel must be 'sdpa' \(fused\), 'eager', or None, got 'flash'", attention_kernel='flash')


def test_training_runs_in_bf16_with_weights_in_full_precision_and_says_so(tmp_path, able, quickest, tiny_bert,
                                                                          tiny_tokenizer, tiny_data):
    model = tiny_bert()
    seen = seen_by(model)
    run = train(model, tiny_tokenizer, tiny_data, ADDrop(p=.4, q=.5, cross_tuning=False), run_dir=tmp_path/'run',
                precision='bf16', **quick)
    kinds = {dtype for _, dtype, training in seen if training}
    assert torch.bfloat16 in kinds and weights(model).dtype == torch.float32
    assert run.config['settings']['precision'] == 'bf16'


def test_what_is_not_asked_for_is_neither_measured_nor_written(tmp_path, quickest, tiny_bert, tiny_tokenizer,
                                                               tiny_data):
    model = tiny_bert()
    seen = seen_by(model)
    run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
    assert {kind[:2] for kind in seen} == {('sdpa', torch.float32)} and not quickest.asked
    assert not {'precision', 'attention_kernel'} & {*run.config['settings'], *run.state}


@pytest.mark.slow
@pytest.mark.parametrize('kernel', ['eager', 'sdpa'])
def test_the_faster_kernel_is_measured_without_a_trace_and_named(kernel, tmp_path, able, quickest, tiny_bert,
                                                                 tiny_tokenizer, tiny_data):
    quickest.name, ends = kernel, []
    for name, asked in (('measured', {}), ('named', dict(attention_kernel=kernel))):
        model = tiny_bert(attention_probs_dropout_prob=0.)
        run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/name, precision='bf16', **asked, **quick)
        assert model.config._attn_implementation == 'sdpa', 'the model has its own kernel again'
        ends.append((weights(model), [row['loss'] for row in run.train_rows], run.scores('test')))
    assert quickest.asked == 1 and Run(tmp_path/'measured').state['attention_kernel'] == kernel
    assert run.config['settings']['attention_kernel'] == kernel
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1:] == ends[1][1:]


def test_a_kernel_that_gives_other_numbers_is_not_chosen_however_fast_it_is(tmp_path, monkeypatch, able, quickest,
                                                                          tiny_bert, tiny_tokenizer, tiny_data):
    losses = trainer._losses_by
    def drawn_otherwise(of, name, *rest): return losses(of, name, *rest) + (.01 if name == 'eager' else 0)
    monkeypatch.setattr(trainer, '_losses_by', drawn_otherwise)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', precision='bf16', **quick)
    assert run.state['attention_kernel'] == 'sdpa' and quickest.names == ['sdpa', 'fp32']


def test_what_is_about_as_fast_is_not_chosen_and_bf16_that_is_slower_is_named(tmp_path, able, quickest, tiny_bert,
                                                                              tiny_tokenizer, tiny_data):
    quickest.share, quickest.fp32 = .95, .5
    with pytest.warns(UserWarning, match="in bf16 takes 1.90 of one in fp32 .* precision='fp32' is faster here"):
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
    "Plain fine-tuning that breaks down before the step `at`"
    at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: raise KeyboardInterrupt
        return super().plan(model, batch, progress)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_kernel_whatever_is_faster_now(tmp_path, able, quickest, tiny_bert,
                                                                    tiny_tokenizer, tiny_data):
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
    quickest.name, quickest.asked = 'sdpa', 0
    run, got, kernels = trained('run', Breaks(), resume=True)
    assert kernels == {'eager'} and not quickest.asked and run.state['attention_kernel'] == 'eager'
    assert torch.equal(got, wanted) and [r['loss'] for r in run.train_rows] == [r['loss'] for r in whole.train_rows]
    with pytest.raises(ValueError, match='settings differ'):
        trained('run', Breaks(), resume=True, attention_kernel='sdpa')


def test_the_command_line_asks_for_it_by_name():
    asked = _parser().parse_args(['train', '--precision', 'bf16', '--attention-kernel', 'eager'])
    assert (asked.precision, asked.attention_kernel) == ('bf16', 'eager')
    usual = _parser().parse_args(['train'])
    assert (usual.precision, usual.attention_kernel) == ('fp32', None)
