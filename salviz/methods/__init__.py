"The methods: plain fine-tuning and six ways to train with explanations."
from salviz.methods.base import FineTuning, Method, Plan, Progress, Term, Together
from salviz.methods.ad_drop import ADDrop
from salviz.methods.attention_guidance import AttentionGuidance
from salviz.methods.distillation import Distillation
from salviz.methods.rationale_guided import RationaleGuided
from salviz.methods.saliency_guided import SaliencyGuided
from salviz.methods.sallm import SalLM

__all__ = ['FineTuning', 'SalLM', 'SaliencyGuided', 'ADDrop', 'AttentionGuidance', 'RationaleGuided', 'Distillation',
           'Method', 'Plan', 'Progress', 'Term', 'Together']
