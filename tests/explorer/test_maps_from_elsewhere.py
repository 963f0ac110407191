"Attention maps that were computed by other libraries: which are accepted or rejected, and where they are shown"
import copy
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from salviz import Explorer, attention_maps, bertviz_view, figure, save_maps
from salviz.explorer import drop_in
from salviz.explorer.payload import pack_frame, unpack_frame

tokens = ['[CLS]', 'a', 'charm', '##ing', 'film', '[SEP]']
source, target = ['▁une', '▁femme', '▁lit', '</s>'], ['<pad>', '▁a', '▁woman', '▁reads', '</s>']


def weights(*shape, seed=0):
    "Return random attention whose rows sum to one"
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


maps = weights(2, 3, 6, 6)


def encoder_decoder():
    "Return the arguments for the three kinds of attention of an encoder-decoder model"
    return dict(encoder_attention=weights(2, 3, 4, 4), decoder_attention=weights(2, 3, 5, 5),
                cross_attention=weights(2, 3, 5, 4), encoder_tokens=source, decoder_tokens=target)


@pytest.mark.parametrize('as_tensor', [
    lambda x: x, lambda x: x.bfloat16(), lambda x: x.half(), lambda x: x.double(),
    lambda x: x.requires_grad_(), lambda x: (2*x.requires_grad_())/2])
def test_tensors_of_any_kind_are_accepted(as_tensor):
    x = as_tensor(torch.tensor(maps, dtype=torch.float32))
    for form in (x, x[:, None], tuple(x[:, None]), list(x)):
        snapshot, = attention_maps(form, tokens)
        np.testing.assert_allclose(snapshot.arrays['attention'], maps, atol=4e-3)
        assert not snapshot.info['notes']


@pytest.mark.parametrize('call', [
    lambda: (maps, tokens), lambda: (tokens, maps), lambda: (maps, tokens, 4), lambda: (maps, tokens, tokens),
    lambda: (maps.tolist(), tokens), lambda: (maps, np.array(tokens)), lambda: (maps[:, None], [tokens]),
    lambda: (maps, (tokens[:4], tokens[4:]))])
def test_positional_arguments_of_other_viewers_mean_the_same(call):
    snapshot, = attention_maps(*call())
    np.testing.assert_allclose(snapshot.arrays['attention'], maps, atol=1e-6)
    assert snapshot.tokens == tokens


def test_the_output_of_a_model_is_accepted(tiny_bert, tiny_tokenizer):
    model = tiny_bert().eval()
    model.set_attn_implementation('eager')
    batch = tiny_tokenizer(['a good film', 'bad'], padding=True, return_tensors='pt')
    out = model(**batch, output_attentions=True)
    lists = [tiny_tokenizer.convert_ids_to_tokens(ids) for ids in batch['input_ids']]
    first, second = attention_maps(out.attentions, lists, attention_mask=batch['attention_mask'])
    n = int(batch['attention_mask'][1].sum())
    assert len(second.tokens) == n < len(first.tokens) and not second.info['notes']
    np.testing.assert_allclose(second.arrays['attention'][-1], out.attentions[-1][1, :, :n, :n].detach(), atol=1e-6)
    stripped = attention_maps(out.attentions, [lists[0], lists[1][:n]], attention_mask=batch['attention_mask'])
    assert stripped[1].tokens == second.tokens


def test_sentences_of_different_lengths_are_a_list():
    pair = attention_maps([maps, weights(2, 3, 4, 4)], [tokens, tokens[:4]])
    assert [(s.probe, len(s.tokens)) for s in pair] == [(0, 6), (1, 4)]
    per_layer = attention_maps([tuple(maps[:, None]), tuple(weights(2, 1, 3, 4, 4))], [tokens, tokens[:4]])
    assert [s.arrays['attention'].shape for s in per_layer] == [(2, 3, 6, 6), (2, 3, 4, 4)]


