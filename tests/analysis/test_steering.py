"Steering of attention against its equation in float64, and the choice of heads"
import pandas as pd
import pytest
import torch

from salviz import common_heads, head_gains, steer
from salviz.analysis.steering import Steering
from salviz.attribution.questions import as_batch
from salviz.data.texts import model_inputs
from salviz.methods import FineTuning, RDrop
from salviz.models.attention import observe
from salviz.models.checkpoints import load_model
from salviz.models.corruption import small_model
from salviz.training.feed import feed_for
from salviz.training.trainer import train

texts = ['a truly moving film .', 'dull', 'no fun at all , and much too long .']


@pytest.fixture(scope='module')
def classifier(tiny_tokenizer):
    return small_model('classification', tiny_tokenizer, labels=['bad', 'good'], layers=2, heads=4).double().eval()


@pytest.fixture(scope='module')
def batch(classifier, tiny_tokenizer):
    batch = as_batch(classifier, texts, tiny_tokenizer)
    return batch | dict(labels=torch.tensor([1, 0, 0]))


def slow_rows(A, marked, alpha):
    "Return the steered attention of one head of one text, row by row"
    rows = []
    for row in A.tolist():
        weights = [a*(1. if m else alpha) for a, m in zip(row, marked)]
        rows.append([w/sum(weights) for w in weights])
    return torch.tensor(rows, dtype=torch.float64)


def test_attention_of_steered_heads_is_that_of_the_equation(classifier, batch):
    marked = torch.rand(batch['input_ids'].shape, generator=torch.Generator().manual_seed(0)) < .3
    inputs = model_inputs(batch, classifier)
    with torch.no_grad():
        with observe(classifier, 0) as maps: classifier(**inputs)
        A = maps[0].clone()
        for i in range(3):
            for h in (1, 3): A[i, h] = slow_rows(A[i, h], marked[i].tolist(), .1)
        with observe(classifier, [], scale={0: A/maps[0].clamp(min=1e-300)}): expected = classifier(**inputs).logits
        with steer(classifier, marked, {0: [1, 3]}, alpha=.1): steered = classifier(**inputs).logits
        plain = classifier(**inputs).logits
    assert torch.allclose(steered, expected, atol=1e-12) and (steered - plain).abs().max() > 1e-6


def test_texts_without_a_marked_token_are_unchanged_and_padding_does_not_matter(classifier, batch, tiny_tokenizer):
    inputs, marked = model_inputs(batch, classifier), torch.zeros_like(batch['input_ids'], dtype=torch.bool)
    with torch.no_grad():
        plain = classifier(**inputs).logits
        with steer(classifier, marked): assert torch.allclose(classifier(**inputs).logits, plain, atol=1e-12)
        marked[0, 2] = marked[1, 1] = True
        with steer(classifier, marked): steered = classifier(**inputs).logits
        alone = as_batch(classifier, texts[1:2], tiny_tokenizer)
        with steer(classifier, marked[1:2, :alone['input_ids'].shape[1]]):
            assert torch.allclose(classifier(**model_inputs(alone, classifier)).logits[0], steered[1], atol=1e-12)
    assert (steered - plain)[:2].abs().max() > 1e-6 and torch.allclose(steered[2], plain[2], atol=1e-12)


def test_generated_tokens_keep_their_weight(tiny_tokenizer):
    "A text that grows token by token equals one pass over all of it, whose marks include the new tokens"
    model = small_model('causal_lm', tiny_tokenizer, layers=2, heads=4).double().eval()
    ids = tiny_tokenizer('a truly moving film', return_tensors='pt')['input_ids'][:, :-1]
    marked = torch.arange(ids.shape[1])[None] == 2
    greedy = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    with steer(model, marked, alpha=.05): found = model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)
    for _ in range(4):
        more = torch.cat([marked, torch.ones(1, ids.shape[1] - marked.shape[1], dtype=torch.bool)], 1)
        with torch.no_grad(), steer(model, more, alpha=.05): logits = model(ids).logits[0, -1]
        ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    assert torch.equal(found, ids)


