"""Build the documentation: `python docs/build.py [folder]` writes the site with the notebooks, the API, a live
explorer, a page in which readers teach a model, and the replication report. `python docs/build.py --report` writes only
that report, to docs/reproduction.html.

The sources for Sphinx are written to `_proc/docs`: the notebooks without their hidden cells, one API page per package,
and a page of a finished run for the explorer, which works without a kernel."""
import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import salviz

root = Path(__file__).resolve().parents[1]
reading_order = ['quickstart', 'three_lines', 'gallery', 'own_method', 'figures_for_a_paper', 'figure_gallery',
                 'interventions', 'maps_from_elsewhere', 'front_ends', 'adapters', 'next_tokens',
                 'vision_transformer', 'comparison', 'many_machines', 'reproduction', 'papers_exhibits']
packages = dict(core='Core', data='Data', models='Models', attribution='Attribution', methods='Methods',
                training='Training', studies='Studies', metrics='Metrics', analysis='Analysis', views='Views',
                figures='Figures', explorer='Explorer', cli='Command line', course='Course', replication='Replication')
notebook_titles = json.loads((Path(__file__).parent/'titles.json').read_text()) # {module: title of its notebook}
# {notebook: text in the cell that is followed by the live explorer}
live_after = {'quickstart': "Explorer('ad-drop')", '00_learn/gallery': "to_html('gallery.html'"}
teaching_note = '''**Ten minutes, nothing to install**: <a href="teach.html">Teach a model where to look</a>. You mark
words, a small model in the page learns from them, and you see what that shows and what it does not.'''
live_note = '''**Try it here**: hover over a map, click a head, or drag the step slider. This explorer shows the
bundled run of AD-DROP and works without a kernel.'''


def write(path, text):
    "Write `text` to `path` if it differs; Sphinx rebuilds a page if its source is newer"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text: path.write_text(text)


report = 'reproduction.html' # its name in this folder and at the root of the site


def source_of(cell): return ''.join(cell['source'])


def markdown(text, id): return dict(cell_type='markdown', id=id, metadata={}, source=text)


def visible(cells):
    "Yield `cells` without nbdev's directives and the cells that these hide"
    for cell in cells:
        text = source_of(cell)
        if cell['cell_type'] == 'code':
            if re.search(r'^#\|\s*(hide|default_exp)\b', text, re.M): continue
            text = re.sub(r'^#\|.*\n?', '', text, flags=re.M)
        yield dict(cell, source=text)


def titled(cells):
    "Return `cells` of a notebook with a readable title; a notebook that exports a module names it below the title"
    exports = re.search(r'^#\|\s*default_exp (\S+)', '\n'.join(map(source_of, cells)), re.M)
    if not exports: return cells
    first, *others = cells
    heading, *text = source_of(first).split('\n')
    if heading == f'# {exports[1]}':
        if exports[1] not in notebook_titles:
            raise ValueError(f'build: the notebook of {exports[1]} has no title; add one to docs/titles.json')
        heading = f'# {notebook_titles[exports[1]]}'
    return [dict(first, source='\n'.join([heading, *text, '', f'Module: `salviz.{exports[1]}`'])), *others]


def up_from(name): return '../' * name.count('/') # to the root of the site


def explorer_frame(name):
    "Return the frame of the live explorer for the page of the notebook `name`"
    return (f'{live_note}\n\n<iframe class="salviz-live" title="A recorded run in the explorer" loading="lazy" '
            f'src="{up_from(name)}explorer.html"></iframe>')


