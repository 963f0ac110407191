"The report: its statements follow from the rows, and it is accessible."
import csv
import html
import re
import shutil
import subprocess
from dataclasses import replace

import pandas as pd
import pytest

import accessible
from browser import new_page
from invented_rows import invented_rows, outcomes
from salviz.replication import registry
from salviz.replication.registry import claims, registry_description, judged
from salviz.replication.report import (_baselines_first, _claim_words, _hardly_learnt, _reason, _verdicts_latex,
                                       find_all, groups, headline, report_html, write_report)

hostile = '<script>alert(1)</script> & "quotes" \'and\' \\% $x$ </style> ' + 'longword'*12

@pytest.fixture(scope='module')
def rows(): return invented_rows(without=('LR',))

@pytest.fixture(scope='module')
def findings(rows): return find_all(rows)

@pytest.fixture(scope='module')
def page_text(rows): return report_html(rows)

def text_of(page): return re.sub(r'\s+', ' ', html.unescape(re.sub('<[^>]*>', ' ', page)))

def part(page, start, end): return page[page.index(start):page.index(end)]

@pytest.mark.slow
def test_every_verdict_occurs_in_the_invented_rows(findings):
    assert {f.word for f in findings} == set(groups)

def test_every_effect_has_the_verdict_that_its_rows_were_invented_for(findings):
    words = {f.effect.name: f.word + ', small'*f.verdict.is_small for f in findings}
    assert {name: words[name] for name in outcomes if name != 'D7'} == {k: v for k, v in outcomes.items() if k != 'D7'}

def test_the_first_page_lists_every_claim_once_below_its_verdict(page_text, findings):
    board, words, named = part(page_text, '<div class="board">', '<h2>Scale'), _claim_words(findings), []
    for word in dict.fromkeys(words.values()):
        group = board[board.index(f'<h3>{groups[word][0]} '):].split('<div class="group')[0]
        here = re.findall(r'<a href="#([^"]*)">([^<]*)</a>', group)
        assert [name for name, _ in here] == [name for name, came in words.items() if came == word]
        named += here
    assert {name: html.unescape(title) for name, title in named} == {c.name: c.title for c in claims.values()}

def test_the_headline_counts_the_verdicts_of_all_claims(findings):
    counts = headline(findings, 'small').removesuffix('.').partition(': ')[2].split(', ')
    words = list(_claim_words(findings).values())
    assert counts == [f'{words.count(word)} {word}' for word in groups if word in words]
    assert sum(int(count.split()[0]) for count in counts) == len(claims)

def test_every_claim_has_a_section_with_the_numbers_and_weaknesses_of_the_paper_and_our_test(page_text):
    for c in claims.values():
        own = page_text[page_text.index(f'<section class="claim" id="{c.name}">'):]
        own = text_of(own[:own.index('</section>')])
        printed = [label for numbers in (c.numbers, *(more for _, more in c.also)) for label, *_ in numbers]
        for wanted in (c.title, c.paper_says, c.weak, c.ours, *printed):
            assert re.sub(r'\s+', ' ', wanted) in own, (c.name, wanted)
        for e in c.effects: assert e.title.replace(' - ', ' − ') in own

@pytest.mark.slow
def test_printed_intervals_are_those_of_the_verdicts_and_are_omitted_without_a_verdict(rows, findings, tmp_path):
    verdicts, page = judged(rows), write_report(tmp_path, rows)
    for row in csv.DictReader((page.parent/'effects.csv').open()):
        v = verdicts[row['effect']]
        if row['verdict'] in ('no verdict', 'not run', 'not testable'):
            assert row['low'] == row['high'] == row['p'] == ''
        else: assert (float(row['low']), float(row['high'])) == (v.low, v.high)
    assert len(pd.read_csv(page.parent/'rows.csv')) == len(rows)
    assert (page.parent/'forest.pdf').read_bytes()[:4] == b'%PDF'

@pytest.mark.slow
def test_verdicts_follow_from_rows_csv_alone(rows, findings, tmp_path):
    again = pd.read_csv(write_report(tmp_path, rows).parent/'rows.csv')
    assert [f.word for f in find_all(again)] == [f.word for f in findings]

