"A custom sentence: which model answers, what the page shows, and the message if there is no model."
import time

import numpy as np
import pytest

import invented
from browser import browser, evaluate_json, load, new_page, page, send, settled # noqa: F401 (fixtures)
from salviz.core.runs import Run
from salviz.analysis.model_source import ModelSource
from salviz.explorer.page import page_of, write_page
from salviz.explorer.view import ExplorerView
from salviz.explorer.widget import Explorer
from test_explorer import widget

recorded, other = 'the film was great', 'the film was awful'

@pytest.fixture
def explorer(tiny_bert, tiny_tokenizer):
    "Return an explorer of two sentences and of the model that read them"
    from salviz.model_explorer import explore
    return explore(tiny_bert(), tiny_tokenizer, [recorded, 'a fine scene'], saliency='input_x_gradient',
                   attribution=False)

class Kernel:
    "A substitute for the view's kernel, which answers the queries of `page`"
    def __init__(self, page, view, kind='own'):
        self.page, self.view, self.kind, self.sent, self.heard = page, view, kind, [], 0
        view._loop = None # the running loop belongs to playwright
        view.send = lambda content, buffers=(): self.sent.append((content, buffers)) # as `Widget.send`

    def is_asked(self):
        "Wait for a query of this kind that has not been read yet"
        self.page.wait_for_function('([kind, from]) => model.sent.slice(from).some(m => m.kind === kind)',
                                    arg=[self.kind, self.heard])

    def asked(self):
        "Return the queries of this kind that have not been read yet"
        every = self.page.evaluate('() => model.sent')
        fresh, self.heard = every[self.heard:], len(every)
        return [message for message in fresh if message['kind'] == self.kind]

    def tell(self, content, buffers):
        send(self.page, answer=dict(content=content, buffers=list(buffers)))
        self.page.evaluate('''() => {
            const buffers = answer.buffers.map(b => new DataView(b.buffer, b.byteOffset, b.byteLength));
            for (const listener of [...model.listeners['msg:custom']]) listener(answer.content, buffers); }''')

    def answer(self):
        "Answer all queries; return the contents of the answers"
        settled(self.page)
        for question in self.asked():
            self.view._handle_custom_msg(question, [])
            self.view._replier.flush()
        reply, self.sent = self.sent, []
        self.view.send = lambda content, buffers=(): self.sent.append((content, buffers))
        for content, buffers in reply: self.tell(content, buffers)
        settled(self.page)
        return [content for content, _ in reply]

@pytest.fixture
def opened(page, explorer):
    explorer.view.settle()
    widget(page, explorer.view)
    return page, Kernel(page, explorer.view)

def ask(page, text):
    page.fill('.sv-own-field', text)
    page.keyboard.press('Enter')

def columns(page):
    "Return [[word of A, word of B, their difference]] as shown on the page"
    return page.eval_on_selector_all('.sv-own-column:not(.sv-own-names)',
                                     'all => all.map(o => [...o.children].map(c => c.textContent))')

# --- which model answers

def kept_run(tiny_bert, tiny_tokenizer, tiny_data, folder):
    from salviz.training.trainer import train
    return train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=folder, probes=2, snapshots=2, epochs=2, batch_size=8,
                 learning_rate=1e-2, keep=5, progress=False)

@pytest.mark.slow
def test_every_saved_checkpoint_answers_with_its_weights(tiny_bert, tiny_tokenizer, tiny_data,
                                                                             tmp_path):
    from salviz.models.checkpoints import load_model
    from salviz.analysis.model_maps import _explain_texts
    run = kept_run(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/'run')
    source = ModelSource(Run(run.path))
    steps = [step for step, _ in source.choices()]
    assert steps == sorted(run.checkpoints) and len(steps) > 1 and source.needs() == ''
    answers = [source([[recorded]], step, 'input_x_gradient')[0] for step in steps]
    for step, answer in zip(steps, answers):
        expected, = _explain_texts(*load_model(run, step), recorded, saliency='input_x_gradient', attribution=False)
        for name in ('attention', 'probabilities', 'saliency'):
            assert np.array_equal(answer.arrays[name], expected.arrays[name]), name
    assert not np.allclose(answers[0].arrays['probabilities'], answers[1].arrays['probabilities'])
    with pytest.raises(ValueError, match='unknown model 999; available: checkpoint of step'):
        source([[recorded]], 999, 'input_x_gradient')

