"A small lesson with every element of a lesson, for tests that create editions and pages of it"
import nbformat

number = '.87'
facts = {'1.share': number}.__getitem__

head = '''# 1 Which word is read most?

> Difficulty 1 of 3. 10 minutes in the browser, 20 in the notebook. Prerequisites: softmax.

You will read a row of attention, $a_i = e^{s_i} / \\sum_j e^{s_j}$, and say what it cannot tell.'''

plan = '''## For the teacher

### Minute plan

| minutes | what |
|---|---|
| 5 | question |
| 15 | exercise |

### Misconceptions

A bright word is not a reason.

### What this picture cannot show

Why the classifier says what it says.

### Three questions

What is left out? What would refute it? Who reads it?'''

recall = '## Five questions to recall\n\n' + '\n\n'.join(
    f'<details><summary>{i}. What does row {i} sum to?</summary>\n\nTo one.\n\n</details>' for i in range(1, 6))

parts = [
    ('markdown', head, ''),
    ('markdown', plan, 'teacher'),
    ('code', 'from salviz import Explorer\nfrom salviz.core.runs import Run\nfrom salviz.course.bars import Bars\n'
             'from salviz.course.predictions import Predict, Reveal, answers, choice, words\n'
             "run = Run.example('plain')\nBars({'best': .5, 'year': .25}, 'attention')", 'picture'),
    ('markdown', '## Predict\n\nOne sentence, two words.', ''),
    ('code', "Predict('1.words', 'Which two words does it read most?', words('One of the best movies of the year.'),\n"
             "        truth=['best', 'movies'])", ''),
    ('markdown', '**Expected.** Most say best; under 30 % right: primer.', 'teacher'),
    ('code', "Predict('1.class', 'What does it say?', choice('negative', 'positive'), truth='positive')", ''),
    ('markdown', '## Reveal', ''),
    ('code', "Reveal('1.words', lambda: [Explorer(run, probes=[0, 1], panels=['sentence', 'time']),\n"
             "                           'It reads **best** most, the revealed words say.'])", ''),
    ('code', "Reveal('1.class', lambda: Explorer(run, probes=[0, 1], panels=['heads', 'map']))", ''),
    ('markdown', f'The accuracy is {number}<!--1.share-->.', ''),
    ('markdown', '## Write\n\n**Exercise.** Difficulty 1 of 3, up to 10 minutes. A row that sums to one.', 'notebook'),
    ('code', 'def row(scores):\n    return None # yours', 'stub'),
    ('code', 'import numpy as np\n\ndef row(scores):\n    weights = np.exp(scores - np.max(scores))\n'
             '    return weights/weights.sum()', 'solution'),
    ('markdown', 'The largest score is taken off first, so that nothing overflows.', 'solution'),
    ('code', "class Verdict:\n    passed = row([0., 0.]) is not None and float(row([0., 0.])[0]) == .5\n\nVerdict()",
     'notebook'),
    ('markdown', 'In a notebook you write the row as $e^{s_i} / \\sum_j e^{s_j}$.', 'page'),
    ('code', 'trained = True', 'train'),
    ('markdown', '## Discuss\n\nWhat do you ask of who shows you this?', ''),
    ('markdown', recall, ''),
    ('code', "answers('your-nickname')", ''),
    ('code', "assert run.scores('test')['accuracy'] > .8", 'facts')]

def lesson(changed=(), more=()):
    "Return the lesson's source; `changed`: {number of a cell: its text}; `more`: cells as in `parts`"
    cells = []
    for i, (kind, text, tag) in enumerate([*parts, *more]):
        text = dict(changed).get(i, text)
        made = nbformat.v4.new_code_cell(text) if kind == 'code' else nbformat.v4.new_markdown_cell(text)
        made['id'] = f'cell-{i}'
        if tag: made.metadata['tags'] = [tag]
        cells.append(made)
    kernel = dict(display_name='Python 3', language='python', name='python3')
    return nbformat.v4.new_notebook(cells=cells, metadata=dict(kernelspec=kernel))

def written(folder, **kw):
    "Create `folder` with the lesson, a primer and a page for teachers, like the package's"
    folder.mkdir()
    def page(text, *tags): return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(
        text, metadata=dict(tags=list(tags)))])
    nbformat.write(lesson(**kw), folder/'1_row.ipynb')
    nbformat.write(page('# Transformers in one page'), folder/'0_transformers.ipynb')
    nbformat.write(page('# For those who teach', 'teacher'), folder/'0_for_teachers.ipynb')
    return folder
