"""Every column of a data set reaches the batches of training, evaluation and probes, aligned to tokens; invalid results
of methods raise errors with their name"""
import copy
import re

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, Features, Sequence, Value

from salviz.data.columns import Column, collated, column_kinds, token_rationales, token_values, with_columns
from salviz.data.texts import model_inputs
from salviz.training.feed import check_data, feed_for
from salviz.methods.base import Batch, Method, NoColumn, Plan, Progress, Term
from salviz.models.tasks import example_mean
from salviz.models.nets import DigitCNN, small_net
from salviz.core.text import align, align_batch
from salviz.training.step import step_terms
from salviz.training.trainer import train

quick = dict(epochs=1, batch_size=4, learning_rate=1e-3, probes=2, snapshots=2, seed=0, progress=False)
words = 'still this unforgettable flick is fun dull and clumsy to watch again'.split()


def sentences(rows, seed):
    "Create texts of 2 to 12 words, some of several tokens, with all kinds of columns"
    rng, out = np.random.default_rng(seed), []
    for i in range(rows):
        text = [words[k] for k in rng.permutation(len(words))[:rng.integers(2, len(words) + 1)]]
        marked = [int(w in ('fun', 'dull', 'unforgettable')) for w in text]
        out.append(dict(text=' '.join(text), label=int('fun' in text), rationale=None if i % 5 == 4 else marked,
                        rating=float(i), votes=i,
                        surprise=[len(w) for w in text], soft=[i/100, 1 - i/100], source=f'site {i}',
                        pieces=list(range(i % 3)), good=bool(i % 2)))
    return out


@pytest.fixture
def data():
    sizes = dict(train=22, validation=9, test=5)
    return DatasetDict({name: Dataset.from_list(sentences(n, seed)) for seed, (name, n) in enumerate(sizes.items())})


def by_hand(tokenizer, row, n):
    "Return rationale and word lengths for the n tokens of a padded row, from the letters of each token"
    t, flags, lengths = align(tokenizer, row['text'], max_length=64), [False]*n, [0]*n
    for i, (word, special) in enumerate(zip(t.word_ids, t.is_special)):
        if special: continue
        lengths[i] = len(row['text'].split()[word])
        flags[i] = bool(row['rationale'] and row['rationale'][word])
    return flags, lengths


class Sees(Method):
    "A method that stores its batches and has a term without effect"
    def __init__(self): self.seen = []
    def args(self): return {}

    def plan(self, model, batch, progress):
        self.seen.append(batch)
        return Plan()

    def terms(self, outputs, maps, plan, batch, progress):
        found = example_mean(batch['rationale'].float(), batch['attention_mask'].bool())
        return dict(marked=Term(found + 0*outputs['main'].logits.sum(1), .1))


def test_every_column_is_in_all_batches_and_aligned_to_tokens(
    tmp_path, tiny_bert, tiny_tokenizer, data, monkeypatch):
    method, evaluated = Sees(), []
    from salviz.training.trainer import MethodTrainer
    plain = MethodTrainer._task_loss
    monkeypatch.setattr(MethodTrainer, '_task_loss',
                        lambda self, model, inputs, outputs: (evaluated.append(inputs),
                                                              plain(self, model, inputs, outputs))[1])
    run = train(tiny_bert(), tiny_tokenizer, data, method, tmp_path/'run', gradient_accumulation=2, **quick)
    rows = [row for part in data.values() for row in part]
    numbers = {i: row for i, row in enumerate(rows)}
    probes = [data['validation'][int(i)] for i in np.random.default_rng(0).permutation(9)[:2]]
    numbers |= {len(rows) + i: row for i, row in enumerate(probes)}
    told = set()
    for batch in method.seen + evaluated:
        n = batch['input_ids'].shape[1]
        assert batch['rationale'].dtype == torch.bool
        assert batch['surprise'].dtype == torch.int64
        assert batch['rating'].dtype == torch.float32
        for j, k in enumerate(batch['example_id'].tolist()):
            row, (flags, lengths) = numbers[k], by_hand(tiny_tokenizer, numbers[k], n)
            assert batch['rationale'][j].tolist() == flags and batch['surprise'][j].tolist() == lengths
            assert batch['has_rationale'][j] == (row['rationale'] is not None)
            assert batch['votes'][j] == row['votes']
            assert batch['good'][j] == row['good']
            assert batch['rating'][j] == row['rating']
            assert batch['source'][j] == row['source']
            assert batch['pieces'][j] == row['pieces']
            torch.testing.assert_close(batch['soft'][j], torch.tensor(row['soft']))
            told.add(k)
    assert told == set(numbers) and len({b['input_ids'].shape[1] for b in method.seen}) > 1
    for row in run.train_rows: assert np.isfinite(row['marked'])
    for i, row in enumerate(probes):
        s = run.snapshot(step=0, probe=i)
        assert ('rationale' in s.arrays) == (row['rationale'] is not None)
        if row['rationale']: assert s.arrays['rationale'].tolist() == by_hand(tiny_tokenizer, row, len(s.tokens))[0]
    assert any(row['rationale'] for row in probes)