def test_asking_writes_nothing_into_the_run_and_leaves_the_model_as_it_was(tiny_bert, tiny_tokenizer, tmp_path):
    import torch
    run, model = invented.run(tmp_path/'run'), tiny_bert().train()
    before = {file: file.read_bytes() for file in run.path.rglob('*') if file.is_file()}
    weights, drawn = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    ModelSource(run, (model, tiny_tokenizer))([[recorded], [other]], 'now', 'integrated_gradients')
    assert before == {file: file.read_bytes() for file in run.path.rglob('*') if file.is_file()}
    assert model.training and all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())

def test_a_training_answers_while_paused_but_not_while_running(tiny_bert, tiny_tokenizer, tiny_data,
                                                                        tmp_path):
    from salviz.training.live import start_training
    training = start_training(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', probes=1, snapshots=2,
                              epochs=200, batch_size=4)
    mine, another = ModelSource(training.run, training=training), ModelSource(model=(tiny_bert(), tiny_tokenizer))
    def until(state):
        end = time.monotonic() + 60
        while training.state != state and time.monotonic() < end: time.sleep(.01)
        assert training.state == state
    try:
        until('running')
        for source in (mine, another):
            with pytest.raises(RuntimeError, match='Training is running'):
                source([[recorded]], 'now', 'input_x_gradient')
        training.pause()
        until('paused')
        answer, = mine([[recorded]], 'now', 'input_x_gradient')
        assert answer.arrays['probabilities'].shape == (2,)
    finally:
        training.resume()
        training.stop()
        training.wait(60)
    assert mine([[recorded]], 'now', 'input_x_gradient')

def test_the_difference_is_that_of_one_class(tiny_bert, tiny_tokenizer):
    from salviz.analysis.model_maps import explain_alike, _explain_texts
    model = tiny_bert()
    a, b = explain_alike(model, tiny_tokenizer, [recorded, other], 'input_x_gradient')
    predicted = int(a.arrays['probabilities'].argmax())
    for answer, text in ((a, recorded), (b, other)):
        alone, = _explain_texts(model, tiny_tokenizer, text, predicted, saliency='input_x_gradient', attribution=False)
        assert np.array_equal(answer.arrays['saliency'], alone.arrays['saliency'])
    assert 'predicted for the first text' in a.info['explains'] == b.info['explains']
    chosen, = explain_alike(model, tiny_tokenizer, [recorded], target=1 - predicted)
    assert 'given as target' in chosen.info['explains']

def test_a_model_without_tokenizer_raises_an_error(tiny_bert, tmp_path):
    run = invented.run(tmp_path/'run')
    for wrong in (tiny_bert(), (tiny_bert(), None), 'movie-minilm'):
        with pytest.raises(ValueError, match=r'model must be a pair \(model, tokenizer\)'): Explorer(run, model=wrong)

@pytest.mark.sample(2)
@pytest.mark.parametrize('wrong', [dict(texts='a film'), dict(texts=[]), dict(texts=[['a'], ['b'], ['c']]), dict(run=7),
                                   dict(head=[1]), dict(choice=None), dict(attribution=3), dict(id=1),
                                   dict(intervention=[1]), dict(other='x')])
def test_malformed_queries_are_ignored(explorer, wrong):
    view = explorer.view
    view._loop = None
    sent = []
    view.send = lambda content, buffers: sent.append(content)
    good = dict(kind='own', id='x', run=0, texts=[[recorded]], choice='now', attribution='input_x_gradient', head=None)
    view._handle_custom_msg(good | wrong, [])
    view._replier.flush()
    assert sent == []
    view._handle_custom_msg(good, [])
    view._replier.flush()
    assert [content['more'] for content in sent] == [True, False]

# --- in the browser

