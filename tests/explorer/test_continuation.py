"A text that a language model continued: its recording, against one pass for each token, and its display in the page."
import copy
import re

import numpy as np
import pytest
import torch

import invented
from browser import browser, page, settled # noqa: F401 (fixtures)
from helpers import alike
from salviz.core.snapshots import Snapshot
from salviz.explorer.page import page as page_text
from salviz.figures.kinds import figure
from salviz.models.corruption import small_model
from salviz.analysis.model_maps import _explain_texts
from salviz.model_explorer import explore

@pytest.fixture
def writer(tiny_tokenizer):
    "Return a language model in float64 and its tokenizer, whose texts begin and end with a special token"
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    model = small_model('causal_lm', tokenizer, kind='llama', hidden=16, heads=2, max_length=32, seed=3)
    return model.double(), tokenizer

@pytest.mark.parametrize('text, count', [('a good film', 5), ('film', 1), ('the film is not bad but it is long', 12)])
def test_each_generated_token_is_explained_by_a_separate_pass(writer, text, count):
    "Greedy decoding, softmax and input x gradient, token by token, from the text up to that token"
    model, tokenizer = writer
    s, = _explain_texts(model, tokenizer, text, generate=count, saliency='input_x_gradient')
    ids, continuation = tokenizer(text)['input_ids'][:-1], s.info['continuation']   # no text after the end token
    assert continuation['start'] == len(ids) and len(continuation['tokens']) <= count
    for g in range(len(continuation['tokens'])):
        x = model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
        logits = model(inputs_embeds=x).logits[0, -1]
        p, best = logits.softmax(-1), int(logits.argmax())
        assert tokenizer.convert_ids_to_tokens(best) == s.tokens[len(ids)]
        assert continuation['probability'][g] == pytest.approx(p[best].item(), rel=1e-5)
        order = [i for i in p.argsort(descending=True).tolist() if i != best][:5]
        assert [q for _, q in continuation['others'][g]] == pytest.approx([p[i].item() for i in order], rel=1e-5)
        saliency = (torch.autograd.grad(logits[best], x)[0] * x).sum(-1)[0].detach()
        result = torch.from_numpy(s.arrays['continuation_saliency'][g])
        assert alike(result[:len(ids)], saliency.float(), size=4096) and not result[len(ids):].any()
        ids = [*ids, best]
    assert len(continuation['tokens']) == count or ids[-1] == tokenizer.eos_token_id
    assert s.texts[0] == text and len(s.texts) == 2 and len(s.tokens) == len(ids)

def test_invalid_arguments_of_generate_raise_errors_early(writer, tiny_bert, tiny_tokenizer):
    model, tokenizer = writer
    with pytest.raises(ValueError, match='BertForSequenceClassification cannot generate text'):
        _explain_texts(tiny_bert(), tiny_tokenizer, 'a film', generate=3)
    for bad in (0, -1, True, 'five', 2.5):
        with pytest.raises(ValueError, match='generate: pass the number of tokens to generate'):
            _explain_texts(model, tokenizer, 'a film', generate=bad)
    with pytest.raises(ValueError, match=r'so at most 29 can be generated \(limit: 32 in total\)'):
        _explain_texts(model, tokenizer, 'a film', generate=30)
    with pytest.raises(ValueError, match='text must be a single text, got a pair'):
        _explain_texts(model, tokenizer, [('a film', 'a film')], generate=3)

def test_arguments_of_generate_are_handed_on_and_draws_can_be_repeated(writer):
    model, tokenizer = writer
    drawn = dict(max_new_tokens=6, do_sample=True, temperature=2.)
    before = torch.get_rng_state()
    one, two = (_explain_texts(model, tokenizer, 'a film', generate=drawn, saliency=None, attribution=False)[0].tokens
                for _ in range(2))
    plain = _explain_texts(model, tokenizer, 'a film', generate=6, saliency=None, attribution=False)[0].tokens
    assert one == two != plain and torch.equal(before, torch.get_rng_state())