def test_pairs_truncation_and_words_between_spaces(tiny_tokenizer):
    rows = dict(text=['this film is fun .', 'a fine plot'], text_pair=["it's dull", 'clumsy film again'], label=[0, 1],
                rationale=[[[0, 13, 16], [1, 5, 9]], [[1, 0, 6]]], weight=[[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6]])
    part = Dataset.from_dict(rows)
    kinds = column_kinds(dict(train=part), ('text', 'text_pair', 'label'))
    assert {k: v[0] for k, v in kinds.items()} == dict(rationale='rationale', weight='words')
    for longest in (64, 9):
        texts = align_batch(tiny_tokenizer, rows['text'], rows['text_pair'], longest)
        encoded = Dataset.from_dict(dict(input_ids=[t.input_ids for t in texts]))
        made = with_columns(encoded, part, kinds, 'train',
                            lambda texts, pairs: align_batch(tiny_tokenizer, texts, pairs, longest))
        batch = collated(list(made), kinds, max(map(len, texts)) + 3)
        for j, t in enumerate(texts):
            for i in range(batch['weight'].shape[1]):
                real = i < len(t) and not t.is_special[i]
                letters = set(range(*t.offsets[i])) if real else set()
                spans = [set(range(a, b)) for s, a, b in rows['rationale'][j] if real and s == t.segments[i]]
                assert batch['rationale'][j, i] == any(letters & o for o in spans)
                before = rows['text'][j].split() if real and t.segments[i] else []
                if real:
                    text = t.texts[t.segments[i]]
                    spaced = len(text[:t.offsets[i][1]].split()) - 1
                    own = t.word_ids[i] if len(rows['weight'][j]) == len(t.words) else len(before) + spaced
                assert batch['weight'][j, i] == (rows['weight'][j][own] if real else 0)


def test_tokens_with_a_leading_space_belong_to_the_next_word():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    backend = Tokenizer(models.BPE({'Ġ': 0, 'a': 1, 'b': 2, '-': 3, 'Ġb': 4, '<unk>': 5}, [('Ġ', 'b')],
                                   unk_token='<unk>'))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token='<unk>', pad_token='<unk>')
    t = align(tokenizer, 'a-a b')
    assert t.tokens == ['a', '-', 'a', 'Ġb']
    assert token_values([t], [[7, 9]], 'weight', 'train')[0] == [7, 7, 7, 9]