def test_a_typed_sentence_is_shown_next_to_the_one_in_view(opened, explorer):
    page, kernel = opened
    assert page.input_value('.sv-own-field') == recorded and not page.is_visible('.sv-own-answer')
    ask(page, other)
    first, last = kernel.answer()
    assert first['more'] and not last['more']
    page.wait_for_selector('.sv-own-answer')
    words = columns(page)
    assert [row[:2] for row in words if row[0] != row[1]] == [['great', 'awful']]
    assert [bool(row[2]) for row in words] == [row[0] == row[1] for row in words]
    assert page.locator('.sv-own-map:visible').count() == 3
    assert 'neither was recorded' in page.inner_text('.sv-own-answer')
    assert len(explorer.runs[0].recorded) == 2 and page.evaluate('() => model.get("index").length') == 2
    page.wait_for_timeout(600)
    assert 'awful' not in page.evaluate('() => JSON.stringify([model.get("ui"), model.get("meta")])')

@pytest.mark.slow
def test_what_is_subtracted_are_the_numbers_of_the_model(opened, tiny_bert, tiny_tokenizer):
    from salviz.analysis.model_maps import explain_alike
    page, kernel = opened
    ask(page, other)
    kernel.answer()
    a, b = explain_alike(tiny_bert(), tiny_tokenizer, [recorded, other], 'input_x_gradient')
    def pooled(s):
        return {word: s.arrays['saliency'][s.word_ids == i].sum() for i, word in enumerate(s.words)}
    one, two = pooled(a), pooled(b)
    shown = {word: float(change.replace('−', '-')) for word, _, change in columns(page) if change}
    for word in ('the', 'film', 'was'): assert abs(shown[word] - (two[word] - one[word])) < .01*abs(shown[word]) + 1e-6
    table = page.eval_on_selector_all('.sv-own-table tbody td', 'all => all.map(o => o.textContent)')
    expected = np.stack([a.arrays['probabilities'], b.arrays['probabilities']], 1)
    assert [float(x) for k, x in enumerate(table) if k % 3 < 2] == pytest.approx(expected.ravel().tolist(), abs=6e-4)

@pytest.mark.slow
def test_a_word_is_clicked_away_and_by_keys(opened):
    page, kernel = opened
    page.click('.sv-own-word:has-text("was")')
    assert page.input_value('.sv-own-field') == 'the film great'
    kernel.answer()
    assert [row[0] for row in columns(page) if row[1] == '–'] == ['was']
    page.focus('.sv-own-word >> nth=0')
    page.keyboard.press('ArrowRight'); page.keyboard.press('Delete')
    assert page.input_value('.sv-own-field') == 'the great'
    assert page.evaluate('() => document.activeElement.getAttribute("aria-label")') == 'remove \u2068‘great’\u2069'
    kernel.answer()
    assert [row[0] for row in columns(page) if row[1] == '–'] == ['film', 'was']
    page.click('.sv-own >> text=Reset')
    assert page.input_value('.sv-own-field') == recorded and not page.is_visible('.sv-own-answer')

@pytest.mark.slow
def test_it_can_be_compared_with_an_earlier_sentence(opened):
    page, kernel = opened
    ask(page, other); kernel.answer()
    ask(page, 'the scene was awful')
    page.select_option('.sv-own-options select', label=other)
    kernel.answer()
    assert [row[:2] for row in columns(page) if row[0] != row[1]] == [['film', 'scene']]

