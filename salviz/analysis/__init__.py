"What a trained model is asked: faithfulness, its heads, antecedents, a look at one sentence."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
