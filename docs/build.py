"""`python docs/build.py [folder]`: the site of the notebooks, with a reference of the public names, a live explorer and
the report of the re-test. `python docs/build.py --report` writes that report alone, to docs/reproduction.html.

What Sphinx reads is laid out in `_proc/docs`: the notebooks without what is hidden from readers, one page of reference
a package, and a page of a finished run, so that the explorer lives in the site without a kernel."""
import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import salviz

root = Path(__file__).resolve().parents[1]
first_to_read = ['quickstart', 'gallery', 'next_tokens', 'adapters', 'vision_transformer', 'own_method',
                 'figures_for_a_paper']
package_titles = dict(learn='Start here', lessons='The course', core='Core', data='Data', models='Models',
                    attribution='Attribution',
                    methods='Methods', training='Training', studies='Studies', metrics='Metrics',
                    analysis='Analysis', views='Views', figures='Figures', explorer='Explorer', cli='Command line',
                    course='Course: modules', replication='Replication')
# {notebook: what stands in the cell below which the explorer is alive}
alive = {'quickstart': "Explorer('ad-drop')", '00_learn/gallery': "to_html('gallery.html'"}
live_note = '''**Here it is alive**: move over a map, click a head, drag the scrubber. Nothing computes behind it: it
shows the finished run of AD-DROP that comes with the library.'''


def write(path, text):
    "Write `text` to `path` where it says something else; Sphinx reads again what is newer than its pages"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text: path.write_text(text)


report = 'reproduction.html' # in this folder, and at the root of the site


def source_of(cell): return ''.join(cell['source'])


def markdown(text, id): return dict(cell_type='markdown', id=id, metadata={}, source=text)


def shown(cells):
    "`cells` as readers see them: without nbdev's directives and what they hide"
    for cell in cells:
        text = source_of(cell)
        if cell['cell_type'] == 'code':
            if re.search(r'^#\|\s*(hide|default_exp)\b', text, re.M): continue
            text = re.sub(r'^#\|.*\n?', '', text, flags=re.M)
        yield dict(cell, source=text)


def up_from(name): return '../' * name.count('/') # to the root of the site


def explorer_frame(name):
    "The live explorer, from the page of the notebook `name`"
    return (f'{live_note}\n\n<iframe class="salviz-live" title="A recorded run in the explorer" loading="lazy" '
            f'src="{up_from(name)}explorer.html"></iframe>')


def page_of(name, notebook, contents=()):
    "The text of `notebook` as Sphinx is given it; `contents` are cells behind its own"
    cells = []
    for cell in shown(notebook['cells']):
        # README and a notebook link the report in this folder, the site has it at its root
        cells.append(dict(cell, source=re.sub(rf'"((?:\.\./)*)docs/{re.escape(report)}"',
                                              f'"{up_from(name)}{report}"', cell['source'])))
        if name in alive and alive[name] in source_of(cell): cells.append(markdown(explorer_frame(name), 'alive'))
    if name in alive and len(cells) == len(list(shown(notebook['cells']))):
        raise ValueError(f'{name}: no cell holds {alive[name]!r}, below which the explorer is to live; '
                         'see `alive` in docs/build.py')
    metadata = {**notebook['metadata'], **({'hide-toc': True} if name in alive else {})} # the explorer needs the room
    return json.dumps(dict(notebook, cells=[*cells, *contents], metadata=metadata), ensure_ascii=False)


def notebook_at(path):
    "The notebook at `path` as the site shows it: lessons as students have them, a page for teachers as it is"
    if path.parent.name != '00_lessons': return json.loads(path.read_text())
    from salviz.course.editions import edition_of, read_lesson
    source = read_lesson(path)
    editions = (edition_of(source, name) for name in ('student', 'teacher'))
    return next(edition for edition in editions if edition.cells)


def toctree(caption, pages):
    return '\n'.join(['```{toctree}', ':hidden:', f':caption: {caption}', '', *pages, '```'])


def notebooks_by_package(names):
    "{title of a package: its notebooks, in reading order}"
    packages = {}
    for name in sorted(set(names) - {'index', 'quickstart'}):
        folder = re.sub(r'^\d+[a-z]?_', '', name.split('/')[0])
        packages.setdefault(package_titles.get(folder, folder.capitalize()), []).append(name)
    def place(name): # what teaches has an order of its own
        stem = name.split('/')[-1]
        return first_to_read.index(stem) if stem in first_to_read else len(first_to_read)
    packages[package_titles['learn']] = sorted(['quickstart', *packages[package_titles['learn']]], key=place)
    return packages


