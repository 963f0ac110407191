"Invalid arguments are rejected at the entry point, in a sentence that salviz wrote"
import collections
import inspect
import random

import pytest
import torch

import malformed
import salviz
from salviz.core.validation import _checks_of, _classes, _fits, readable_signature, shown, validated

@pytest.fixture(scope='module')
def entry_points(make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path_factory):
    return malformed.entry_points(make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path_factory.mktemp('entry_points'))

@pytest.mark.slow
def test_of_1000_malformed_calls_none_ends_in_an_error_that_helps_nobody(entry_points, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    values = malformed.wrong_values()
    calls = [(name, argument, value) for name, (_, given) in entry_points.items() for argument in given
             for value in values]
    chosen = random.Random(0).sample(calls, 1000)
    count, bad = collections.Counter(), []
    for name, argument, value in chosen:
        function, given = entry_points[name]
        what, said = malformed.outcome(lambda: function(**{**given, argument: values[value]()}))
        count[what] += 1
        if what in ('unhelpful', 'hangs'): bad.append(f'{name}({argument}={value}): {what}, {said}')
    with capsys.disabled():
        print(f'\n{len(chosen)} malformed calls of {len(entry_points)} functions: '
              + ', '.join(f'{n} {what}' for what, n in sorted(count.items())))
    assert not bad, '\n'.join(bad)

def test_valid_arguments_pass_all_checks(entry_points):
    """Otherwise the calls above could be rejected for a reason other than the one wrong argument; training and
    checkpoints have separate tests"""
    for name, (function, given) in entry_points.items():
        if name not in ('train', 'Study', 'load_model', 'Explorer'):
            assert malformed.outcome(lambda: function(**given)) == ('fine', ''), name

named = [(lambda d: salviz.train('minilm', None, None), 'train: model must be a model'),
         (lambda d: salviz.explain_data(d['model'], d['data'], tokenizer='minilm'),
          'explain_data: tokenizer must be a tokenizer'),
         (lambda d: salviz.encode(d['data'], 'minilm'),
          'encode: tokenizer must be a tokenizer, such as one that load_classifier returns, not its name, got'),
         (lambda d: salviz.Collator('minilm'), 'Collator: tokenizer must be a tokenizer'),
         (lambda d: salviz.view_for(None), 'view_for: snapshot must be a Snapshot'),
         (lambda d: salviz.discard_region('run'), 'discard_region: snapshot must be a Snapshot'),
         (lambda d: salviz.train_tokenizer(['a b'], vocab_size=10**12),
          'train_tokenizer: vocab_size must be an integer between 1 and 10,000,000, got 1000000000000'),
         (lambda d: salviz.load_rationales(3), 'load_rationales: source must be a path'),
         (lambda d: salviz.subset(d['data'], 8, seed='1'),
          "subset: seed must be a non-negative integer, got '1'"),
         (lambda d: salviz.figure(d['snapshot'], 'attention_map', layer={}),
          'attention_map: layer must be an integer'),
         (lambda d: salviz.Run(3), 'Run: path must be the folder of a run'),
         (lambda d: salviz.result_table(None), 'result_table: frame must be a pandas DataFrame'),
         (lambda d: salviz.SalLM(variant=salviz.SalLMVariant(loss=[])), 'loss must be one of'),
         (lambda d: salviz.Study('s', 'minilm', dict, dict(a=salviz.FineTuning)), 'Study: data must be a data set')]

@pytest.mark.parametrize('call, said', named, ids=[said[:40] for _, said in named])
def test_the_wrong_kind_of_thing_is_named_with_what_is_due(call, said, make_tiny_bert, tiny_data):
    import invented
    given = dict(model=make_tiny_bert(), data=tiny_data['test'], snapshot=invented.snapshot())
    with pytest.raises(ValueError) as e: call(given)
    assert said in str(e.value) and '\n' not in str(e.value)

def test_a_model_without_anything_to_train_is_refused_before_there_is_a_folder(
    make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    model = make_tiny_bert().requires_grad_(False)
    with pytest.raises(ValueError, match='all parameters of model are frozen'):
        salviz.train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()

def test_a_validated_function_keeps_its_signature_and_docstring(make_tiny_bert):
    from salviz.attribution import explanations
    from salviz.core.docstrings import _docstring_with_comments
    assert salviz.explain is salviz.explain and salviz.explain.__wrapped__ is explanations.explain
    assert inspect.signature(salviz.explain) == readable_signature(explanations.explain)
    assert salviz.explain.__doc__ == _docstring_with_comments(explanations.explain)
    assert validated(explanations.explain) is salviz.explain
    assert isinstance(salviz.ADDrop, type) and salviz.ADDrop is salviz.methods.ADDrop # classes are not wrapped

def test_each_default_fits_its_annotation():
    functions = [f for f in (getattr(salviz, name) for name in salviz.__all__) if not isinstance(f, type)]
    for function in [*filter(callable, functions), *(kind.make for kind in salviz.figure_kinds().values())]:
        who, signature, hints = _checks_of(inspect.unwrap(function))
        for name, p in signature.parameters.items():
            if p.default is not p.empty: assert _fits(hints[name], p.default), f'{who}: {name}={shown(p.default)}'

def test_a_model_is_recognised_by_its_attributes(make_tiny_bert):
    is_model, _ = _classes['Module']
    assert is_model(make_tiny_bert()) and is_model(torch.nn.Linear(1, 1))
    assert not is_model(torch.nn.Linear) and not is_model('minilm')
