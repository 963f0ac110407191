"What a user passes by mistake is refused where it enters, in a sentence that salviz wrote."
import collections
import random

import pytest
import torch

import malformed
import salviz
from salviz.core.validation import _kind_of, shown, validated

@pytest.fixture(scope='module')
def all_doors(make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path_factory):
    return malformed.doors(make_tiny_bert, tiny_tokenizer, tiny_data, tmp_path_factory.mktemp('doors'))

@pytest.mark.slow
def test_of_1000_malformed_calls_none_ends_in_an_error_that_helps_nobody(all_doors, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    values = malformed.wrong_values()
    calls = [(name, argument, value) for name, (_, given) in all_doors.items() for argument in given
             for value in values]
    chosen = random.Random(0).sample(calls, 1000)
    count, bad = collections.Counter(), []
    for name, argument, value in chosen:
        function, given = all_doors[name]
        what, said = malformed.outcome(lambda: function(**{**given, argument: values[value]()}))
        count[what] += 1
        if what in ('unhelpful', 'hangs'): bad.append(f'{name}({argument}={value}): {what}, {said}')
    with capsys.disabled():
        print(f'\n{len(chosen)} malformed calls of {len(all_doors)} functions: '
              + ', '.join(f'{n} {what}' for what, n in sorted(count.items())))
    assert not bad, '\n'.join(bad)

def test_what_is_meant_passes_every_door(all_doors):
    """Else the calls above would be refused for another reason than the one argument that is wrong; training and
    checkpoints have tests of their own"""
    for name, (function, given) in all_doors.items():
        if name not in ('train', 'Study', 'load_model', 'Explorer'):
            assert malformed.outcome(lambda: function(**given)) == ('fine', ''), name

named = [(lambda d: salviz.train('minilm', None, None), 'train: model must be a model'),
         (lambda d: salviz.explain_data(d['model'], d['data'], tokenizer='minilm'),
          'explain_data: tokenizer must be a tokenizer'),
         (lambda d: salviz.encode(d['data'], 'minilm'),
          'encode: tokenizer must be a tokenizer, such as load_classifier gives beside the model, and not its name, '
          'got'),
         (lambda d: salviz.Collator('minilm'), 'Collator: tokenizer must be a tokenizer'),
         (lambda d: salviz.view_for(None), 'view_for: snapshot must be a Snapshot'),
         (lambda d: salviz.discard_region('run'), 'discard_region: snapshot must be a Snapshot'),
         (lambda d: salviz.train_tokenizer(['a b'], vocab_size=10**12),
          'vocab_size must be a number of tokens, at most'),
         (lambda d: salviz.load_rationales({}), 'source must be a name'),
         (lambda d: salviz.subset(d['data'], 8, seed='1'),
          "subset: seed must be a whole number of at least 0, got '1'"),
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
    with pytest.raises(ValueError, match='model has no parameter to train, all are frozen'):
        salviz.train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()

def test_a_door_is_the_function_to_whoever_asks(make_tiny_bert):
    import inspect
    from salviz.attribution import explanations
    from salviz.core.docstrings import _docstring_with_comments
    assert salviz.explain is salviz.explain and salviz.explain.__wrapped__ is explanations.explain
    assert inspect.signature(salviz.explain) == inspect.signature(explanations.explain)
    assert salviz.explain.__doc__ == _docstring_with_comments(explanations.explain)
    assert validated(explanations.explain, ()) is salviz.explain
    assert isinstance(salviz.ADDrop, type) and salviz.ADDrop is salviz.methods.ADDrop # classes are themselves

def test_defaults_pass_their_own_doors():
    import inspect
    for name in salviz.__all__:
        f = getattr(salviz, name)
        if isinstance(f, type): continue
        for p in inspect.signature(f).parameters.values():
            kind = _kind_of(p, name)
            if kind and p.default not in (None, p.empty):
                assert kind.fits(p.default), f'{name}: {p.name}={shown(p.default)} is not {kind.said}'

def test_a_batch_and_a_model_are_known_without_torch_by_what_they_have(make_tiny_bert):
    from salviz.core.validation import _kinds
    assert _kinds['model'].fits(make_tiny_bert())
    assert _kinds['model'].fits(torch.nn.Linear(1, 1))
    assert not _kinds['model'].fits(torch.nn.Linear)
    assert not _kinds['model'].fits('minilm')
