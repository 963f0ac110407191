"""`python tests/install.py '.[dev]'`: install this folder in editable mode, with the versions of constraints.txt, into
the environment of the Python that runs this. `python tests/install.py --oldest FOLDER`: create an environment in FOLDER
with the oldest versions that settings.ini allows, and the requirements of the tests.

uv is used if it can be installed, because it takes a tenth of pip's processor time; otherwise pip. uv does not read
pip's configuration, so the indexes, links and certificates that pip is configured with are passed to it."""
import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parents[1]
pip = sys.executable, '-m', 'pip'
options = '--constraint', 'constraints.txt', '--no-build-isolation', '--editable'

# {pip's setting: the equivalent option of uv}
same = {'index-url': '--default-index', 'extra-index-url': '--index', 'find-links': '--find-links',
        'trusted-host': '--allow-insecure-host'}

# requirements of the tests in an environment of the oldest versions
for_tests = ('pip', 'pytest', 'setuptools', 'peft', 'optuna', 'cloudpickle', 'loky', 'submitit', 'krippendorff',
             'latex2mathml', 'nbformat', 'mistune', 'pymoo', 'sacrebleu', 'nbconvert')

def settings(listed: str) -> dict[str, str]:
    """Parse the output of `pip config list` into {setting: value}

    The environment overrides files, and settings of `install` override those of all commands."""
    sections = 'global', 'install', ':env:'
    lines = [line.partition('=') for line in listed.splitlines()]
    lines = [(*name.split('.', 1), value.strip("'\"")) for name, _, value in lines if '.' in name]
    found = sorted((line for line in lines if line[0] in sections), key=lambda line: sections.index(line[0]))
    return {name: value.replace(r'\n', ' ') for _, name, value in found}

def uv_options(settings: dict[str, str]) -> list[str]:
    "Return the options with which uv uses the same indexes and links as pip with `settings`"
    found = [part for name, option in same.items() for value in settings.get(name, '').split() for part in (option,
                                                                                                            value)]
    return found + ['--index-strategy', 'unsafe-best-match'] # the best version of all indexes, as pip does

def with_oldest(folder: str) -> int:
    "Create the environment `folder` with the oldest versions of the requirements; return the exit status"
    configured = settings(subprocess.run([*pip, 'config', 'list'], capture_output=True, text=True).stdout)
    certificates = {'SSL_CERT_FILE': configured['cert']} if 'cert' in configured else {}
    uv, environment = (sys.executable, '-m', 'uv'), certificates | os.environ
    python, versions = Path(folder)/'bin'/'python', Path(folder)/'oldest.txt'
    required = ConfigParser(delimiters=['='])
    required.read(root/'settings.ini', encoding='utf-8')
    add = [*uv, 'pip', 'install', '--quiet', '--python', str(python), *uv_options(configured)]
    subprocess.run([*uv, 'venv', '--quiet', '--clear', '--python', sys.executable, folder], cwd=root, check=True,
                   env=environment)
    subprocess.run([*add, '--resolution', 'lowest-direct', *required['DEFAULT']['requirements'].split()], cwd=root,
                   check=True, env=environment)
    listed = subprocess.run([*uv, 'pip', 'freeze', '--python', str(python)], capture_output=True, text=True)
    (root/versions).write_text(listed.stdout)
    subprocess.run([*add, '--constraint', str(versions), *for_tests], cwd=root, check=True, env=environment)
    return subprocess.run([*add, '--no-deps', '--no-build-isolation', '--editable', '.'], cwd=root,
                          env=environment).returncode

def install(target: str) -> int:
    "Install `target` with uv, or with pip if that fails; return the exit status"
    fetched = subprocess.run([*pip, 'install', '--quiet', '--constraint', 'constraints.txt', 'uv'], cwd=root,
                             stderr=subprocess.DEVNULL)
    if fetched.returncode == 0:
        configured = settings(subprocess.run([*pip, 'config', 'list'], capture_output=True, text=True).stdout)
        certificates = {'SSL_CERT_FILE': configured['cert']} if 'cert' in configured else {}
        command = [sys.executable, '-m', 'uv', 'pip', 'install', '--quiet', '--python', sys.executable,
                   '--refresh-package', 'salviz', '--reinstall-package', 'salviz', *uv_options(configured), *options]
        if subprocess.run([*command, target], cwd=root, env=certificates | os.environ).returncode == 0: return 0
    print('uv could not install everything: pip does it, which takes longer.', file=sys.stderr)
    return subprocess.run([*pip, 'install', '--quiet', '--no-compile', *options, target], cwd=root).returncode

if __name__ == '__main__':
    if sys.argv[1] == '--oldest': raise SystemExit(with_oldest(sys.argv[2]))
    raise SystemExit(install(sys.argv[1]))
