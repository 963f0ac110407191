"""Without a heading, the caption has its content; captions say how a head was selected; heading, caption, facts and
citations of a figure agree, because they are generated from one description"""
import re
import warnings

import pytest

import every_kind
import invented
from salviz.core.bibliography import bibtex, paper_of, write_bibliography
from salviz.core.description import _arguments_words, default_arguments
from salviz.core.words import without_path
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.figures.drawing import cut_texts, figure_kinds, fitted, figure_style, save_figure, text_width
from salviz.figures.kinds import figure
from salviz.views.maps import coloured_sentences


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "Return the source of each kind, and its options"
    of = every_kind.everything(tmp_path_factory.mktemp('runs'))
    del of['series']
    return of


def draw(made, kind, **kw):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return figure(made[kind][0], kind, **made[kind][1], **kw)


def heading_of(fig):
    "Return the drawn clauses of the title of `fig`, and the numbers below it"
    title, numbers = ([text.get_text() for text in fig.texts if text.get_fontsize() == size
                       and text.get_weight() == weight and text.get_verticalalignment() == 'top'
                       and text.get_color() == '#1a1a1a' and text.get_rotation() == 0]
                      for size, weight in ((8, 'bold'), (7, 'normal')))
    clauses = re.split(r',\s+(?![^()]*\))', ' '.join(title))
    parts = [*clauses, *re.split(' {3,}', '   '.join(numbers))]
    return [part.replace(r'$\tilde{\mathrm{X}}$', 'X\u0303') for part in parts if part.strip()]


def keys(citations): return [re.match(r'@\w+\{([^,]+)', entry)[1] for entry in citations]


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', figure_kinds())
def test_every_fact_of_the_heading_is_in_the_caption_of_a_figure_without_heading(kind, made):
    parts, bare = heading_of(draw(made, kind, width=9)), draw(made, kind, heading='none', width=9)
    caption = ' '.join(' '.join([bare.caption, *bare.notes]).lower().split())
    assert parts and not heading_of(bare)
    for part in parts: assert ' '.join(part.lower().split()) in caption, part


@pytest.mark.sample(9)
@pytest.mark.parametrize('kind', figure_kinds())
def test_method_step_sentence_seed_model_and_data_are_in_the_caption_of_a_figure_without_heading(kind, made):
    source, _ = made[kind]
    of = [one for one in (source if isinstance(source, list) else [source]) if isinstance(one, (Run, Snapshot))]
    if not of or figure_kinds()[kind].takes == 'runs': return
    caption = draw(made, kind, heading='none', caption='long').caption
    snapshots = [one.snapshot() if isinstance(one, Run) else one for one in of]
    titles = dict(ADDrop='AD-DROP', AttentionGuidance='Attention guidance', SaliencyGuided='Saliency guided training',
                  RationaleGuided='Rationale-guided training', FineTuning='Fine-tuning')
    for s in snapshots:
        method = s.info.get('method')
        if method: assert titles.get(method, method) in caption
        assert re.search(rf'steps? [^.]*\b{s.step}\b', caption.lower()), s.step
        for text in s.texts: assert text in caption
    if isinstance(of[0], Run): assert 'tiny, invented; seed' in caption


def test_facts_are_not_repeated(made):
    caption = draw(made, 'triptych', heading='none').caption
    for words in ('Spearman', 'AD-DROP', 'step 30', 'Probe 0'): assert caption.lower().count(words.lower()) <= 2, words
    full = draw(made, 'triptych').caption
    assert 'step 30' not in full and full.endswith('tiny, invented; seed 0.')
    two = figure(made['triptych'][0], 'triptych', step=[0, 30], heading='none').caption
    assert two.count('AD-DROP') == 1 and two.startswith('(i) Step 0: ') # common parts of the panels are stated once


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', ['attention_map', 'triptych', 'compared', 'evolution', 'discard_region'])
def test_captions_say_how_the_default_head_was_selected(kind, made):
    words = 'largest median row sum of |attribution|'
    assert re.search(rf'Head shown[^:.]*: {re.escape(words)}', figure(made[kind][0], kind).caption)
    source = made[kind][0]
    assert 'shown' not in figure(source, kind, layer=0, head=1).caption.replace('steps are shown', '')
    of_layer = r'Head shown: ' if kind == 'discard_region' else 'Head of this layer shown[^:.]*: '
    assert re.search(of_layer + re.escape(words), figure(source, kind, layer=0).caption)
    assert 'Layer shown: ' in figure(source, kind, head=1).caption.replace('shown, chosen in B:', 'shown:').replace(
        'shown, chosen at the last step:', 'shown:')


