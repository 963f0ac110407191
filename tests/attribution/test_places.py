"Explanations of language models that compute only the logits that are read, against all logits, written separately"
import pytest
import torch
import torch.nn.functional as F
from helpers import alike as alike_in_float64
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from salviz.attribution import packing
from salviz.attribution.attention import attention_attribution
from salviz.attribution.explanations import explain
from salviz.attribution.packing import _logit_bytes, rows_at_once
from salviz.attribution.questions import score_target
from salviz.attribution.reading import Reading, token_logit
from salviz.attribution.saliency import input_saliency
from salviz.methods.ad_drop import ADDrop, ADDropVariant
from salviz.methods.base import Progress
from salviz.models.attention import observe
from salviz.models.places import _output_layer, logits_at
from salviz.models.tasks import attribution_target, tasks

def alike(ours, theirs, size=64):
    "Check as in `helpers`, for Llama and GPT-2, which compute norms and softmaxes in float32 even in a float64 model"
    return alike_in_float64(ours, theirs, size, torch.float32)

class OldForCausalLM(LlamaForCausalLM):
    "A causal language model without `logits_to_keep`"
    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)

class TiedForCausalLM(OldForCausalLM):
    "A model whose output layer is not called as a module"
    def forward(self, **inputs):
        outputs = self.model(**inputs)
        outputs.logits = F.linear(outputs.last_hidden_state, self.lm_head.weight)
        return outputs

llama = dict(vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             pad_token_id=0, initializer_range=.3)
gpt2 = dict(vocab_size=30, n_embd=16, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=1, eos_token_id=1,
            initializer_range=.3)
kinds = dict(llama=(LlamaForCausalLM, LlamaConfig, llama), gpt2=(GPT2LMHeadModel, GPT2Config, gpt2),
             old=(OldForCausalLM, LlamaConfig, llama), tied=(TiedForCausalLM, LlamaConfig, llama))

def model_of(kind):
    made, config, size = kinds[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return made(config(**size)).double().eval()

@pytest.fixture(params=list(kinds))
def model(request): return model_of(request.param)

@pytest.fixture
def batch():
    "Return texts of three lengths: padded on the left, on the right, and without padding"
    ids = torch.tensor([[0, 0, 5, 6, 7, 8], [9, 10, 11, 0, 0, 0], [12, 13, 14, 15, 16, 17]])
    return dict(input_ids=ids, attention_mask=(ids != 0).long())

last = [5, 2, 5] # the last real token of each text of `batch`

def all_logits(model, batch, i, embeddings):
    "Return the logits of all positions of text `i` with `embeddings` [tokens, width] in place of its words"
    return model(inputs_embeds=embeddings[None], attention_mask=batch['attention_mask'][i:i + 1]).logits[0]

def expected(model, batch, i):
    "Return the word that `model` predicts after text `i`"
    embeddings = model.get_input_embeddings()(batch['input_ids'][i])
    return int(all_logits(model, batch, i, embeddings)[last[i]].argmax())

def slow_path(model, batch, i, token, steps):
    "Return integrated gradients of log p(`token`) after text `i`, one node at a time, each with all logits"
    embed = model.get_input_embeddings()
    x, start = embed(batch['input_ids'][i]).detach(), embed(torch.tensor(0)).detach()
    total = torch.zeros_like(x)
    for k in range(steps):
        at = (start + (k + .5)/steps*(x - start)).requires_grad_()
        score = all_logits(model, batch, i, at).log_softmax(-1)[last[i], token]
        total += torch.autograd.grad(score, at)[0]
    return (total/steps*(x - start)).sum(-1)*batch['attention_mask'][i]

def slow_occlusion(model, batch, i, token):
    "Return the drop of log p(`token`) after text `i` with the padding token at each position in turn, with all logits"
    embed = model.get_input_embeddings()
    x, fill = embed(batch['input_ids'][i]).detach(), embed(torch.tensor(0)).detach()
    def score(embeddings): return all_logits(model, batch, i, embeddings).log_softmax(-1)[last[i], token]
    lost = []
    for place in range(len(x)):
        points = x.clone()
        points[place] = fill
        lost.append(score(x) - score(points))
    return torch.stack(lost).detach()*batch['attention_mask'][i]

@pytest.mark.sample(5)
@pytest.mark.parametrize('target', ['predicted', 4])
def test_explanations_of_a_causal_model_equal_those_with_all_logits(target, model, batch):
    paths = explain(model, batch, 'integrated_gradients', target, steps=4).values
    losses = explain(model, batch, 'occlusion', target).values
    for i in range(3):
        token = expected(model, batch, i) if target == 'predicted' else target
        alike(paths[i], slow_path(model, batch, i, token, 4))
        alike(losses[i], slow_occlusion(model, batch, i, token))

def seen_by_head(model, act):
    "Return the shapes of the inputs of the output layer of `model` while `act` runs"
    shapes = []
    with _output_layer(model).register_forward_hook(lambda module, args, output: shapes.append(tuple(args[0].shape))):
        act()
    return shapes

@pytest.mark.sample(19)
@pytest.mark.parametrize('kind', ['llama', 'gpt2', 'old'])
@pytest.mark.parametrize('method', ['integrated_gradients', 'occlusion', 'input_x_gradient', 'smoothgrad',
                                    'gradient_shap', 'gradient_x_attention', 'attention_integrated_gradients'])
def test_an_explanation_of_the_next_token_computes_the_logits_of_one_position(kind, method, batch):
    model = model_of(kind)
    shapes = seen_by_head(model, lambda: explain(model, batch, method, 4))
    assert shapes and {tokens for _, tokens, _ in shapes} == {1}

def test_rows_with_different_numbers_of_positions_get_their_logits(model, batch):
    labels = torch.full((3, 6), -100)
    labels[0, 2], labels[1, 0], labels[1, 2], labels[2] = 3, 4, 5, torch.arange(6)
    labels[2, 5] = -100
    batch, task = batch | dict(labels=labels), tasks['causal_lm']
    inputs = {k: batch[k] for k in ('input_ids', 'attention_mask')}
    with torch.no_grad():
        whole = model(**inputs)
        with logits_at(model, labels != -100): few = model(**inputs)
    assert torch.equal(task.predicted(few, batch), task.predicted(whole, batch))
    alike(task.loss(few, batch), task.loss(whole, batch))
    rows = torch.tensor([2, 0])
    chosen = {k: v[rows] for k, v in inputs.items()}
    with torch.no_grad(), logits_at(model, (labels != -100)[rows]): some = model(**chosen)
    alike(attribution_target(task, batch, labels)(some, rows), -task.loss(whole, batch)[rows])
    alike(attribution_target(task, batch)(some, rows), attribution_target(task, batch)(whole, torch.arange(3))[rows])

def test_several_positions_share_the_passes_of_one_reading(model, batch):
    text = {k: v[2:] for k, v in batch.items()}
    targets = [token_logit(place, 7, 6) for place in (2, 4, 5)]
    for p in model.parameters(): p.requires_grad_(False)
    reading = Reading(model, text, targets=targets)
    found = reading.gradients(reading.x[None])[:, 0, 0]
    for place, gradient in zip((2, 4, 5), found):
        at = reading.x[0].clone().requires_grad_()
        alike(gradient, torch.autograd.grad(all_logits(model, text, 0, at)[place, 7], at)[0])

def test_a_masked_model_computes_the_logits_of_its_labels(batch):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForMaskedLM(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                           intermediate_size=24, pad_token_id=0, initializer_range=.3))
    model.double().eval()
    batch = batch | dict(labels=torch.full((3, 6), -100))
    batch['labels'][0, 3], batch['labels'][1, 1], batch['labels'][2, 4:] = 5, 6, torch.tensor([7, 8])
    target = score_target(model, batch, 'gold')
    found = []
    shapes = seen_by_head(model, lambda: found.append(input_saliency(model, batch, 'input_x_gradient', target)))
    assert {tokens for _, tokens, _ in shapes} == {2}
    x = model.get_input_embeddings()(batch['input_ids']).detach().requires_grad_()
    log_p = model(inputs_embeds=x, attention_mask=batch['attention_mask']).logits.log_softmax(-1)
    scores = [log_p[0, 3, 5], log_p[1, 1, 6], (log_p[2, 4, 7] + log_p[2, 5, 8])/2]
    gradient, = torch.autograd.grad(sum(scores), x)
    alike_in_float64(found[0], (gradient*x).sum(-1).detach()*batch['attention_mask'])

