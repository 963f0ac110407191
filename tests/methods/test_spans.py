"""Questions whose answer is a span of a text: labels, loss, prediction and scores against simple references, and the
methods that train on them."""
import copy

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from salviz.attribution.explanations import explain
from salviz.core.runs import Run
from salviz.data.texts import Collator, _synthetic_questions, answers_within, encode, load_questions
from salviz.metrics.scores import span_metrics
from salviz.methods import (ADDrop, AttentionGuidance, AttentionGuidanceVariant, FineTuning, RationaleGuided,
                            RationaleGuidedVariant, SaliencyGuided, SalLM)
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.tasks import _longest_answer, best_span, task_of, tasks
from salviz.analysis.model_maps import _explain_texts
from salviz.training.trainer import load_model, train
from salviz.views.base import token_labels

task = tasks['question_answering']
quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)

@pytest.fixture(scope='module')
def data():
    "Return questions with uneven contexts; two of three have a rationale, which marks the verb in both texts"
    def rationale(i, d):
        verb = d['text'][i].split()[d['text'][i].startswith('who')]
        return None if i % 3 == 1 else [int(word == verb) for word in f"{d['text'][i]} {d['text_pair'][i]}".split()]
    flags = datasets.Sequence(datasets.Value('int64'))
    loaded = load_questions(dict(train=_synthetic_questions(37), validation=_synthetic_questions(12, 1),
                                 test=_synthetic_questions(8, 2)))
    return datasets.DatasetDict({k: d.add_column('rationale', [rationale(i, d) for i in range(len(d))], feature=flags)
                                 for k, d in loaded.items()})

@pytest.fixture(scope='module')
def tokenizer(data):
    "Return a tokenizer that splits words into pieces"
    return train_tokenizer([f'{q} {c}' for q, c in zip(data['train']['text'], data['train']['text_pair'])][:9],
                           vocab_size=70, max_length=128)

def build(tokenizer, kind='bert', **config):
    return small_model('question_answering', tokenizer, kind, layers=2, heads=2, hidden=16, **config)

@pytest.fixture(scope='module')
def batch(data, tokenizer): return Collator(tokenizer)(list(encode(data['train'].select(range(6)), tokenizer)))

def ends_by_transformers(tokenizer, question, context, span, max_length=None):
    "Return the encoding and the tokens of the answer, which the tokenizer itself finds from its characters"
    encoded = tokenizer(question, context, max_length=max_length, truncation=max_length is not None)
    first, last = (encoded.char_to_token(at, sequence_index=1) for at in (span[0], span[1] - 1))
    return encoded, first, last

def test_labels_are_the_tokens_of_the_answer_and_only_the_context_can_contain_it(data, tokenizer):
    for row, source in zip(encode(data['train'], tokenizer), data['train']):
        encoded, first, last = ends_by_transformers(tokenizer, source['text'], source['text_pair'], source['answer'])
        assert row['input_ids'] == encoded['input_ids']
        of_context = [s == 1 for s in encoded.sequence_ids()]
        assert row['labels'] == [-100 if not c else int(first <= i <= last) for i, c in enumerate(of_context)]

def test_the_loss_is_that_of_transformers_for_each_text_alone_whatever_it_is_padded_to(data, tokenizer, batch):
    model = build(tokenizer).double()
    assert (batch['attention_mask'] == 0).any()
    inputs = {k: batch[k] for k in ('input_ids', 'attention_mask', 'token_type_ids')}
    outputs, expected, answers = model(**inputs), [], []
    for source in data['train'].select(range(6)):
        encoded, first, last = ends_by_transformers(tokenizer, source['text'], source['text_pair'], source['answer'])
        own = {k: torch.tensor([v]) for k, v in encoded.items()}
        alone = model(**own, start_positions=torch.tensor([first]), end_positions=torch.tensor([last]))
        expected.append(alone.loss)
        answers.append(task.predicted(alone, dict(segments=torch.tensor([[-1 if s is None else s
                                                                       for s in encoded.sequence_ids()]]))))
    losses = task.loss(outputs, batch)
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(x, list(model.parameters()), retain_graph=True, allow_unused=True)
             for x in (losses.sum(), sum(expected))]
    for a, b in zip(*grads):
        if b is not None: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for whole, alone in zip(task.predicted(outputs, batch), answers):
        assert whole[:alone.shape[1]].tolist() == alone[0].tolist() and (whole[alone.shape[1]:] == -100).all()

