"Train language models with explanations and see what that does to attention."
# Names are imported from their rooms when they are first used: `import salviz` costs nothing and does not import torch.
# Public functions refuse at the door what no argument of that name can be (salviz.core.doors), and `help` shows the
# comments beside their parameters (salviz.core.docstrings).
from importlib import import_module
from types import FunctionType

__version__ = "0.1.0"

_rooms = {
    'core.assets': 'fetch asset',
    'core.text': 'align TokenText',
    'core.runs': 'Run Snapshot runs_table',
    'data.texts': 'load_text load_tokens load_pairs load_questions subset encode Collator',
    'data.signals': 'load_images load_series synthetic_series vanishing_series',
    'data.rationales': 'load_rationales',
    'models.loading': 'load_classifier load_model_for',
    'models.nets': 'small_net',
    'models.corruption': 'train_tokenizer small_model MaskTokens ReplaceTokens',
    'models.attention': 'observe',
    'models.checkpoints': 'load_model',
    'attribution.saliency': 'input_saliency',
    'attribution.attention': 'attention_attribution',
    'attribution.explanations': 'explain explain_data explainers',
    'methods': 'FineTuning SalLM SaliencyGuided ADDrop AttentionGuidance RationaleGuided Distillation Method Plan '
               'Term',
    'training.trainer': 'train',
    'training.live': 'start_training Training',
    'training.study': 'Study',
    'training.trade_off': 'pareto RationalePlausibility',
    'measures.scores': 'attention_agreement run_agreement',
    'measures.plausibility': 'plausibility_table',
    'measures.agreement': 'agreement_table compare_runs',
    'measures.statistics': 'result_table',
    'measures.front': 'front_of',
    'probing.faithfulness': 'faithfulness_table accuracy_drop',
    'probing.corpus': 'head_table gradient_sizes',
    'probing.antecedents': 'antecedent_accuracy antecedent_report',
    'probing.look': 'explore',
    'views.base': 'attention_beside_saliency explanation_beside_rationale masked_sentence discard_region '
                  'guided_heads signal_view '
                  'saliency_distribution token_labels translation scored_sentence pattern_shares view_for',
    'figures.drawing': 'save_figure',
    'figures.kinds': 'figure bibtex',
    'figures.remake': 'remake',
    'figures.sentences': 'sentence_latex coloured_sentence_latex',
    'explorer.widget': 'Explorer',
    'explorer.saving': 'strip_views',
    'explorer.bertviz': 'bertviz_view',
    'tour': 'demo'}
_home = {name: room for room, names in _rooms.items() for name in names.split()}
__all__ = list(_home)
_optional = dict.fromkeys(('train', 'start_training'), ('tokenizer',)) # nets for images and series have none

def __getattr__(name):
    if name not in _home: raise AttributeError(f'module salviz has no attribute {name!r}')
    thing = getattr(import_module(f'salviz.{_home[name]}'), name)
    return documented(door(thing, _optional.get(name, ())) if type(thing) is FunctionType else thing)

def __dir__(): return [*globals(), *__all__]

def elsewhere(module, home):
    "`__getattr__` of `module` for the names in `home` {name: room}, loaded when first used"
    def load(name):
        if name not in home: raise AttributeError(f'module {module} has no attribute {name!r}')
        return getattr(import_module(f'salviz.{home[name]}'), name)
    return load

def rooms_of(floor, **more):
    "`__getattr__` of the package `floor`: its rooms' public names, and `more` {name: room}, loaded when first used"
    within = floor.removeprefix('salviz.')
    home = {name: room for name, room in _home.items() if room.startswith(f'{within}.')}
    return elsewhere(floor, home | {name: f'{within}.{room}' for name, room in more.items()})

from salviz.core.docstrings import documented # noqa: E402, their package asks for `rooms_of`
from salviz.core.doors import door # noqa: E402