def modules_by_package():
    "{package: its modules}; the modules outside of a package are entry points"
    found = {}
    for file in sorted((root/'salviz').rglob('*.py')):
        place = file.relative_to(root).with_suffix('').parts
        if file.stem.startswith('_'): continue
        found.setdefault(place[1] if len(place) > 2 else 'cli', []).append('.'.join(place))
    return found


def first_sentence(thing): return (thing.__doc__ or '').strip().split('\n\n')[0].replace('\n', ' ')


def public_names():
    "A table of what `from salviz import *` brings, package by package"
    lines = ['# Public names', '', 'What `from salviz import *` brings. Every other name is imported from its module; '
             'the pages of the packages below list them all.', '', '| name | module | what |', '|---|---|---|']
    for name in salviz.__all__:
        thing = getattr(import_module(f'salviz.{salviz._home[name]}'), name)
        what = first_sentence(thing).replace('|', '\\|').replace('$', '\\$')
        lines.append(f'| {{py:obj}}`{name} <{thing.__module__}.{name}>` | '
                     f'`{thing.__module__.removeprefix("salviz.")}` | {what} |')
    return '\n'.join(lines) + '\n'


def reference(source):
    "Write the pages of the reference into `source`; their names"
    write(source/'api'/'index.md', public_names())
    for package, modules in modules_by_package().items():
        body = [f'# {package_titles[package]}: reference']
        for module in modules:
            body += [f'## {module.removeprefix("salviz.")}', f'```{{eval-rst}}\n.. automodule:: {module}\n```']
        write(source/'api'/f'{package}.md', '\n\n'.join(body) + '\n')
    return ['api/index', *(f'api/{package}' for package in package_titles if package in modules_by_package())]


def lay_out(source):
    "Write what Sphinx reads into the folder `source`"
    files = {path.relative_to(root/'nbs').with_suffix('').as_posix(): path for path in (root/'nbs').rglob('*.ipynb')
             if '.ipynb_checkpoints' not in path.parts}
    for name in ('CONTRIBUTING', 'CHANGELOG'): write(source/f'{name}.md', (root/f'{name}.md').read_text())
    shutil.copytree(root/'nbs'/'images', source/'images', dirs_exist_ok=True)
    trees = [toctree(title, pages) for title, pages in notebooks_by_package(files).items()]
    trees += [toctree('Reference', reference(source)), toctree('Project', ['CONTRIBUTING', 'CHANGELOG'])]
    for name, path in files.items():
        contents = [markdown('\n\n'.join(trees), 'contents')] if name == 'index' else []
        write(source/f'{name}.ipynb', page_of(name, notebook_at(path), contents))
    pages = {*files, 'CONTRIBUTING', 'CHANGELOG', *(f'api/{package}' for package in ('index', *modules_by_package()))}
    for file in [*source.rglob('*.ipynb'), *source.rglob('*.md')]: # of notebooks that are there no more
        if file.relative_to(source).with_suffix('').as_posix() not in pages: file.unlink()


def lay_explorer(path):
    "Write the page of a finished run to `path`"
    from salviz import Explorer
    path.parent.mkdir(parents=True, exist_ok=True)
    Explorer('ad-drop').to_html(path, force=True)


def lay_report(path):
    "Write the report of the rows that come with the library to `path`"
    from salviz.replication.report import report_html
    from salviz.replication.reproduce import shipped_rows
    from salviz.replication.rows import read_rows
    write(path, report_html(read_rows(shipped_rows('small'), 'small'), 'small'))


def build(target, source=root/'_proc'/'docs'):
    "The site in the folder `target`"
    from sphinx.cmd.build import build_main
    if target.exists() and not (target/'objects.inv').exists():
        raise FileExistsError(f'{target} holds something that is no site; give a folder that may be written over')
    lay_out(source/'source')
    page, site = source/'beside'/'explorer.html', source/'site' # pictures of notebooks are laid beside the latter
    lay_explorer(page)
    lay_report(page.parent/report)
    status = build_main(['-q', '-W', '--keep-going', '-c', str(root/'docs'), '-d', str(source/'read'),
                         '-D', f'html_extra_path={page.parent}', str(source/'source'), str(site)])
    if status: sys.exit(status)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)
    print(f'{target}: open index.html in it')


if __name__ == '__main__':
    asked = sys.argv[1] if len(sys.argv) > 1 else root/'_docs'
    lay_report(root/'docs'/report) if asked == '--report' else build(Path(asked))
