"Faithfulness, heads over a corpus, antecedents, generation, the maps of one model."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
