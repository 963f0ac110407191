"A page with a model in it: opened from disk without a network, it answers typed sentences like a kernel."
import re

import pytest

import invented
from browser import browser, new_page, settled # noqa: F401 (fixtures)
from salviz.analysis.model_maps import explain_alike
from salviz.analysis.quantised_model import quantised_twin
from salviz.model_explorer import explore
from salviz.explorer.page import page_of
from salviz.explorer.page_model import page_models
from salviz.explorer.widget import Explorer

recorded, other = 'the film was great', 'the film was awful and dull'

def written(model, tokenizer, path, **kwargs):
    "Write the page of an explorer of `model`, with the model in it"
    explorer = explore(model, tokenizer, [recorded, 'a fine scene'], saliency='input_x_gradient', attribution=False)
    try: return explorer.to_html(path, model=True, force=True, **kwargs)
    finally: explorer.close()

def opened(browser, path, width):
    "Open the file at `path` in a page without a network"
    context = browser.new_context(offline=True, viewport=dict(width=width, height=800))
    p = context.new_page()
    p.add_init_script("localStorage.setItem('salviz-tour', 'seen')")
    p.errors, p.requests = [], []
    p.on('pageerror', lambda e: p.errors.append(str(e)))
    p.on('console', lambda m: p.errors.append(m.text) if m.type == 'error' else None)
    p.on('request', lambda r: p.requests.append(r.url))
    p.goto(path.absolute().as_uri())
    p.wait_for_function('() => window.salviz')
    settled(p)
    return p

def closed(p, path):
    "Check that there were no errors, and no requests except the file and the worker in it"
    errors, outside = p.errors, [url for url in p.requests if url != path.absolute().as_uri()]
    p.context.close()
    assert errors == [] and all(url.startswith('blob:null/') for url in outside)

def typed(p, text):
    "Type `text` and wait for the complete answer"
    p.fill('.sv-own-field', text)
    p.evaluate('() => new Promise(done => setTimeout(done, 400))') # the panel sends its query 150 ms after the last key
    p.wait_for_selector('.sv-own:not([aria-busy])', timeout=60_000)
    settled(p)

def probabilities(p):
    "Return the probabilities of B in the table"
    cells = p.eval_on_selector_all('.sv-own-table tbody tr', 'all => all.map(o => o.cells[2].textContent)')
    return [float(x) for x in cells]

def expected(model, tokenizer, text): # of the page, on the same weights
    return explain_alike(quantised_twin(model), tokenizer, [recorded, text], None)[1].arrays['probabilities'].tolist()

hostile = ['<script>window.hit = 1</script>', '<img src=x onerror="window.hit = 2">', 'א \u202eב مرحبا', '🙂 👩‍👩‍👧 🇩🇪',
           '</script>']

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [1280, 360])
def test_a_typed_sentence_is_answered_without_kernel_and_network(browser, tiny_bert, tiny_tokenizer, tmp_path, width):
    model = tiny_bert()
    path = written(model, tiny_tokenizer, tmp_path/'model.html')
    p = opened(browser, path, width)
    assert 'The model in this page has 8-bit weights. On the 2 recorded sentences' in p.inner_text('.sv-own-said')
    typed(p, other)
    assert probabilities(p) == pytest.approx(expected(model, tiny_tokenizer, other), abs=6e-4)
    before = p.inner_text('.sv-own-answer')
    typed(p, 'the film was funny')
    assert probabilities(p) == pytest.approx(expected(model, tiny_tokenizer, 'the film was funny'), abs=6e-4)
    assert p.inner_text('.sv-own-answer') != before and 'Saliency: input x gradient' in before
    assert p.locator('.sv-own-maps canvas').count() >= 2 and p.locator('.sv-own .sv-failed').count() == 0
    for text in hostile: typed(p, text)
    assert p.evaluate('() => window.hit') is None and p.locator('.sv-own img').count() == 0
    p.fill('.sv-own-field', 'fine '*2_000)
    p.wait_for_function("() => document.querySelector('.sv-own-said').textContent.includes('accepts at most')")
    typed(p, 'a fine actor')
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    closed(p, path)

def intervened(model, tokenizer, text, **change): # probabilities of the page on the same weights, and its maps
    from salviz.core.interventions import Intervention
    texts, one = [text, text], Intervention.from_dict(change)
    after = explain_alike(quantised_twin(model), tokenizer, texts, None, [None, one])[1]
    return after.arrays['probabilities'].tolist()

def answered(p):
    "Wait for the answer to an intervention"
    settled(p)
    p.wait_for_selector('.sv-own:not([aria-busy])', timeout=60_000)
    settled(p)