def test_a_failed_gate_is_never_reported_as_not_supported(findings, page_text):
    closed = [f for f in findings if f.word == 'not testable']
    assert {f.claim.name for f in closed} == {'S4', 'S6'}
    for f in closed:
        assert not f.has_interval and ('gate' in _reason(f).lower() or 'dropped' in _reason(f))

def test_one_pair_gives_a_number_and_no_verdict(findings):
    g8 = next(f for f in findings if f.effect.name == 'G8')
    assert g8.word == 'no verdict' and g8.verdict.pairs == 1 and '1 pair:' in _reason(g8)

@pytest.mark.slow
def test_the_quick_budget_gives_numbers_without_verdicts_and_states_it_at_the_top():
    page = report_html(invented_rows('quick'), 'quick')
    top = text_of(page[:page.index('<h2>Limitations')])
    words = re.findall(r'class="[^"]*\bw-([\w-]+)', page)
    assert 'There are no verdicts' in top and {*words} <= {'no-verdict', 'not-run'}
    assert not any(f.has_interval for f in find_all(invented_rows('quick'), 'quick'))

@pytest.mark.slow
def test_a_report_without_rows_can_be_written(tmp_path):
    nothing = invented_rows()[:0]
    page = write_report(tmp_path, nothing).read_text()
    assert '26 not run' in page and 'Nothing has been run' in page and not (tmp_path/'forest.pdf').exists()

@pytest.mark.slow
def test_names_from_rows_are_escaped(rows, monkeypatch, tmp_path):
    named = replace(claims['D2'], title=hostile, paper_says=hostile, weak=hostile, ours=hostile, unit=hostile,
                    numbers=((hostile, 1., .5, 2., None),),
                    effects=(replace(claims['D2'].effects[0], title=hostile),))
    monkeypatch.setitem(registry.claims, 'D2', named)
    evil = rows.assign(task=rows['task'].replace('movie', hostile), processor=hostile)
    evil.attrs = dict(machines={hostile: dict(processor=hostile, versions={hostile: hostile})}, registries=[])
    page = write_report(tmp_path, evil).read_text()
    assert '<script' not in page and '&lt;script&gt;' in page and page.count('</style>') == 1
    assert '\\% \\$x\\$' in (tmp_path/'verdicts.tex').read_text()

@pytest.mark.slow
def test_changes_of_the_registry_since_the_first_run_are_printed(rows):
    before = registry_description('small')
    before['effects']['D2']['smallest'] = .5
    changed = rows.copy()
    changed.attrs = {**rows.attrs, 'registries': [before]}
    assert 'effects.D2.smallest was 0.5 and is 0.01' in report_html(changed)
    assert 'unchanged since the first run' in report_html(rows)

def test_the_table_of_verdicts_compiles(findings, tmp_path):
    (tmp_path/'a.tex').write_text(_verdicts_latex(findings, standalone=True), encoding='utf-8')
    if not shutil.which('pdflatex'): return
    done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'a.tex'], cwd=tmp_path,
                          capture_output=True, text=True, errors='replace')
    assert done.returncode == 0, done.stdout[-1500:]
    assert 'Overfull' not in done.stdout and 'Float too large' not in done.stdout

@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 1280])
def test_the_page_fits_its_window_and_loads_nothing(browser, page_text, tmp_path, theme, width):
    page = new_page(browser, viewport=dict(width=width, height=800), color_scheme=theme)
    (tmp_path/'report.html').write_text(page_text)
    page.goto((tmp_path/'report.html').as_uri())
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    beyond = page.evaluate('''() => [...document.querySelectorAll('h1, h2, h3, h4, p, li, figure, .chip')]
        .filter(el => !el.closest('.wide') && el.getBoundingClientRect().right > innerWidth + 1).length''')
    dark = page.evaluate('getComputedStyle(document.documentElement).backgroundColor') == 'rgb(21, 24, 28)'
    links = page.evaluate('''() => [...document.querySelectorAll('a[href^="#"]')]
        .filter(a => !document.getElementById(decodeURIComponent(a.hash.slice(1)))).map(a => a.hash)''')
    assert beyond == 0 and dark == (theme == 'dark') and links == [] and page.errors == []
    assert [url for url in page.outside if not url.startswith('file:')] == []
    page.close()

