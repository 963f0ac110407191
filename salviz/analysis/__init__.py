"Analyse models: faithfulness, attention heads over a corpus, antecedents, generation, and maps of one model."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
