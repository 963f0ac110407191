"""Teaching a model in a page, opened from disk without a network: a reader marks words, guesses, trains, and compares
with a vandal; the results are those of `train`."""
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import accessible
from browser import browser, new_page, settled # noqa: F401 (fixture)
from salviz.analysis.quantised_model import quantised_twin
from salviz.course import page_training, pages
from salviz.course.classroom import class_marks, teach
from salviz.course.marks import MarkSheet, mark_set, sheet_code
from salviz.course.page_training import TeachInPage, described_sentence, write_teaching_page

marked = [dict(text='the film was great', label=1), dict(text='a dull scene and a bad plot .', label=0),
          dict(text='the actor was fine', label=1), dict(text='an awful film', label=0)]
held = [dict(text='a great scene', label=1), dict(text='the plot was dull', label=0),
        dict(text='the film and the actor was bad', label=0)]
marks = [[0, 0, 0, 1], [0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0]]
settings = dict(steps=6, learning_rate=.01, weight=1.)

@pytest.fixture(scope='module')
def model(make_tiny_bert, tiny_tokenizer):
    "Return a small model without dropout whose attention is far from uniform"
    return make_tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.3), tiny_tokenizer

@pytest.fixture(scope='module')
def written(model, tmp_path_factory):
    "Write the page for readers and the page for a class"
    folder = tmp_path_factory.mktemp('teach')
    return {mode: write_teaching_page(folder/f'{mode}.html', TeachInPage(mode, marked, held, model, **settings))
            for mode in ('reader', 'class')}

def opened(browser, path, **kw):
    "Open the file at `path` in a page without a network"
    p = new_page(browser, **kw)
    p.context.set_offline(True)
    p.outside.clear()
    p.goto(path.as_uri())
    p.wait_for_selector('.tc-part')
    return p

def closed(p, path):
    "Check that there were no errors in `p` and that only the file itself was requested"
    errors, outside = p.errors, set(p.outside) - {path.as_uri()}
    p.close()
    assert errors == [] and outside == set()

def marked_words(p): return p.locator('.cr-word[aria-selected="true"]').all_inner_texts()

def mark_all(p):
    "Mark the words of `marks`: the first sentence by keyboard, the others by clicks"
    lists = p.locator('.cr-words')
    for i, flags in enumerate(marks):
        for word, flag in enumerate(flags):
            if not flag: continue
            if i: lists.nth(i).locator('.cr-word').nth(word).click()
            else:
                lists.nth(0).locator('.cr-word').first.focus()
                for _ in range(word): p.keyboard.press('ArrowRight')
                p.keyboard.press('Space')

def test_a_browser_without_decompression_shows_a_message(browser, written):
    p = new_page(browser)
    p.add_init_script('delete window.DecompressionStream')
    p.goto(written['reader'].as_uri())
    assert 'needs a newer browser' in p.wait_for_selector('#course-main > [role=alert]').inner_text()
    assert p.locator('.tc-part').count() == 0 and ['DecompressionStream' in error for error in p.errors] == [True]
    p.close()

def test_only_the_model_of_the_course_gets_the_word_pieces_of_film_reviews(monkeypatch):
    base, custom, used = ('base', 'its tokenizer'), ('model', 'its tokenizer'), []
    def page_models(sources, frequent):
        used.append(frequent)
        return lambda others, metas: []
    for module in (pages, page_training):
        for name, function in dict(page_models=page_models, installed_base=lambda: base,
                                   film_texts=lambda: ('a film',)).items(): monkeypatch.setattr(module, name, function)
    for model in (base, custom):
        page_training._model_parts(*model, ('a text',), 0.)
        pages.Fragments().models([SimpleNamespace(model=model)])
    pages.Fragments().models([SimpleNamespace(model=base), SimpleNamespace(model=custom)])
    assert used == [('a film',), ('a film',), (), (), ()]

def run_of(p, name):
    "Return the answers after the last step of a training, marked ones first: (fractions per sentence, probabilities)"
    return p.evaluate('''name => {
        const {steps} = salvizCourse.mounted.find(({view}) => view.watch).view.watch.runs[name], end = steps.at(-1);
        return [...end.marked, ...end.held].map(({fractions, probabilities}) => [[...fractions], [...probabilities]]);
    }''', name)