@pytest.mark.sample(1)
@pytest.mark.parametrize('width,scheme', [(1280, 'light'), (360, 'dark')])
def test_an_intervention_is_chosen_by_mouse_and_keyboard(browser, tiny_bert, tiny_tokenizer, tmp_path, width, scheme):
    model, check = tiny_bert(), lambda **change: intervened(model, tiny_tokenizer, other, **change)
    path = written(model, tiny_tokenizer, tmp_path/'model.html')
    p = opened(browser, path, width)
    p.evaluate('theme => salviz.state.set({theme})', scheme)
    typed(p, other)
    p.click('.sv-intervene > summary')
    p.click('[title="cross out head 1 of layer 0"]')
    answered(p)
    assert probabilities(p) == pytest.approx(check(heads=[(0, 1)]), abs=6e-4)
    assert 'Changes: head 1 of layer 0 is crossed out.' in p.inner_text('.sv-intervene-statement')
    assert 'with an intervention, not with the unmodified model: head 1' in p.inner_text('.sv-own-answer')
    assert p.locator('.sv-own-map [aria-label^="B (intervention) of"]').count() == 1
    for key in ('ArrowDown', 'ArrowRight', 'Enter'): p.keyboard.press(key)
    answered(p)
    assert p.get_attribute('[title="cross out head 2 of layer 1"]', 'aria-pressed') == 'true'
    assert probabilities(p) == pytest.approx(check(heads=[(0, 1), (1, 2)]), abs=6e-4)
    p.click('[title^="cross out: token 4"]')
    answered(p)
    assert probabilities(p) == pytest.approx(check(heads=[(0, 1), (1, 2)], positions=[4]), abs=6e-4)
    p.click('text=Remove the intervention')
    answered(p)
    assert 'No changes.' in p.inner_text('.sv-intervene')
    assert 'is an intervention' not in p.inner_text('.sv-own')
    p.evaluate("() => salviz.state.set({entry: {kind: 'head', layer: 1, head: 0}})")
    p.select_option('.sv-intervene label:has-text("in view") select', 'saliency')
    p.select_option('.sv-intervene label:has-text("Drop") select', 'high')
    p.click('text=Draw again')
    answered(p)
    change = dict(maps={(1, 0): 'saliency'}, region='high', seed=1)
    assert probabilities(p) == pytest.approx(check(**change), abs=6e-4)
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    for text in hostile: typed(p, text)
    assert p.evaluate('() => window.hit') is None and p.locator('.sv-own img').count() == 0
    closed(p, path)

def test_a_malformed_intervention_in_a_link_is_an_error_in_the_panel(browser, tiny_bert, tiny_tokenizer, tmp_path):
    path = written(tiny_bert(), tiny_tokenizer, tmp_path/'model.html')
    p = opened(browser, path, 1280)
    for change in ({'heads': [[0, 99]]}, {'positions': 'x'}, {'maps': [[0, 0, '<b>']]}, {'layers': [0, 1]}):
        p.evaluate('intervention => salviz.state.set({intervention})', change)
        answered(p)
        p.wait_for_selector('.sv-own-said.sv-failed')
        p.evaluate('() => salviz.state.set({intervention: null})')
        typed(p, other)
        assert p.locator('.sv-own-said.sv-failed').count() == 0
    closed(p, path)

@pytest.mark.slow
def test_integrated_gradients_and_queries_are_computed_in_the_page(browser, tiny_bert, tiny_tokenizer, tmp_path):
    path = written(tiny_bert(), tiny_tokenizer, tmp_path/'model.html')
    p = opened(browser, path, 1280)
    typed(p, other)
    p.select_option('.sv-own-options label:has-text("Saliency by") select', 'integrated_gradients')
    p.wait_for_function("() => document.querySelector('.sv-own-answer').textContent.includes('integrated gradients')")
    p.evaluate("() => { salviz.state.set({tab: 'neurons'}); }")
    p.wait_for_selector('.sv-neurons:not([aria-busy])')
    settled(p)
    assert p.locator('.sv-neurons .sv-failed').count() == 0
    closed(p, path)

@pytest.mark.slow
def test_the_newest_checkpoint_of_a_run_is_shown_by_the_command(browser, tiny_bert, tiny_tokenizer, tiny_data, tmp_path,
                                                                capsys):
    from salviz.cli import main
    from salviz.training.trainer import train
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', probes=2, snapshots=2, epochs=2,
                batch_size=8, keep=5, progress=False)
    assert main(['show', str(run.path), '--model', '--out', str(tmp_path/'run.html')]) == 0
    p = opened(browser, tmp_path/'run.html', 1280)
    typed(p, other)
    assert f'checkpoint of step {max(run.checkpoints)}, with 8-bit weights' in p.inner_text('.sv-own-answer')
    closed(p, tmp_path/'run.html')

