"The report and the archive of the tuned protocol: their statements follow from the rows"
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import accessible
from browser import new_page
from invented_tuned import write_invented

from salviz.replication.archive import citation_text, preferred_citation, verdicts_of, write_archive
from salviz.replication.registry import paper_titles
from salviz.replication.report import find_all
from salviz.replication.reproduce import shipped_rows
from salviz.replication.rows import read_rows, row_entries
from salviz.replication.tuned import tuned_effects, tuned_verdicts
from salviz.replication.tuned_report import (compare_budgets, cost_of, effects_frame, expectations, find_tuned,
                                             tuned_report_html, write_tuned_report)

root = Path(__file__).resolve().parents[2]
some = ('D2', 'D3', 'S1 text', 'L3a', 'G9a')

@pytest.fixture(scope='module')
def file(tmp_path_factory):
    words = {'D3': 'not supported', 'S1 text': 'not supported', 'G9a': 'inconclusive'}
    return write_invented(tmp_path_factory.mktemp('tuned')/'rows.jsonl', words, some)

@pytest.fixture(scope='module')
def page(file): return tuned_report_html(file)

def plain(html): return re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', html))

def test_questions_name_existing_effects_and_every_paper_has_some():
    names = {e.name for group in tuned_effects.values() for e in group}
    assert set(expectations) == set(paper_titles)
    assert {name for e in expectations.values() for asked in e.questions.values() for name in asked} <= names

def test_findings_have_the_verdicts_of_the_protocol(file):
    verdicts = tuned_verdicts(file)
    found = {f.effect.name: f for f in find_tuned(file)}
    assert list(found) == list(verdicts)
    for name, verdict in verdicts.items():
        if verdict is None: assert found[name].word == 'not run'
        else: assert (found[name].word, found[name].verdict) == (verdict.word, verdict.whole)
    assert [found[name].word for name in some] == ['supported', 'not supported', 'not supported', 'supported',
                                                   'inconclusive']

def test_each_answer_says_what_the_verdict_allows(file, page):
    text, found = plain(page), {f.effect.name: f for f in find_tuned(file)}
    assert f'Yes, by {found["D2"].verdict.mean:.3f} on average and by at most {found["D2"].verdict.high:.3f}' in text
    low, high = (f'{x:.3f}'.replace('-', '−') for x in (found['S1 text'].verdict.low, found['S1 text'].verdict.high))
    assert f'No: the change is between {low} and {high}' in text
    assert 'Not run yet with tuned settings; verdict of the first report, with one setting: inconclusive' in text

def test_the_page_says_that_it_is_incomplete_and_lists_what_is_missing(file, page):
    text = plain(page)
    waiting = re.search(r'Incomplete: no verdict yet for (.*?)\.', text)[1].split(', ')
    assert waiting == [f.effect.name for f in find_tuned(file) if f.word == 'not run']
    assert '<script' not in page and 'the same as before the first run' in text

def test_a_changed_rule_is_reported(file, tmp_path):
    lines = file.read_text().splitlines()
    first = json.loads(lines[0])
    first['registry']['effects']['D2']['smallest'] = .5
    changed = tmp_path/'rows.jsonl'
    changed.write_text('\n'.join([json.dumps(first), *lines[1:]]) + '\n')
    assert 'effects.D2.smallest was 0.5 and is 0.009' in plain(tuned_report_html(changed))

def test_domains_that_differ_get_their_own_answers_and_lost_domains_are_named(tmp_path):
    file = write_invented(tmp_path/'rows.jsonl', effects=('D2', 'S4a'), opposed=('D2',),
                          lost={('TEXT', 'SGT', 'tweets')})
    found, text = {f.effect.name: f for f in find_tuned(file)}, plain(tuned_report_html(file))
    assert {k: v.word for k, v in found['D2'].verdicts.items()} == dict(amazon='supported', movie='contradicted',
                                                                        tweets='supported')
    assert 'movie: No, the opposite' in text and 'amazon: Yes' in text
    assert found['S4a'].left_out == ('tweets',)
    assert re.search('did not beat a constant prediction: tweets', text)

def test_cost_is_the_median_over_pairs_of_runs(file):
    rows = row_entries(file, 'tuned')
    seconds = {(r['method'], r['settings']['task'], r['seed']): r['seconds'] for r in rows if r['study'] == 'AD'}
    ratios = [x/seconds['FT', task, seed] for (method, task, seed), x in seconds.items() if method == 'GA']
    middle, low, high, pairs = cost_of(read_rows(file, 'tuned'), 'AD', 'FT', 'GA')
    assert pairs == len(ratios)
    np.testing.assert_allclose([middle, low, high], [np.median(ratios), min(ratios), max(ratios)])

def test_unsteady_times_are_not_presented_as_a_cost(file, page, tmp_path):
    steady = 'A training step takes 2.00 times as long as without the method (1.85 to 2.07 '
    assert steady in plain(page)
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    for row in entries:
        if row.get('method') == 'GA' and row['seed'] == 200: row['seconds'] /= 3
    changed = tmp_path/'rows.jsonl'
    changed.write_text('\n'.join(map(json.dumps, entries)) + '\n')
    text = plain(tuned_report_html(changed))
    assert re.search('vary too much to state a cost: 0.6\\d to 2.07 times', text) and steady not in text