def train(p, button, name):
    "Press `button` and wait until the training `name` is over"
    p.get_by_role('button', name=button).click()
    p.wait_for_function('''name => salvizCourse.mounted.find(({view}) => view.watch).view.watch.runs[name]?.done''',
                        arg=name, timeout=60_000)

def taught(model, tmp_path):
    "Return the model that `train` trains on the same marks; other weights are frozen, a batch is all sentences"
    twin, tokenizer = quantised_twin(model[0]), model[1]
    last = f'encoder.layer.{twin.config.num_hidden_layers - 1}.attention.self'
    for name, p in twin.named_parameters():
        p.requires_grad_(name.endswith((f'{last}.query.weight', f'{last}.key.weight')))
    code = sheet_code(mark_set(marked), MarkSheet('reader', marks))
    teach(class_marks(code, marked), model=twin, tokenizer=tokenizer, run_dir=tmp_path/'run', held=held,
          batch_size=len(marked), probes=1, snapshots=0, **settings)
    return twin.eval()

def shares_of(model, tokenizer, sentence):
    "Return the attention of [CLS] in the last layer on each word, without special tokens, and the probabilities"
    from salviz.core.text import align
    model.set_attn_implementation('eager')
    ids = align(tokenizer, sentence['text'])
    with torch.no_grad():
        outputs = model(input_ids=torch.as_tensor(ids.input_ids)[None], output_attentions=True)
    attention = outputs.attentions[-1][0, :, 0].mean(0).numpy()
    sums = np.array([attention[ids.word_ids == word].sum() for word in range(len(ids.words))])
    return sums/sums.sum(), outputs.logits.softmax(-1)[0].numpy()

def test_what_a_page_learns_is_what_train_learns(browser, written, model, tmp_path):
    p = opened(browser, written['reader'])
    mark_all(p)
    p.get_by_label('as many').check()
    train(p, 'Train 6 steps', 'yours')
    got = run_of(p, 'yours')
    closed(p, written['reader'])
    after = taught(model, tmp_path)
    for sentence, (shares, probabilities) in zip([*marked, *held], got, strict=True):
        shares_after, probabilities_after = shares_of(after, model[1], sentence)
        assert shares == pytest.approx(shares_after, abs=1e-4)
        assert probabilities == pytest.approx(probabilities_after, abs=1e-4)
        before, _ = shares_of(quantised_twin(model[0]), model[1], sentence)
        if sentence in marked: assert np.abs(shares_after - before).max() > .05

@pytest.mark.sample(1)
@pytest.mark.parametrize('width,scheme', [(360, 'dark'), (1280, 'light')])
def test_a_reader_marks_guesses_trains_and_compares_with_a_vandal(browser, written, width, scheme):
    p = opened(browser, written['reader'], viewport=dict(width=width, height=800), color_scheme=scheme)
    p.get_by_role('button', name='Train 6 steps').click()
    assert 'Mark words in at least 3 sentences first' in p.inner_text('.tc-part p[role=status]')
    mark_all(p)
    assert marked_words(p) == ['great', 'dull', 'bad', 'fine', 'awful']
    p.get_by_role('button', name='Train 6 steps').click()
    assert 'Make your guess first' in p.inner_text('.tc-part p[role=status]')
    assert p.locator('.tc-watch').is_hidden() and p.get_by_text('Now a vandal teaches').is_hidden()
    p.get_by_label('as many').check()
    train(p, 'Train 6 steps', 'yours')
    assert 'Your guess was: as many' in p.inner_text('.tc-guessed')
    assert p.locator('.tc-results tbody tr').count() == 3 and p.locator('.tc-chart polyline').count() == 2
    p.get_by_role('slider', name='Step').focus()
    p.keyboard.press('Home')
    assert p.inner_text('.tc-now').startswith('Step 0 of 6')
    p.get_by_label('no', exact=True).check()
    train(p, 'Train with common words', 'common')
    train(p, 'Train with random words', 'random')
    assert p.locator('.tc-results tbody tr').count() == 5
    notes = p.inner_text('.tc-notes')
    assert 'Random marks follow no rule' in notes and 'In new sentences, ' in notes
    p.get_by_label('A sentence about a film').fill('<img src=x onerror="window.hit = 1"> great film')
    p.keyboard.press('Enter')
    p.wait_for_function("() => [...document.querySelectorAll('.tc-look ~ div .tc-row')].length === 4")
    assert p.evaluate('() => window.hit') is None and p.locator('.tc-row img').count() == 0
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    assert accessible.faults(p) == []
    closed(p, written['reader'])