def test_token_over_several_words_has_the_mean_number_and_largest_fraction(tiny_tokenizer):
    tiny_tokenizer = copy.deepcopy(tiny_tokenizer)
    tiny_tokenizer.add_tokens(['<|film|>', '電影'])
    rows = Dataset.from_dict(dict(text=['film <|film|> 電影', 'film film'], label=[0, 1],
                                  weight=[[1, 2, 3, 5, 7, 9, 4, 4], [6, 8]],
                                  rationale=[[0, 0, 0, .25, .5, 0, 0, 0], [.75, 0]]))
    t, plain = align_batch(tiny_tokenizer, rows['text'][:])
    assert t.words == ['film', '<|film|>', '電影'] and len(t.unmerged_spans) == 8
    assert token_values([t], [rows['weight'][0]], 'weight', 'train') == [[0, 1, 26/5, 4, 0]]
    assert token_values([t], [[3, 1, 2]], 'weight', 'train') == [[0, 3, 1, 2, 0]] # words separated by spaces
    kinds = column_kinds(dict(train=rows), ('text', 'label'))
    assert {name: kind for name, (kind, _) in kinds.items()} == dict(weight='words', rationale='rationale')
    encoded = Dataset.from_dict(dict(input_ids=[t.input_ids, plain.input_ids]))
    made = with_columns(encoded, rows, kinds, 'train', lambda texts, pairs: align_batch(tiny_tokenizer, texts, pairs))
    batch = collated(list(made), kinds, 6)
    torch.testing.assert_close(batch['weight'], torch.tensor([[0, 1, 5.2, 4, 0, 0], [0, 6, 8, 0, 0, 0]]))
    torch.testing.assert_close(batch['rationale'], torch.tensor([[0, 0, .5, 0, 0, 0], [0, .75, 0, 0, 0, 0]]))
    flags, = token_rationales([t], [[0, 0, 0, 1, 0, 0, 0, 0]])
    assert flags == [False, False, True, False, False]


@pytest.mark.slow
def test_column_with_a_reserved_name_raises(tmp_path, tiny_bert, tiny_tokenizer, data):
    for name in ('labels', 'input_ids', 'values', 'pixel_values', 'attention_mask', 'length', 'has_rationale',
                 'example_id'):
        with pytest.raises(ValueError, match=f"train: train has a column '{name}', but this name is reserved for the"):
            train(tiny_bert(), tiny_tokenizer, data.rename_column('votes', name), None, tmp_path/'no', **quick)
        own = Dataset.from_dict({'text': ['fun'], 'label': [0], name: [1]})
        with pytest.raises(ValueError, match=f"probes has a column '{name}'"):
            train(tiny_bert(), tiny_tokenizer, data, None, tmp_path/'no', **{**quick, 'probes': own})
    assert not (tmp_path/'no').exists()
    check_data(tiny_bert(), data)


@pytest.mark.slow
def test_only_inputs_reach_the_model(tiny_bert, tiny_tokenizer, data):
    feed = feed_for(tiny_bert(), tiny_tokenizer)
    batch = feed.collate([feed.encode(data)['train'][i] for i in range(4)])
    assert {*model_inputs(batch)} <= {'input_ids', 'attention_mask', 'token_type_ids'}
    assert {'rating', 'source'} <= {*batch}


def test_missing_numbers_and_lists_that_do_not_align(tiny_bert, tiny_tokenizer):
    texts = ['fun film', 'a dull plot', 'again']
    part = Dataset.from_dict(dict(text=texts, label=[0, 1, 0], rating=[1, None, 3], ok=[True, None, False],
                                  marks=[[1, 2], [3, 4], [5]],
                                  gaps=[[1, 2], None, [5]], extra=[{'a': 1}]*3),
                             Features(text=Value('string'), label=Value('int64'), rating=Value('int64'),
                                  ok=Value('bool'), marks=Sequence(Value('int64')), gaps=Sequence(Value('int64')),
                                  extra={'a': Value('int64')}))
    data = dict(train=part, validation=part)
    feed = feed_for(tiny_bert(), tiny_tokenizer)
    batch = feed.collate(list(feed.encode(data)['train']))
    assert batch['rating'].isnan().tolist() == [False, True, False]
    assert batch['ok'].isnan().tolist() == [False, True, False]
    assert batch['marks'] == [[1, 2], [3, 4], [5]] and batch['extra'] == [{'a': 1}]*3 and batch['gaps'][1] is None
    with pytest.raises(AttributeError,
                       match=re.escape("batch['marks'] has no float: it is a list of 3 entries, not a tensor, because "
                                       "row "
                                       "1 of train has 2 values for 3 words")):
        batch['marks'].float()
    with pytest.raises(AttributeError, match='because row 1 of train has missing values'): batch['gaps'].sum()
    other = Dataset.from_dict(dict(text=['fun film'], label=[0], rating=['high']))
    with pytest.raises(ValueError, match='probes: rating must contain numbers'): feed.probes(data, other)
    wrong = Dataset.from_dict(dict(text=['fun film'], label=[0], rationale=['because it is fun']))
    with pytest.raises(ValueError, match='validation: the rationale of row 0 must be a list'):
        feed_for(tiny_bert(), tiny_tokenizer).encode(dict(train=part, validation=wrong))


