"The plausibility of attributions by name and as objects equals `plausibility` of the values from `explain_data`"
import captum.attr
import numpy as np
import pytest
from datasets import Dataset

from salviz import CaptumAttribution, explain_data, list_attributions, plausibility_table
from salviz.metrics.plausibility import plausibility

texts = ['the film is fine and warm .', 'a clumsy plot of this silly story', 'lovely', 'dull and empty music']
marked = [[0, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1, 0], None, [1, 0, 1, 0]]
spans = [[[12, 16], [21, 25]], [[2, 8], [22, 27]], None, [[0, 4], [9, 14]]]
scores = ['auprc', 'token_f1', 'iou_f1']

@pytest.fixture(scope='module')
def model(make_tiny_bert): return make_tiny_bert(seed=1, initializer_range=.4).eval()

def expected(values, **settings):
    "Return the scores of `values`, one array per text"
    return [plausibility(values, marked, **settings)[name] for name in scores]

def cheap(name):
    "Return options with which the attribution `name` is computed quickly"
    options, few = CaptumAttribution(name).options if name.startswith('captum.') else {}, {}
    for option, value in dict(n_samples=6, n_steps=2, nt_samples=2).items():
        if option in options: few[option] = value
    return few

@pytest.mark.parametrize('name', ['gradient_norm', 'integrated_gradients', 'attention', 'captum.Saliency',
                                  'captum.GradientShap', 'captum.Lime', 'captum.ShapleyValueSampling',
                                  'captum.NoiseTunnel(InputXGradient)'])
def test_an_attribution_by_name_equals_explain_data(model, tiny_tokenizer, name):
    table = plausibility_table({'a name': dict(method=name, **cheap(name))}, marked, model=model, data=texts,
                               tokenizer=tiny_tokenizer, seed=3)
    assert table.index.tolist() == ['a name', 'random'] and table.columns.tolist() == scores
    for row, method, options in (('a name', name, cheap(name)), ('random', 'random', {})):
        values = explain_data(model, texts, method, tokenizer=tiny_tokenizer, words='sum', seed=3, progress=False,
                              **options)
        assert table.loc[row].tolist() == expected(values)

@pytest.mark.parametrize('make', [lambda model: CaptumAttribution('Lime', n_samples=6),
                                  captum.attr.Saliency])
def test_an_object_equals_explain_data(model, tiny_tokenizer, make):
    attribution = make(model)
    table = plausibility_table(attribution, marked, model=model, data=texts, tokenizer=tiny_tokenizer)
    values = explain_data(model, texts, attribution, tokenizer=tiny_tokenizer, words='sum', progress=False)
    assert len(table) == 2 and table.iloc[0].tolist() == expected(values)

def test_names_objects_options_and_arrays_are_rows_of_one_table(model, tiny_tokenizer):
    arrays = [np.arange(len(text.split()))[::-1] for text in texts]
    methods = {'own': arrays, 'Lime': CaptumAttribution('Lime', n_samples=6), 'norm': 'gradient_norm',
               'steps': dict(method='integrated_gradients', steps=2)}
    table = plausibility_table(methods, marked, model=model, data=texts, tokenizer=tiny_tokenizer, ranking='magnitude')
    assert table.index.tolist() == [*methods, 'random']
    assert table.loc['own'].tolist() == expected(arrays, ranking='magnitude')
    of_steps = explain_data(model, texts, 'integrated_gradients', tokenizer=tiny_tokenizer, words='sum', steps=2,
                            progress=False)
    assert table.loc['steps'].tolist() == expected(of_steps, ranking='magnitude')
    assert plausibility_table({'own': arrays}, marked).loc['own'].tolist() == expected(arrays)

def test_every_listed_attribution_without_arguments_is_a_row(model, tiny_tokenizer):
    "Except 'gradient', which vanishes for a model with a LayerNorm after its embeddings"
    names = [name for name in list_attributions().index if name != 'gradient' and not name.startswith('captum.')]
    table = plausibility_table(names, marked, model=model, data=texts, tokenizer=tiny_tokenizer)
    assert {*table.index} == {*names, 'random'} and np.isfinite(table.to_numpy()).all()

def test_rationales_are_flags_spans_fractions_or_a_column(model, tiny_tokenizer):
    def table(rationales=None, data=texts):
        return plausibility_table('gradient_norm', rationales, model=model, data=data, tokenizer=tiny_tokenizer)
    first = table(marked)
    fractions = [marks and [.75*mark for mark in marks] for marks in marked]
    split = Dataset.from_dict(dict(text=texts, rationale=spans))
    for other in (table(spans), table(fractions), table(data=split),
                  table([marks and np.array(marks) for marks in marked])): assert other.equals(first)
    assert '4 examples' in first.attrs['about']

def test_pairs_are_marked_in_both_texts(model, tiny_tokenizer):
    pairs, flags = [('the clumsy film', 'a fine plot')], [[0, 1, 0, 0, 1, 0]]
    table = plausibility_table('gradient_norm', [[[0, 4, 10], [1, 2, 6]]], model=model, data=pairs,
                               tokenizer=tiny_tokenizer)
    values = explain_data(model, pairs, 'gradient_norm', tokenizer=tiny_tokenizer, words='sum', progress=False)
    assert table.loc['gradient_norm'].tolist() == [plausibility(values, flags)[name] for name in scores]

def test_what_is_missing_is_named(model, tiny_tokenizer):
    of_model = dict(model=model, data=texts, tokenizer=tiny_tokenizer)
    for problem, call in {
            'to use attributions by name, pass model=': lambda: plausibility_table(['gradient_norm'], marked),
            'methods must have at least one entry': lambda: plausibility_table({}, marked),
            'rationales= is missing': lambda: plausibility_table(dict(a=[[1.]])),
            'pass model= and data= together': lambda: plausibility_table(dict(a=[[1.]]), [[1]], data=texts),
            "has no column 'rationale'": lambda: plausibility_table('gradient_norm', **of_model),
            'one entry for each of the 4 texts, got 1': lambda: plausibility_table('gradient_norm', [[1]], **of_model),
            'one per example': lambda: plausibility_table('gradient_norm', marked, target='each', **of_model)}.items():
        with pytest.raises(ValueError, match=problem): call()
