# The public names of salviz and their modules: editors read this file, and so does `salviz/__init__.py`, which imports
# a name when it is first used.
from .core.assets import fetch as fetch, asset as asset
from .core.bibliography import bibtex as bibtex
from .core.text import align as align, TokenText as TokenText
from .core.snapshots import Snapshot as Snapshot
from .core.runs import Run as Run, runs_table as runs_table
from .core.interventions import Intervention as Intervention
from .core.interventions import InterventionOptions as InterventionOptions
from .core.attention_arrays import attention_maps as attention_maps, save_maps as save_maps
from .core.image_layout import ImageLayout as ImageLayout, pixel_map as pixel_map, token_fractions as token_fractions
from .data.texts import (load_text as load_text, load_tokens as load_tokens, load_pairs as load_pairs,
                         load_questions as load_questions, subset as subset, encode as encode, Collator as Collator)
from .data.signals import (load_images as load_images, load_series as load_series,
                           synthetic_series as synthetic_series, vanishing_series as vanishing_series)
from .data.rationales import load_rationales as load_rationales
from .data.shifted import shifted_splits as shifted_splits
from .models.loading import load_classifier as load_classifier, load_model_for as load_model_for
from .models.nets import small_net as small_net
from .models.corruption import (train_tokenizer as train_tokenizer, small_model as small_model,
                                MaskTokens as MaskTokens, ReplaceTokens as ReplaceTokens)
from .models.attention import observe as observe
from .models.checkpoints import load_model as load_model
from .attribution.saliency import input_saliency as input_saliency
from .attribution.attention import attention_attribution as attention_attribution
from .attribution.explanations import explain as explain, explain_data as explain_data, explainers as explainers
from .attribution.captum_methods import (CaptumAttribution as CaptumAttribution, explain_generated as explain_generated,
                                         list_attributions as list_attributions)
from .methods import *
from .training.trainer import train as train
from .training.live import start_training as start_training, Training as Training
from .training.watching import watch as watch, Watcher as Watcher
from .studies.study import Study as Study, StudyOptions as StudyOptions
from .studies.trade_off import pareto as pareto, RationalePlausibility as RationalePlausibility
from .metrics.scores import attention_agreement as attention_agreement, run_agreement as run_agreement
from .metrics.agreement import agreement_table as agreement_table, compare_runs as compare_runs
from .metrics.statistics import result_table as result_table
from .metrics.front import front_of as front_of
from .metrics.methods_text import model_card as model_card
from .metrics.robustness import (calibration_error as calibration_error, consistency as consistency,
                                 group_scores as group_scores)
from .metrics.localisation import (pointing_game as pointing_game,
                                   energy_inside as energy_inside, box_mask as box_mask,
                                   rationale_mask as rationale_mask)
from .analysis.faithfulness import faithfulness_table as faithfulness_table, accuracy_drop as accuracy_drop
from .analysis.rationales import plausibility_table as plausibility_table
from .analysis.corpus import head_table as head_table, gradient_sizes as gradient_sizes
from .analysis.answers import (explain_answer as explain_answer, AnswerExplanation as AnswerExplanation,
                               answer_map as answer_map, answer_words as answer_words,
                               image_fraction as image_fraction)
from .analysis.transcripts import explain_transcript as explain_transcript
from .analysis.antecedents import antecedent_accuracy as antecedent_accuracy, antecedent_report as antecedent_report
from .analysis.empirical_explainer import (EmpiricalExplainer as EmpiricalExplainer,
                                           fit_explainer as fit_explainer)
from .analysis.steering import steer as steer, head_gains as head_gains, common_heads as common_heads
from .views.base import (attention_beside_saliency as attention_beside_saliency,
                         explanation_beside_rationale as explanation_beside_rationale,
                         masked_sentence as masked_sentence, discard_region as discard_region,
                         guided_heads as guided_heads, signal_view as signal_view,
                         saliency_distribution as saliency_distribution, token_labels as token_labels,
                         translation as translation, scored_sentence as scored_sentence,
                         pattern_shares as pattern_shares, view_for as view_for)
from .views.head_statistics import head_frame as head_frame
from .views.labelled_arrays import run_dataset as run_dataset
from .figures.drawing import save_figure as save_figure, figure_kinds as figure_kinds
from .figures.kinds import figure as figure
from .figures.trackers import export_run as export_run
from .figures.remaking import remake as remake
from .figures.sentences import sentence_latex as sentence_latex, coloured_sentence_latex as coloured_sentence_latex
from .explorer.widget import Explorer as Explorer, ExplorerOptions as ExplorerOptions
from .explorer.notebook_cleanup import strip_views as strip_views
from .explorer.bertviz import bertviz_view as bertviz_view
from .model_explorer import explore as explore
from .model_explorer import explore_long as explore_long
from .replication.comparison import compare as compare, MethodComparison as MethodComparison
from .tour import demo as demo

__version__: str
