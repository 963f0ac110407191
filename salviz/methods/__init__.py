"Train with plain fine-tuning, six explanation-based methods, or baselines for comparison."
# One line per method. `import A as A` makes a name public: `salviz.A`.
from salviz.methods.base import (FineTuning as FineTuning, Method as Method, Plan as Plan, Progress as Progress,
                                 Term as Term, Together as Together, Variant as Variant)
from salviz.methods.sallm import SalLM as SalLM, SalLMVariant as SalLMVariant
from salviz.methods.saliency_guided import (SaliencyGuided as SaliencyGuided,
                                            SaliencyGuidedVariant as SaliencyGuidedVariant)
from salviz.methods.ad_drop import ADDrop as ADDrop, ADDropVariant as ADDropVariant
from salviz.methods.attention_guidance import (AttentionGuidance as AttentionGuidance,
                                               AttentionGuidanceVariant as AttentionGuidanceVariant)
from salviz.methods.rationale_guided import (RationaleGuided as RationaleGuided,
                                             RationaleGuidedVariant as RationaleGuidedVariant)
from salviz.methods.distillation import Distillation as Distillation, DistillationVariant as DistillationVariant
from salviz.methods.right_reasons import RightForRightReasons as RightForRightReasons, EnergyLoss as EnergyLoss
from salviz.methods.rdrop import RDrop as RDrop
from salviz.methods.attention_dropout import (AttentionDropout as AttentionDropout, DropHead as DropHead,
                                              DropKey as DropKey)
from salviz.methods.expected_gradients import ExpectedGradients as ExpectedGradients
from salviz.methods.constrained_rationales import ConstrainedRationales as ConstrainedRationales
from salviz.methods.hiddencut import HiddenCut as HiddenCut
from salviz.methods.attribution_distillation import ADKD as ADKD
from salviz.methods.robust_explanations import DRE as DRE
