"A source release and a wheel: their contents, and that each installs and runs in an empty environment"
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

import install
from salviz import __version__

root = Path(__file__).resolve().parents[2]
build = 'import sys; from setuptools import build_meta; print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))'

def run(*command, cwd, **env):
    "Run `command` outside of the source folder, check that it succeeds, and return its output"
    clean = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run([*map(str, command)], cwd=cwd, env={**clean, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout

def built(kind, sources, into):
    "Return the file that the build backend creates from the folder `sources`"
    return into/run(sys.executable, '-c', build, kind, into, cwd=sources).split()[-1]

@pytest.fixture(scope='module')
def source_release(tmp_path_factory):
    "Create a source release of a copy of the files under version control"
    folder = tmp_path_factory.mktemp('release')
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=root, capture_output=True, text=True).stdout.split('\0')
    for name in filter(None, listed):
        if not (root/name).is_file() or name.startswith(('nbs/', 'tests/')): continue
        (folder/'sources'/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root/name, folder/'sources'/name)
    return built('sdist', folder/'sources', folder)

def test_a_wheel_of_the_source_release_contains_the_library_and_its_data(source_release, tmp_path):
    with tarfile.open(source_release) as archive: archive.extractall(tmp_path, filter='data')
    wheel = built('wheel', tmp_path/f'salviz-{__version__}', tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        packaged = {name for name in archive.namelist() if name.startswith('salviz/')}
        metadata = archive.read(f'salviz-{__version__}.dist-info/METADATA').decode()
    generated = {'__pycache__', '.ipynb_checkpoints', '_modidx.py'} # by Python, JupyterLab and nbdev
    files = [p.relative_to(root) for p in (root/'salviz').rglob('*') if p.is_file()]
    wanted = {p.as_posix() for p in files if not generated & {*p.parts}}
    assert wanted - packaged == set()
    assert {'salviz/py.typed', 'salviz/__init__.pyi'} <= packaged
    assert 'Requires-Dist: torch' in metadata and 'Provides-Extra: lab' in metadata

@pytest.mark.slow
@pytest.mark.parametrize('kind', ['sdist', 'wheel'])
def test_a_release_installs_from_registries_and_runs(kind, source_release, tmp_path):
    file = source_release
    if kind == 'wheel':
        with tarfile.open(source_release) as archive: archive.extractall(tmp_path, filter='data')
        file = built('wheel', tmp_path/f'salviz-{__version__}', tmp_path)
    venv.create(tmp_path/'venv', with_pip=True)
    python, salviz = (tmp_path/'venv'/'bin'/name for name in ('python', 'salviz'))
    run(python, '-m', 'pip', 'install', '--quiet', '--constraint', root/'constraints.txt', f'{file}[course]',
        cwd=tmp_path)
    where = run(python, '-c', 'import salviz; print(salviz.__file__)', cwd=tmp_path)
    assert where.startswith(str(tmp_path/'venv'))
    run(salviz, 'fetch', cwd=tmp_path)
    run(salviz, 'demo', '--train-size', 32, '--probes', 2, '--out', 'demo', cwd=tmp_path, OMP_NUM_THREADS='1')
    run(salviz, 'show', 'ad-drop', '--out', 'page.html', cwd=tmp_path)
    run(salviz, 'figure', 'ad-drop', '--out', 'figure.pdf', cwd=tmp_path)
    run(salviz, 'course', 'lessons', '--pages', cwd=tmp_path, OMP_NUM_THREADS='1')
    lessons = list((tmp_path/'lessons').rglob('*.html'))
    assert len(lessons) > 8
    for file in (tmp_path/'page.html', tmp_path/'figure.pdf', *lessons): assert file.stat().st_size > 1000

@pytest.mark.slow
@pytest.mark.parametrize('versions', ['lowest-direct', 'highest'])
def test_a_release_runs_with_the_oldest_and_the_newest_versions_that_it_allows(versions, source_release, tmp_path):
    python, uv = tmp_path/'venv'/'bin'/'python', (sys.executable, '-m', 'uv')
    configured = install.settings(run(*install.pip, 'config', 'list', cwd=tmp_path))
    certificates = {'SSL_CERT_FILE': configured['cert']} if 'cert' in configured else {}
    run(*uv, 'venv', '--quiet', '--python', sys.executable, tmp_path/'venv', cwd=tmp_path)
    settings = ConfigParser(delimiters=['='])
    settings.read(root/'settings.ini', encoding='utf-8')
    required = settings['DEFAULT']['requirements'].split() # only versions of direct requirements are the lowest ones
    run(*uv, 'pip', 'install', '--quiet', '--python', python, '--resolution', versions,
        *install.uv_options(configured), *required, source_release, cwd=tmp_path, **certificates)
    print(run(python, root/'tests'/'smoke.py', cwd=tmp_path, OMP_NUM_THREADS='1'))