def page_of(name, notebook, contents=()):
    "Return the source of the page for `notebook`; the cells `contents` are appended"
    cells, sources = [], list(visible(titled(notebook['cells'])))
    for cell in sources:
        # README and a notebook link to the report in this folder; in the site it is at the root
        cells.append(dict(cell, source=re.sub(rf'"((?:\.\./)*)docs/{re.escape(report)}"',
                                              f'"{up_from(name)}{report}"', cell['source'])))
        if name in live_after and live_after[name] in source_of(cell):
            cells.append(markdown(explorer_frame(name), 'live-explorer'))
    if name in live_after and len(cells) == len(sources):
        raise ValueError(f'{name}: no cell contains {live_after[name]!r}, so there is no place for the explorer; '
                         'change `live_after` in docs/build.py')
    metadata = {**notebook['metadata'], **({'hide-toc': True} if name in live_after else {})} # width for the explorer
    return json.dumps(dict(notebook, cells=[*cells, *contents], metadata=metadata), ensure_ascii=False)


def notebook_at(path):
    "Return the notebook at `path`: of lessons the students' edition, or the teachers' if there is no other"
    if path.parent.name != '00_lessons': return json.loads(path.read_text())
    from salviz.course.editions import edition_of, read_lesson
    source = read_lesson(path)
    editions = (edition_of(source, name) for name in ('student', 'teacher'))
    return next(edition for edition in editions if edition.cells)


def toctree(caption, pages):
    "Return a hidden table of contents, which is a group of the sidebar"
    return '\n'.join(['```{toctree}', ':hidden:', f':caption: {caption}', '', *pages, '```'])


def notebooks_by_folder(names):
    "Return {name of a folder without its number: its notebooks, in reading order}"
    folders = {}
    for name in sorted(set(names) - {'index', 'quickstart'}):
        folders.setdefault(re.sub(r'^\d+_', '', name.split('/')[0]), []).append(name)
    order = {name: place for place, name in enumerate(reading_order)}
    folders['learn'] = sorted(['quickstart', *folders['learn']], key=lambda name: order.get(name.split('/')[-1], 99))
    return folders


def guide(source, folders):
    "Write a page for each package that lists its notebooks into `source`; return the names of the pages"
    for package, title in packages.items():
        listed = '\n'.join(['```{toctree}', ':maxdepth: 1', '', *(f'/{name}' for name in folders[package]), '```'])
        write(source/'guide'/f'{package}.md', f'# {title}\n\n{descriptions()[package]}\n\n{listed}\n\n'
              f'All names: [API of {title.lower()}](../api/{package}.md).\n')
    return [f'guide/{package}' for package in packages]


def descriptions():
    "Return {package: its contents} from the table in CONTRIBUTING.md"
    text = (root/'CONTRIBUTING.md').read_text()
    rows = dict(re.findall(r'^    (\w+)/ +\d\d_\w+ +(.+)$', text, re.M))
    rows['cli'] = re.search(r'^    cli, .*?13_cli +(.+)$', text, re.M)[1]
    return {package: f'Contents: {contents}.' for package, contents in rows.items()}


def modules_by_package():
    "Return {package: its modules}; those of `benchmarks` and other modules outside of packages belong to `cli`"
    found, homes = {}, dict(model_explorer='explorer')
    for file in sorted((root/'salviz').rglob('*.py')):
        place = file.relative_to(root).with_suffix('').parts
        if file.stem.startswith('_'): continue
        package = place[1] if place[1] in packages else homes.get(place[1], 'cli')
        found.setdefault(package, []).append('.'.join(place))
    return found


def first_sentence(thing): return (thing.__doc__ or '').strip().split('\n\n')[0].replace('\n', ' ')


def public_names():
    "Return a table of the names that `from salviz import *` imports"
    lines = ['# Public names', '', '`from salviz import *` imports these names. Import all other names from their '
             'modules, which the pages of the packages list.', '', '| name | module | description |', '|---|---|---|']
    for name in salviz.__all__:
        thing = getattr(import_module(f'salviz.{salviz._home[name]}'), name)
        what = first_sentence(thing).replace('|', '\\|').replace('$', '\\$')
        lines.append(f'| {{py:obj}}`{name} <{thing.__module__}.{name}>` | '
                     f'`{thing.__module__.removeprefix("salviz.")}` | {what} |')
    return '\n'.join(lines) + '\n'