def test_column_can_be_moved_and_indexed_like_a_tensor():
    column = Column('abcd').of('source', 'it is text')
    assert column[torch.tensor([2, 0])] == ['c', 'a']
    assert column[torch.tensor([True, False, False, True])] == ['a', 'd']
    assert column[1:3] == ['b', 'c']
    assert column.to('cpu', non_blocking=True) is column and column[1:].why == 'it is text' and column[1] == 'b'


def test_images_have_further_columns_too(tmp_path):
    rng = np.random.default_rng(0)
    features = {'pixel_values': rng.random((12, 1, 28, 28)).astype(np.float32), 'label': np.arange(12) % 2}
    from datasets import Array3D, ClassLabel
    types = Features(pixel_values=Array3D((1, 28, 28), 'float32'), label=ClassLabel(names=['x', 'y']),
                     weight=Value('float32'), where=Value('string'), soft=Sequence(Value('float32')))
    part = Dataset.from_dict({**features, 'weight': np.arange(12.), 'where': [f'shelf {i}' for i in range(12)],
                              'soft': [[i/12, 1.] for i in range(12)]}, types)
    model = small_net(DigitCNN, num_labels=2)
    seen = []

    class Weighs(Method):
        def terms(self, outputs, maps, plan, batch, progress):
            seen.append([batch['weight'].tolist(), list(batch['where']), batch['soft'][:, 0].tolist()])
            return dict(weighed=Term(batch['weight'] * outputs['main'].logits.sum(1).square(), .01))
    run = train(model, None, DatasetDict(train=part, validation=part), Weighs(), tmp_path/'run', **quick)
    for weights, places, soft in seen:
        assert places == [f'shelf {int(w)}' for w in weights] and soft == pytest.approx([w/12 for w in weights])
    assert len(seen) > 3 and all(np.isfinite(r['weighed']) for r in run.train_rows)


@pytest.mark.slow
def test_missing_names_raise_with_available_ones(tmp_path, tiny_bert, tiny_tokenizer, data):
    with pytest.raises(NoColumn,
                       match=r"^Sees: batch\['rationale'\] does not exist; a batch of probes has the columns "
                       r"input_ids, .*rating, .*source"):
        train(tiny_bert(), tiny_tokenizer, data.remove_columns('rationale'), Sees(), tmp_path/'a', **quick)
    with pytest.raises(NoColumn, match=r"^Sees: batch\['rationale'\] does not exist; the batch has"):
        train(tiny_bert(), tiny_tokenizer, data.remove_columns('rationale'), Sees(), tmp_path/'b',
              **{**quick, 'snapshots': 0})
    class Other(Method): pass
    # probes are custom texts; the error names the caller
    with pytest.raises(NoColumn, match=r"^Sees: batch\['rationale'\] does not exist; a batch of probes"):
        train(tiny_bert(), tiny_tokenizer, data, Other() + Sees(), tmp_path/'c', **{**quick, 'probes': ['fun']})
    assert Batch(dict(a=1), Sees()).get('b') is None and 'b' not in Batch({}, Sees())


def bad_term(given):
    class Bad(Method):
        def terms(self, outputs, maps, plan, batch, progress): return given(outputs, batch)
    return Bad()


