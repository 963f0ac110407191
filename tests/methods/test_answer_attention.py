"The loss on an answer's attention to image tokens against loops over the paper's equations in float64"
import numpy as np
import pytest
import torch

from salviz.methods.answer_attention import answer_attention, answer_attention_loss

pytestmark = pytest.mark.numeric

def example(seed=0, batch=3, heads=2, n=9):
    "Return maps of two layers, image tokens, answer tokens and marks; the last example has no marks"
    g = torch.Generator().manual_seed(seed)
    maps = [torch.rand(batch, heads, n, n, generator=g, dtype=torch.float64).tril().softmax(-1).requires_grad_()
            for _ in range(2)]
    is_image = torch.zeros(batch, n, dtype=torch.bool)
    is_image[:, 1:5] = True
    is_answer = torch.zeros(batch, n, dtype=torch.bool)
    is_answer[0, 7:], is_answer[1, 6:8], is_answer[2, 8:] = True, True, True
    rationale = torch.rand(batch, n, generator=g, dtype=torch.float64) * is_image
    rationale[0, 2] = rationale[2] = 0
    return maps, is_image, is_answer, rationale

def by_hand(maps, is_image, is_answer, rationale, rows):
    """Compute KLAL: the mean over layers of KL(P || Q), where Q is the mean over heads of attention normalised over
    image tokens"""
    losses = []
    for b in range(len(is_image)):
        image = np.flatnonzero(is_image[b])
        answer = np.flatnonzero(is_answer[b])
        if rows == 'last': answer = answer[-1:]
        P = rationale[b].numpy()[image]
        if not P.any():
            losses.append(0.)
            continue
        P, of_layers = P/P.sum(), []
        for A in maps:
            Q = np.zeros(len(image))
            for head in A[b].detach().numpy():
                alpha = np.mean([head[i - 1][image] for i in answer], 0)
                Q += alpha/alpha.sum()/A.shape[1]
            of_layers.append(sum(p*np.log(p/q) for p, q in zip(P, Q) if p > 0))
        losses.append(np.mean(of_layers))
    return losses

@pytest.mark.parametrize('rows', ['last', 'all'])
def test_the_loss_equals_a_loop_over_the_equations_in_float64(rows):
    inputs = example()
    found = answer_attention_loss(*inputs, rows=rows)
    assert found.dtype == torch.float64
    assert np.allclose(found.detach().numpy(), by_hand(*inputs, rows), rtol=1e-12, atol=1e-14)

def test_the_gradient_equals_finite_differences():
    maps, *rest = example()
    assert torch.autograd.gradcheck(lambda *maps: answer_attention_loss([*maps], *rest, rows='all'), maps)

def test_attention_is_a_distribution_over_image_tokens_and_an_example_without_answer_has_none():
    maps, is_image, is_answer, _ = example()
    is_answer[2] = False
    found = answer_attention(maps, is_image, is_answer)
    assert torch.allclose(found.sum(-1)[:2], torch.ones(2, 2, dtype=torch.float64))
    assert not found[2].any() and not found[~is_image[:, None].expand_as(found)].any()
