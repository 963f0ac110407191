"The methods: plain fine-tuning and six ways to train with explanations."
from salviz.methods.base import FineTuning, Method, Plan, Progress, Term, Together, Variant
from salviz.methods.ad_drop import ADDrop, ADDropVariant
from salviz.methods.attention_guidance import AttentionGuidance, AttentionGuidanceVariant
from salviz.methods.distillation import Distillation, DistillationVariant
from salviz.methods.rationale_guided import RationaleGuided, RationaleGuidedVariant
from salviz.methods.saliency_guided import SaliencyGuided, SaliencyGuidedVariant
from salviz.methods.sallm import SalLM, SalLMVariant

__all__ = ['FineTuning', 'SalLM', 'SalLMVariant', 'SaliencyGuided', 'SaliencyGuidedVariant', 'ADDrop', 'ADDropVariant',
           'AttentionGuidance', 'AttentionGuidanceVariant', 'RationaleGuided', 'RationaleGuidedVariant',
           'Distillation', 'DistillationVariant', 'Method', 'Plan', 'Progress', 'Term', 'Together', 'Variant']
