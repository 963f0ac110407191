"""A training step with a loss on one row of the last layer, beside a step without it: `python
tests/row_supervision_times.py [TOKENS …]` prints time and memory of fused passes, rows, and whole maps. Each round
runs all of them in turn; the ratios are medians over rounds."""
import json
import statistics
import sys
import time
from contextlib import nullcontext

import torch
from transformers import BertConfig, BertForSequenceClassification

from salviz.models.attention import observe

def step(model, inputs, how):
    "Run forward and backward; with `how`, add a loss on row 0 of the last layer"
    model.zero_grad(set_to_none=True)
    with observe(model, -1, **how) if how is not None else nullcontext() as maps: loss = model(**inputs).logits.sum()
    if how is not None: loss = loss - maps.rows(-1, torch.zeros(1, dtype=torch.long, device=loss.device)).square().sum()
    loss.backward()

def timed(act, device):
    if device == 'cuda': torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    act()
    if device == 'cuda': torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated()/2**20 if device == 'cuda' else None

def main(tokens, layers=4, rounds=7):
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, max_position_embeddings=tokens, attention_probs_dropout_prob=0.)
    model = BertForSequenceClassification(config).to(device).train()
    inputs = dict(input_ids=torch.randint(1000, 20000, (1, tokens), device=device))
    ways = dict(fused=None, rows=dict(rows=0), whole={})
    if device == 'cpu' and tokens > 4096: del ways['whole'] # 12 heads of 8,192 tokens take 3 GiB, several times
    found = {name: [] for name in ways}
    for r in range(rounds + 1):
        for name, how in ways.items():
            measured = timed(lambda: step(model, inputs, how), device)
            if r: found[name].append(measured)
    row = dict(device=device, tokens=tokens, layers=layers)
    for name, measured in found.items():
        ratio = statistics.median(s/f for (s, _), (f, _) in zip(measured, found['fused']))
        row[name] = dict(seconds=round(statistics.median(s for s, _ in measured), 4), ratio=round(ratio, 3),
                         mib=measured[0][1] and round(measured[0][1]))
    print(json.dumps(row), flush=True)

if __name__ == '__main__':
    for count in map(int, sys.argv[1:] or ('2048', '8192')): main(count)
