"""Comparison of the stored outputs of notebooks with new ones. `python tests/outputs.py [notebook ...]` runs notebooks
again and stores their outputs.

tests/test_structure.py checks in one run whether a notebook works and whether its outputs are stale. Words must be
equal. Numbers are only counted, because their values depend on the processor and on timers. Of pictures and interactive
figures, only the presence is checked."""
import json
import re
import sys
import tempfile
from pathlib import Path

longest_page = 50_000 # characters of HTML
number = r'(?<=\[HTML\]\{)[0-9A-F]{6}|[-+−]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?' # LaTeX colours count as numbers


def in_a_kernel(path):
    "Return the cells of the notebook `path` with outputs from a new run in a kernel, as in JupyterLab"
    import nbclient
    import nbformat
    notebook = nbformat.read(path, 4)
    where = dict(metadata=dict(path=str(Path(path).parent)))
    try: nbclient.NotebookClient(notebook, timeout=1200, resources=where).execute()
    except nbclient.exceptions.CellExecutionError as e: print(e)
    else: return notebook.cells


def is_slow(cell):
    "Return whether `cell` has the directive `#| slow`; `make test` skips such cells, `make slow` runs them"
    return re.search(r'^#\|\s*slow\b', text_of(cell['source']), re.M) is not None


def as_nbdev_does(path, slow):
    "Return the same from nbdev-test, which has no kernel; without `slow`, skip the cells with this directive"
    import nbdev.test
    ran = []
    write, nbdev.test.write_nb = nbdev.test.write_nb, lambda nb, path: ran.append(nb)
    try: worked, _ = nbdev.test.test_nb(str(path), do_print=True, save=True, skip_flags=[] if slow else ['slow'])
    finally: nbdev.test.write_nb = write
    return ran[0]['cells'] if worked else None


def executed(path, slow=True):
    "Return the cells of the notebook `path` with new outputs, None if one fails; nbdev runs notebooks that export"
    is_room = '#| default_exp ' in Path(path).read_text()
    ran = as_nbdev_does(path, slow) if is_room else in_a_kernel(path)
    return ran and [{k: cell.get(k) for k in ('id', 'cell_type', 'outputs')} for cell in ran]


def text_of(x): return ''.join(x) if isinstance(x, list) else x


def kept(outputs) -> list:
    """Return the outputs to store: without stderr, pages with scripts (but with their image, if there is one) and views
    of widgets without a kernel"""
    result = []
    for output in outputs:
        if output.get('name') == 'stderr': continue
        output = {k: v for k, v in output.items() if k not in ('metadata', 'execution_count')}
        if 'data' in output:
            twice = 'image/jpeg' if 'image/png' in output['data'] else None # Pillow gives a picture in both formats
            output['data'] = {k: v for k, v in output['data'].items() if 'widget-view' not in k and k != twice}
            if len(text_of(output['data'].get('text/html', ''))) > longest_page:
                if 'image/png' not in output['data']: continue
                del output['data']['text/html']
            if not output['data']: continue
            output['metadata'] = {}
        if output['output_type'] == 'execute_result': output['execution_count'] = None
        if result and output['output_type'] == 'stream' == result[-1]['output_type']:
            result[-1]['text'] = text_of(result[-1]['text']) + text_of(output['text'])
        else: result.append(output)
    return result


def said(outputs) -> list:
    "Return what does not differ between runs: words, the places of numbers, kinds of pictures"
    result = []
    for output in kept(outputs):
        data = output.get('data') or {'text/plain': output.get('text', '')}
        pictures = sorted(k for k in data if not k.startswith('text/'))
        words = text_of(data.get('text/plain', ''))
        words = '' if pictures else re.sub(r'\s+', ' ', re.sub(number, '0', words)).strip()
        result.append((output['output_type'], *pictures, *sorted(k for k in data if k.startswith('text/')), words))
    return result


def stale(path, cells, slow=True) -> list:
    """Return messages for the cells of the notebook `path` whose stored outputs differ from those of `cells`, which
    have just been run; slow cells only with `slow`"""
    there, lines = json.loads(Path(path).read_text())['cells'], []
    for was, now in zip(there, cells, strict=True):
        if was['cell_type'] != 'code' or not slow and is_slow(was): continue
        if said(was['outputs']) == said(now['outputs'] or []): continue
        lines.append(f'{Path(path).name}: what is kept below cell {was["id"]} is stale; run `make outputs`')
        lines += [f'  kept {x}' for x in said(was['outputs'])] + [f'  now  {x}' for x in said(now['outputs'] or [])]
    return lines


def keep(path):
    "Run the notebook `path` and store its outputs; return 1 if it fails, else 0"
    cells = executed(path)
    if cells is None: return 1
    notebook = json.loads(Path(path).read_text())
    for cell, now in zip(notebook['cells'], cells, strict=True):
        if cell['cell_type'] == 'code':
            cell['outputs'] = json.loads(json.dumps(kept(now['outputs'] or []), sort_keys=True))
    Path(path).write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    import forked
    paths = sys.argv[1:] or sorted(str(p) for p in Path('nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
    failed = []
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder)/'said'
            process = forked.begin(keep, path, said=told)
            process.join()
            if process.exitcode: print(told.read_text()[-3000:], Path(f'{told}.err').read_text()[-3000:])
        print(path, 'failed' if process.exitcode else 'kept', flush=True)
        failed += [path] * bool(process.exitcode)
    sys.exit(bool(failed))
