"Configuration of Sphinx; `build.py` prepares the sources."
import inspect
import re
from functools import cache
from importlib import import_module, metadata
from pkgutil import walk_packages

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

import salviz
from salviz.core.docstrings import comments_of
from salviz.core.validation import readable_signature

project, author, release = 'salviz', 'The salviz authors', salviz.__version__
project_copyright = '2026 onwards, the salviz authors'
extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.mathjax']
root_doc = 'index'
smartquotes = False
# notebooks may skip a level of headings; interactive figures are shown as images
suppress_warnings = ['myst.header', 'mystnb.unknown_mime_type']

# Notebooks are not executed; their stored outputs are shown
nb_execution_mode = 'off'
nb_merge_streams = True
nb_mime_priority_overrides = [('html', 'image/png', 5)] # prefer images, which need no script
myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3

# API
autodoc_member_order = 'bysource'
autodoc_inherit_docstrings = False
# inherited members: see `show_members_of_private_bases`
autodoc_default_options = {'members': True, 'undoc-members': True}
add_module_names = False
maximum_signature_line_length = 60
toc_object_entries = False # 1,700 entries on every page would double the build time

# A light and dark theme and MathJax, both from packages, so that the site works offline
html_theme = 'furo'
html_title = 'salviz'
html_static_path = ['static']
html_css_files, html_js_files, html_favicon = ['docs.css'], ['live.js', 'reach.js'], 'static/icon.svg'
html_copy_source = html_show_sphinx = html_use_index = html_domain_indices = False
pygments_style, pygments_dark_style = 'default', 'github-dark'
_mathjax = [file for file in metadata.files('sphinx-mathjax-offline') if file.name == 'tex-svg.js']
html_static_path.append(str(_mathjax[0].locate()))
mathjax_path = 'tex-svg.js'


def literal_text(text):
    "Convert a docstring to reStructuredText: `names` in backticks are literals, everything else is plain text"
    parts = re.split(r'(`+(?:[^`\n]|\n(?!\s*\n))+`+)', text)
    for i, part in enumerate(parts):
        parts[i] = f'\\ ``{" ".join(part.split()).strip("`")}``\\ ' if i % 2 else re.sub(r'([\\*_|`])', r'\\\1', part)
    return ''.join(parts)


def with_comments(app, what, name, thing, options, lines):
    "Append the comments of the parameters of `thing` to its docstring"
    lines[:] = literal_text('\n'.join(lines)).split('\n')
    if what not in ('function', 'method', 'class'): return
    fields = [f':{"returns" if parameter == "return" else f"param {parameter}"}: ' + literal_text(comment)
              for parameter, comment in comments_of(thing).items()]
    lines += ['', *fields, '']


def readable_types(app, what, name, thing, options, arguments, returns):
    "Show the types of a signature as `help` does, without ranges"
    if what not in ('function', 'method', 'class') or not arguments: return None
    try: shown = readable_signature(thing.__init__ if what == 'class' else thing)
    except (AttributeError, TypeError, ValueError): return None # built-in classes have no signature
    parameters = list(shown.parameters.values())
    if what != 'function' and parameters and parameters[0].name in ('self', 'cls'): parameters = parameters[1:]
    returns = str(shown.return_annotation) if what != 'class' and shown.return_annotation is not shown.empty else None
    return str(shown.replace(parameters=parameters, return_annotation=shown.empty)), returns


@cache
def homes():
    "Return {public name: full name}"
    named = {}
    for name in salviz.__all__:
        thing = getattr(import_module(f'salviz.{salviz._home[name]}'), name)
        named[name] = f'{thing.__module__}.{name}'
    return named


class NamesInProse(SphinxPostTransform):
    "Link public names and modules in backticks to their API page"
    default_priority = 5 # before references are resolved

    def run(self, **kwargs):
        modules = self.env.domaindata['py']['modules']
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            name = re.sub(r'\(.*\)$', '', text, flags=re.S).removeprefix('salviz.')
            target, kind = homes().get(name), 'obj'
            if target is None and f'salviz.{name}' in modules: target, kind = f'salviz.{name}', 'mod'
            inside = (nodes.reference, addnodes.pending_xref, nodes.title, addnodes.desc_signature)
            if target is None or any(isinstance(parent, inside) for parent in parents(literal)): continue
            link = addnodes.pending_xref('', refdomain='py', reftype=kind, reftarget=target, refexplicit=True,
                                         refdoc=self.env.docname, refwarn=True)
            literal.replace_self(link)
            link += literal


def parents(node):
    while node := node.parent: yield node


def show_members_of_private_bases(app):
    """Document the public members of private base classes in the classes that inherit from them: long classes are split
    into several private bases, which have no entries of their own"""
    for found in walk_packages(salviz.__path__, 'salviz.'):
        module = import_module(found.name)
        for cls in filter(inspect.isclass, vars(module).values()):
            if cls.__module__ != module.__name__ or cls.__name__.startswith('_'): continue
            for base in cls.__mro__[1:]:
                if not (base.__module__.startswith('salviz.') and base.__name__.startswith('_')): continue
                for name, member in vars(base).items():
                    if not name.startswith('_') and name not in vars(cls): setattr(cls, name, member)


def setup(app):
    app.connect('builder-inited', show_members_of_private_bases)
    app.connect('autodoc-process-docstring', with_comments)
    app.connect('autodoc-process-signature', readable_types)
    app.add_post_transform(NamesInProse)
    return dict(parallel_read_safe=True)