wrong_terms = {
    "the loss of the term 'mine' must have one value for each of "
    "the": lambda o, b: dict(mine=Term(o['main'].logits.square().mean())),
    "examples of the batch, got a tensor of shape [3] and dtype float32": lambda o, b: dict(mine=Term(torch.ones(3))),
    "the loss of the term 'mine' must be floating point": lambda o, b: dict(mine=Term(b['labels'])),
    "the loss of the term 'mine' must be a tensor, got float 0.5": lambda o, b: dict(mine=Term(.5)),
    "the term 'mine' must be a Term(loss, weight), got a tensor": lambda o, b: dict(mine=o['main'].logits.sum(1)),
    "the weight of the term 'mine' must be a finite number, got float "
    "nan": lambda o, b: dict(mine=Term(o['main'].logits.sum(1), float('nan'))),
    "terms must return a dict {name: Term(loss, weight)}, got NoneType": lambda o, b: None,
    "a term cannot be called 'task', which is reserved": lambda o, b: dict(task=Term(o['main'].logits.sum(1))),
    "a term cannot be called 'step', which is reserved": lambda o, b: dict(step=Term(o['main'].logits.sum(1))),
    "the name of a term must be a non-empty string, got int 3": lambda o, b: {3: Term(o['main'].logits.sum(1))}}

@pytest.mark.sample(2)
@pytest.mark.parametrize('says', list(wrong_terms))
def test_term_that_is_not_per_example_raises_with_method_and_name(says, tiny_bert, tiny_tokenizer, tiny_data):
    class Fine(Method): pass
    model, feed = tiny_bert(), feed_for(tiny_bert(), tiny_tokenizer)
    batch = feed.collate([feed.encode(tiny_data)['train'][i] for i in range(5)])
    for method in (bad_term(wrong_terms[says]), Fine() + bad_term(wrong_terms[says])):
        with pytest.raises(ValueError, match=f'^Bad: .*{re.escape(says)}'):
            step_terms(method, model, model, batch, Progress(), 'classification')


@pytest.mark.parametrize('snapshots', [0, 2])
def test_scalar_terms_raise_in_training_and_recording(snapshots, tmp_path, tiny_bert, tiny_tokenizer,
                                                                 tiny_data):
    says, given = next(iter(wrong_terms.items()))
    with pytest.raises(ValueError, match=f'^Bad: {re.escape(says)}'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, bad_term(given), tmp_path/'run',
              **{**quick, 'snapshots': snapshots})