def test_gains_are_those_of_single_heads_and_common_heads_intersect(classifier, batch):
    marked = torch.zeros_like(batch['input_ids'], dtype=torch.bool)
    marked[:, 1] = True
    gains = head_gains(classifier, dict(one=(batch, marked)), layers=[1])
    inputs = model_inputs(batch, classifier)
    def score(): return classifier(**inputs).logits.log_softmax(-1).gather(1, batch['labels'][:, None]).mean().item()
    with torch.no_grad():
        plain = score()
        for h in range(4):
            with steer(classifier, marked, {1: [h]}): assert gains['one'][1, h] == pytest.approx(score() - plain)
    index = pd.MultiIndex.from_product([[0, 1], [0, 1]], names=['layer', 'head'])
    table = pd.DataFrame(dict(a=[4., 3, 2, 1], b=[4., 1, 3, 2]), index)
    assert common_heads(table, 3) == {0: [0], 1: [0]} and common_heads(table, 4) == {0: [0, 1], 1: [0, 1]}


@pytest.fixture
def marked_data(tiny_data):
    "Return sentences in which every second word is marked, except for each third sentence"
    def marks(row, i): return dict(rationale=[j % 2 for j in range(len(row['text'].split()))] if i % 3 else None)
    return type(tiny_data)({split: part.map(marks, with_indices=True) for split, part in tiny_data.items()})


def test_a_steered_run_trains_like_fine_tuning_and_is_scored_with_steered_attention(marked_data, tiny_bert,
                                                                                    tiny_tokenizer, tmp_path):
    quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, snapshots=0, returns='last')
    runs = {}
    for method in (FineTuning(), Steering(alpha=.01)):
        model = tiny_bert()
        with torch.no_grad():
            for p in model.parameters(): p *= 5 if p.dim() > 1 else 1 # attention matters more
        runs[method.name] = train(model, tiny_tokenizer, marked_data, method, tmp_path/method.name, **quick)
    plain, steered = runs.values()
    losses = [[row['loss'] for row in run.train_rows] for run in runs.values()]
    assert losses[0] == losses[1] and plain.scores('validation')['loss'] != steered.scores('validation')['loss']
    model, _ = load_model(steered)
    feed = feed_for(model, tiny_tokenizer)
    batch = feed.collate(list(feed.encode(marked_data)['test']))
    marked = (batch['rationale'] >= .5) & batch['has_rationale'][:, None] & (batch['word_ids'] >= 0)
    with torch.no_grad(), steer(model, marked, alpha=.01): logits = model(**model_inputs(batch, model)).logits
    loss = torch.nn.functional.cross_entropy(logits, batch['labels']).item()
    assert steered.scores('test')['loss'] == pytest.approx(loss, rel=1e-5)
    assert plain.scores('test')['loss'] != pytest.approx(loss, rel=1e-5)


def test_steering_can_be_combined_and_needs_rationales_in_every_scored_split(marked_data, tiny_bert, tiny_tokenizer,
                                                                             tmp_path):
    model = tiny_bert().eval()
    feed = feed_for(model, tiny_tokenizer)
    batch = feed.collate(list(feed.encode(marked_data)['test']))
    both = RDrop() + Steering(alpha=.1)
    with torch.no_grad():
        with both.evaluation(model, batch): together = model(**model_inputs(batch, model)).logits
        with Steering(alpha=.1).evaluation(model, batch): alone = model(**model_inputs(batch, model)).logits
    assert torch.equal(together, alone)
    data = type(marked_data)({**marked_data, 'test': marked_data['test'].remove_columns('rationale')})
    with pytest.raises(ValueError, match='requires rationales in every split that is scored; missing in test'):
        train(model, tiny_tokenizer, data, Steering(), tmp_path/'run', epochs=1, progress=False)
