"Contrastive targets, P rather than Q, against differences of separate explanations and a plain gradient"
import pytest
import torch

from salviz import explain, explain_data
from salviz.attribution.questions import contrast_pair
from salviz.models.corruption import small_model

texts = ['a truly moving film .', 'dull', 'no fun at all , and much too long .']


@pytest.fixture(scope='module')
def classifier(tiny_tokenizer):
    return small_model('classification', tiny_tokenizer, labels=['bad', 'fair', 'good'], layers=2).double().eval()


@pytest.fixture(scope='module')
def language_model(tiny_tokenizer):
    return small_model('causal_lm', tiny_tokenizer, layers=2).double().eval()


@pytest.mark.parametrize('method', ['input_x_gradient', 'integrated_gradients', 'occlusion'])
def test_contrast_of_classes_is_the_difference_of_their_explanations(method, classifier, tiny_tokenizer):
    both, one, other = (explain(classifier, texts, method, target, tokenizer=tiny_tokenizer)
                        for target in (('good', 'bad'), 2, 0))
    assert torch.allclose(both.values, one.values - other.values, atol=1e-12)
    assert torch.allclose(both.score, one.score - other.score, atol=1e-12)
    assert (both.values != 0).any()


def test_names_and_indices_give_the_same_explanation(classifier, tiny_tokenizer):
    named = explain_data(classifier, texts, 'input_x_gradient', ('good', 'bad'), tokenizer=tiny_tokenizer)
    numbered = explain_data(classifier, texts, 'input_x_gradient', (2, 0), tokenizer=tiny_tokenizer)
    for a, b in zip(named, numbered): assert (a == b).all()


def test_contrast_of_next_tokens_is_the_gradient_of_the_difference_of_logits(language_model, tiny_tokenizer):
    p, q = tiny_tokenizer(['film', 'dull'], add_special_tokens=False)['input_ids']
    found = explain(language_model, texts, 'input_x_gradient', ('film', 'dull'), tokenizer=tiny_tokenizer)
    for i, text in enumerate(texts):
        ids = tiny_tokenizer(text, return_tensors='pt')['input_ids']
        x = language_model.get_input_embeddings()(ids).detach().requires_grad_()
        logits = language_model(inputs_embeds=x).logits[0, -1]
        score = logits[p[0]] - logits[q[0]]
        gradient, = torch.autograd.grad(score, x)
        n = ids.shape[1]
        assert torch.allclose(found.values[i, :n], (x*gradient).sum(-1)[0], atol=1e-12)
        assert found.score[i].item() == pytest.approx(score.item(), abs=1e-12) and (found.values[i, n:] == 0).all()


def test_unknown_names_are_reported(classifier, language_model, tiny_tokenizer):
    for model, pair, words in ((classifier, ('good', 'great'), "no class 'great'; the classes are bad, fair, good"),
                               (classifier, (0, 3), 'no class 3'), (language_model, ('film', 10**6), 'id of a token'),
                               (language_model, ('a film', 'dull'), 'name a single token'),
                               (classifier, (0,), r'must have the form \(P, Q\), got 1')):
        with pytest.raises(ValueError, match=words): contrast_pair(model, pair, tiny_tokenizer)
    with pytest.raises(ValueError, match='tokenizer= is passed'): contrast_pair(language_model, ('film', 'dull'))