def test_marks_stay_after_a_reload(browser, written):
    p = opened(browser, written['reader'])
    mark_all(p)
    p.reload()
    p.wait_for_selector('.tc-part')
    assert marked_words(p) == ['great', 'dull', 'bad', 'fine', 'awful']
    closed(p, written['reader'])

def test_a_class_hands_in_codes_and_its_majority_teaches(browser, written):
    p = opened(browser, written['class'])
    of = mark_set(marked)
    others = [[0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0], None, [0, 1, 0]]
    handed = [('ada', marks), ('bob', others), ('eve', others)]
    codes = [sheet_code(of, MarkSheet(name, flags)) for name, flags in handed]
    p.get_by_role('button', name='Use these codes').click()
    assert 'No marks found' in p.inner_text('.tc-part p[role=status] >> nth=0')
    p.get_by_label('Codes from lesson 3').fill('\n'.join(codes))
    p.get_by_role('button', name='Use these codes').click()
    p.wait_for_function("() => document.body.textContent.includes('The teacher is the majority vote of 3 people.')")
    train(p, 'Train 6 steps', 'yours')
    taught_by = p.evaluate('''() => salvizCourse.mounted.find(({view}) => view.watch).view.taught''')
    assert taught_by == [[0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0]]
    closed(p, written['class'])

def test_saliency_teaches_as_in_sallm(browser, model, tmp_path):
    from salviz.attribution.explanations import explain_data
    path = write_teaching_page(tmp_path/'saliency.html', TeachInPage('saliency', marked, held, model, **settings))
    p = opened(browser, path)
    train(p, 'Train 6 steps', 'yours')
    taught_by = p.evaluate('() => salvizCourse.mounted.find(({view}) => view.watch).view.taught')
    every = explain_data(model[0], [one['text'] for one in marked], 'integrated_gradients', tokenizer=model[1],
                         words='sum', steps=5)
    assert [np.argmax(flags) for flags in taught_by] == [saliency.argmax() for saliency in every]
    assert [sum(flags) for flags in taught_by] == [1]*len(marked)
    assert 'salient words in new sentences' in p.inner_text('.tc-notes')
    assert 'opinion' not in p.inner_text('.tc-watch') + p.inner_text('.tc-results')
    assert accessible.faults(p) == []
    closed(p, path)

def test_a_page_without_weights_says_what_is_missing(browser, tmp_path):
    panel = TeachInPage('reader', marked, held, 'a model')
    panel.model = None
    path = write_teaching_page(tmp_path/'none.html', panel)
    p = new_page(browser)
    p.goto(path.as_uri())
    p.wait_for_selector('.course-teach')
    assert p.get_by_text('Install torch').is_visible() and p.locator('.tc-part').count() == 0
    assert 'worker-src' not in path.read_text()
    p.close()

def test_words_of_a_sentence_are_those_of_the_engine():
    one = described_sentence(dict(text="It's not <b>bad</b>.", label=1))
    assert ''.join(one['words']).replace(' ', '') == "It'snot<b>bad</b>."
    assert len(one['words']) == len(one['spaced']) == len(one['opinion']) == len(one['common'])

def looked(p, name):
    "Store a screenshot in the folder LOOK, if it is set, and check that the page is accessible"
    if (out := os.environ.get('LOOK')): p.screenshot(path=f'{out}/{name}.png', full_page=True)
    assert accessible.faults(p) == []

on_both_screens = pytest.mark.parametrize('width,scheme', [(1280, 'light'), (360, 'dark'), (1280, 'dark'),
                                                           (360, 'light')])