def test_the_attention_of_generation_is_joined():
    steps = [[weights(1, 2, 3, 3)]*2, [weights(1, 2, 1, 4)]*2, [weights(1, 2, 1, 5)]*2]
    snapshot, = attention_maps(steps, ['a', 'b', 'c', 'd', 'e'])
    attention = snapshot.arrays['attention']
    assert attention.shape == (2, 2, 5, 5) and not snapshot.info['notes']
    assert (attention[..., :3, 3:] == 0).all() and (attention[..., 3, 4] == 0).all()


@pytest.mark.parametrize('call, message', [
    (lambda: (maps, tokens[:4]),
     r'axis query of attention has size 6, but sentence 0 has 4 tokens, axis key .* 4 tokens'),
    (lambda: (maps, [*tokens, '[PAD]']), 'has size 6, but sentence 0 has 7 tokens.*one token per position'),
    (lambda: (maps[..., :5], tokens), 'axis key of attention has size 5, but sentence 0 has 6 tokens'),
    (lambda: (maps, [tokens, tokens]), 'axis batch of attention has size 1, but the number of token lists is 2'),
    (lambda: ([maps[0], maps[1, :2]], tokens), 'axis heads has size 3 in layer 0 and 2 in layer 1'),
    (lambda: (np.where(maps == maps[1, 2, 3, 4], np.nan, maps), tokens),
     'NaN or infinite values, first at layer 1, head 2, query 3, key 4'),
    (lambda: (np.where(maps == maps[0, 1, 0, 0], np.inf, maps), tokens), 'layer 0, head 1, query 0, key 0: inf'),
    (lambda: (maps - .5, tokens), 'negative values, first at layer 0, head 0'),
    (lambda: (7*maps, tokens), 'values above 1'),
    (lambda: ((), tokens), "attention is empty.*attn_implementation='eager'"),
    (lambda: (None, tokens), 'attention is missing'), (lambda: (maps, None), 'tokens are missing'),
    (lambda: (maps, [101, 102, 103, 104, 105, 106]), 'convert_ids_to_tokens'),
    (lambda: (np.zeros(3), tokens), r'must have the axes \[layers, heads, query, key\].*shape \[3\]'),
    (lambda: ('attention', tokens), 'must be an array of numbers'),
    (lambda: (maps, tokens, 6), 'sentence_b_start must be between 1 and 5')])
def test_what_does_not_fit_is_rejected_with_axis_and_size(call, message):
    with pytest.raises(ValueError, match=message): attention_maps(*call())


@pytest.mark.parametrize('options, message', [
    (dict(saliency=[1, 2]), 'saliency of sentence 0 must have one entry for each of the 6 tokens, got 2'),
    (dict(words=[0, 1]), 'words of sentence 0 must have'), (dict(labels=['a']), 'labels of sentence 0 must have'),
    (dict(steps=[1, 2, 3]), 'axis 0 of attention has size 2, but there are 3 steps')])
def test_wrong_sizes_of_further_arguments_are_rejected(options, message):
    with pytest.raises(ValueError, match=message): attention_maps(maps, tokens, **options)


@pytest.mark.parametrize('mask', [None, [1]*5, torch.ones(1, 5)])
def test_two_layers_of_a_sentence_pair_are_no_two_sentences(mask):
    A = np.full((1, 2, 5, 5), .2, np.float32)
    pair, = attention_maps([A, A], [['a', 'b', 'c'], ['d', 'e']], attention_mask=mask)
    assert pair.arrays['attention'].shape == (2, 2, 5, 5)
    same, = attention_maps((A, A), [*'abcde'], sentence_b_start=torch.tensor(3))
    assert same.info['second_start'] == pair.info['second_start'] == 3
    with pytest.raises(ValueError, match='attention_maps: words of sentence 0 must be integers'):
        attention_maps((A, A), [*'abcde'], words=np.array([np.nan, 0, 1, 1, np.nan]))

def test_rows_that_do_not_sum_to_one_are_marked_and_kept():
    snapshot, = attention_maps(maps/2, tokens)
    note, = snapshot.info['notes']
    assert note == 'Not normalised: 36 of 36 rows of attention do not sum to 1 (0.5 to 0.5).'
    np.testing.assert_allclose(snapshot.arrays['attention'], maps/2, atol=1e-6)
    header = unpack_frame(pack_frame(snapshot))
    assert header['info']['not_normalised'] and header['info']['notes'] == [note]
    for kind in ('attention_map', 'head_grid'): assert note in figure(snapshot, kind).caption