def test_the_prediction_is_the_best_of_all_spans_that_may_be():
    g = torch.Generator().manual_seed(0)
    n = _longest_answer + 9
    start, end, allowed = *torch.randn(2, 8, n, generator=g, dtype=torch.float64), torch.rand(8, n, generator=g) < .7
    end[0, -1], start[0, 0], allowed[0] = 50., 50., True # the best pair is too long
    end[1, 2], start[1, 5], allowed[1] = 50., 50., True  # and that of the second ends before it starts
    for b, (a, z) in enumerate(zip(*best_span(start, end, allowed))):
        spans = {(i, j): start[b, i] + end[b, j] for i in range(n) for j in range(i, min(n, i + _longest_answer))
                 if allowed[b, i] and allowed[b, j]}
        assert (int(a), int(z)) == max(spans, key=spans.get)

def test_exact_match_and_f1_are_those_of_sets_of_places():
    rng, labels, predictions, exact, f1 = np.random.default_rng(0), [], [], [], []
    for _ in range(40):
        n, offset = rng.integers(4, 12), rng.integers(0, 3)
        spans = [sorted(rng.integers(0, n, 2)) for _ in range(2)]
        if rng.random() < .3: spans[1] = spans[0]
        gold, answer = ({*range(a, z + 1)} for a, z in spans)
        flags = [[-100]*offset + [int(i in some) for i in range(n)] for some in (gold, answer)]
        labels.append(flags[0] + [-100]); predictions.append(flags[1] + [-100])
        both = len(gold & answer)
        precision, recall = both/len(answer), both/len(gold)
        exact.append(gold == answer); f1.append(2*precision*recall/(precision + recall) if both else 0.)
    assert span_metrics(labels, predictions) == pytest.approx(dict(exact_match=np.mean(exact), f1=np.mean(f1)))

def test_truncated_answers_raise_or_are_left_out(data, tokenizer):
    part, longest = data['train'], 40
    uncut = []
    for i, source in enumerate(part):
        encoded, first, last = ends_by_transformers(tokenizer, source['text'], source['text_pair'], source['answer'],
                                                    longest)
        if first is not None and last is not None: uncut.append(i)
    assert 0 < len(uncut) < len(part)
    with pytest.raises(ValueError, match=f'answers_within .* in {len(part) - len(uncut)} rows'):
        encode(part, tokenizer, longest)
    with pytest.warns(UserWarning, match=f'questions whose answers .*: {len(part) - len(uncut)} of {len(part)}'):
        within = answers_within(datasets.DatasetDict(train=part), tokenizer, longest)['train']
    assert within['text_pair'] == [part['text_pair'][i] for i in uncut]
    with pytest.warns(UserWarning, match='were truncated'): assert len(encode(within, tokenizer, longest)) == len(uncut)

def test_subject_and_object_with_the_same_noun_have_different_answers():
    alike = 0
    for row in _synthetic_questions(5000, sentences=1):
        (start, end), verb = row['answer'], row['question'].split()[row['question'].startswith('who')]
        at, answer = row['context'].index(f' {verb} ') + 1, row['context'][start:end]
        if row['question'].startswith('who'): assert (start, end) == (0, at - 1)
        else: assert start >= at + len(verb) + 1 and (row['question'].split()[1] == 'where') == answer.startswith(
            ('near ', 'in ', 'behind ', 'beside ', 'under '))
        alike += row['question'].split()[1] == 'what' and row['context'].startswith(f'{answer} {verb} ')
    assert alike

