"Faithfulness, heads over a corpus, antecedents, generation, the maps of one model."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