@pytest.mark.slow
def test_an_intervention_of_the_kernel_is_shown_in_the_panel(opened, explorer):
    from salviz.core.interventions import Intervention
    page, kernel = opened
    one = Intervention(heads=[(0, 1)], maps={(1, 0): 'first'})
    before, after = explorer.intervene(one)
    assert not np.allclose(before.arrays['probabilities'], after.arrays['probabilities'])
    assert after.info['intervention'] == one.changes() and 'intervention' not in before.info
    assert explorer.state['intervention'] == one.as_dict()
    n = len(after.tokens)
    assert np.array_equal(after.arrays['attention'][1, 0], np.eye(n)[[0]*n])
    page.evaluate('state => model.listeners["msg:custom"].forEach(tell => tell({kind: "state", state}, []))',
                  dict(intervention=one.as_dict()))
    kernel.is_asked()
    kernel.answer()
    table = page.eval_on_selector_all('.sv-own-table tbody td', 'all => all.map(o => o.textContent)')
    assert [float(x) for x in table[1::3]] == pytest.approx(after.arrays['probabilities'].tolist(), abs=6e-4)
    assert 'the map of head 0 of layer 1 is replaced by the pattern ‘first’' in page.inner_text('.sv-own-answer')
    page.click('.sv-own >> text=Reset')
    page.wait_for_function('() => JSON.parse(model.get("ui")).intervention === null') # a view is saved after a delay
    assert not page.is_visible('.sv-own-answer')
    with pytest.raises(ValueError, match='head 9 of layer 0 does not exist'):
        explorer.intervene(Intervention(heads=[(0, 9)]))
    assert explorer.intervene()[1].info.get('intervention') is None

def test_two_models_of_the_kernel_explain_the_class_that_the_first_predicts(tiny_bert, tiny_tokenizer):
    import torch
    from salviz.explorer.custom_sentences import _replies
    models = [tiny_bert(), tiny_bert()]
    with torch.no_grad(): models[1].classifier.bias += torch.tensor([2., -2.])
    sources = [ModelSource(model=(model, tiny_tokenizer)) for model in models]
    question = dict(kind='own', id='x', run=1, texts=[[other], [other]], choice='now', attribution='input_x_gradient',
                    head=None, other=dict(run=0, choice='now'), intervention=dict(heads=[[0, 1]]))
    parts = [content for content, _ in _replies(sources, question)]
    assert 'error' not in parts[1] and parts[1]['of'].count('the model in the kernel') == 2
    assert parts[1]['explains'][0] == parts[1]['explains'][1] and 'predicted by A' in parts[1]['explains'][0]
    models[1].config.id2label = {0: 'dull', 1: 'fine'}
    content, _ = next(_replies(sources, question))
    assert 'the two models have different classes' in content['error']

def test_errors_are_shown_next_to_the_field(opened):
    page, kernel = opened
    shown_text = lambda: page.inner_text('.sv-own-said')
    ask(page, '   ')
    assert shown_text() == 'Type at least one word, then press Enter.' and kernel.asked() == []
    ask(page, 'film ' * 300)
    kernel.answer()
    assert 'shorten the text' in shown_text() and page.get_attribute('.sv-own', 'aria-busy') is None
    ask(page, other)
    kernel.answer()
    assert shown_text() == '' and page.is_visible('.sv-own-answer')
    page.evaluate('() => { model.dead = true; }')
    ask(page, recorded)
    settled(page)
    assert 'could not be sent' in shown_text()

@pytest.mark.slow
def test_the_newest_question_counts_and_a_late_answer_is_not_shown(opened):
    page, kernel = opened
    ask(page, 'the scene was awful'); settled(page)
    late, = kernel.asked()
    ask(page, other)
    kernel.answer()
    shown = columns(page)
    kernel.tell(dict(kind='own', id=late['id'], more=False, error='too late'), [])
    settled(page)
    assert columns(page) == shown and page.inner_text('.sv-own-said') == ''

@pytest.mark.slow
def test_another_sentence_in_view_removes_the_answer_but_not_the_typed_text(opened):
    page, kernel = opened
    ask(page, other); kernel.answer()
    page.locator('.sv-toolbar select').nth(1).select_option('1'); settled(page)
    assert not page.is_visible('.sv-own-answer') and page.input_value('.sv-own-field') == other
    page.click('.sv-own >> text=Reset')
    assert page.input_value('.sv-own-field') == 'a fine scene'

def test_text_is_never_html(opened):
    page, kernel = opened
    ask(page, '<img src=x onerror=hit()> film')
    kernel.answer()
    assert page.locator('.sv-own img').count() == 0 and page.is_visible('.sv-own-answer')

