"""Remaking a figure from its file: every kind has the same bytes, or an error says why not; damaged and hostile files
are rejected"""
import html
import random
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import every_kind
import invented
from salviz.cli import main
from salviz.core.provenance import read_stamp
from salviz.core.run_files import sealed, write_object
from salviz.core.runs import Run
from salviz.explorer.widget import Explorer
from salviz.figures.drawing import Math, figure_kinds, save_figure
from salviz.figures.kinds import figure
from salviz.figures.remaking import _differences, remake
from salviz.metrics.study_results import StudyResults
from salviz.views.base import view_for

orphans = ['token_labels', 'translation', 'continuation', 'answer_heat_map', 'signal',
           'saliency_distribution', 'patch_attention', 'scored_sentence', 'multi_label_sentence', 'evidence',
           'saliency_grid'] # their snapshots are not from a folder, or were changed: the file contains them

@pytest.fixture(scope='module')
def made(tmp_path_factory): return every_kind.everything(tmp_path_factory.mktemp('runs'))

def drawn(source, kind, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return save_figure(figure(source, kind, **options), path)

def is_of_one_snapshot(kind): return figure_kinds()[kind].takes == 'snapshot' and kind not in orphans

usual = [k for k in figure_kinds() if not is_of_one_snapshot(k)] + ['discard_region', 'attention_map', 'triptych']

@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', usual)
def test_a_remade_figure_has_the_same_bytes_or_an_error_says_why_not(kind, made, tmp_path):
    source, options = made[kind]
    file = drawn(source, kind, tmp_path/'a.pdf', **options)
    folders = [made['discard_region'][0].path.parent]
    if kind == 'patch_attention': # whose arrays were given other shapes than a recording can have
        with pytest.raises(ValueError, match='created from a Snapshot that cannot be stored'): remake(file, folders)
    else: assert remake(file, folders).same

@pytest.fixture(scope='module')
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp('project')
    run = invented.run(folder/'runs/one', 'ADDrop')
    (folder/'paper').mkdir()
    for end in ('pdf', 'svg', 'png'):
        drawn(run, 'discard_region', folder/f'paper/a.{end}', layer=0, head=1, width='acl')
    return folder

@pytest.fixture
def home(project, tmp_path):
    "Return a project with a run and a figure of it in each format"
    return Path(shutil.copytree(project, tmp_path/'home'))

@pytest.mark.slow
@pytest.mark.parametrize('end', ['pdf', 'svg', 'png'])
def test_a_file_records_how_it_was_made_and_nothing_about_the_machine(home, end):
    file = home/f'paper/a.{end}'
    recipe, data = read_stamp(file), file.read_bytes()
    assert recipe['kind'] == 'discard_region'
    assert recipe['arguments'] == dict(layer=0, head=1, width='acl')
    assert recipe['source']['run']['path'] == '../runs/one' and recipe['source']['run']['method'] == 'ADDrop'
    assert recipe['code']['versions']['matplotlib'] and recipe['fonts'] == ['DejaVu Sans']
    assert str(home).encode() not in data and str(Path.home()).encode() + b'/' not in data
    again = remake(file)
    assert again.same and again.path is None and again.differs == []

@pytest.mark.slow
def test_moved_runs_are_found_in_a_folder_by_their_config(home):
    shutil.copytree(home/'runs', home/'elsewhere/deep')
    shutil.copytree(home/'paper', home/'copy/paper')
    with pytest.raises(FileNotFoundError, match="the run 'one' was not found; pass its folder"):
        remake(home/'copy/paper/a.pdf')
    (home/'elsewhere/deep/one').rename(home/'elsewhere/deep/renamed')
    (home/'runs').rename(home/'gone')
    invented.run(home/'elsewhere/one', 'SalLM')
    again = remake(home/'paper/a.pdf', home/'elsewhere', to=home/'b.pdf') # by its config, not by its name
    assert again.same_picture and again.differs == ['run one is now called renamed']
    assert 'Run: renamed, seed 0' in again.figure.facts

@pytest.mark.slow
def test_differences_are_reported(home):
    run, file = Run(home/'runs/one'), home/'paper/a.png'
    run.log(dict(kind='train', step=40, epoch=4., loss=.1))
    again = remake(file)
    assert again.same_picture and again.path.name == 'a-remade.png'
    assert again.differs == ['the files of run one have changed since']
    assert 'same image (the files of run one have changed since' in repr(again)
    shutil.rmtree(home/'runs/one')
    invented.run(home/'runs/one', 'ADDrop', seed=7)
    again = remake(file, force=True)
    assert not again.same and again.differs == ['run one was recreated since']

def test_different_versions_commits_and_fonts_are_reported():
    was = dict(code=dict(versions=dict(numpy='1', salviz='0'), commit='a'*40, own={'mine.py': 'b'}), fonts=['X'])
    now = dict(code=dict(versions=dict(numpy='2', salviz='0'), commit='c'*40), fonts=['Y'])
    commit = 'the commit of salviz was aaaaaaaaaaaa and is cccccccccccc'
    assert _differences(was, now) == ['numpy was 1 and is 2', commit,
                                     'the code in mine.py has changed since', 'fonts were X and are Y']
    assert _differences(was, was) == []

@pytest.mark.slow
def test_a_manually_changed_figure_is_a_different_image(home):
    fig = figure(home/'runs/one', 'attention_map')
    fig.text(.5, .5, 'mine')
    again = remake(save_figure(fig, home/'b.pdf'))
    assert again.same_picture is False and 'the figure may have been changed after it was drawn' in repr(again)

@pytest.mark.slow
def test_other_formats_and_options_and_letters_of_an_svg(home):
    again = remake(home/'paper/a.pdf', to=home/'b.svg', width=4, head=[0, 2])
    assert again.path == home/'b.svg' and again.same_picture is None
    assert read_stamp(home/'b.svg')['arguments'] == dict(layer=0, head=[0, 2], width=4.)
    fig = figure(home/'runs/one', 'attention_map')
    assert remake(save_figure(fig, home/'c.svg', text='text')).same
    with pytest.raises(FileExistsError, match='already exists'): remake(home/'paper/a.pdf', to=home/'b.svg')
    with pytest.raises(ValueError, match='attention_map has no option colour'): remake(home/'c.svg', colour='red')

@pytest.mark.slow
@pytest.mark.parametrize('end', ['pdf', 'svg', 'png'])
def test_arguments_with_any_characters_are_restored(home, end):
    for titles in ('a (b) )( \\\\ \\n "é" <b>&amp;</b> ]]> --> %% \U0001f600', Math('$p = 0.3$ <(')):
        fig = figure(home/'runs/one', 'attention_map', titles=titles, heading='title')
        again = remake(save_figure(fig, home/f'b.{end}'))
        assert again.same and read_stamp(home/f'b.{end}')['arguments']['titles'] in (titles, dict(formula=str(titles)))

@pytest.mark.slow
def test_the_selection_of_an_explorer_and_a_snapshot_of_a_run_are_found_again(home):
    run = Run(home/'runs/one')
    for tab in ('map', 'compare', 'triptych'):
        fig = Explorer(run, state=dict(tab=tab, compare=dict(run=0, step=0))).figure()
        assert remake(save_figure(fig, home/'b.pdf')).same, tab
    assert remake(save_figure(figure(run.snapshot(10, 1)), home/'c.pdf')).same
    assert remake(save_figure(figure('ad-drop', 'loss_curves'), home/'d.pdf')).same # comes with the library

@pytest.mark.slow
def test_a_large_table_must_be_passed_and_a_small_one_is_stored(home):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(dict(method=['a', 'b']*20_000, gradient=rng.random(40_000)))
    file = save_figure(figure(frame, 'gradient_boxes'), home/'large.pdf')
    with pytest.raises(ValueError, match='was too large to be stored'): remake(file)
    assert remake(file, frame).same
    assert remake(file, frame.iloc[:100]).differs == ['the table has other numbers']
    small = frame.iloc[:50].assign(gradient=lambda x: x.gradient.where(x.index != 3))
    small.attrs = dict(about='Model: m. Data: d.')
    again = remake(save_figure(figure(small, 'gradient_boxes'), home/'small.svg'))
    assert again.same and 'Model: m. Data: d.' in again.figure.caption

def a_study(folder):
    "Return the folder of a finished study of two methods and two seeds"
    cells = [dict(method=m, settings={}, seed=seed, run=f'runs/{m}.seed={seed}') for m in ('FineTuning', 'ADDrop')
             for seed in (0, 1)]
    for i, cell in enumerate(cells):
        invented.run(folder/cell['run'], cell['method'], seed=cell['seed'])
        known = dict(measures=dict(test_accuracy=dict(value=.5 + i/10, version='')))
        write_object(folder/f'cells/{cell["run"][5:]}.json', known)
    methods = {m: dict(name=m, args={}) for m in ('FineTuning', 'ADDrop')}
    design = dict(methods=methods, seeds=[0, 1], settings={}, model='minilm', train={},
                  data=dict(name='tweets', fingerprint='ab12', sizes=dict(train=64, test=32)))
    write_object(folder/'study.json', dict(format=1, design=design, cells=cells, measures=['test_accuracy'], better={}))
    return StudyResults.open(folder)

@pytest.mark.slow
def test_a_study_is_found_again_and_its_table_has_model_and_data(home):
    study = a_study(home/'study')
    file = save_figure(figure(study, 'metric_table', compare_to='FineTuning', width='acl'), home/'paper/table.pdf')
    assert remake(file).same and read_stamp(file)['source']['study']['data_fingerprint'] == 'ab12'
    table = save_figure(figure(study.table(), 'metric_table'), home/'paper/carried.pdf')
    points = save_figure(figure(study.results(), 'metric_table'), home/'paper/rows.svg')
    assert remake(save_figure(figure(study, 'loss_curves'), home/'paper/losses.pdf')).same
    study.folder.rename(home/'elsewhere')
    for carried in (table, points):
        assert remake(carried).same
        told = str(read_stamp(carried)['source']['about']['origin'])
        assert 'ab12' in told and 'tweets' in told and 'minilm' in told and str(home) not in told
    with pytest.raises(FileNotFoundError, match="the study 'study' was not found"): remake(file)
    other = dict(measures=dict(test_accuracy=dict(value=.9, version='')))
    write_object(home/'elsewhere/cells/ADDrop.seed=0.json', other)
    again = remake(file, home)
    assert again.same_picture is False
    assert again.differs == ['the files of study study have changed since']

def test_a_view_without_a_source_cannot_be_remade(home):
    file = save_figure(figure(view_for(Run(home/'runs/one').snapshot())), home/'b.pdf')
    with pytest.raises(ValueError, match='cannot be remade: it was created from a DiscardRegion'): remake(file)


# Files are not trusted

def forged(path, **recipe):
    "Write a file with forged metadata"
    line = recipe.pop('line', None) or sealed(dict(salviz_provenance=1, **recipe))
    path.write_text(f'<svg><dc:description>{html.escape(line)}</dc:description></svg>')
    return path

@pytest.mark.parametrize('more, said', [
    (dict(kind='os.system'), 'of the unregistered kind'), (dict(kind=['x']), ''),
    (dict(arguments=dict(nothing=dict(call='x'))), 'unknown value'), (dict(arguments=['a']), 'inconsistent metadata'),
    (dict(arguments=dict(interactive=True)), 'inconsistent metadata'),
    (dict(arguments=dict(kind='triptych')), 'inconsistent metadata'), (dict(arguments=dict(__class__=1)), 'no option'),
    (dict(arguments=dict(font='/etc/passwd')), 'is not installed'),
    (dict(arguments=dict(width=1e9)), 'between 2 and 20'),
    (dict(arguments=dict(head=dict(range=[0, 10**15, 1]))), 'invalid range'),
    (dict(arguments=dict(head=dict(array=[[1], [10**9], 'float64']))), ''),
    (dict(source=dict(form='run', run=dict(name='passwd', id='x', path='../../../../etc'))), 'was not found'),
    (dict(source=dict(form='run', run=3)), 'inconsistent metadata'),
    (dict(source=dict(form='eval')), 'unknown source'),
    (dict(source=[]), 'inconsistent metadata'),
    (dict(source=dict(form='table', table=dict(frame=3))), 'inconsistent frame')])
def test_hostile_metadata_raises_a_clear_error(more, said, home):
    one = dict(form='run', run=dict(name='one', id='', path='runs/one'))
    usual = dict(kind='attention_map', arguments={}, source=one)
    with pytest.raises((ValueError, FileNotFoundError, TypeError), match=said or '.'):
        remake(forged(home/'f.svg', **usual | more))
    assert sorted(p.name for p in home.iterdir()) == ['f.svg', 'paper', 'runs']

@pytest.mark.parametrize('line', ['{', '{}', '[]', '{"salviz_provenance": 1}', '['*100_000,
                                  '{"salviz_provenance": NaN}', '{"salviz_provenance": ' + '['*100_000])
def test_invalid_metadata_raises_an_error(line, home):
    with pytest.raises(ValueError, match='has no metadata|damaged metadata'): remake(forged(home/'f.svg', line=line))

@pytest.mark.parametrize('end', ['pdf', 'svg', 'png'])
def test_a_damaged_file_never_gives_other_metadata(home, end):
    data, rng = (home/f'paper/a.{end}').read_bytes(), random.Random(0)
    was = read_stamp(home/f'paper/a.{end}')
    at = data.index(b'salviz_provenance')
    for i in range(300):
        bad = bytearray(data)
        if i % 3 == 0: bad = bad[:rng.randrange(len(bad))]
        elif i % 3 == 1: bad[rng.randrange(at, at + 900)] ^= 1 << rng.randrange(8)
        else: bad[rng.randrange(at, at + 900)] = rng.randrange(256)
        (home/'bad').write_bytes(bad)
        try: assert read_stamp(home/'bad') == was, i
        except ValueError as e:
            assert re.search('has no metadata|damaged metadata|is not a PDF|another version', str(e)), i

@pytest.mark.slow
def test_the_command_line_remakes_a_figure(home, capsys, monkeypatch):
    monkeypatch.chdir(home)
    assert main(['remake', 'paper/a.pdf']) == 0
    assert capsys.readouterr().out == 'figure: same bytes, no file written\n'
    assert main(['remake', 'paper/a.pdf', '--to', 'b.svg', '--set', 'width=acl', 'head=0', '--runs', 'runs']) == 0
    assert read_stamp('b.svg')['arguments'] == dict(layer=0, head=0, width='acl')
    for words, said in ((('nowhere.pdf',), 'nowhere.pdf does not exist'),
                        (('paper/a.pdf', '--runs', 'no'), 'no folder no'),
                        (('paper/a.pdf', '--set', 'kind=triptych'), '--set cannot override kind'),
                        (('runs/one/config.json',), 'is not a PDF, SVG or PNG file')):
        assert main(['remake', *words]) == 2
        assert said in capsys.readouterr().err