def test_depths_are_named_and_ordered_by_size():
    g2 = {f.effect.name: f for f in find_tuned(shipped_rows('tuned'))}['G2']
    differs = replace(g2.sequential, by_task={k: replace(g2.verdict, mean=float(k)) for k in ('12', '2', '6')})
    verdicts = replace(g2, sequential=differs).verdicts
    assert [(k, v.mean) for k, v in verdicts.items()] == [('2 layers', 2), ('6 layers', 6), ('12 layers', 12)]

def test_budgets_are_compared_only_where_all_effects_of_a_claim_ran(file):
    first = find_all(read_rows(shipped_rows('small'), 'small'))
    both = compare_budgets(find_tuned(file), first).set_index('claim')
    ran = {e: f.word != 'not run' for f in find_tuned(file) for e in [f.effect.name]}
    whole = {name for name, group in tuned_effects.items() if all(ran[e.name] for e in group if e.primary)}
    assert {'D2', 'D3', 'G9'} <= set(both.index) == whole - {'L1'} and not ran['S1 digits']
    pairs = {f.effect.name: f.verdict.pairs for f in [*first, *find_tuned(file)]}
    assert f'→ {pairs["D3"]}' in both.changes['D3'] and 'threshold of D3 0.005 → 0.00375' in both.changes['D3']

@pytest.mark.parametrize('budget', [pytest.param('small', marks=pytest.mark.slow), 'tuned'])
def test_an_archive_contains_what_its_verdicts_follow_from(budget, file, tmp_path):
    rows = file if budget == 'tuned' else shipped_rows('small')
    archive = zipfile.ZipFile(write_archive(tmp_path/'out'/'a.zip', rows, budget))
    archive.extractall(tmp_path/'open')
    again = tmp_path/'open'
    assert verdicts_of(again/'rows.jsonl', budget) == json.loads((again/'verdicts.json').read_text())
    crate = json.loads((again/'ro-crate-metadata.json').read_text())
    by_id = {x['@id']: x for x in crate['@graph']}
    assert by_id['ro-crate-metadata.json']['about'] == {'@id': './'}
    listed = {part['@id'] for part in by_id['./']['hasPart']}
    assert listed | {'ro-crate-metadata.json'} == set(archive.namelist()) and listed <= set(by_id)
    words = pd.read_csv(again/'effects.csv').set_index('effect').verdict.to_dict()
    assert words == {e['effect']: e['verdict'] for e in json.loads((again/'verdicts.json').read_text())['effects']}
    assert len(json.loads((again/'settings.json').read_text())) == (9 if budget == 'tuned' else 0)
    assert not [p for p in again.iterdir() if str(tmp_path) in p.read_bytes().decode('latin1')] # no path

def test_the_citation_of_an_archive_is_that_of_the_repository():
    ours = yaml.safe_load((root/'CITATION.cff').read_text())
    assert ours['preferred-citation'] == preferred_citation()
    cited = yaml.safe_load(citation_text('2026-01-31'))
    assert cited['preferred-citation'] == {**ours['preferred-citation'], 'date-released': '2026-01-31'}
    assert {'cff-version', 'message', 'title', 'authors'} <= set(cited)

def test_the_page_of_the_shipped_rows_and_of_no_rows_can_be_written(tmp_path):
    nothing = tmp_path/'nothing.jsonl'
    nothing.write_text('')
    assert 'Nothing has been run yet' in write_tuned_report(tmp_path/'a', nothing).read_text()
    if shipped_rows('tuned').is_file():
        page = plain(write_tuned_report(tmp_path/'b', shipped_rows('tuned')).read_text())
        ran = sum(f.word != 'not run' for f in find_tuned(shipped_rows('tuned')))
        assert f'{ran} of 29 effects' in page

def test_hostile_names_are_escaped(file, tmp_path):
    evil = tmp_path/'rows.jsonl'
    evil.write_text(file.read_text().replace('Invented CPU', '<img src=x onerror=alert(1)>'))
    assert '<img' not in tuned_report_html(evil)

def test_a_table_has_one_line_per_effect(file):
    frame = effects_frame(find_tuned(file)).set_index('effect')
    assert len(frame) == sum(map(len, tuned_effects.values()))
    assert (frame.look[list(some)] >= 1).all() and ((frame.look == 0) == (frame.verdict == 'not run')).all()
    assert bool(frame.below_paper['D3']) and not bool(frame.below_paper['D2'])

@pytest.mark.slow
@pytest.mark.parametrize('theme,width', [('light', 1280), ('dark', 360)])
def test_the_page_fits_its_window_and_has_no_violation_of_axe(browser, page, tmp_path, theme, width):
    view = new_page(browser, viewport=dict(width=width, height=800), color_scheme=theme)
    (tmp_path/'report.html').write_text(page)
    view.goto((tmp_path/'report.html').as_uri())
    assert view.evaluate('document.documentElement.scrollWidth') <= width
    links = view.evaluate("""() => [...document.querySelectorAll('a[href^="#"]')]
        .filter(a => !document.getElementById(decodeURIComponent(a.hash.slice(1)))).map(a => a.hash)""")
    assert accessible.faults(view) == [] and view.errors == [] and links == []
    view.close()
