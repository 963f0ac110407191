"Settings, steps, what is fed and recorded, the trainer, training live in a notebook."
from salviz import rooms_of

__getattr__ = rooms_of(__name__, load_model='trainer', prior_experiment='trainer')