def test_captions_say_how_a_guided_head_or_the_last_layer_was_selected(made, tmp_path):
    residual = draw(made, 'pattern_residual', caption='long')
    assert 'Head shown: the guided one with the most attention on its pattern' in residual.caption
    assert 'the first guided head of each pattern' in draw(made, 'pattern_target', caption='long').caption
    plain = invented.run(tmp_path/'plain', 'FineTuning')
    assert 'Head shown: the largest contrast of attention between words' in figure(plain, 'attention_map').caption
    for kind in ('attention_beside_saliency', 'translation'):
        assert 'Layer shown: the last' in draw(made, kind, caption='long').caption


def test_model_and_data_of_the_bundled_runs_are_cited():
    run = Run.example('plain')
    for kind in ('attention_map', 'loss_curves'):
        fig = figure(run, kind, caption='long')
        assert keys(fig.citations)[-2:] == ['hutto2014vader', 'wang2020minilm'] or set(keys(fig.citations)) == {
            'hutto2014vader', 'wang2020minilm'}
        assert 'MiniLM-L6 trained on movie sentences, positive and negative movie sentences' in fig.caption
    assert paper_of('/cache/minilm-b9a0018dff09') == 'minilm' and paper_of('google-bert/bert-base-uncased') == 'bert'
    assert paper_of('bertha') == paper_of(None) == ''


@pytest.mark.slow
def test_several_bibliographies_become_one_with_each_entry_once(made, tmp_path):
    one, two = draw(made, 'discard_region'), draw(made, 'triptych', head='rollout')
    for name, fig in (('a', one), ('b', two)): save_figure(fig, tmp_path/f'{name}.pdf', caption=True)
    for sources in ((one, two), (tmp_path,), (tmp_path/'a.bib', two), ([one, tmp_path/'b.bib'],)):
        text = write_bibliography(tmp_path.parent/'paper.bib', *sources).read_text()
        assert sorted(keys(re.findall(r'@\w+\{[^,]+,', text))) == sorted({*keys(one.citations), *keys(two.citations)})
    (tmp_path/'c.bib').write_text(bibtex('ADDrop').replace('2022', '1922').replace('yang1922addrop', 'yang2022addrop'))
    with pytest.warns(UserWarning, match='two different entries have the key yang2022addrop'):
        write_bibliography(tmp_path/'all.bib', tmp_path)
    with pytest.raises(FileNotFoundError, match='must be a .bib file or a folder'): write_bibliography(
        tmp_path/'x.bib', tmp_path/'nothing')
    with pytest.raises(ValueError, match='a source must be a figure'): write_bibliography(tmp_path/'x.bib', 3)
    with pytest.raises(ValueError, match='path must end in .bib'): write_bibliography(tmp_path/'x.txt', one)


def test_only_settings_that_differ_from_the_defaults_are_printed_and_no_paths(tmp_path):
    path = tmp_path/'secret/runs/teacher.seed=3'
    args = dict(default_arguments()['SalLM'], teacher=str(path), weight=2.)
    run = Run.create(tmp_path/'one', dict(method=dict(name='SalLM', args=args), data=dict(name=str(tmp_path/'d.csv')),
                                          model=dict(name=str(tmp_path/'models/m')), seed=0))
    run.save(invented.snapshot(0, 0, method='SalLM'))
    fig = figure(run, 'attention_map')
    line, = [fact for fact in fig.facts if fact.startswith('Method: ')]
    assert line == 'Method: SalLM (teacher = teacher.seed=3, weight = 2)'
    said = ' '.join([fig.caption, *fig.facts])
    assert 'secret' not in said and str(tmp_path) not in said
    for x in ('~/a/b', './b', '..\\b', '\\\\host\\share\\b', 'file:///a/b', 'a/c/b'): assert without_path(x) == 'b', x
    assert _arguments_words('Mine', dict(own=[str(path), 1])) == 'own = [teacher.seed=3, 1]'


# Labels

def test_a_text_that_fits_is_not_shortened_and_shortening_gives_a_warning(made):
    with figure_style():
        for word in ('holds', 'comprehensiveness', 'undecided', 'ill', 'a', 'W'):
            for weight in ('normal', 'bold'):
                assert fitted(word, text_width(word, 7, weight), 7, weight) == word
                with cut_texts() as cut: fitted(word*9, text_width(word, 7, weight), 7, weight)
                assert cut == {fitted(word*9, text_width(word, 7, weight), 7, weight): word*9}
    long = every_kind.of_numbers('long')['columns method, gradient'].replace(
        {'method': {every_kind.address: every_kind.address*3}})
    with pytest.warns(UserWarning, match='labels were shortened to fit .*“https://example.org.*choose a larger width'):
        figure(long, 'gradient_boxes', width='acl')


