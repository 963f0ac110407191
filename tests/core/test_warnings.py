"A warning points to the line of the user's code, however many calls of salviz and of libraries lie between."
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import salviz
from salviz import ADDrop, start_training, train
from salviz.core.validation import renamed_arguments, validated, warn_caller

lines = Path(__file__).read_text(encoding='utf-8').split('\n')


@contextmanager
def warns_at(text, match, category=UserWarning):
    "Check that the body issues a warning that matches and points to the line of this file that contains `text`"
    with pytest.warns(category, match=match) as caught: yield
    places = {(w.filename, w.lineno) for w in caught if re.search(match, str(w.message))}
    line, = [i for i, line in enumerate(lines, 1) if text in line and 'warns_at' not in line]
    assert places == {(__file__, line)}


def test_a_renamed_argument_is_reported_where_it_is_passed():
    @renamed_arguments(old='new')
    @validated
    def f(new:int): return new
    with warns_at('f(old=3)', 'old is now called new', DeprecationWarning):
        f(old=3)
    with warns_at("after_dropout='x'", 'after_dropout', DeprecationWarning), pytest.raises(ValueError):
        ADDrop(after_dropout='x')

def test_training_warns_at_the_call_of_train(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    how = dict(epochs=1, batch_size=8, snapshots=0, progress=False)
    with warns_at("tmp_path/'a'", 'were truncated'):
        train(tiny_bert(max_position_embeddings=10), tiny_tokenizer, tiny_data, run_dir=tmp_path/'a', **how)
    del how['progress']
    with warns_at("tmp_path/'b'", 'were truncated'):
        start_training(tiny_bert(max_position_embeddings=10), tiny_tokenizer, tiny_data, run_dir=tmp_path/'b',
                       **how).wait()

def test_a_warning_of_another_thread_points_to_where_it_is_issued():
    with pytest.warns(UserWarning, match='no user code') as caught:
        thread = threading.Thread(target=eval, args=('warn("no user code")', dict(warn=warn_caller, __name__='salviz')))
        thread.start()
        thread.join()
    assert caught[0].filename == '<string>'

def test_the_package_issues_all_warnings_in_this_way():
    package = Path(salviz.__file__).parent
    found = {file.relative_to(package).as_posix(): n for file in sorted(package.rglob('*.py'))
             if (n := len(re.findall(r'\bwarnings\.warn\w*\(|stacklevel=', file.read_text(encoding='utf-8'))))}
    assert found == {'core/validation.py': 2}
