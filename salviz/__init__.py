"Train language models with explanations and see what that does to attention."
# Names are imported from their rooms when they are first used: `import salviz` costs nothing and does not import torch.
# Public functions refuse at the door what no argument of that name can be (salviz.doors).
from importlib import import_module
from types import FunctionType

from salviz.doors import door

__version__ = "0.1.0"

_rooms = {
    'assets': 'fetch asset',
    'text': 'align TokenText',
    'data': 'load_text load_tokens load_pairs subset encode Collator',
    'signals': 'load_images load_series synthetic_series vanishing_series',
    'models': 'load_classifier load_model_for',
    'nets': 'small_net',
    'pretraining': 'train_tokenizer small_model MaskTokens ReplaceTokens',
    'attention': 'observe',
    'attribution': 'input_saliency attention_attribution',
    'explanations': 'explain explain_data explainers',
    'methods': 'FineTuning SalLM SaliencyGuided ADDrop AttentionGuidance',
    'runs': 'Run Snapshot runs_table',
    'metrics': 'attention_agreement run_agreement',
    'training': 'train load_model',
    'study': 'Study',
    'statistics': 'result_table',
    'faithfulness': 'faithfulness_table accuracy_drop',
    'plausibility': 'plausibility_table',
    'rationales': 'load_rationales',
    'corpus': 'head_table gradient_sizes',
    'agreement': 'agreement_table compare_runs',
    'antecedents': 'antecedent_accuracy antecedent_report',
    'live': 'start_training Training',
    'views': 'attention_beside_saliency masked_sentence discard_map guided_heads signal_view saliency_distribution token_labels translation scored_sentence '
             'pattern_shares view_for',
    'drawing': 'save_figure', 'paper': 'figure bibtex', 'latex': 'sentence_latex coloured_sentence_latex',
    'explorer': 'Explorer strip_views',
    'explore_model': 'explore',
    'bertviz_bridge': 'bertviz_view',
    'tour': 'demo'}
_home = {name: room for room, names in _rooms.items() for name in names.split()}
__all__ = list(_home)
_optional = dict.fromkeys(('train', 'start_training'), ('tokenizer',)) # nets for images and series have none

def __getattr__(name):
    if name not in _home: raise AttributeError(f'module salviz has no attribute {name!r}')
    found = getattr(import_module(f'salviz.{_home[name]}'), name)
    return door(found, _optional.get(name, ())) if type(found) is FunctionType else found

def __dir__(): return [*globals(), *__all__]
