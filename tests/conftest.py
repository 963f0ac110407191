"""Fixtures that several test files share: a tokenizer, data and models that are created quickly.
The process of pytest-xdist that only distributes tests loads this file too, so torch is imported where it is needed."""
import asyncio
import contextlib
import re
import sys
from importlib.util import find_spec

import pytest
from _pytest.assertion import rewrite

import traced
from forked import cheaply, in_place_of_spawn
from processor_time import pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown # noqa: F401, hooks
from units import in_order

if find_spec('xdist') is not None: from units import pytest_xdist_make_scheduler # noqa: F401, a hook
if find_spec('playwright') is not None: # machines with a GPU seldom have it, and no numeric test needs it (gpu.py)
    from browser import browser, page  # noqa: F401, fixtures of every test that looks into a browser
    from lab_server import jupyter  # noqa: F401, a fixture of every test that opens JupyterLab

def pytest_configure(config):
    "Rewrite the assertions of all tests once, before two workers do so at the same time"
    hands_out = getattr(config.option, 'numprocesses', None) and not hasattr(config, 'workerinput')
    if not hands_out or sys.dont_write_bytecode: return
    state = config.stash[rewrite.assertstate_key]
    for file in sorted((traced.root/'tests').rglob('test_*.py')):
        folder = rewrite.get_cache_dir(file)
        compiled = folder/f'{file.stem}{rewrite.PYC_TAIL}'
        if not rewrite.try_makedirs(folder) or rewrite._read_pyc(file, compiled) is not None: continue
        digest, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(state, code, digest, compiled)

@pytest.fixture(autouse=True)
def loop_of_its_own(request):
    "Hide the event loop of the browser, which runs in this thread, so that tests without a browser can run their own"
    if 'browser' in request.fixturenames: yield; return
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    "Fork workers that are started with 'spawn' from a process with torch; `make slow` spawns them, as users do"
    with contextlib.nullcontext() if item.get_closest_marker('slow') else in_place_of_spawn(): return (yield)

static = sorted(file for package in ('explorer', 'course', 'replication')
                for file in (traced.root/'salviz'/package/'static').rglob('*') if file.is_file())

@pytest.fixture(autouse=True)
def what_it_depends_on(request):
    "Record for `make check` JavaScript and CSS of browser tests, the notebook of a test, and lines of forked processes"
    if 'browser' in request.fixturenames: traced.depends_on(static)
    notebook = getattr(request.node, 'callspec', None) and request.node.callspec.params.get('name')
    if str(notebook).endswith('.ipynb'): traced.depends_on([traced.root/'nbs'/notebook])
    yield
    traced.collect()

@pytest.fixture(autouse=True, scope='session')
def arithmetic():
    "Run the tests in the arithmetic that SALVIZ_ARITHMETIC names; see arithmetic.py"
    from arithmetic import chosen
    cheaply()
    with chosen(): yield

good, bad = 'fine warm funny moving lovely'.split(), 'dull cold silly empty clumsy'.split()
things = 'the film a plot and this story of one actor with its music'.split()

@pytest.fixture(scope='session')
def tiny_data():
    "Return sentences of 3 to 13 words and a full stop in two classes, which differ in one word"
    import datasets
    import torch
    g = torch.Generator().manual_seed(0)
    def pick(words): return words[int(torch.randint(len(words), (1,), generator=g))]
    def row(label):
        words = [pick(things) for _ in range(int(torch.randint(2, 13, (1,), generator=g)))]
        words.insert(int(torch.randint(len(words) + 1, (1,), generator=g)), pick(good if label else bad))
        return dict(text=' '.join(words) + ' .', label=label)
    features = datasets.Features(dict(text=datasets.Value('string'),
                                      label=datasets.ClassLabel(names=['negative', 'positive'])))
    return datasets.DatasetDict({k: datasets.Dataset.from_list([row(i % 2) for i in range(n)], features=features)
                                 for k, n in dict(train=37, validation=16, test=16).items()})

# The pieces that a trainer of WordPiece created from some of the words; it creates other pieces in every process.
pieces = '''
a c d e f h i l m n o p r s t u w y ##u ##s ##i ##c ##l ##o ##t ##y ##a ##r ##m ##n ##e ##d ##h ##f fi th ##ll
##or ##tor ##ne ac an co du fu it mu of one pl si stor wi wa ##si ##is ##lm ##ld ##ot ##th ##rm ##ny ##nny
fine film the this ##lly actor and cold dull funny its musi plot silly story with warm music
'''.split()

@pytest.fixture(scope='session')
def tiny_tokenizer():
    "Return a WordPiece tokenizer for the words of `tiny_data`; some words consist of several pieces"
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    vocab = {piece: i for i, piece in enumerate([*special, *pieces])}
    tok = Tokenizer(models.WordPiece(vocab, unk_token='[UNK]'))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tok.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1',
                                                       special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token='[UNK]', pad_token='[PAD]', cls_token='[CLS]',
                                   sep_token='[SEP]', mask_token='[MASK]', model_max_length=64)

@pytest.fixture(scope='session')
def make_tiny_bert(tiny_tokenizer):
    "Return a function that creates the same small random BERT in each call; keyword arguments change its config"
    import torch
    from transformers import BertConfig, BertForSequenceClassification
    def make(seed=0, **kw):
        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                     max_position_embeddings=64, num_labels=2)
        config = BertConfig(vocab_size=len(tiny_tokenizer), pad_token_id=0, **{**sizes, **kw})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return BertForSequenceClassification(config)
    return make

@pytest.fixture
def double(tiny_bert):
    "Return a small BERT in float64 without dropout, whose attention can be differentiated twice"
    return tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.2,
                     attn_implementation='eager').double()

@pytest.fixture(autouse=True)
def no_shell_is_left():
    "End the IPython shell that ipywidgets starts for a widget's output; it would handle later errors like a notebook"
    yield
    if 'IPython' not in sys.modules: return
    from IPython.core.interactiveshell import InteractiveShell
    if InteractiveShell.initialized(): InteractiveShell.clear_instance()

@pytest.fixture
def tiny_bert(make_tiny_bert): return make_tiny_bert

# Tests that compare numbers computed by torch; `make arithmetic` repeats them with other arithmetic.
numeric_files = {f'test_{name}' for name in (
    'attention attribution ad_drop saliency_guided attention_guidance sallm rationale_guided explanations faithfulness '
    'corpus antecedents nets pretraining signals next_tokens rationale_guided distillation targets generation '
    'roar').split()}
numeric_notebooks = re.compile(r'test_(?:notebook|slow_cells)_runs?\[(?:03|04|05|08)')

def mark_slow_cases(items):
    """Mark as slow all but n evenly spaced cases of each test that is marked `sample(n)`; the first case always runs in
    `make test`"""
    cases = {}
    for item in items:
        if item.get_closest_marker('sample') and not item.get_closest_marker('slow'):
            cases.setdefault(item.nodeid.partition('[')[0], []).append(item)
    for some in cases.values():
        n = some[0].get_closest_marker('sample').args[0]
        assert 0 < n < len(some), f'{some[0].nodeid}: sample({n}) of {len(some)} cases leaves none out'
        kept = {i * len(some) // n for i in range(n)}
        for i, item in enumerate(some):
            if i not in kept: item.add_marker('slow')

@pytest.hookimpl(tryfirst=True) # before pytest looks at the marks
def pytest_collection_modifyitems(items):
    items.sort(key=in_order)
    mark_slow_cases(items)
    for item in items:
        if item.path.stem in numeric_files or numeric_notebooks.match(item.name): item.add_marker('numeric')