def test_words_labels_and_saliency_reach_the_snapshot():
    saliency = torch.arange(6.).requires_grad_()
    snapshot, = attention_maps(maps, tokens, saliency=saliency, labels=list('abcdef'), words=[None, 0, 1, 1, 1, None])
    assert snapshot.words == ['b', 'cde'] and snapshot.labels == list('abcdef')
    assert snapshot.is_special.tolist() == [True, False, False, False, False, True]
    assert snapshot.arrays['saliency'].tolist() == [0, 1, 2, 3, 4, 5]
    default, = attention_maps(maps, tokens)
    assert default.words == ['a', 'charming', 'film']


def test_cross_attention_is_a_block_of_a_square_map():
    encoder, decoder, cross = attention_maps(**encoder_decoder())
    assert [len(s.tokens) for s in (encoder, decoder, cross)] == [4, 5, 9]
    attention = cross.arrays['attention']
    np.testing.assert_allclose(attention[..., 4:, :4], encoder_decoder()['cross_attention'], atol=1e-6)
    assert (attention[..., :4, :] == 0).all() and (attention[..., 4:] == 0).all()
    assert cross.texts == ('une femme lit', 'a woman reads') and cross.info['second_start'] == 4
    assert 'rows are decoder tokens' in figure(cross, 'attention_map').caption
    message = r'axis query of decoder_attention has size 5, but .* decoder_attention\[..., :3, :3\]'
    with pytest.raises(ValueError, match=message):
        attention_maps(**encoder_decoder() | dict(decoder_tokens=target[:3]))


def test_steps_and_models_become_recordings():
    by_model = {'first': {0: maps, 20: weights(2, 3, 6, 6, seed=1)}, 'second': {0: maps, 20: maps}}
    series = attention_maps(by_model, tokens)
    explorer = Explorer(series)
    assert repr(explorer) == ('Explorer of first (1 sentence, 2 recorded steps) and second (1 sentence, 2 recorded '
                              'steps)')
    assert repr(Explorer(np.stack([maps, maps]), tokens, steps=[0, 5])).endswith('(1 sentence, 2 recorded steps)')
    caption = figure([series[0], series[2]], 'compared').caption
    assert 'A is first, (b) B is second' in caption
    assert 'at steps (a) 0, (b) 20' in figure(series[:2], 'evolution').caption


@pytest.mark.parametrize('kind', ['attention_map', 'head_grid', 'triptych', 'coloured_sentences', None])
def test_figures_of_all_kinds_of_maps_are_drawn(kind):
    snapshot, = attention_maps(maps, tokens, saliency=np.arange(6.) - 2)
    fig = figure(snapshot) if kind is None else figure(snapshot, kind)
    assert fig.caption and fig.axes


def test_saved_maps_open_as_a_run(tmp_path):
    with pytest.raises(ValueError, match='maps is empty; pass the result of'): save_maps([], tmp_path/'no')
    run = save_maps(attention_maps(maps, tokens), tmp_path/'maps')
    np.testing.assert_allclose(run.snapshot().arrays['attention'], maps, atol=1e-3)
    assert figure(tmp_path/'maps', 'head_grid').caption and Explorer(run).to_html(tmp_path/'a.html').stat().st_size
    from salviz.cli import main
    main(['show', str(tmp_path/'maps'), '--out', str(tmp_path/'b.html')])
    assert 'charming' in Explorer(run).selected().snapshot.words and (tmp_path/'b.html').stat().st_size > 1e5


def test_what_needs_a_model_says_why_it_cannot_be_used(tmp_path):
    for run in (Explorer(maps, tokens), Explorer(save_maps(attention_maps(maps, tokens), tmp_path/'maps'))):
        offer, = json.loads(run.view.get_state('own')['own'])
        assert offer['needs'].startswith('These attention maps were passed as arrays, so there is no model to run.')