@pytest.mark.slow
def test_missing_weights_are_explained(page, tmp_path):
    run = invented.reconfigured(invented.run(tmp_path/'run'), model=dict(name='movie-minilm', layers=2, heads=3))
    view = ExplorerView([run], sources=[ModelSource(run)])
    view.settle()
    widget(page, view)
    shown_text = page.inner_text('.sv-own-said')
    assert 'has no saved weights' in shown_text and "model=load_classifier('movie-minilm')" in shown_text
    assert 'before training' in shown_text
    assert page.is_disabled('.sv-own-field') and page.is_disabled('.sv-own-look')

@pytest.mark.slow
def test_a_missing_kernel_is_explained(browser, tmp_path):
    path = write_page(page_of(invented.run(tmp_path/'run')), tmp_path/'page.html', say=lambda shown_text: None)
    p = new_page(browser)
    p.goto(path.as_uri())
    p.wait_for_selector('.sv-own')
    assert 'needs a model in a running kernel' in p.inner_text('.sv-own-said') and p.is_disabled('.sv-own-field')
    assert p.input_value('.sv-own-field') and p.errors == []
    p.close()

@pytest.mark.slow
def test_several_checkpoints_are_a_choice_in_the_page(page, tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    run = kept_run(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/'run')
    explorer = Explorer(run)
    explorer.view.settle()
    widget(page, explorer.view)
    kernel = Kernel(page, explorer.view)
    steps = sorted(run.checkpoints)
    shown = []
    for step in steps:
        page.select_option('.sv-own-options select >> nth=1', str(step))
        kernel.answer()
        assert f'by checkpoint of step {step};' in page.inner_text('.sv-own-answer')
        shown.append(page.inner_text('.sv-own-table'))
    assert shown[0] != shown[-1]

# --- two sentences word by word

def aligned(page, a, b):
    return [(c['first'], c['second'], c['same'])
            for c in evaluate_json(page, '([a, b]) => sv.alignWords(a, b)', [a.split(), b.split()])]

def test_words_are_aligned_by_the_longest_list_that_both_have(page):
    load(page, 'align.js')
    assert aligned(page, 'a b c', 'a b c') == [(0, 0, True), (1, 1, True), (2, 2, True)]
    assert aligned(page, 'a b c', 'a x c') == [(0, 0, True), (1, 1, False), (2, 2, True)]
    assert aligned(page, 'a b c', 'a c') == [(0, 0, True), (1, None, False), (2, 1, True)]
    assert aligned(page, 'a c', 'a x y c') == [(0, 0, True), (None, 1, False), (None, 2, False), (1, 3, True)]
    assert aligned(page, 'a b', 'x y z') == [(0, 0, False), (1, 1, False), (None, 2, False)]
    assert aligned(page, '', '') == []

def longest_common(a, b):
    "Return the length of the longest common subsequence, from its definition"
    if not a or not b: return 0
    if a[0] == b[0]: return 1 + longest_common(a[1:], b[1:])
    return max(longest_common(a[1:], b), longest_common(a, b[1:]))

def test_an_alignment_preserves_both_orders_and_all_words(page):
    load(page, 'align.js')
    rng = np.random.default_rng(0)
    for _ in range(40):
        a, b = (list(rng.choice(list('abc'), rng.integers(0, 8))) for _ in range(2))
        rows = aligned(page, ' '.join(a), ' '.join(b))
        assert [i for i, _, _ in rows if i is not None] == list(range(len(a)))
        assert [j for _, j, _ in rows if j is not None] == list(range(len(b)))
        same = [(i, j) for i, j, alike in rows if alike]
        assert all(a[i] == b[j] for i, j in same) and len(same) == longest_common(a, b)

def test_a_word_is_taken_out_of_a_text_with_its_blank(page):
    load(page, 'align.js')
    def without(text, k):
        return page.evaluate('([text, k]) => sv.withoutPiece(text, sv.textPieces(text)[k])', [text, k])
    assert [without('One of the year.', k) for k in range(5)] == [
        'of the year.', 'One the year.', 'One of year.', 'One of the .', 'One of the year']
    assert without('很好的电影', 0) != '很好的电影' and without('solo', 0) == ''
