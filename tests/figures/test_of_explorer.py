"Figures of an explorer: its selection is drawn, or an error says why not, and nothing else is drawn instead."
import pytest

import invented
from every_kind import own_map
from salviz.core.runs import Run
from salviz.explorer.assets import panel_names
from salviz.explorer.widget import Explorer
from salviz.figures.drawing import figure_kinds
from salviz.figures.kinds import figure

entries = dict(head=dict(kind='head', layer=1, head=2), mean=dict(kind='mean', heads=[[0, 1], [1, 2]]),
               heads=dict(kind='heads', layer=1, head=0), layers=dict(kind='layers', layer=0, head=1),
               all=dict(kind='all', layer=0, head=0), rollout=dict(kind='rollout', layer=0, head=0))
where = dict(head='layer 1, head 2', mean='mean over layer 0 head 1; layer 1 head 2', heads='layer 1, mean over heads',
             layers='head 1, mean over layers', all='mean over all heads', rollout='rollout through 2 layers')
of_a_map = ['attention_map', 'triptych', 'compared', 'evolution']
of_one_head = ['discard_region', 'pattern_residual', 'evidence']

@pytest.fixture(scope='module')
def home(tmp_path_factory): return tmp_path_factory.mktemp('figures')

@pytest.fixture(scope='module')
def run(home):
    made = invented.run(home/'run', 'ADDrop')
    made.save(own_map(made))
    return made

@pytest.fixture(scope='module')
def guided(home): return invented.run(home/'guided', 'AttentionGuidance')

def signals(path, make):
    made = Run.create(path, dict(method=dict(name='SaliencyGuided', args={}), model=dict(name='tiny'), seed=0))
    for step in (0, 10): made.save(make(step))
    return made

@pytest.mark.slow
@pytest.mark.parametrize('view', entries)
def test_every_kind_draws_the_selected_heads_or_says_why_not(run, guided, view):
    for kind in of_a_map + of_one_head:
        source = guided if kind == 'pattern_residual' else run
        explorer = Explorer(source, state=dict(entry=entries[view]))
        if kind in of_a_map and (kind, view) != ('evolution', 'mean'):
            assert where[view] in explorer.figure(kind).caption, kind
            continue
        if view == 'head' and kind != 'pattern_residual': # of an invented run head 2 of layer 1 is not guided
            assert 'layer 1, head 2' in explorer.figure(kind).caption.lower(), kind
            continue
        with pytest.raises(ValueError) as refused: explorer.figure(kind)
        assert kind in str(refused.value), kind
        if view == 'mean': assert 'choose one head there, or pass layer= and head=' in str(refused.value)

def test_options_override_the_selection(run):
    explorer = Explorer(run, state=dict(entry=entries['mean']))
    for kind in ('attention_map', 'evolution', 'discard_region'):
        assert 'layer 0, head 2' in explorer.figure(kind, layer=0, head=2).caption, kind
    one = Explorer(run, state=dict(entry=entries['head']))
    assert 'mean over layer 0 heads 0, 1' in one.figure('attention_map', mean_of=[(0, 0), (0, 1)]).caption
    assert 'layer 1, head 0' in one.figure('evolution', head=0).caption
    with pytest.raises(ValueError, match='colour'): one.figure('attention_map', colour='red')

@pytest.mark.sample(3)
@pytest.mark.parametrize('panel', panel_names)
def test_every_visible_panel_has_a_figure(run, panel):
    fig = Explorer(run, state=dict(entry=entries['head'], tab=panel, compare=dict(run=0, step=0))).figure()
    assert 'layer 1, head 2' in fig.caption and 'step 30' in f'{fig.caption} {fig.facts}'.lower()

def test_two_runs_become_a_comparison_of_the_selected_one_with_the_other(run, guided):
    explorer = Explorer(run, compare=guided, state=dict(entry=entries['head'], tab='compare'))
    caption = explorer.figure().caption
    assert 'A is AD-DROP' in caption and 'B is Attention guidance' in caption # as in the explorer
    assert explorer.figure('loss_curves').caption

@pytest.mark.sample(1)
@pytest.mark.parametrize('make', [invented.image, invented.series])
def test_images_and_series_have_their_own_figures_and_raise_an_error_for_those_of_text(home, make):
    explorer = Explorer(signals(home/make.__name__, make))
    for tab in ('map', 'compare', 'signal'):
        explorer.state = dict(tab=tab)
        assert 'input X' in explorer.figure().caption, tab
    for kind, needs in [(name, known) for name, known in figure_kinds().items() if 'attention' in known.needs]:
        if needs.is_of_table: continue
        with pytest.raises(ValueError, match='has no attention|info'): explorer.figure(kind)

class Waiting:
    "A training that has started and recorded nothing yet"
    state, step, total, error, seconds_left = 'waiting', 0, 10, None, None
    def __init__(self, run): self.run = run
    def stop(self): pass
    def subscribe(self, listen): return lambda: None

def test_a_live_explorer_without_a_snapshot_raises_an_error(home):
    started = invented.run(home/'started', 'ADDrop', steps=(), finish=False)
    explorer = Explorer(Waiting(started))
    for draw in (explorer.figure, lambda: figure(explorer), lambda: explorer.figure('evolution'), explorer.snapshot):
        with pytest.raises(ValueError, match='nothing has been recorded yet, so there is nothing to show'): draw()
    explorer.close()
    started.save(invented.snapshot(5, 0, method='ADDrop'))
    explorer = Explorer(Waiting(started))
    assert any('Step 5' in fact for fact in explorer.figure().facts)
    explorer.close()

def test_an_unknown_kind_raises_an_error_that_lists_all_kinds(run):
    for asked in ('heat', 'Map'):
        with pytest.raises(ValueError, match=f"unknown kind '{asked}'") as refused: figure(Explorer(run), asked)
        assert 'attention_map' in str(refused.value)