def test_arrays_need_no_torch():
    code = ('import sys, numpy as np\nfrom salviz import Explorer, attention_maps, figure\n'
            'x = np.full((1, 2, 3, 3), 1/3)\nExplorer(x, list("abc")).picture()\n'
            'figure(attention_maps(x, list("abc")), "head_grid")\nassert "torch" not in sys.modules')
    subprocess.run([sys.executable, '-c', code], check=True)


def test_functions_of_bertviz_take_its_arguments():
    import bertviz
    for name in ('head_view', 'model_view'):
        theirs, ours = (list(inspect.signature(getattr(module, name)).parameters) for module in (bertviz, drop_in))
        assert ours == [parameter for parameter in theirs if parameter not in ('html_action', 'include_heads')]
    explorer = drop_in.head_view(tuple(maps[:, None]), tokens, 4, layer=1, heads=[2])
    assert explorer.state['entry'] == dict(kind='head', layer=1, head=2)
    page = bertviz_view(explorer.selected().snapshot)._repr_html_()
    assert 'charm' in page


@pytest.fixture(scope='module')
def elsewhere(tmp_path_factory):
    "Return a function that runs code in a new process that can import TransformerLens, CircuitsVis and inspectus"
    site, root = tmp_path_factory.mktemp('site'), Path(__file__).resolve().parents[2]
    needed = ('transformer-lens>=4.3 circuitsvis inspectus beartype einops fancy-einsum jaxtyping typeguard '
              'wadler-lindig transformers-stream-generator labml altair wandb protobuf gitpython gitdb smmap '
              'importlib-metadata')
    subprocess.run([sys.executable, '-m', 'uv', 'pip', 'install', '--quiet', '--python', sys.executable, '--no-deps',
                    '--target', site, *needed.split()], check=True)
    def run(code, *args):
        begin = f'import sys; sys.path.append({str(site)!r})\n'
        done = subprocess.run([sys.executable, '-c', begin + code, *map(str, args)], text=True, capture_output=True,
                              env=os.environ | dict(PYTHONPATH=str(root)))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout
    return run


@pytest.mark.slow
def test_functions_of_circuitsvis_and_inspectus_take_their_arguments(elsewhere):
    printed = elsewhere('''
from inspect import signature
import circuitsvis.attention, inspectus
from salviz.explorer import drop_in
for module, names in {circuitsvis.attention: ('attention_heads', 'attention_pattern', 'attention_patterns'),
                      inspectus: ('attention',)}.items():
    for name in names:
        theirs, ours = (signature(getattr(m, name)).parameters for m in (module, drop_in))
        print(name, list(theirs) == list(ours), [p.kind for p in theirs.values()] == [p.kind for p in ours.values()])
''')
    assert printed.count('True True') == 4, printed


@pytest.mark.slow
def test_the_example_of_transformerlens_runs(elsewhere, tmp_path, tiny_tokenizer):
    "The code of the notebook, with a small GPT-2 instead of the large one"
    from salviz.models.corruption import small_model
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.bos_token = tokenizer.eos_token = tokenizer.cls_token
    for part in (small_model('causal_lm', tokenizer, layers=2), tokenizer): part.save_pretrained(tmp_path/'gpt2')
    notebook = Path(__file__).resolve().parents[2]/'nbs/00_learn/maps_from_elsewhere.ipynb'
    source, = [text for cell in json.loads(notebook.read_text())['cells']
               if (text := ''.join(cell['source'])).startswith('## TransformerLens')]
    code = re.search(r'```python\n(.*?)```', source, re.S)[1]
    assert 4 <= code.count('\n') <= 6
    run = code.replace("'gpt2'", f"'{tmp_path}/gpt2'").replace('Explorer(', 'shown = Explorer(')
    end = '''
maps = shown.selected().snapshot
print(maps.arrays['attention'].shape, maps.tokens[:2], maps.info['notes'])
'''
    printed = elsewhere('from salviz import Explorer\n' + run + end).strip().splitlines()[-1]
    assert re.fullmatch(r"\(2, \d+, (\d+), \1\) \['\[CLS\]', '[^']+'\] \[\]", printed), printed
