"The course on the command line: files for a class, error messages, and the rehearsal."
import json
import platform
import re
import socket
import sys
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import lessons
from salviz import cli
from salviz.cli import main
from salviz.core.runs import Run
from salviz.course import editions, handout, material, pages, session

root = Path(__file__).resolve().parents[2]

@pytest.fixture
def package(tmp_path, monkeypatch):
    "Replace the lessons of the package by a small one, in a new folder for each test"
    folder = lessons.written(tmp_path/'package')
    monkeypatch.setattr(editions, '_lessons_folder', lambda: folder)
    monkeypatch.setitem(sys.modules, 'salviz.course.facts', SimpleNamespace(fact=lessons.facts))
    monkeypatch.setattr(material, 'course_runs', ['plain'])
    monkeypatch.setattr(material, 'course_run', Run.example)
    (here := tmp_path/'here').mkdir()
    monkeypatch.chdir(here)
    return folder

def written_class(path, questions): path.write_text(str([*questions]))

def names(folder): return sorted(path.name for path in folder.iterdir())

def test_students_get_notebooks_without_solutions(package, tmp_path, capsys):
    assert main(['course', 'mine']) == 0
    assert names(tmp_path/'here'/'mine') == ['0_transformers.ipynb', '1_row.ipynb']
    text = (tmp_path/'here'/'mine'/'1_row.ipynb').read_text()
    assert 'np.exp' not in text and 'Misconceptions' not in text and '# yours' in text
    assert capsys.readouterr().out == f'{tmp_path}/here/mine: 2 notebooks\n'

def test_teachers_get_notebooks_with_solutions_in_a_new_folder(package, tmp_path, capsys):
    assert main(['course', 'deep/er/teachers', '--teacher']) == 0
    folder = tmp_path/'here'/'deep'/'er'/'teachers'
    assert names(folder) == ['0_for_teachers.ipynb', '0_transformers.ipynb', '1_row.ipynb']
    assert 'np.exp' in (folder/'1_row.ipynb').read_text()
    assert 'with solutions' in capsys.readouterr().out

@pytest.mark.parametrize('place,status,words', [
    ('full', 2, 'is not empty; choose a new folder, because existing files are never overwritten'),
    ('.', 2, 'is not empty'), ('empty', 0, ''),
    ('file', 2, 'is a file; choose a new folder'),
    ('file/in', 2, 'cannot be written (Not a directory); choose another folder')])
def test_existing_files_are_not_overwritten(package, tmp_path, capsys, place, status, words):
    here = tmp_path/'here'
    (here/'full').mkdir(); (here/'full'/'thesis.txt').write_text('mine')
    (here/'empty').mkdir(); (here/'file').write_text('mine')
    assert main(['course', place]) == status
    assert words in capsys.readouterr().err
    assert (here/'full'/'thesis.txt').read_text() == (here/'file').read_text() == 'mine'
    assert len(names(here/'full')) == 1

def test_a_lesson_with_a_wrong_fact_leaves_an_empty_folder(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'salviz.course.facts', SimpleNamespace(fact=lambda name: '.88'))
    assert main(['course', 'mine']) == 2
    assert 'lesson 1_row: cell cell-10: fact 1.share is .88, but the text contains' in capsys.readouterr().err
    assert names(tmp_path/'here'/'mine') == []

def test_jupyterlab_opens_lesson_1_only_with_the_option_open(package, monkeypatch):
    started = []
    monkeypatch.setattr(handout, 'open_lab', lambda path: started.append(path.name))
    assert main(['course', 'a']) == 0 and started == []
    assert main(['course', 'b', '--open']) == 0 and started == ['1_row.ipynb']