@pytest.mark.slow
def test_invalid_plan_raises_with_the_method(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    for i, (given, says) in enumerate(((None, 'plan must return a Plan, got NoneType None'),
                                       (dict(layers=(0,)), 'plan must return a Plan, got dict'),
                                       (Plan(layers=0),
                                        'plan.layers must be a tuple of integers, got int 0'),
                                       (Plan(evidence=[1]), 'plan.evidence must be a dict'))):
        class Bad(Method):
            def plan(self, model, batch, progress): return given
        with pytest.raises(ValueError, match=f'^Bad: {re.escape(says)}'):
            train(tiny_bert(), tiny_tokenizer, tiny_data, Bad(), tmp_path/f'{i}', **{**quick, 'snapshots': i % 2*2})


def evidence(**given):
    class Shows(Method):
        def plan(self, model, batch, progress):
            n, size = batch['attention_mask'].shape[1], len(batch['example_id'])
            return Plan(evidence={k.replace('_', ' '): v(size, n) for k, v in given.items()})
    return Shows()


def test_custom_evidence_is_trimmed_to_its_tokens(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    def ramp(*shape): return torch.arange(float(np.prod(shape))).view(shape)
    method = evidence(map=lambda b, n: ramp(b, n, n), heads=lambda b, n: {0: ramp(b, 4, n, n), 1: ramp(b, 4, n, n) - 5},
                      words=lambda b, n: ramp(b, n),
                      layers=lambda b, n: {1: ramp(b, n)}, number=lambda b, n: ramp(b),
                      each=lambda b, n: {0: ramp(b, 4), 1: ramp(b, 4)},
                      region=lambda b, n: ramp(b, n, n) > 9, half=lambda b, n: ramp(b, n).bfloat16(),
                      whole=lambda b, n: ramp(b, n).long())
    texts = ['fun', 'a fine film of this long plot again', 'dull film']
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/'run', **{**quick, 'probes': texts})
    longest = max(len(run.snapshot(step=0, probe=i).tokens) for i in range(3))
    for i in range(3):
        s = run.snapshot(step=0, probe=i)
        n, a, w = len(s.tokens), s.arrays, np.arange(3.*longest*longest).reshape(3, longest, longest)
        np.testing.assert_allclose(a['map'], w[i, :n, :n], rtol=1e-3)
        assert a['heads'].shape == (2, 4, n, n)
        assert s.layers['heads'] == [0, 1]
        assert a['words'].shape == a['half'].shape == (n,)
        assert a['layers'].shape == (1, n)
        assert s.layers['layers'] == [1]
        assert a['number'].shape == ()
        assert a['number'] == i
        assert a['each'].shape == (2, 4) and a['region'].dtype == bool and (a['region'] == (w[i, :n, :n] > 9)).all()
        assert a['whole'].tolist() == list(range(i*longest, i*longest + n))
        assert s.info['axes'] == dict(map=['query', 'key'], heads=['head', 'query', 'key'], words=['token'],
                                      layers=['token'], number=[], each=['head'],
                                      region=['query', 'key'], half=['token'], whole=['token'])
    assert longest != 4


@pytest.mark.slow
def test_plan_states_ambiguous_axes(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    class Gate(Method):
        def __init__(self, axes): self.axes = axes
        def plan(self, model, batch, progress):
            return Plan(evidence=dict(gate={0: torch.arange(4.).expand(len(batch['example_id']), 4)}), axes=self.axes)
    texts = ['good movie', 'good'] # four and three tokens, for four heads
    for axes, kept in ((dict(gate=('head',)), 4), (dict(gate='head'), 4), ({}, 3)):
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, Gate(axes),
                    tmp_path/f'{kept}{len(axes)}{type(axes.get("gate"))}', **{**quick, 'probes': texts})
        assert [len(run.snapshot(step=0, probe=i).tokens) for i in range(2)] == [4, 3]
        assert run.snapshot(step=0, probe=1).arrays['gate'].shape == (1, kept)
        assert run.snapshot(step=0, probe=1).info['axes'] == dict(gate=['head' if axes else 'token'])
    with pytest.raises(ValueError,
                       match="^Gate: the axes of the evidence 'gate' must be 1 of head, query, key, token, class, row, "
                       "because its arrays have the shape"):
        train(tiny_bert(), tiny_tokenizer, tiny_data, Gate(dict(gate=('heads', 'x'))), tmp_path/'no', **quick)


@pytest.mark.sample(3)
@pytest.mark.parametrize('name,given,says', [
    ('mine', lambda b, n: torch.tensor(1.), 'along its first axis, one per example'),
    ('mine', lambda b, n: .5, 'must be a tensor'),
    ('mine', lambda b, n: torch.ones(b + 1, n), 'along its first axis, one per example'),
    ('mine', lambda b, n: {0: torch.ones(b, 2), 1: torch.ones(b, 3)}, 'must have the same shape in all layers'),
    ('mine', lambda b, n: {}, 'is an empty dict'),
    ('mine', lambda b, n: torch.ones(b, n, dtype=torch.complex64), 'is complex'),
    ('attention (old)', lambda b, n: torch.ones(b, n), 'would be confused with the attention'),
    ('attention', lambda b, n: torch.ones(b, n), 'is used by an array of the recorder'),
    ('probabilities', lambda b, n: torch.ones(b, n), 'is used by an array of the recorder'),
    ('', lambda b, n: torch.ones(b), 'must have a non-empty string'),
    ('__metadata__', lambda b, n: torch.ones(b), 'must have a non-empty string'),
    ('\ud800', lambda b, n: torch.ones(b), 'has an unpaired surrogate')])
def test_unsupported_evidence_raises_with_method_and_name(name, given, says, tmp_path, tiny_bert,
                                                                    tiny_tokenizer, tiny_data):
    class Shows(Method):
        def plan(self, model, batch, progress):
            return Plan(evidence={name: given(len(batch['example_id']), batch['attention_mask'].shape[1])})
    with pytest.raises(ValueError, match=f'^Shows: the (name of the )?evidence .*{says}'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, Shows(), tmp_path/'run', **quick)
