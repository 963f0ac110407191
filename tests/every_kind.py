"Something to draw for every kind of figure: usual, with long names, with sixty tokens, with three."
import numpy as np
import pandas as pd

import invented
from salviz.core.snapshots import Snapshot
from salviz.figures.drawing import figure_kinds

compound = 'Donaudampfschifffahrtsgesellschaftskapitän'
address = 'https://example.org/a/rather/long/path?of=an&address=#here'
sixty = ['[CLS]', *(f'word{i}' for i in range(58)), '[SEP]']
sentences = dict(short=None, long=['[CLS]', compound, 'and', '##handbook', address, 'unforgettably', '[SEP]'],
                 sixty=sixty, three=['[CLS]', 'good', '[SEP]'])
shapes = list(sentences)


def a_run(folder, name, method='ADDrop', seed=0, **kw):
    "An invented run of its own name and seed"
    return invented.run(folder/name, method, seed=seed, **kw)


def own_map(run):
    "A snapshot with a map of a method of one's own"
    s = run.snapshot()
    n = len(s.tokens)
    s.arrays['pull'] = np.random.default_rng(0).normal(size=(2, 3, n, n))
    s.layers['pull'] = [0, 1]
    return s


def of_texts(folder, shape):
    "What kinds are made of that show tokens: {what they need: source}"
    tokens = sentences[shape]
    kw = {} if tokens is None else dict(tokens={p: tokens for p in range(3)})
    probes = (0, 1, 2)
    drop, other = (a_run(folder, name, seed=i, probes=probes, **kw) for i, name in enumerate(('drop', 'other')))
    guided, masked, plain = (a_run(folder, name, method, probes=probes, **kw)
                             for name, method in (('guided', 'AttentionGuidance'), ('masked', 'SaliencyGuided'),
                                                  ('sallm', 'SalLM')))
    marked = a_run(folder, 'marked', 'RationaleGuided', probes=probes, **kw)
    words = tokens or ['[CLS]', 'ada', 'love', '##lace', 'lives', 'in', 'london', '[SEP]']
    gold = [None, *('B-ORGANISATION' if i % 3 else 'O' for i in range(len(words) - 2)), None]
    answers = [None, *('O' for _ in words[2:]), None]
    target = [*words[1:-1], '</s>']
    return {'attention': drop, 'attention, attention_attribution or saliency': drop,
            'discard_candidates, discarded': drop, 'attention, pattern_target, guided': guided,
            'attention, saliency': plain, 'rationale, and explanation or saliency': marked,
            'saliency': [drop, plain], 'is_masked, masked_input': masked,
            "info['token_predictions']": invented.tagged(tokens=words, gold=gold, said=answers),
            "info['target_tokens']": invented.translated(target=target, said=target[::-1]),
            "info['continuation']": wrote(words), "info['answer']": answered(words),
            'prediction': scored(tokens), 'probabilities of a multi-label task': several_labels(tokens),
            'evidence that no other kind draws': own_map(drop),
            'attention, twice': [drop, other], 'rows of metrics': [drop, other, guided], 'snapshots': [drop, other]}


def wrote(tokens):
    "A text whose last three tokens a model wrote, or two of three"
    made, count = invented.snapshot(0, 0, tokens, 'ADDrop'), min(3, len(tokens) - 1)
    g, start = np.random.default_rng(0), len(tokens) - count
    seen = np.arange(len(tokens)) < start + np.arange(count)[:, None]
    made.arrays['continuation_saliency'] = (g.normal(size=seen.shape) * seen).astype(np.float32)
    made.info['continuation'] = dict(start=start, tokens=made.labels[start:], probability=[.4, .03, .97][:count],
                                     others=[[[compound, .3], ['the', .1]]] * count)
    return made


def answered(tokens):
    "A text about an image of 2 x 3 image tokens, whose last tokens a model wrote"
    tokens, g = [*(f'image {i}' for i in range(6)), *tokens], np.random.default_rng(0)
    start = len(tokens) - min(2, len(tokens) - 7)
    weights = g.dirichlet(np.ones(len(tokens)), (2, len(tokens) - start))
    layout = dict(height=20, width=30, crops=[[0, 0, 20, 30, 2, 3]])
    answer = dict(start=start, methods=['attention', 'rollout'], probability=[.5]*(len(tokens) - start),
                  others=[[]]*(len(tokens) - start), image_tokens=list(range(6)), layout=layout,
                  patches=dict(layout, crops=[[0, 0, 20, 30, 4, 6]]))
    patches = np.repeat(weights[..., :6], 4, -1)/4
    arrays = dict(answer_image=g.integers(0, 255, (20, 30, 3)).astype(np.uint8), answer_weights=weights,
                  answer_patches=patches)
    return Snapshot(0, 0., 0, arrays, tokens=tokens, info=dict(answer=answer, model='invented', notes=['Invented.']))


