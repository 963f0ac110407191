"Package metadata, read from settings.ini so that it is written once."
import re
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

cfg = ConfigParser(delimiters=['='])
cfg.read('settings.ini', encoding='utf-8')
c = cfg['DEFAULT']
version = re.search(r'^__version__ = "(.*)"$', Path('salviz/__init__.py').read_text(encoding='utf-8'), re.M)[1]
extras = {k: c[f'{k}_requirements'].split() for k in ('lab', 'pareto', 'course', 'claims', 'workers', 'dask', 'slurm',
                                                      'ray', 'search', 'trainers', 'marimo', 'trackers', 'dev',
                                                      'docs')}
extras |= {k: extras['lab'] + extras[k] for k in ('course', 'dev')}
setup(name=c['lib_name'], version=version, description=c['description'], keywords=c['keywords'], author=c['author'],
    author_email=c['author_email'],
    url=c['git_url'], license='Apache-2.0', packages=find_packages(include=['salviz', 'salviz.*']),
    package_data={'salviz': ['py.typed', '*.pyi'], 'salviz.explorer': ['static/**/*'],
                  'salviz.models': ['taught/*'], 'salviz.core': ['finished/*'],
                  'salviz.course': ['runs/*', 'lessons/*', 'static/**/*'],
                  'salviz.replication': ['rows/*', 'static/*', 'templates/*']},
    classifiers=['Intended Audience :: Science/Research', 'Programming Language :: Python :: 3'],
    # by its path: else a script in the folder above the clone, whose name is salviz, would import that folder
    options=dict(editable_wheel=dict(mode='compat')),
    python_requires=f">={c['min_python']}",
    install_requires=c['requirements'].split(),
    extras_require=extras,
    long_description=Path('README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    entry_points=dict(console_scripts=c['console_scripts'].split()))