def test_a_page_without_a_usable_model_is_not_written(tiny_bert, tiny_tokenizer, tmp_path):
    from salviz.analysis.model_source import ModelSource
    run = invented.run(tmp_path/'run')
    with pytest.raises(ValueError, match='model=True: This needs a model, and this run has no saved weights'):
        Explorer(run).to_html(tmp_path/'run.html', model=True)
    several = tiny_bert(problem_type='multi_label_classification')
    models = page_models([ModelSource(run, (several, tiny_tokenizer))])
    with pytest.raises(ValueError, match='predicts several labels. Write the page without model=True'):
        page_of(run, models=models)
    assert not (tmp_path/'run.html').exists()

def test_only_a_page_with_a_model_may_start_a_worker(tiny_bert, tiny_tokenizer, tmp_path):
    policy = re.compile('Content-Security-Policy" content="([^"]*)')
    text = written(tiny_bert(), tiny_tokenizer, tmp_path/'model.html').read_text()
    assert policy.search(text)[1].endswith('; worker-src blob:')
    assert text.lower().count('</script>') == text.lower().count('<script ')
    without = Explorer(invented.run(tmp_path/'run')).to_html(tmp_path/'run.html').read_text()
    assert 'worker-src' not in policy.search(without)[1]

def trained(tiny_bert, tiny_tokenizer, tiny_data, folder):
    from salviz.training.trainer import train
    return train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=folder, probes=2, snapshots=2, epochs=2, batch_size=8,
                 learning_rate=1e-2, keep=5, progress=False)

def test_two_models_read_the_typed_sentence_side_by_side(browser, tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    from salviz.core.interventions import Intervention
    from salviz.models.checkpoints import load_model
    run = trained(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/'run')
    first, last = (load_model(run, step)[0] for step in (min(run.checkpoints), max(run.checkpoints)))
    path = Explorer(run).to_html(tmp_path/'run.html', model='first and last')
    p = opened(browser, path, 360)
    assert 'The 2 models in this page take 0.' in p.inner_text('.sv-own-said')
    p.select_option('.sv-own-options label:has-text("Compare with") select', 'model/0/first')
    typed(p, other)
    def cells(column):
        texts = p.eval_on_selector_all('.sv-own-table tbody tr', f'all => all.map(o => o.cells[{column}].textContent)')
        return list(map(float, texts))
    def answers(model, **change):
        one = Intervention.from_dict(change) if change else None
        snapshot, = explain_alike(quantised_twin(model), tiny_tokenizer, [other], None, [one])
        return pytest.approx(snapshot.arrays['probabilities'].tolist(), abs=6e-4)
    assert cells(1) == answers(first) and cells(2) == answers(last) and cells(1) != cells(2)
    assert f'checkpoint of step {min(run.checkpoints)}, with 8-bit weights (A) and' in p.inner_text('.sv-own-answer')
    assert '(predicted by A)' in p.inner_text('.sv-own-answer')
    p.evaluate('intervention => salviz.state.set({intervention})', dict(heads=[[0, 1]]))
    answered(p)
    assert cells(1) == answers(first, heads=[(0, 1)]) and cells(2) == answers(last, heads=[(0, 1)])
    assert 'A and B were computed with an intervention' in p.inner_text('.sv-own-answer')
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    closed(p, path)

def test_two_runs_in_a_page_are_stored_as_a_difference(browser, tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    import zlib
    from salviz.models.checkpoints import load_model
    runs = [trained(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/name) for name in ('one', 'two')]
    path = Explorer(*runs).to_html(tmp_path/'runs.html', model=True)
    files = re.findall(r'id="salviz-model-(\d)-page"[^>]*>([^<]*)<', path.read_text())
    assert [number for number, _ in files] == ['0', '1'] and len(files[1][1]) < .5*len(files[0][1]) # the same training
    bits = ''.join(f'{ord(character) & 127:07b}' for character in files[1][1])
    packed = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits) - 7, 8))
    assert b'"isDifference":true' in zlib.decompress(packed)[:100_000]
    p = opened(browser, path, 1280)
    p.select_option('.sv-own-options label:has-text("Compare with") select', 'model/1/page')
    typed(p, other)
    newest, _ = load_model(runs[0], max(runs[0].checkpoints))
    assert probabilities(p) == pytest.approx(expected(newest, tiny_tokenizer, other), abs=6e-4)
    closed(p, path)
