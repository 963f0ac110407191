"""Sizes and times of pages with a model, in Chromium from a file without a network: `python tests/page_model_times.py`
prints one row for MiniLM with 6 layers and one with 2, for a sentence of 20 tokens. `python tests/page_model_times.py
training` prints the size of a page that trains MiniLM with 6 layers, the seconds for 20 steps on 40 sentences, and the
processor time of the browser for them, which does not depend on what else runs on the machine."""
import os
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from browser import chromium, flags, knows_the_tour
from salviz.course.material import course_sentences
from salviz.course.page_training import TeachInPage, write_teaching_page
from salviz.model_explorer import explore
from salviz.models.loading import load_classifier

recorded = ['One of the best movies of the year.', 'One of the worst movies of the year.']
# each a change of the previous one, like a user who types
typed = [f'the film is not bad and the story is {word} , but it was not for me at all .'
         for word in ('good', 'great', 'long', 'short', 'new', 'old')]

# Milliseconds from the last key to the maps and to the saliency, without the 150 ms for which the panel waits for more
# keys
measured = '''async ([text, attribution]) => {
    const question = {kind: 'own', run: 0, texts: [base, [text]], choice: 'page', attribution, head: null};
    const start = performance.now(), times = [];
    await new Promise((done, fail) => kernel.ask(question, answer => {
        if (answer.error) fail(new Error(answer.error));
        if (!answer.progress) times.push(performance.now() - start);
        if (!answer.more) done();
    }));
    return times;
}'''

def times_of(path):
    "Return seconds to load and to the first answer; milliseconds for maps, saliency (medians), integrated gradients"
    with sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=chromium(), args=flags)
        page = browser.new_context(offline=True).new_page()
        page.add_init_script(knows_the_tour)
        start = time.monotonic()
        page.goto(path.as_uri())
        page.wait_for_function('() => window.salviz')
        load = time.monotonic() - start
        page.evaluate('base => { window.kernel = salviz.kernel; window.base = base; }', recorded[:1])
        start = time.monotonic()
        page.evaluate(measured, [recorded[1], 'input_x_gradient'])
        first = time.monotonic() - start
        rows = sorted(page.evaluate(measured, [text, 'input_x_gradient']) for text in typed[:5])
        path_time = page.evaluate(measured, [typed[5], 'integrated_gradients'])[-1]
        browser.close()
    return load, first, rows[2][0], sorted(row[1] for row in rows)[2], path_time

def processor_seconds():
    "Return the processor time of all descendants of this process in seconds"
    files = [file for file in Path('/proc').glob('[0-9]*/stat') if file.exists()]
    stats = [file.read_text().rpartition(')')[2].split() + [file.parent.name] for file in files]
    family = {str(os.getpid())}
    while more := {stat[-1] for stat in stats if stat[1] in family} - family: family |= more
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in stats if stat[-1] in family - {str(os.getpid())})
    return ticks/os.sysconf('SC_CLK_TCK')

def training_row():
    """Return a row: megabytes of a page with 40 sentences to mark, seconds to read all sentences and for 20 steps,
    processor time"""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as pw:
        panel = TeachInPage(marked=course_sentences('held'), held=course_sentences('mark'))
        path = write_teaching_page(Path(folder)/'teach.html', panel)
        browser = pw.chromium.launch(executable_path=chromium(), args=flags)
        page = browser.new_context(offline=True).new_page()
        page.goto(path.as_uri())
        page.get_by_role('button', name='Use the word list').click()
        page.get_by_label('as many').check()
        start, before = time.monotonic(), processor_seconds()
        page.get_by_role('button', name='Train 20 steps').click()
        page.wait_for_selector('.tc-watch:not([hidden])', timeout=600_000)
        read = time.monotonic() - start
        page.wait_for_selector('.tc-results table', timeout=600_000)
        whole, processor = time.monotonic() - start, processor_seconds() - before
        browser.close()
        return f'{path.stat().st_size/1e6:7.2f} {read:10.1f} {whole - read:11.1f} {processor:12.1f}'

if __name__ == '__main__' and sys.argv[1:] == ['training']:
    print('page MB  reading s  training s  processor s')
    print(training_row())
elif __name__ == '__main__':
    print('layers  page MB  load s  first s  maps ms  saliency ms  integrated gradients s')
    with tempfile.TemporaryDirectory() as folder:
        for layers in (6, 2):
            more = {} if layers == 6 else dict(num_hidden_layers=layers)
            model, tokenizer = load_classifier('movie-minilm', **more)
            explorer = explore(model, tokenizer, recorded, saliency='input_x_gradient', attribution=False)
            path = explorer.to_html(Path(folder)/f'{layers}.html', model=True)
            load, first, maps, saliency, steps = times_of(path)
            print(f'{layers:6} {path.stat().st_size/1e6:8.2f} {load:7.1f} {first:8.1f} {maps:8.0f} {saliency:12.0f} '
                  f'{steps/1000:8.1f}')