def test_the_explorer_waits_for_the_saliency_of_the_continuation(writer):
    model, tokenizer = writer
    explorer = explore(model, tokenizer, 'a good film', generate=4, steps=3)
    explorer.settle(120)
    assert 'continuation_saliency' in explorer.selected().snapshot.arrays
    explorer.close()

# --- in the page

def written(saliency=True):
    "Return a snapshot of a text that a model continued"
    tokens = ['[CLS]', 'a', 'charming', 'film', 'and', '<b>x', '.']
    values = np.array([[9., .1, -.4, .2, 0, 0, 0], [9., 0, 0, .1, .3, 0, 0], [9., 0, 0, 0, 0, 0, 0]],
                      np.float32)
    continuation = dict(start=4, tokens=tokens[4:], probability=[.5, .25, .125],
                others=[[['but', .2], ['<i>', .1]]]*3)
    n = len(tokens)
    attention = np.tril(np.ones((n, n), np.float32)) / np.arange(1, n + 1, dtype=np.float32)[:, None]
    arrays = dict(attention=np.broadcast_to(attention, (1, 2, n, n)).copy())
    if saliency: arrays['continuation_saliency'] = values
    word_ids = [-1, *range(n - 1)]
    return Snapshot(0, 0., 0, arrays, tokens=tokens, words=tokens[1:], word_ids=word_ids,
                    info=dict(continuation=continuation, saliency_method='input_x_gradient'))

def opened(page, snapshot):
    "Open the page of `snapshot` in the browser"
    page.set_content(page_text([snapshot]))
    page.wait_for_selector('.sv-sentence .sv-chip')
    settled(page)
    return page.locator('.sv-continuation')

@pytest.mark.slow
def test_a_written_token_is_chosen_by_click_and_by_key_and_every_panel_shows_its_row(page):
    panel = opened(page, written())
    chips = panel.locator('.sv-chip')
    assert panel.locator('.sv-row').inner_text() == 'and' and 'probability 0.5' in panel.inner_text()
    panel.locator('.sv-written').nth(1).click()
    settled(page)
    continuation = panel.inner_text()
    assert '‘<b>x’' in re.sub('[⁨⁩]', '', continuation) and 'probability 0.25' in continuation
    assert '‘but’ 0.2, ‘<i>’ 0.1' in re.sub('[⁨⁩]', '', continuation)
    assert page.evaluate('document.querySelectorAll(".sv-continuation b").length') == 0
    painted = chips.evaluate_all('cells => cells.map(c => Boolean(c.style.background || c.style.backgroundColor))')
    assert painted == [False, True, True, True, True, False, False]  # special, before, itself, later
    panel.locator('.sv-row').press('ArrowLeft')
    settled(page)
    assert panel.locator('.sv-row').inner_text() == 'and'
    assert page.evaluate('document.activeElement.textContent') == 'and'
    panel.locator('.sv-row').press('End')
    settled(page)
    # no token contributes to the last one, so there are no colours
    assert panel.locator('.sv-row').inner_text() == '.' and panel.locator('.sv-scale-bar').count() == 0

@pytest.mark.slow
def test_the_panel_notes_missing_saliency_and_is_hidden_without_a_continuation(page):
    panel = opened(page, written(saliency=False))
    assert 'No saliency was recorded.' in panel.inner_text()
    assert not opened(page, invented.snapshot(0, 0)).is_visible()

@pytest.mark.slow
def test_the_figure_draws_the_requested_tokens(tmp_path, writer):
    model, tokenizer = writer
    s, = _explain_texts(model, tokenizer, 'a good film', generate=4, saliency='input_x_gradient', attribution=False)
    for tokens in (None, [0], [1, 2]): assert figure(s, 'continuation', tokens=tokens).citations is not None
    with pytest.raises(ValueError, match='tokens must be indices of generated tokens, from 0 to'):
        figure(s, 'continuation', tokens=[9])
