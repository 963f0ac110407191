"Explain predictions: saliency of the input, attribution to attention, and named attribution methods."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
