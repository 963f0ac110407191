"An attribution that is registered once is available everywhere"
from collections import namedtuple

import numpy as np
import pytest
import torch

import salviz
from salviz.attribution import registry
from salviz.attribution.explanations import explain, explainers
from salviz.attribution.registry import attribution, registered_attributions
from salviz.attribution.saliency import input_saliency
from salviz.core.runs import Run
from salviz.explorer.payload import pack_frame, split_frame
from salviz.figures.kinds import Content, _citations_of
from salviz.methods.base import FineTuning, Progress
from salviz.methods.saliency_guided import SaliencyGuided, SaliencyGuidedVariant
from salviz.methods.sallm import SalLM, token_saliency
from salviz.analysis.corpus import head_table
from salviz.analysis.model_maps import _explain_texts
from salviz.training.feed import feed_for
from salviz.training.recording import Recorder

ENTRY = '@misc{doe2026late, author = {Doe, Jane}, title = {Late is large}, year = {2026}}'
TEXTS = ['the film is dull .', 'a fine plot']


@pytest.fixture
def by_place():
    "Register an attribution for one test"
    @attribution('by_place', cite=ENTRY, says='weight', trains_on=('input_ids',))
    def by_place(reading, *, first=1.):
        "The number of each real token, for any target"
        return (first + reading.real.cumsum(1)).expand(len(reading.targets), -1, -1)
    yield lambda count: 1. + np.arange(1, count + 1)
    del registry.attributions['by_place']

Seen = namedtuple('Seen', 'snapshot run')

def in_a_frame(snapshot): return split_frame(pack_frame(snapshot))[0]['info']


def test_one_registration_is_used_by_explain_and_both_saliency_methods(
    by_place, make_tiny_bert, tiny_tokenizer, tiny_data):
    model = make_tiny_bert().eval()
    told = explain(model, TEXTS, 'by_place', tokenizer=tiny_tokenizer, first=3.)
    assert told.options == dict(first=3., seed=0) and told.completeness_error is None
    for values in told.examples(): np.testing.assert_array_equal(values, by_place(len(values)) + 2)
    assert explainers(model)['by_place'] == 'available' and 'by_place' not in registered_attributions('values')
    feed = feed_for(model, tiny_tokenizer)
    encoded = feed.encode(tiny_data)
    batch = feed.collate([encoded['train'][i] for i in range(3)])
    real = batch['attention_mask'].bool()
    assert torch.equal(input_saliency(model, batch, 'by_place'), torch.where(real, 1. + real.cumsum(1), 0.))
    SalLM(saliency='by_place')
    for target in ('gold', 'all'):
        taught = token_saliency(model, batch, 'by_place', target)
        assert torch.equal(taught, input_saliency(model, batch, 'by_place'))
    guided = SaliencyGuided(saliency='by_place', mask_fraction=.5)
    guided.check(model, tiny_tokenizer, tiny_data | {'train': encoded['train']}, 1)
    ranked = guided.plan(model, batch, Progress()).evidence['saliency']
    assert torch.equal(ranked, torch.where(real, 1. + real.cumsum(1), 0.))
    with pytest.raises(ValueError, match="passes='reuse' only provides the gradient at the input"):
        SaliencyGuided(saliency='by_place', variant=SaliencyGuidedVariant(passes='reuse'))
    table = head_table(model, TEXTS, tiny_tokenizer, 'by_place', progress=False)
    assert table.attrs['saliency'] == 'by_place' and table.agreement.notna().all()


@pytest.mark.slow
def test_a_run_records_the_meaning_of_its_values(
    by_place, make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    model = make_tiny_bert().eval()
    feed = feed_for(model, tiny_tokenizer)
    feed.encode(tiny_data)
    probes, texts = feed.probes(tiny_data, TEXTS)
    run = Run.create(tmp_path/'run', {})
    recorder = Recorder(run, probes, texts, feed, FineTuning(), ['negative', 'positive'], saliency='by_place')
    recorder(model, Progress(), 0.)
    shown = _explain_texts(model, tiny_tokenizer, TEXTS, saliency='by_place', attribution=False)
    said = dict(saliency_method='by_place', saliency_says='weight', saliency_cite=ENTRY)
    for snapshot in (*Run(run.path).snapshots(step=0), *shown):
        np.testing.assert_array_equal(snapshot.arrays['saliency'], by_place(len(snapshot.tokens)))
        assert {k: snapshot.info[k] for k in said} == said
        frame = in_a_frame(snapshot)
        assert (frame['saliency_method'], frame['saliency_says']) == ('by_place', 'weight')
        assert 'doe2026late' in _citations_of(Content([], [[Seen(snapshot, None)]], [], None))[-1]
    explorer = salviz.explore(model, tiny_tokenizer, TEXTS, saliency='by_place', attribution=False)
    explorer.settle()
    assert explorer.runs[0].snapshot(0, 1).info['saliency_says'] == 'weight'


def test_the_registration_is_removed_afterwards(make_tiny_bert):
    assert 'by_place' not in registered_attributions()
    with pytest.raises(ValueError, match="saliency must be one of"): SalLM(saliency='by_place')


def test_packaged_attributions_are_registered_with_their_properties():
    known = registered_attributions()
    assert list(known)[0] == 'gradient' and len(known) == 16
    assert [k for k, a in known.items() if a.of_gradient] == ['gradient', 'gradient_norm', 'gradient_abs',
                                                             'input_x_gradient']
    assert {a.says for a in known.values()} == {*registry.meanings}
    assert {a.of_attention for a in known.values()} == {None, 'gradient', 'integrated_gradients', 'attention'}
