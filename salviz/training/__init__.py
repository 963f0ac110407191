"Settings, steps, what is fed and recorded, the trainer, training live in a notebook."
from salviz import lazy_names

__getattr__ = lazy_names(__name__, load_model='trainer', prior_experiment='trainer')