@pytest.mark.parametrize('attribution', ['gradient', 'integrated_gradients'])
def test_ad_drop_of_the_last_position_computes_only_its_logits(attribution, batch):
    model = model_of('llama')
    labels = torch.where(batch['attention_mask'].bool(), batch['input_ids'], -100).roll(-1, 1)
    labels[:, -1] = -100
    batch = batch | dict(labels=labels)
    method = ADDrop(attribution=attribution, cross_tuning=False, target='gold',
                    variant=ADDropVariant(places='last', first_pass='eval'))
    found = []
    shapes = seen_by_head(model, lambda: found.append(method.attributed(model, batch, Progress())))
    assert {tokens for _, tokens, _ in shapes} == {1}
    if attribution == 'gradient':
        with observe(model) as maps:
            log_p = model(**{k: batch[k] for k in ('input_ids', 'attention_mask')}).logits.log_softmax(-1)
            score = sum(log_p[i, at, labels[i, at]] for i, at in enumerate((4, 1, 4)))
            gradients = torch.autograd.grad(score, [maps[l] for l in maps])
        attributed, allowed = found[0]
        for l, gradient in enumerate(gradients): alike(attributed[l], torch.where(allowed[l], gradient, 0.))

def test_a_custom_function_gets_all_logits(batch):
    model, seen = model_of('llama'), []
    def score(outputs, rows):
        seen.append(outputs.logits.shape[1])
        return outputs.logits[:, -1, 3]
    attention_attribution(model, batch, score)
    explain(model, batch, 'input_x_gradient', score)
    assert set(seen) == {6}

def test_rows_of_a_pass_are_limited_by_the_bytes_of_their_logits():
    model = model_of('llama')
    model.config.vocab_size = 50_000
    assert _logit_bytes(model, 100) == 100*50_000*8 and _logit_bytes(model, 100, 1) == 50_000*8
    assert rows_at_once(model, 20)*_logit_bytes(model, 20) <= packing._most_logits
    assert rows_at_once(model, 20, 1) == packing._most_tokens // 20
