"Analyse models: faithfulness, attention heads, antecedents, generated text, and maps of attention and saliency."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