def test_pages_are_written_next_to_the_notebooks(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('salviz.course.classroom.class_page', written_class)
    assert main(['course', 'mine', '--pages']) == 0
    assert names(tmp_path/'here'/'mine') == ['0_transformers.ipynb', '1_row.ipynb', 'pages']
    assert names(tmp_path/'here'/'mine'/'pages') == ['0_transformers.html', '1_row.html', 'class.html', 'index.html']
    assert (tmp_path/'here'/'mine'/'pages'/'class.html').read_text() == "['1.words', '1.class']"
    assert '1_row.html: ' in capsys.readouterr().out

def test_a_usb_stick_lists_missing_wheels_without_network(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('salviz.course.classroom.class_page', written_class)
    monkeypatch.setattr(handout, '_pip', lambda *words: False)
    assert main(['course', 'stick', '--usb']) == 0
    stick = tmp_path/'here'/'stick'
    assert names(stick) == ['0_transformers.ipynb', '1_row.ipynb', 'README.txt', 'cache', 'pages', 'wheels']
    told = capsys.readouterr().out
    assert 'wheels: 0 found, missing: ' in told and 'numpy' in told and 'torch' in told
    text = (stick/'README.txt').read_text()
    assert 'pages/index.html' in text and 'Not on this stick: ' in text and '--no-index --find-links wheels' in text
    assert {path.name.rpartition('-')[0] for path in (stick/'cache').iterdir()} == {'minilm', 'movie-sentences'}

@pytest.mark.slow
def test_a_usb_stick_has_wheels_for_the_systems_of_students(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('salviz.course.classroom.class_page', written_class)
    def pip(*words):
        "Pretend that every wheel exists, with compiled ones for one system each"
        if words[0] == 'wheel': return True
        at = words.index('--dest') + 2
        tag, at = (words[at + 1], at + 2) if '--platform' in words else (f'linux_{platform.machine()}', at)
        for name in (word.split('==')[0].replace('-', '_') for word in words[at:]):
            made = tag if name in ('numpy', 'torch', 'colorama') else 'any'
            (Path(words[words.index('--dest') + 1])/f'{name}-1-py3-none-{made}.whl').touch()
        return True
    monkeypatch.setattr(handout, '_pip', pip)
    assert main(['course', 'stick', '--usb', '--platform', 'win_amd64', 'macosx_14_0_arm64']) == 0
    wheels = names(tmp_path/'here'/'stick'/'wheels')
    for tag in ('win_amd64', 'macosx_14_0_arm64'): assert f'numpy-1-py3-none-{tag}.whl' in wheels
    assert 'colorama-1-py3-none-win_amd64.whl' in wheels and 'colorama-1-py3-none-macosx_14_0_arm64.whl' not in wheels
    assert 'win_amd64, macosx_14_0_arm64' in (tmp_path/'here'/'stick'/'README.txt').read_text()

@pytest.mark.parametrize('words,told', [
    ([], 'course: expected one new folder'), (['a', 'b'], 'got 2'),
    (['a', '--check'], 'course --check: takes no folder'),
    (['a', '--out', 'b'], '--out is an option of'), (['class'], 'course class: pass the files'),
    (['grade'], 'course grade: expected one folder'), (['grade', 'nowhere'], 'no folder nowhere'),
    (['grade', 'a', '--pages'], '--pages is not an option'), (['teach', 'here'], 'course teach: expected one file'),
    (['class', 'a', '--teacher'], '--teacher is not an option'),
    (['--check', '--usb'], '--usb is not an option'), (['a', '--platform', 'win_amd64'], '--platform requires --usb'),
    (['a', '--usb', '--platform', 'windows'], 'platform tag of a wheel, such as win_amd64')])
def test_incompatible_options_raise_an_error(package, capsys, words, told):
    assert main(['course', *words]) == 2
    assert told in capsys.readouterr().err

def test_the_page_for_teaching_a_model_is_written_by_a_command(package, monkeypatch, capsys):
    monkeypatch.setattr('salviz.course.page_training.write_teaching_page', lambda path: f'{path} is written')
    assert main(['course', 'teach', 'teach.html']) == 0
    assert 'teach.html is written' in capsys.readouterr().out
    Path('teach.html').write_text('mine')
    assert main(['course', 'teach', 'teach.html']) == 2
    assert 'course teach: teach.html already exists; use --force' in capsys.readouterr().err
    assert main(['course', 'teach', 'teach.html', '--force']) == 0

def test_a_class_is_merged_and_its_report_printed(package, monkeypatch, capsys):
    monkeypatch.setattr('salviz.course.classroom.run_class', lambda paths, out, force: f'{paths} into {out} {force}')
    assert main(['course', 'class', 'a.json', 'b.json', '--out', 'c']) == 0
    assert main(['course', 'class', 'a.json', '--force']) == 0
    assert capsys.readouterr().out == "['a.json', 'b.json'] into c False\n['a.json'] into . True\n"

@pytest.mark.parametrize('words,package_name', [
    ('mine', 'nbformat'), ('mine --pages', 'mistune'), ('mine --pages', 'latex2mathml'), ('grade handed', 'nbformat'),
    ('class handed', 'nbformat'), ('teach teach.html', 'mistune'), ('--check', 'mistune')])
def test_a_missing_package_is_named_with_its_extra(package, tmp_path, monkeypatch, capsys, words, package_name):
    for name in [name for name in sys.modules if name.partition('.')[0] == package_name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package_name, None)
    pages._markdown.cache_clear()
    (folder := tmp_path/'here'/'handed').mkdir()
    (folder/'answers-ann.json').write_text(json.dumps(session.answers_file('ann', {})))
    monkeypatch.setattr('salviz.course.classroom.class_page', written_class)
    monkeypatch.setattr('salviz.course.page_training.TeachInPage', lambda: '')
    assert main(['course', *words.split()]) == 2
    assert capsys.readouterr().err == (
        f"salviz: course: requires {package_name}, which is not installed; run pip install 'salviz[course]'\n")

def test_the_packages_of_the_course_are_those_of_its_extra():
    settings = ConfigParser(delimiters=['='])
    settings.read(root/'settings.ini', encoding='utf-8')
    needs = settings['DEFAULT']['course_requirements'].split()
    assert sorted(re.match(r'[\w-]+', need)[0] for need in needs) == sorted(cli._course_packages)

def test_answers_are_graded_and_written_as_a_table(package, tmp_path, capsys):
    folder = tmp_path/'here'/'handed'
    folder.mkdir()
    (folder/'answers-ann.json').write_text(json.dumps(session.answers_file('ann', {})))
    (folder/'answers-bo.json').write_text('{')
    assert main(['course', 'grade', 'handed', '--out', 'grades.csv', '--lessons', '1']) == 0
    told = capsys.readouterr().out
    assert '0 of 2' in told and 'broken: answers-bo.json' in told and 'Wrote grades.csv' in told
    assert (tmp_path/'here'/'grades.csv').read_text(encoding='utf-8-sig').splitlines()[1].startswith('ann,0,')
    assert main(['course', 'grade', 'handed', '--out', 'grades.csv']) == 2

def test_the_rehearsal_prints_a_line_per_lesson_and_leaves_no_files(package, tmp_path, capsys):
    assert main(['course', '--check']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(':')[0] for line in lines] == ['runs', '0_for_teachers', '0_transformers', '1_row']
    assert lines[0] == 'runs: 1 open' and 'page 2.' in lines[3] and '1 checks right' in lines[3]
    assert names(tmp_path/'here') == []

@pytest.mark.sample(1)
@pytest.mark.parametrize('cell,text,words', [
    (13, 'def row(scores): return [1, 0]', 'check rejects the solution'),
    (17, "import socket\nsocket.create_connection(('192.0.2.1', 80))", 'the rehearsal must run without a network'),
    (21, 'assert False, "not so"', 'AssertionError: not so'),
    (9, "Reveal('1.class', lambda: 1/0)", 'ZeroDivisionError')])
def test_a_failed_rehearsal_names_the_lesson_and_the_cell(package, capsys, cell, text, words):
    import nbformat
    nbformat.write(lessons.lesson(changed={cell: text}), package/'1_row.ipynb')
    before = socket.socket.connect
    assert main(['course', '--check']) == 1
    line, = [line for line in capsys.readouterr().out.splitlines() if 'FAILED' in line]
    assert line.startswith('1_row: FAILED: lesson 1_row, cell cell-') and words in line
    assert socket.socket.connect is before, 'the network is open again'

def test_a_run_that_does_not_open_fails_the_rehearsal(package, capsys):
    def gone(): raise FileNotFoundError('it is not there')
    assert handout.rehearse(package, runs=dict(base=gone)) == 1
    assert 'runs: base: it is not there' in capsys.readouterr().out