def test_answers_are_truncated_on_either_side_only_if_text_was_removed(tokenizer):
    row = dict(text=['who sees ?']*2, text_pair=['the friend sees the dog .']*2, answer=[[4, 10], [11, 15]])
    feature = datasets.Features(text=datasets.Value('string'), text_pair=datasets.Value('string'),
                                answer=datasets.Sequence(datasets.Value('int64')))
    part, left = datasets.Dataset.from_dict(row, feature), copy.deepcopy(tokenizer)
    left.truncation_side = 'left'
    [whole] = encode(part.select([0]), tokenizer)['labels']
    first, last = whole.index(1), len(whole) - 1 - whole[::-1].index(1)
    assert last > first # pieces
    with pytest.warns(UserWarning, match='removed questions whose answers are not within the first .* tokens: 1 of 2'):
        within = answers_within(datasets.DatasetDict(train=part), left, len(whole) - (first - whole.index(0)) - 1)
    assert within['train']['answer'] == [[11, 15]]
    unseen = part.select([0]).map(lambda r: dict(text_pair='a dog\x00', answer=[2, 6]))
    [labels] = encode(unseen, tokenizer)['labels']
    assert 1 in labels and labels[-2] == 1

@pytest.mark.parametrize('answer', [5, True, [1., 4.], ['a', 'b'], dict(text=['dog'], answer_start=[None]),
                                    dict(text=[7], answer_start=[0])])
def test_malformed_answers_raise_a_clear_error(answer):
    table = pd.DataFrame(dict(question=['who ?'], context=['a dog sees'], answer=pd.Series([answer], dtype=object)))
    with pytest.raises(ValueError, match="column 'answer' has an answer that is not in the context .* row 0"):
        load_questions(dict(train=table))

def test_answers_within_raises_for_invalid_arguments(data, tokenizer):
    for other in (data['train'], datasets.DatasetDict(train=data['train'].remove_columns('text_pair'))):
        with pytest.raises(ValueError, match='a DatasetDict of questions with contexts'):
            answers_within(other, tokenizer)

bad = [(lambda d: d.remove_columns('text_pair'), 'requires the context of each question in a column text_pair'),
       (lambda d: d.map(lambda r: dict(answer=[3, 900])), r'in the context .text_pair., got \[3, 900\] in row 0'),
       (lambda d: d.map(lambda r: dict(answer=[5, 5])), 'answers must be'),
       (lambda d: d.map(lambda r: dict(answer=[])), 'answers must be')]

