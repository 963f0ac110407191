"What a prediction rests on: saliency of the input, attribution of attention, explanations by name."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
