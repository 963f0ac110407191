"Train models: settings, data feeds, training steps, recording, the trainer, and live training in a notebook."
from salviz import lazy_names

__getattr__ = lazy_names(__name__, load_model='trainer', prior_experiment='trainer')