@pytest.mark.parametrize('spoil, reason', bad)
def test_answers_that_are_not_in_the_context_raise_before_anything_is_written(
    spoil, reason, data, tokenizer, tmp_path):
    spoilt = datasets.DatasetDict(data | dict(train=spoil(data['train'].remove_columns('rationale').select([0, 1]))))
    with pytest.raises(ValueError, match=reason):
        train(build(tokenizer), tokenizer, spoilt, run_dir=tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()

methods = [lambda: ADDrop(p=.4, q=.5,
                          cross_tuning=False) + RationaleGuided(variant=RationaleGuidedVariant(rows='mean'))] + [
    pytest.param(make, marks=pytest.mark.slow) for make in ( # each of them is trained by test_tasks.py as well
        FineTuning, lambda: AttentionGuidance(patterns={'prev': [1]}, alpha=3.,
                                              variant=AttentionGuidanceVariant(boundary='zero')),
        lambda: RationaleGuided('input_x_gradient', 'mse', variant=RationaleGuidedVariant(ranking='magnitude')))]

@pytest.mark.slow
@pytest.mark.parametrize('make', methods)
def test_methods_train_on_questions_and_a_snapshot_shows_both_spans(make, data, tokenizer, tmp_path):
    run = train(build(tokenizer), tokenizer, data, make(), run_dir=tmp_path/'run', **quick)
    assert all(np.isfinite(r['loss']) for r in run.train_rows) and len(run.train_rows) == 5
    assert run.best_metric[0] == 'f1' and {'f1', 'exact_match', 'loss'} <= {*run.eval_rows[-1]}
    s, again = Run(run.path).snapshot(), load_model(run)[0]
    assert task_of(again) == 'question_answering'
    question = dict(zip(data['validation']['text_pair'], data['validation']))[s.texts[1]]
    gold = [l for l, g in zip(s.labels, s.info['token_labels']) if g == 'answer']
    start, end = question['answer']
    assert ''.join(gold) == s.texts[1][start:end].replace(' ', '')
    with torch.no_grad():
        outputs = again(**{k: v for k, v in tokenizer(*s.texts, return_tensors='pt').items()})
    shown = np.flatnonzero([p == 'answer' for p in s.info['token_predictions']])
    of_context = torch.tensor([[g is not None for g in s.info['token_labels']]])
    assert (shown[0], shown[-1]) == tuple(map(int, best_span(outputs.start_logits, outputs.end_logits, of_context)))
    p = [x[0].softmax(0).numpy() for x in (outputs.start_logits, outputs.end_logits)]
    inside = p[0][:shown[0] + 1].sum() * p[1][shown[0]:].sum()
    assert s.arrays['token_confidence'][shown[0]] == pytest.approx(inside, rel=1e-4)
    view = token_labels(s)
    assert view.gold == tuple(s.info['token_labels']) and 'in the answer: ' in view.subtitle

@pytest.mark.parametrize('make', [lambda: SaliencyGuided(), lambda: SalLM(steps=2)])
def test_methods_that_do_not_support_questions_raise(make, data, tokenizer, tmp_path):
    with pytest.raises(ValueError, match='does not support question_answering; supported tasks:'):
        train(build(tokenizer), tokenizer, data, make(), run_dir=tmp_path/'run', **quick)

@pytest.mark.slow
def test_custom_probes_have_no_gold_answer(data, tokenizer, tmp_path):
    own = [('who sees ?', 'the dog sees a house .')]
    run = train(build(tokenizer), tokenizer, data, run_dir=tmp_path/'run', **quick | dict(probes=own))
    s = run.snapshot()
    assert s.texts == own[0] and 'token_labels' not in s.info and 'answer' in s.info['token_predictions']
    assert token_labels(s).subtitle.startswith('no labels')
    with pytest.raises(ValueError, match=r'or pairs \(question, context\)'):
        train(build(tokenizer), tokenizer, data, run_dir=tmp_path/'other', **quick | dict(probes=['alone']))

def test_predictions_are_explained_by_logits_and_gold_answers_by_log_probability(data, tokenizer, batch):
    model, rows = build(tokenizer).double(), data['train'].select(range(6))
    outputs = model(**{k: batch[k] for k in ('input_ids', 'attention_mask', 'token_type_ids')})
    predicted = task.predicted(outputs, batch)
    pairs = list(zip(rows['text'], rows['text_pair']))
    for target, of, labels in (('predicted', pairs, predicted), ('gold', rows, batch['labels'])):
        explained = explain(model, of, 'input_x_gradient', tokenizer=tokenizer, target=target)
        for b, (flags, real) in enumerate(zip(labels, batch['attention_mask'].bool())):
            at = (flags == 1).nonzero()[:, 0]
            both = [(x[b, real], i) for x, i in ((outputs.start_logits, at[0]), (outputs.end_logits, at[-1]))]
            expected = (sum(x[i] for x, i in both) if target == 'predicted' else
                        sum(x.log_softmax(0)[i] for x, i in both) / 2)
            torch.testing.assert_close(explained.score[b], expected, rtol=1e-9, atol=0)
    with pytest.raises(ValueError, match='needs pairs of a question and its context'):
        explain(model, ['who sees ?'], 'input_x_gradient', tokenizer=tokenizer)

def test_explore_explains_the_predicted_span(data, tokenizer, batch):
    model, rows = build(tokenizer), data['train'].select(range(2))
    seen = _explain_texts(model, tokenizer, list(zip(rows['text'], rows['text_pair'])), steps=2)
    predicted = task.predicted(model(**{k: batch[k] for k in ('input_ids', 'attention_mask', 'token_type_ids')}), batch)
    for s, flags in zip(seen, predicted):
        names = {1: 'answer', 0: 'outside', -100: None}
        assert s.info['token_predictions'] == [names[f] for f in flags.tolist()[:len(s.tokens)]]
        assert s.info['task'] == 'question_answering'
        own, = explain(model, [s.texts], 'integrated_gradients', tokenizer=tokenizer, steps=2).examples()
        np.testing.assert_allclose(s.arrays['saliency'], own, rtol=1e-4, atol=1e-6)