@pytest.mark.parametrize('kind', ['forest', 'pairs', 'bars', 'metric_table', 'loss_curves', 'gradient_boxes'])
def test_no_label_is_shortened_if_there_is_space(kind, made, tmp_path):
    source, options = made[kind]
    words = 'Attention guided by a linguist, on a fifth of the tweets, without stop words'
    if kind == 'forest': source = source.assign(title=[f'{i} {words} and at half the learning rate' for i in range(5)])
    elif kind == 'loss_curves': source = {words: source[0], f'{words}, again': source[1]}
    elif kind == 'metric_table': source = source.rename(columns=dict(accuracy='test_comprehensiveness')).replace(
        dict(method=dict(ADDrop=words)))
    elif 'task' in source: source = source.assign(task=[f'{words} {task}' for task in source['task']])
    else: source = source.replace(dict(method=dict(gradient=words)))
    if kind in ('pairs', 'bars'): options = options | dict(label=f'{words}, measured in percent of the examples')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        fig = figure(source, kind, width=6.75, **({} if kind == 'metric_table' else options))
    texts = ' '.join(text.get_text() for text in fig.findobj(lambda o: hasattr(o, 'get_text')))
    assert '…' not in texts and 'tweets' in texts
    if kind == 'metric_table': assert 'comprehensiveness' in texts


# Explorers

def looked_at(n=8):
    "Return snapshots as from `explore`"
    out = []
    for probe in range(2):
        s = invented.snapshot(0, probe, tokens=['[CLS]', *(f'w{i}' for i in range(n - 2)), '[SEP]'])
        s.info = dict(args={}, seed=0, drawn_step=0, example_id=probe, model='minilm-b9a0018dff09', explains='class 1')
        out.append(s)
    return out


@pytest.mark.slow
def test_a_figure_of_recordings_without_a_run_names_and_cites_their_model_and_can_be_remade(tmp_path):
    from salviz.explorer.widget import Explorer
    from salviz.figures.remaking import remake
    explorer = Explorer(looked_at())
    fig = explorer.figure()
    assert any('MiniLM-L6' in note for note in fig.notes) and 'Model: MiniLM-L6' in fig.facts
    assert keys(fig.citations)[0] == 'wang2020minilm'
    for end in ('pdf', 'svg', 'png'):
        again = remake(save_figure(fig, tmp_path/f'a.{end}'))
        assert again.same and again.figure.caption == fig.caption
    large = Explorer(looked_at(400)).figure()
    with pytest.raises(ValueError, match='too large to be stored; save it in a Run'):
        remake(save_figure(large, tmp_path/'b.pdf'))


@pytest.mark.slow
def test_several_explorers_are_drawn_side_by_side(tmp_path):
    from salviz.explorer.widget import Explorer
    drop = invented.run(tmp_path/'drop', 'ADDrop')
    one, other = (Explorer(drop, state=dict(entry=dict(kind='head', layer=1, head=head))) for head in (0, 2))
    fig = figure([one, other])
    assert '(a) Attention of layer 1, head 0' in fig.caption and '(b) Attention of layer 1, head 2' in fig.caption
    with pytest.raises(ValueError, match='layer|several explorers'): raise ValueError(fig.recipe['cannot'])
    same = figure([one, one], 'triptych')
    assert 'cannot' not in same.recipe and '(ii)' in same.caption
    guided = Explorer(invented.run(tmp_path/'guided', 'AttentionGuidance'),
                      state=dict(entry=dict(kind='head', layer=1, head=0)))
    assert 'A is AD-DROP' in figure([one, guided], 'compared').caption
    assert figure([one, guided], 'loss_curves').caption
    with pytest.raises(ValueError, match='different kinds of figures .attention_map, triptych.; choose one with kind='):
        figure([one, Explorer(drop, state=dict(entry=dict(kind='head', layer=1, head=0), tab='triptych'))])
    with pytest.raises(ValueError, match='omit step='): figure([one, other], step=3)


def test_emojis_that_share_a_token_are_all_drawn(tiny_tokenizer):
    from salviz.core.text import align
    text = align(tiny_tokenizer, 'good 😍🎉 film')
    assert text.tokens.count('[UNK]') >= 1
    s = Snapshot(0, 0., 0, dict(saliency=[0.] + [1.]*(len(text) - 2) + [0.]), texts=text.texts, tokens=text.tokens,
                 labels=text.labels, words=text.words, word_ids=text.word_ids, is_special=text.is_special)
    assert '😍🎉' in coloured_sentences(s).labels


@pytest.mark.parametrize('titles', ['My title', ['My title']])
@pytest.mark.parametrize('heading', ['title', 'none'])
def test_a_caption_begins_with_the_whole_title_that_was_given(titles, heading):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        fig = figure(invented.invent(6), 'attention_map', titles=titles, heading=heading)
    assert fig.caption.startswith('My title: Attention of ')
