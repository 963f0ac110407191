"""Training in a page, in Chromium: losses, weights and maps after each number of steps are those of torch."""
import numpy as np
import pytest
import torch

from browser import evaluate_json, load, send
from salviz.analysis.quantised_model import _layouts, quantised_twin
from test_page_engine import kinds, packed_model, spread

settings = dict(steps=4, learningRate=.01, weightDecay=.1, clip=.5, weight=2.)
texts = [dict(rows=[2, 17, 5, 60, 5, 3], marks=[0, 0, 1, 1, 0, 0], counts=[0, 1, 1, 1, 1, 0], label=1),
         dict(rows=[2, 31, 44, 3], marks=[0, .25, 1, 0], counts=[0, 1, 1, 0], label=2),
         dict(rows=[2, 8, 9, 10, 11, 3], marks=[0]*6, counts=[0, 1, 1, 1, 1, 0], label=0)]

@pytest.fixture
def engine(page):
    load(page, 'rowtraining.js', 'network.js', 'weights.js')
    return page

in_page = '''async ({texts, settings}) => {
    const {config, weights} = await sv.unpackWeights(packed), network = new sv.Network(config, weights);
    const training = new sv.RowTraining(network, settings);
    const examples = texts.map(({rows, ...of}) =>
        ({...of, text: sv.RowTraining.text(network, rows, rows.map(() => 0))}));
    const shown = () => examples.map(({text}) => {
        const {attention, logits} = training.forward(text);
        return [[...attention], [...logits]];
    });
    const out = {losses: [], shown: [shown()]};
    for (let step = 0; step < settings.steps; step++) {
        out.losses.push(training.step(examples));
        out.shown.push(shown());
    }
    return {...out, query: [...training.query], key: [...training.key]};
}'''

def last_projections(twin):
    "Return query and key weights [outputs, inputs] of the last layer, and a function from both to parameters"
    layout, parameters = _layouts[twin.config.model_type], dict(twin.named_parameters())
    place = f'{layout.stack}.{layout.layers}.{twin.config.num_hidden_layers - 1}'
    if twin.config.model_type == 'gpt2': # one matrix for queries, keys and values
        name = f'{place}.attn.c_attn.weight'
        query, key, value = parameters[name].detach().T.chunk(3)
        return query.clone(), key.clone(), lambda query, key: {name: torch.cat([query, key, value]).T}
    names = [f'{place}.{layout.parts[part]}.weight' for part in ('query', 'key')]
    start = [parameters[name].detach().clone() for name in names]
    return *start, lambda *trained: dict(zip(names, trained))

def in_torch(model):
    "Return the same in float64, by autograd through the whole model, one text at a time"
    twin = quantised_twin(model).double()
    twin.set_attn_implementation('eager')
    *trained, as_parameters = last_projections(twin)
    start, row = [x.numpy().copy() for x in trained], -1 if model.config.model_type == 'gpt2' else 0
    for x in trained: x.requires_grad_()
    adamw = torch.optim.AdamW(trained, lr=settings['learningRate'], weight_decay=settings['weightDecay'])
    schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: 1 - step/settings['steps'])
    def run(text):
        inputs = dict(input_ids=torch.tensor([text['rows']]), output_attentions=True)
        outputs = torch.func.functional_call(twin, as_parameters(*trained), (), inputs)
        return outputs.attentions[-1][0, :, row].mean(0), outputs.logits[0]
    def looks(text, attention):
        marks, counts = np.array(text['marks']), np.array(text['counts'])
        total, loss = sum(marks*counts), 0
        share = attention/sum(a for a, c in zip(attention, counts) if c)
        for e, r, c in zip(share, marks, counts):
            if c and r: loss = loss + r/total*(np.log(r/total) - e.log())
        return loss
    def shown(): return [[x.detach().numpy() for x in run(text)] for text in texts]
    out = dict(losses=[], shown=[shown()])
    for _ in range(settings['steps']):
        adamw.zero_grad()
        rationale = task = 0
        for text in texts:
            attention, logits = run(text)
            rationale = rationale + looks(text, attention)/len(texts)
            task = task - logits.log_softmax(-1)[text['label']]/len(texts)
        (settings['weight']*rationale + task).backward()
        torch.nn.utils.clip_grad_norm_(trained, settings['clip'])
        adamw.step()
        schedule.step()
        out['losses'].append(dict(rationale=float(rationale.detach()), task=float(task.detach())))
        out['shown'].append(shown())
    return out | dict(start=start, query=trained[0].detach().numpy(), key=trained[1].detach().numpy())

@pytest.mark.parametrize('kind', ['bert', 'roberta', 'electra', 'distilbert', 'gpt2'])
def test_losses_weights_and_maps_are_those_of_torch_after_each_step(engine, kind):
    torch.manual_seed(0)
    model = spread(kinds()[kind]())
    send(engine, packed=packed_model(model, 6))
    got, expected = evaluate_json(engine, in_page, dict(texts=texts, settings=settings)), in_torch(model)
    assert len(got['losses']) == settings['steps'] and got['losses'][-1]['rationale'] < got['losses'][0]['rationale']
    for mine, theirs in zip(got['losses'], expected['losses']): assert mine == pytest.approx(theirs, abs=1e-5)
    for mine, theirs in zip(got['shown'], expected['shown']):
        for (attention, logits), (attention_of, logits_of) in zip(mine, theirs):
            assert attention == pytest.approx(attention_of, abs=1e-5)
            assert logits == pytest.approx(logits_of, abs=1e-4)
    for name, start in zip(('query', 'key'), expected['start']):
        assert np.abs(expected[name] - start).max() > .01
        assert got[name] == pytest.approx(expected[name].ravel(), abs=2e-5)