@pytest.mark.slow
@pytest.mark.parametrize('theme,width', [('light', 1280), ('dark', 360)])
def test_the_page_has_no_violation_of_axe(browser, page_text, tmp_path, theme, width):
    page = new_page(browser, viewport=dict(width=width, height=800), color_scheme=theme)
    (tmp_path/'report.html').write_text(page_text)
    page.goto((tmp_path/'report.html').as_uri())
    assert accessible.faults(page) == []
    page.close()

@pytest.mark.slow
def test_rows_can_be_downloaded_from_the_page(browser, page_text, rows, tmp_path):
    page = new_page(browser)
    (tmp_path/'report.html').write_text(page_text)
    page.goto((tmp_path/'report.html').as_uri())
    with page.expect_download() as waited: page.click('a[download]')
    waited.value.save_as(tmp_path/'kept.csv.gz')
    assert len(pd.read_csv(tmp_path/'kept.csv.gz')) == len(rows) and page.errors == []
    page.close()

def test_the_hollow_dot_is_the_baseline_of_the_claim(findings):
    asked = dict(D1a='none', D2='FT', D3='RD', D4='noCT', D6='gold', G1='plain', G7b='plain', S3='FT', L3='FT')
    effects = {f.effect.name: f.effect for f in findings}
    assert {k: effects[k].terms[_baselines_first(effects[k].terms)[0]].arm for k in asked} == asked
    start = effects['G6'].terms[_baselines_first(effects['G6'].terms)[0]]
    assert dict(start.where)['start'] == 'plain'

@pytest.mark.slow
def test_conditions_that_barely_learned_are_named_with_the_verdict_and_on_the_first_page():
    rows = invented_rows(asked=dict(outcomes, D1c='supported'))
    high = (rows.study == 'PRIOR') & (rows.method == 'high')
    idle = rows.assign(majority=rows.majority.where(~high, .5), test_score=rows.test_score.where(~high, .53))
    named = [f.effect.name for f in find_all(idle) if any('high (0.530' in x for x in _hardly_learnt(f.effect, idle))]
    assert named and set(named) <= {'D1a', 'D1b', 'D1c'}
    text = text_of(report_html(idle))
    assert 'high (0.530; largest class 0.500)' in text
    assert 'the difference reflects only that: ' + claims['D1'].short in text

def test_numeric_tasks_are_sorted_and_have_a_unit(page_text):
    part = page_text[page_text.index('id="G1"'):page_text.index('id="G2"')]
    counted = re.findall(r'\b(\d+(?:\.\d)?) layers', part.partition('class="strip"')[2])
    assert counted[:3] == ['2', '6', '12'] and '.' not in ''.join(counted)

def test_effects_that_may_be_chance_are_named_on_the_first_page(page_text, findings):
    "Their interval excludes 0, but p after Holm's correction is not small"
    decided = [f for f in findings if f.effect.primary and f.word in ('supported', 'contradicted')]
    weak = [f for f in decided if f.p_holm >= .05]
    top = text_of(page_text[:page_text.index('<nav')])
    named = re.search(r'are significant at 5 %(?:, and (.*?) may be due to chance)?\.', top)
    assert (named[1].split(', ') if named[1] else []) == [f.effect.name for f in weak]
    alone = [f for f in weak if sum(e.primary for e in f.claim.effects) == 1]
    assert top.count('so the effect may be due to chance.') == len(alone)

def test_the_forest_labels_both_directions_and_names_omitted_effects(page_text, findings):
    drawn = text_of(part(page_text, '<h2 id="effects">', '<table class="effects">'))
    closed = [f.effect.name for f in findings if f.word == 'not testable']
    omitted = f'Not drawn, because their gates failed: {", ".join(closed)}.'
    assert 'against the claim' in drawn and omitted in drawn

def test_names_of_columns_occur_only_in_the_raw_data(page_text):
    text = text_of(page_text[:page_text.index('<h2 id="rows">')])
    assert not re.findall(r'\b[a-z]+_(?:loss|score|accuracy|aup|match)\b', text)
