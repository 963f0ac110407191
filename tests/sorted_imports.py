"""Sort the imports in exported cells with isort: `python tests/sorted_imports.py` (part of `make notebooks`)"""
import json
import re
from pathlib import Path

import isort

root = Path(__file__).resolve().parents[1]
settings = isort.Config(settings_path=str(root))


def sorted_source(source:str) -> str:
    "Return the source of a cell with sorted imports; cells that are not exported are returned unchanged"
    if not source.startswith('#| export'): return source
    directive, _, code = source.partition('\n')
    return f'{directive}\n{isort.code(code, config=settings).rstrip()}'


def unsorted_cells():
    "Yield (path, content of the notebook, cell, its sorted source) of each cell with unsorted imports"
    for path in sorted((root/'nbs').rglob('*.ipynb')):
        content = json.loads(path.read_text(encoding='utf-8'))
        for cell in content['cells']:
            source = ''.join(cell['source'])
            if cell['cell_type'] != 'code' or not re.search('^(import|from) ', source, flags=re.M): continue
            if (new := sorted_source(source)) != source: yield path, content, cell, new


if __name__ == '__main__':
    for path, content, cell, new in unsorted_cells():
        cell['source'] = new.splitlines(keepends=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + '\n', encoding='utf-8')
