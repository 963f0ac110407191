"A learned explainer: padding, its error against plain numbers, and what it learns"
import numpy as np
import pytest
import torch

from salviz import EmpiricalExplainer, explain_data, fit_explainer
from salviz.models.corruption import small_model


@pytest.fixture(scope='module')
def texts(tiny_data): return [*tiny_data['train']['text'], *tiny_data['test']['text']]


@pytest.fixture
def classifier(tiny_tokenizer):
    return small_model('classification', tiny_tokenizer, labels=['bad', 'good'], layers=2).double().eval()


def test_texts_of_a_batch_are_explained_as_if_alone(classifier, texts, tiny_tokenizer):
    explainer = EmpiricalExplainer(classifier, tiny_tokenizer).train()
    explainer.scale = 3.
    for text, values in zip(texts[:9], explainer.explain(texts[:9], batch_size=4)):
        ids = tiny_tokenizer(text, return_tensors='pt')['input_ids']
        hidden = classifier.bert(ids).last_hidden_state[0]
        assert np.allclose(values, 3*explainer.head(hidden)[:, 0].detach().numpy(), atol=1e-12)
    assert explainer.training # the mode is restored


def test_error_is_that_of_held_out_texts(classifier, texts, tiny_tokenizer):
    before = torch.cat([p.flatten() for p in classifier.parameters()]).clone()
    explainer = fit_explainer(classifier, texts, tiny_tokenizer, 'input_x_gradient', 1, held_out=.25, epochs=40,
                              learning_rate=3e-3)
    n = len(texts) - round(.25*len(texts))
    found, expected = explainer.explain(texts[n:]), explain_data(classifier, texts, 'input_x_gradient', 1,
                                                                 tokenizer=tiny_tokenizer)[n:]
    errors = [(a - b)**2 for a, b in zip(found, expected)]
    assert explainer.error['mse'] == pytest.approx(sum(map(np.sum, errors))/sum(map(len, errors)))
    assert explainer.error['mse'] < explainer.error['mse_of_zero'] and explainer.error['correlation'] > .3
    assert torch.equal(torch.cat([p.flatten() for p in classifier.parameters()]), before)


def test_training_is_repeatable_and_leaves_the_random_state(classifier, texts, tiny_tokenizer):
    state = torch.get_rng_state()
    a, b = (fit_explainer(classifier, texts[:8], tiny_tokenizer, 'input_x_gradient', epochs=1).explain(texts[:3])
            for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(a, b)) and torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match='at least one text for training besides the held-out texts, got 1 in total'):
        fit_explainer(classifier, texts[:1], tiny_tokenizer)
    with pytest.raises(ValueError, match='held_out'): fit_explainer(classifier, texts, tiny_tokenizer, held_out=1.)
