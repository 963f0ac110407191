"""The cost of a pass with a loss on one row of the last layer, compared with a pass without it and one with the whole
map: `python tests/row_supervision_times.py [TOKENS …]` prints processor time (on a GPU, elapsed time) and memory as
JSON."""
import json
import sys

import torch

from salviz.benchmarks.bench import measure_row_supervision

if __name__ == '__main__':
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    for tokens in map(int, sys.argv[1:] or ('2048', '8192')):
        # 12 heads of 8,192 tokens take 3 GiB, several times
        whole = {} if device == 'cpu' and tokens > 4096 else dict(whole={})
        found, = measure_row_supervision([tokens], device, 3 if tokens > 4096 else 5, **whole)
        print(json.dumps(found), flush=True)