def scored(tokens):
    "A sentence of `tokens` with its score"
    made = invented.scored()
    if tokens is None: return made
    usual = invented.snapshot(10, 0, tokens, 'ADDrop')
    usual.arrays['prediction'] = made.arrays['prediction']
    del usual.arrays['probabilities']
    usual.label, usual.classes = 3.8, []
    usual.info.update(task='regression', methods=dict(ADDrop=usual.info['args']))
    return usual


def several_labels(tokens):
    "A sentence of `tokens` with several classes"
    made = invented.snapshot(10, 0, invented.sentence if tokens is None else tokens, 'ADDrop')
    made.classes, made.label = ['joy', 'fear', compound, 'anger'], None
    made.arrays['probabilities'] = np.array([.9, .4, .6, .01], np.float32)
    made.info.update(task='multi_label_classification', methods=dict(ADDrop=made.info['args']),
                     right_classes=['joy', 'fear'])
    return made


def an_image(shape, step=10):
    "An image; with ten classes, long names or hardly any pixels"
    size = dict(short=(10, 12), long=(28, 28), sixty=(60, 60), three=(8, 9))[shape]
    made = invented.image(step, height=size[0], width=size[1])
    if shape in ('long', 'sixty'):
        names = [f'{compound} {i}' if shape == 'long' else f'number {i}' for i in range(10)]
        chances = np.full(10, .1, np.float32)
        made.classes, made.arrays['probabilities'], made.arrays['masked_probabilities'] = names, chances, chances
    return made


def in_patches(shape):
    "An image in patches: few, many, a high narrow one, or of hardly any pixels"
    rows, columns = dict(short=(3, 4), long=(12, 3), sixty=(14, 14), three=(1, 2))[shape]
    first = 5 if shape == 'long' else 1
    made = an_image('short' if shape == 'three' else shape)
    colours = 3 if shape == 'sixty' else 1
    g, n = np.random.default_rng(0), first + rows*columns
    made.arrays['input'] = g.normal(size=(colours, rows, columns) if shape == 'three' else (colours, 4*rows, 4*columns))
    made.arrays['attention'], made.layers['attention'] = g.dirichlet(np.full(n, .3), (2, 2, n)), [0, 1]
    made.info['patches'] = dict(rows=rows, columns=columns, first=first)
    return made


def a_series(shape):
    "A series: short, with long names of its features, long, or of three steps"
    if shape == 'long':
        return invented.series(names=[f'acceleration along axis {i} of the left wrist' for i in range(6)])
    return invented.series(**dict(short={}, sixty=dict(time=150, features=12), three=dict(time=4, features=3))[shape])