def reference(source):
    "Write the API pages into `source`; return their names"
    write(source/'api'/'index.md', public_names())
    for package, modules in modules_by_package().items():
        body = [f'# {packages[package]}']
        for module in modules:
            body += [f'## {module.removeprefix("salviz.")}', f'```{{eval-rst}}\n.. automodule:: {module}\n```']
        write(source/'api'/f'{package}.md', '\n\n'.join(body) + '\n')
    return ['api/index', *(f'api/{package}' for package in packages)]


def lay_out(source):
    "Write the sources for Sphinx into the folder `source`"
    files = {path.relative_to(root/'nbs').with_suffix('').as_posix(): path for path in (root/'nbs').rglob('*.ipynb')
             if '.ipynb_checkpoints' not in path.parts}
    for name in ('CONTRIBUTING', 'CHANGELOG'): write(source/f'{name}.md', (root/f'{name}.md').read_text())
    shutil.copytree(root/'nbs'/'images', source/'images', dirs_exist_ok=True)
    folders = notebooks_by_folder(files)
    trees = [toctree('Start here', folders['learn']), toctree('Course', folders['lessons']),
             toctree('Guide', [*guide(source, folders), 'CONTRIBUTING', 'CHANGELOG']),
             toctree('API', reference(source))]
    for name, path in files.items():
        contents, notebook = [markdown('\n\n'.join(trees), 'contents')] if name == 'index' else [], notebook_at(path)
        if name == 'index': notebook['cells'].insert(1, markdown(teaching_note, 'teaching'))
        write(source/f'{name}.ipynb', page_of(name, notebook, contents))
    pages = {*files, 'CONTRIBUTING', 'CHANGELOG', 'api/index', *(f'{kind}/{name}' for kind in ('api', 'guide')
                                                                for name in packages)}
    for file in [*source.rglob('*.ipynb'), *source.rglob('*.md')]: # pages of deleted notebooks
        if file.relative_to(source).with_suffix('').as_posix() not in pages: file.unlink()


def write_explorer(path):
    "Write the explorer of a bundled run to `path`"
    from salviz import Explorer
    path.parent.mkdir(parents=True, exist_ok=True)
    Explorer('ad-drop').to_html(path, force=True)


def write_teaching(path):
    "Write the page in which readers teach a model to `path`"
    from salviz.course.page_training import write_teaching_page
    path.parent.mkdir(parents=True, exist_ok=True)
    write_teaching_page(path, links='<a href="index.html">salviz</a>')


def write_report(path):
    "Write the report of the bundled replication results to `path`"
    from salviz.replication.report import report_html
    from salviz.replication.reproduce import shipped_rows
    from salviz.replication.rows import read_rows
    write(path, report_html(read_rows(shipped_rows('small'), 'small'), 'small'))


def build(target, source=root/'_proc'/'docs'):
    "Build the site in the folder `target`"
    from sphinx.cmd.build import build_main
    if target.exists() and not (target/'objects.inv').exists():
        raise FileExistsError(f'build: {target} exists and is not a site; choose another folder or delete it')
    lay_out(source/'source')
    page, site = source/'extra'/'explorer.html', source/'site' # MyST-NB writes the images of notebooks next to `site`
    write_explorer(page)
    write_teaching(page.parent/'teach.html')
    write_report(page.parent/report)
    status = build_main(['-q', '-W', '--keep-going', '-c', str(root/'docs'), '-d', str(source/'read'),
                         '-D', f'html_extra_path={page.parent}', str(source/'source'), str(site)])
    if status: sys.exit(status)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)
    print(f'built {target/"index.html"}')


if __name__ == '__main__':
    argument = sys.argv[1] if len(sys.argv) > 1 else root/'_docs'
    write_report(root/'docs'/report) if argument == '--report' else build(Path(argument))
