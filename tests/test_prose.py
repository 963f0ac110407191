"""Prose in plain English: no words of a private vocabulary, no sentences that are hard to follow, no misspellings.
These tests find the worst; `python tests/prose.py KIND --seed N` draws sentences for a person to read."""
import re
import subprocess
import sys

import pytest

import prose

# What must not be written, and what to write instead.
forbidden = {
    r'\bonce more\b|\banew\b': 'again',
    r'\bby hand\b': 'manually',
    r"\bof one's own\b|\bones own\b": 'custom, your own',
    r'\bgo(es|ne)? on (where|with|at|in|from|until)\b|\bbroken off\b': 'resumes, continues',
    r'\bkin\b': 'similar',
    r'\b(an?|the|each|both|two|every|which|plain|guided|of) arms?\b': 'condition, model',
    r'\b(wing|porch|hinge)s?\b|\bdoors?\b|\bthis room\b|\brooms? (below|above)\b': 'module, package',
    r'\b(is|are|was|be|being|been) (told|asked)\b(?! apart)': 'a statement about what the code does',
    r'^Who(ever)? (?!is |uses )\w+s\b(?!.*\?$)': 'if you ...',
    r'(?<!\.)\bserve[sd]?\b(?! as\b)': 'supports',
    r'(?<!\')\brefuse[sd]?\b|\brefusal\b': 'rejects, raises an error',
    r'\bkeyed draws?\b': 'counter-based random numbers',
    r'\b(a|the) shares?\b|(?<!fraction )\bshares? of\b': 'fraction',
    r'\b(cannot|can|could|to|is to) be had\b|\bhad of\b': 'available, computed',
    r'\b(code|model|run|number|table|file|function|option|notebook|message|error) (knows?|tells?|asks?)\b':
        'reads, has, reports, requires',
}
longest = 35 # words up to a full stop or semicolon


@pytest.mark.parametrize('kind', prose.kinds)
def test_no_word_of_a_private_vocabulary(kind):
    found = [f'{s}\n    {m.group()!r}: write {better}' for s in prose.kinds[kind]()
             for pattern, better in forbidden.items() if (m := re.search(pattern, s, flags=re.I))]
    assert not found, f'{len(found)} sentences:\n' + '\n'.join(found)


# comments are read line by line, and strings include templates and lists of words
@pytest.mark.parametrize('kind', [kind for kind in prose.kinds if kind not in ('comments', 'strings')])
def test_no_sentence_is_longer_than_a_reader_can_follow(kind):
    found = [s for s in prose.kinds[kind]() if prose.longest_clause(s) > longest]
    assert not found, f'{len(found)} sentences of more than {longest} words:\n' + '\n'.join(found)


def test_words_are_spelled_right(tmp_path):
    for path in sorted((prose.root/'nbs').rglob('*.ipynb')):
        (tmp_path/f'{path.stem}.md').write_text(prose.markdown_of(path), encoding='utf-8')
    sources = [path for ending in ('py', 'js', 'html') for path in sorted((prose.root/'salviz').rglob(f'*.{ending}'))]
    documents = [prose.root/name for name in ('README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'Makefile')]
    names = ['--ignore-words-list', 'tham,doubleclick,atleast'] # a name in a sentence, and names in code
    result = subprocess.run([sys.executable, '-m', 'codespell_lib', *names, tmp_path, *documents, *sources],
                            cwd=prose.root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