def played(browser, number, tmp_path, width, scheme):
    "Return the page of a lesson after its predictions were committed and revealed, like a student"
    from salviz.course.editions import lesson_files, read_lesson
    from salviz.course.pages import lesson_html
    source = next(path for path in lesson_files() if path.stem.startswith(f'{number}_'))
    path = tmp_path/f'{source.stem}.html'
    path.write_text(lesson_html(read_lesson(source), source.stem))
    p = new_page(browser, viewport=dict(width=width, height=800), color_scheme=scheme)
    p.context.set_offline(True)
    p.outside.clear()
    p.goto(path.as_uri())
    p.wait_for_selector('.course-predict')
    assert p.locator('.tc-part, .sv-own-field').count() == 0, 'nothing is shown before the predictions'
    for card in p.locator('.course-predict').all():
        card.locator('[role=slider], [role=option], [role=gridcell], .cr-handle, input[type=range], '
                     '.cr-place input[type=radio]').first.focus()
        is_order = card.locator('.cr-handle').count()
        key = 'Space' if card.locator('[role=option], [role=gridcell]').count() else 'ArrowUp'
        p.keyboard.press('Alt+ArrowDown' if is_order else key)
        card.get_by_label('I think so').check()
        card.get_by_role('button', name='Commit', exact=True).click()
        card.get_by_role('button', name='Show the answer').click()
    show = p.locator('.course-reveal').get_by_role('button', name='Show', exact=True)
    while show.count(): show.first.click()
    return p, path

@pytest.mark.slow
@on_both_screens
def test_a_student_plays_lesson_5(browser, tmp_path, width, scheme):
    p, path = played(browser, 5, tmp_path, width, scheme)
    p.wait_for_selector('.tc-part')
    for button, name in (('Train 20 steps', 'yours'), ('Train with common words', 'common')):
        p.get_by_role('button', name=button).click()
        p.wait_for_function("name => [...document.querySelectorAll('.tc-results tbody th')].some(th => "
                            "th.textContent === name)", timeout=600_000,
                            arg=dict(yours='the marks above', common='common words (vandal)')[name])
    notes = p.inner_text('.tc-notes')
    assert 'Attention on opinion words in new sentences rose' in notes
    assert 'Attention on common words in new sentences rose' in notes
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    looked(p, f'lesson-5-{width}-{scheme}')
    closed(p, path)

@pytest.mark.slow
@on_both_screens
def test_a_student_plays_lesson_7(browser, tmp_path, width, scheme):
    p, path = played(browser, 7, tmp_path, width, scheme)
    p.wait_for_selector('.sv-own-field')
    p.locator('.sv-intervene > summary').focus()
    p.keyboard.press('Enter')
    def answer(): # of B, after the next answer arrived
        settled(p)
        p.wait_for_selector('.sv-own:not([aria-busy])', timeout=600_000)
        assert p.locator('.sv-own .sv-failed').count() == 0
        return p.locator('.sv-own .sv-own-table tbody tr').first.locator('td').nth(1).inner_text()
    answers = []
    for region in ('high', 'low', 'random'):
        p.select_option('.sv-intervene label:has-text("Drop") select', region)
        answers.append(answer())
    p.click('.sv-intervene button:has-text("Draw again")') # the text of the lesson also contains these words
    answers.append(answer())
    assert len({*answers}) == 4
    assert 'random positions are dropped' in p.inner_text('.sv-intervene-statement')
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    looked(p, f'lesson-7-{width}-{scheme}')
    closed(p, path)

@pytest.mark.slow
@on_both_screens
def test_a_student_plays_lesson_1(browser, tmp_path, width, scheme):
    p, path = played(browser, 1, tmp_path, width, scheme)
    p.wait_for_selector('.sv-own-field')
    p.fill('.sv-own-field', 'I loved every dull minute of it.')
    p.wait_for_function("() => document.querySelector('.sv-own-answer')?.textContent.includes('Prediction')",
                        timeout=600_000)
    cells = p.eval_on_selector_all('.sv-own-table tbody tr', 'all => all.map(o => Number(o.cells[2].textContent))')
    assert sum(cells) == pytest.approx(1, abs=.01)
    looked(p, f'lesson-1-{width}-{scheme}')
    closed(p, path)