def of_numbers(shape):
    "Tables of numbers, with long names, with many rows, or with one: {what kinds need: source}"
    rng = np.random.default_rng(0)
    methods = dict(short=('integrated_gradients', 'gradient', 'random'),
                   long=(f'{compound} of layer 1', f'{compound} of layer 2', address),
                   sixty=tuple(f'method {i}' for i in range(12)), three=('gradient',))[shape]
    trained = ('FineTuning', 'ADDrop') if shape == 'short' else methods
    settings = dict(short=(.1, .3, .5), long=(.1, .3, .5), sixty=tuple(np.arange(1, 10)/10), three=(.3,))[shape]
    depth, heads = dict(short=(4, 6), long=(6, 12), sixty=(24, 16), three=(1, 3))[shape]
    shares = (.01, .05, .1, .2, .5)
    curve = [dict(method=m, share=x, accuracy=1 - x*(i + 1)/14, comprehensiveness=x*(i + 1)/14, seed=z)
             for i, m in enumerate(methods) for x in shares for z in (0, 1)]
    grid = [dict(method='ADDrop', p=p, q=q, accuracy=p*(1 - q), seed=z) for p in settings for q in settings
            for z in (0, 1)]
    sizes = [dict(method=m, gradient=abs(x)) for m in methods for x in rng.normal(size=30)]
    numbers = [dict(layer=l, head=h, entropy=rng.random()) for l in range(depth) for h in range(heads)]
    results = [dict(method=m, seed=z, accuracy=rng.random(), macro_f1=rng.random()) for m in trained for z in range(3)]
    weights = dict(short=(0, .1, 1), long=(0, .1, 1, 3, 10), sixty=np.geomspace(.001, 100, 12), three=(1,))[shape]
    front = [dict(method=methods[0], weight=w, seed=z, validation_accuracy=.9 - .02*i + .01*rng.random(),
                  validation_token_f1=.3 + .03*i*(i != 2) + .01*rng.random())
             for i, w in enumerate(weights) for z in range(1 if shape == 'three' else 3)]
    over = [dict(method=m, rows=n, seed=z, validation_accuracy=rng.random()) for m in trained for n in (16, 64, 256)
            for z in range(1 if shape == 'three' else 3)]
    both = [dict(method='ADDrop', p=p, q=q, seed=z, validation_accuracy=p*(1 - q)) for p in settings for q in settings
            for z in (0, 1)] + [dict(method='FineTuning', seed=z, validation_accuracy=.25) for z in (0, 1)]
    sides = ('FineTuning', 'ADDrop') if shape == 'short' else (compound, address)
    tasks = [dict(method=m, task=address if shape == 'long' else f'task {t}', seed=z, validation_accuracy=rng.normal())
             for m in sides for t in range(dict(sixty=12, three=1, long=1).get(shape, 3))
             for z in range(1 if shape == 'three' else 3)]
    curve, grid, sizes, numbers, results, front = map(pd.DataFrame, (curve, grid, sizes, numbers, results, front))
    return {'columns method, share, accuracy': curve, 'columns method, share, comprehensiveness': curve,
            'columns of both settings and the metric': grid, 'columns method, gradient': sizes,
            'columns layer, head, and the number': numbers, 'a table of results': results,
            'columns method, seed, a setting and two metrics': front, 'columns method, seed and two metrics': results,
            'columns method, seed, a setting and the metric': pd.DataFrame(over),
            'columns method, p, q, seed and the metric, with the baseline': pd.DataFrame(both),
            'columns method and the metric, one row per run': pd.DataFrame(over),
            'columns method, task and the metric': pd.DataFrame(tasks),
            'columns method, task, seed and the metric': pd.DataFrame(tasks),
            'columns name, mean, low, high, word': effects(shape)}


def effects(shape):
    "Return invented effects: decided, inconclusive, without an interval, without a number, beyond the axis"
    long = shape == 'long'
    usual = [dict(name='A1', word='supported', mean=.03, low=.01, high=.05, smallest=.01, detectable=.02),
             dict(name='A2', word='inconclusive', mean=.2, low=-.3, high=.7, smallest=.1, detectable=.6,
                  rule='no harm'),
             dict(name='A3', word='no verdict', mean=-.1, smallest=.1),
             dict(name='A4', word='not testable', smallest=.1),
             dict(name='A5', word='contradicted', mean=-90., low=-95., high=-85., smallest=.1)]
    rows = dict(three=usual[:1], sixty=usual*6).get(shape, usual)
    return pd.DataFrame([dict(low=np.nan, high=np.nan, mean=np.nan, title=address if long else 'a claim',
                              group=f'{compound} and others' if long else f'paper {i//8}') | row
                         for i, row in enumerate(rows)])


def everything(folder, shape='short'):
    "{kind: (source, options)} of every kind; a series is one kind more"
    made = of_texts(folder, shape) | of_numbers(shape)
    made |= {'attention and input of an image in patches': in_patches(shape)}
    made |= {'input, saliency_map': an_image(shape), 'saliency_map, twice': [an_image(shape, s) for s in (0, 20)]}
    steps = [an_image(shape, s) for s in (0, 20)]
    made |= {'saliency of images, series or texts': made['saliency'] if shape in ('long', 'three') else steps}
    kinds = {name: (made[kind.needs], dict(kind.example)) for name, kind in figure_kinds().items()}
    results, options = kinds['metric_table']
    options['compare_to'] = results['method'][0] # which is called otherwise in each shape
    return kinds | dict(series=(a_series(shape), dict(kind='signal')))
