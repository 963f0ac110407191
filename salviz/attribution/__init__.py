"What a prediction rests on: saliency of the input, attribution of attention, explanations by name."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
