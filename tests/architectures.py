"Tiny random models of every text and vision configuration of the installed transformers"
import copy
import inspect
import json
import os
import re
import resource

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig
from transformers.models.auto import configuration_auto, modeling_auto

from salviz.attribution.attention import attention_attribution
from salviz.models.attention import (_disentangled, attention_layers, attention_parts, check_observable, cross_modules,
                                     observe)

_text = '''SEQUENCE_CLASSIFICATION TOKEN_CLASSIFICATION CAUSAL_LM MASKED_LM SEQ_TO_SEQ_CAUSAL_LM QUESTION_ANSWERING
MULTIPLE_CHOICE TEXT_ENCODING'''.split()
_vision = 'IMAGE_CLASSIFICATION', 'IMAGE'


def model_types() -> list:
    "Return every model type with a head for texts or images, or that is the text or vision part of another model"
    listed = set().union(*(getattr(modeling_auto, f'MODEL_FOR_{n}_MAPPING_NAMES') for n in (*_text, *_vision)))
    parts = {t for t in modeling_auto.MODEL_MAPPING_NAMES if re.search(r'(_text|_vision)(_model)?$', t)}
    return sorted((listed | parts) & {*configuration_auto.CONFIG_MAPPING_NAMES})


# The value that a number in a config gets if it is larger, by the name of its field: the first matching pattern counts.
_small = [(re.compile(pattern), value) for pattern, value in [
    (r'.*vocab_size.*|tgt_vocab_size|.*codebook_size', 64),
    (r'(num|n)_(key_value|kv|global_key_value)_heads|num_kv_heads|num_query_groups', 1),
    (r'.*(num|n)_(\w+_)?heads?|.*attention_heads|n_head|heads|index_n_heads|num_query_heads', 2),
    (r'.*head_dim|d_kv|head_size|kv_channels|attention_head_size|d_head|dim_head|mamba_headdim|mamba_d_head', 8),
    (r'.*_rank|index_topk', 8),
    (r'(num|n)_(hidden_|decoder_|encoder_)?layers?|.*_layers|n_layer|depth|num_blocks', 2),
    (r'.*hidden_size.*|d_model|n_embd|.*embed_dim|dim|d_embed|embedding_size|(input|output)_embedding_size|model_dim|'
     r'width|emb_dim|.*hidden_dim|true_hidden_size|lru_width|word_embed_proj_dim|d_latents|'
     r'projection_dim|projection_size', 16),
    (r'.*intermediate_size.*|d_ff|n_inner|.*ffn_dim|ffn_hidden_size|inner_dim|d_inner|dff|dim_ff|mlp_dim', 24),
    (r'.*num_(\w+_)?experts|n_routed_experts|moe_num_experts', 4),
    (r'num_experts_per_tok\w*|moe_k|top_k|moe_topk|num_selected_experts|topk', 2),
    (r'n_group|topk_group|n_groups|num_expert_group', 1),
    (r'image_size|img_size', 32), (r'patch_size', 8),
    (r'sliding_window.*|attention_window.*|local_attention|local_radius', 4),
    (r'.*d_state|.*state_size', 8), (r'num_latents|entity_emb_size', 16),
    (r'num_hash_buckets', 64), (r'cross_attn_k', 1),
    (r'.*chunk_size|.*chunk_length', 4),
    (r'.*position_embeddings|n_positions|n_ctx|.*seq_len\w*|context_length|model_max_length', 64),
]]

# Fields of some model types that the patterns above get wrong; `made`: the arguments that create the config
_two_stages = dict(made=dict(depths=[1, 1], num_heads=[2, 2], window_size=4))
_indexer = dict(indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=4, indexer_compress_ratio=2)
_same_heads = dict(per_layer_config={}, head_dim=8, qk_nope_head_dim=4, qk_rope_head_dim=4)
_resnet = dict(model_type='resnet', depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 8, 8])
_hiera = dict(model_type='sam2_hiera_det_model', hidden_size=16, embed_dim_per_stage=[16, 32, 64, 128])
_decoder = dict(model_type='bert', is_decoder=True, add_cross_attention=True)
_rope = dict(rope_type='default', rope_theta=1e4, mrope_section=[2, 1, 1])
exceptions = {
    'diffllama': dict(num_key_value_heads=2), 'esm': dict(made=dict(vocab_size=64, pad_token_id=1)),
    'esmc': dict(num_key_value_heads=2), 'dots1': dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2),
    'dots3_note_text': dict(made=_same_heads), 'dots3_note': dict(made=dict(text_config=_same_heads)),
    'deepseek_v2': dict(num_experts_per_tok=2), 'nemotron': dict(head_dim=8, num_key_value_heads=1),
    'gptj': dict(rotary_dim=4), 'codegen': dict(n_embd=32, n_head=4, rotary_dim=4),
    'ministral': dict(head_dim=8), 'mistral4': dict(head_dim=16), 'neomme': dict(head_dim=16),
    'hunyuan_v1_dense': dict(head_dim=8), 'hunyuan_v1_moe': dict(head_dim=8), 'hunyuan_vl_text': dict(head_dim=8),
    'bamba': dict(mamba_n_heads=4, mamba_d_head=8), 'falcon_h1': dict(mamba_n_heads=4, mamba_d_ssm=32),
    'mamba2': dict(num_heads=4), 'xlstm': dict(embedding_dim=16),
    'granitemoehybrid': dict(made=dict(num_hidden_layers=2, layer_types=['linear_attention', 'full_attention']),
                             mamba_n_heads=4),
    'lfm2_moe': dict(made=dict(num_hidden_layers=2, layer_types=['conv', 'full_attention'])),
    'zamba': dict(num_hidden_layers=3, layers_block_type=['linear_attention', 'hybrid', 'hybrid'],
                  attention_head_dim=16, attention_hidden_size=32),
    'zamba2': dict(attention_head_dim=16, attention_hidden_size=32, n_mamba_heads=4, hybrid_layer_ids=[1]),
    'qwen4_exp_text': _indexer, 'qwen4_exp': dict(made=dict(text_config=dict(_indexer, head_dim=8))),
    'gemma3n_text': dict(num_kv_shared_layers=0),
    'dbrx': dict(made=dict(attn_config=dict(rope_theta=1e4, clip_qkv=8.))),
    'cohere_compass_text': dict(made=dict(rope_parameters=dict(full_attention=_rope))),
    'mobilebert': dict(intra_bottleneck_size=16), 'xmod': dict(default_language='en_XX'),
    'reformer': dict(axial_pos_embds_dim=(8, 8), axial_pos_shape=(8, 8)),
    'funnel': dict(made=dict(architectures=['FunnelModel'], block_sizes=[1, 1])),
    'encoder-decoder': dict(made=dict(encoder=dict(model_type='bert'), decoder=_decoder)),
    'lilt': dict(hidden_size=24), 'layoutlmv3': dict(coordinate_size=3, shape_size=2),
    'bros': dict(dim_bbox_projection=8), 'whisper': dict(max_source_positions=16),
    'emu3': dict(made=dict(vocabulary_map={'<|extra_200|>': 9, '<image>': 8})),
    'shieldgemma2': dict(yes_token_index=1, no_token_index=2), 'sam3_lite_text_text_model': dict(num_hidden_layers=3),
    'granite4_vision': dict(made=dict(deepstack_layer_map=[[0, 1]], downsample_rate='1/2')),
    'bit': dict(num_groups=8), 'efficientnet': dict(hidden_dim=2560), 'depth_pro': dict(intermediate_hook_ids=[1, 0]),
    'swin': _two_stages, 'donut-swin': _two_stages, 'levit': dict(image_size=64, patch_size=16),
    'mobilevitv2': dict(image_size=64), 'yolos': dict(image_size=[32, 32]),
    'minicpm_ocr_vision': dict(insert_layer_id=0), 'minicpmv4_7_vision': dict(insert_layer_id=0),
    'videoprism_vision_model': dict(tubelet_size=[1, 8, 8]),
    'sam2_vision_model': dict(made=dict(backbone_config=_hiera, backbone_channel_list=[128, 64, 32, 16])),
    **dict.fromkeys('conditional_detr dab-detr deformable_detr detr table-transformer'.split(),
                    dict(made=dict(backbone_config=_resnet), d_model=64)),
}

# The end of the name of the auto class that creates a model, if it is not `AutoModel`
_auto = {'trocr': 'ForCausalLM', 'encoder-decoder': 'ForSeq2SeqLM', 'pp_lcnet': 'ForImageClassification',
         'shieldgemma2': 'ForImageClassification', 'musicgen': 'ForTextToWaveform',
         'musicgen_melody': 'ForTextToWaveform'}

# Further inputs, or their shapes, that the forward pass of some model types requires
_grid = torch.tensor([[4, 4]])
_inputs = {
    'bros': dict(bbox=(2, 9, 4)), 'lxmert': dict(visual_feats=(2, 5, 2048), visual_pos=(2, 5, 4)),
    'minicpm_ocr_vision': dict(target_sizes=_grid), 'minicpmv4_7_vision': dict(target_sizes=_grid),
    'siglip2': dict(pixel_values=(1, 16, 192), spatial_shapes=_grid, pixel_attention_mask=torch.ones(1, 16)),
    'videoprism_vision_model': dict(pixel_values_videos=(1, 16, 3, 32, 32)),
    'whisper': dict(input_features=(2, 80, 32)), 'voxtral_realtime': dict(input_features=(2, 128, 72)),
    'speech_to_text': dict(input_features=(2, 32, 80), attention_mask=torch.ones(2, 32, dtype=torch.long)),
    'musicgen': dict(decoder_input_ids=torch.arange(10, 50).view(8, 5)),
    'musicgen_melody': dict(decoder_input_ids=torch.arange(10, 50).view(8, 5)),
    'kyutai_speech_to_text': dict(input_ids=torch.arange(2 * 9 * 33).view(2, 9, 33) % 60),
}


def _shrunk(config):
    "Reduce the sizes in `config` and in the configs that it contains"
    for name, x in list(vars(config).items()):
        if isinstance(x, PreTrainedConfig): _shrunk(x)
        elif name.endswith(('token_id', 'token_index')) and isinstance(x, int): setattr(config, name, x % 8)
        elif isinstance(x, (list, tuple)) and x and name in ('num_heads', 'num_attention_heads', 'depths'):
            setattr(config, name, type(x)([1 if name == 'depths' else 2]*len(x)))
        elif isinstance(x, int) and not isinstance(x, bool):
            value = next((v for pattern, v in _small if pattern.fullmatch(name)), x)
            if x > value: setattr(config, name, value)
    rope, sizes = getattr(config, 'rope_parameters', None), vars(config)
    if rope and 'mrope_section' in getattr(config, 'ignore_keys_at_rope_validation', ()):
        head = getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads
        half = int(head * rope.get('partial_rotary_factor', 1)) // 2
        rope['mrope_section'] = [half - 2 * (half // 3), half // 3, half // 3]
    if 'qk_nope_head_dim' in sizes: config.qk_head_dim = sizes['qk_nope_head_dim'] + sizes['qk_rope_head_dim']
    if sizes.get('kv_lora_rank'): config.num_key_value_heads = config.num_attention_heads
    _cut_lists(config)


def _cut_lists(config):
    "Shorten the lists in `config` that have an entry per layer, so that each kind of layer still occurs"
    counts = [k for k in ('num_hidden_layers', 'n_layer', 'num_layers') if isinstance(getattr(config, k, None), int)]
    n = getattr(config, counts[0]) if counts else None
    kinds = getattr(config, 'layer_types', None) or getattr(config, 'layers_block_type', None)
    if n is None: return
    lists = [k for k, x in vars(config).items()
             if isinstance(x, list) and len(x) > n and re.search('layer|sparsity|types', k)]
    chosen = list(range(n))
    if isinstance(kinds, list) and len(set(kinds)) > 1:
        chosen = sorted({kinds.index(kind) for kind in kinds})
        chosen = sorted({*chosen, *range(len(kinds))}, key=lambda i: (i not in chosen, i))[:max(n, len(chosen))]
        chosen.sort()
    for k in lists:
        x = getattr(config, k)
        if len(x) > max(chosen): setattr(config, k, [x[i] for i in chosen])
    for k in ('num_hidden_layers', 'n_layer', 'num_layers'):
        if isinstance(getattr(config, k, None), int) and k in vars(config): setattr(config, k, len(chosen))


def tiny(model_type):
    "Return a random model of `model_type` without a head, in eval mode, whose attention is far from uniform"
    config = configuration_auto.CONFIG_MAPPING[model_type](**exceptions.get(model_type, {}).get('made', {}))
    _shrunk(config)
    for name, x in exceptions.get(model_type, {}).items():
        if name != 'made': setattr(config, name, x)
    torch.manual_seed(0)
    config.use_cache = False
    auto = getattr(transformers, 'AutoModel' + _auto.get(model_type, ''))
    model = auto.from_config(config, attn_implementation='eager').float()
    for x in model.parameters():
        if x.dim() == 2 and x.shape[0] < 200: nn.init.normal_(x, std=.3)
    return model.eval()


# ---- maps of `observe`, compared with the model's own eager attention

class Reference:
    """A model whose own eager attention is recorded: `maps` and `modules` of a pass, in the order of the calls. The map
    of call `at` is multiplied by `factor`"""
    def __init__(self, model):
        self.model, self.maps, self.modules, self.at, self.factor, self.leaf = model, [], [], None, 1., None
        model.set_attn_implementation('eager')
        self.functions = {(id(g), name): (g, name) for m in model.modules() if (g := _globals(m))
                          for name in g if name.endswith('eager_attention_forward')}

    def __call__(self, inputs):
        self.maps, self.modules = [], []
        before = {key: g[name] for key, (g, name) in self.functions.items()}
        for key, (g, name) in self.functions.items(): g[name] = self._attend(before[key])
        hooks = [m.dropout.register_forward_hook(lambda dropout, args, A, m=m: self._noted(m, A))
                 for m in _disentangled(self.model)]
        try: return self.model(**inputs)
        finally:
            for hook in hooks: hook.remove()
            for key, (g, name) in self.functions.items(): g[name] = before[key]

    def _noted(self, module, A):
        "Record `A`, multiplied by `factor` in the call number `at`, and return the map to continue with"
        if self.at == len(self.maps): A = self.leaf = (A * self.factor).detach().requires_grad_()
        self.maps.append(A)
        self.modules.append(module)
        return A

    def _attend(self, own):
        def attend(module, query, key, value, attention_mask, *args, **kwargs):
            _, A = own(module, query, key, value, attention_mask, *args, **kwargs)
            A = self._noted(module, A)
            values = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
            return torch.matmul(A, values).transpose(1, 2).contiguous(), A
        return attend


def _globals(module): return getattr(inspect.unwrap(type(module).forward), '__globals__', None)


def batch_for(model, side):
    "Return two rows of nine tokens, four of which are padding on `side` in the second; one image for a vision model"
    config, takes = model.config, inspect.signature(model.forward).parameters
    draws = torch.Generator().manual_seed(1)
    def normal(*shape): return torch.randn(*shape, generator=draws)
    more = {k: x if isinstance(x, torch.Tensor) else normal(*x) for k, x in _inputs.get(config.model_type, {}).items()}
    rows, frames = 2 if 'input_ids' in takes else 1, [config.num_frames] if hasattr(config, 'num_frames') else []
    size = getattr(getattr(config, 'vision_config', config), 'image_size', 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    image = dict(pixel_values=normal(rows, *frames, getattr(config, 'num_channels', 3), height, width))
    if not {'input_ids', 'decoder_input_ids'} & {*takes}: return {k: x for k, x in image.items() if k in takes} | more
    ids = torch.randint(10, 60, (2, 9), generator=draws)
    mask = torch.ones_like(ids)
    mask[1, slice(0, 4) if side == 'left' else slice(5, 9)] = 0
    every = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, 2:7], use_cache=False)
    if 'vision_config' in vars(config) and not any('image_token' in k for k in vars(config)): # CLIP takes both
        every |= image
    return {k: x for k, x in every.items() if k in takes} | more


def score_of(inputs):
    "Return a function that computes a number for each row from all states of its real tokens"
    mask = inputs.get('attention_mask')
    def score(outputs, rows):
        states = getattr(outputs, 'last_hidden_state', None)
        if states is None:
            states = next(x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.is_floating_point())
        weights = torch.randn(states.shape[1:], generator=torch.Generator().manual_seed(2)).expand_as(states)
        if mask is not None and states.shape[1:2] == mask.shape[1:]: weights = weights * mask[rows][:, :, None]
        return (states * weights).flatten(1).sum(1)
    return score


def alike(ours, theirs, size, what):
    "Check that two tensors are equal up to rounding in float32; `size`: units in the last place of the largest entry"
    assert ours.shape == theirs.shape, (tuple(ours.shape), tuple(theirs.shape))
    gap, most = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    assert gap <= size * torch.finfo(torch.float32).eps * max(most, 1e-30), f'{what} differ by {gap:.2g} of {most:.2g}'


def compare(model, inputs, part):
    """Check maps, gradients and integrated gradients of `part` of `model` by salviz against its own eager attention and
    a plain loop over layers and steps"""
    reference, steps, score = Reference(copy.deepcopy(model)), 2, score_of(inputs)
    rows = torch.arange(len(next(iter(inputs.values()))))
    theirs = reference(inputs)
    in_part = attention_parts(reference.model)[part]
    inside, cross = set(in_part.modules()), cross_modules(in_part)
    calls = [i for i, m in enumerate(reference.modules)
             if part is None or m in inside and (m in cross) == (part == 'cross')]
    expected = [reference.maps[i] for i in calls]
    layers = attention_layers(model, part)
    assert len(layers) == len(calls), f'{len(layers)} layers, {len(calls)} calls of eager attention'
    with observe(model, part=part) as maps: ours = model(**inputs)
    keep = [maps.allowed(l) & _queries(inputs, maps[l], part) for l in layers]
    for l, A, ok in zip(layers, expected, keep):
        alike(torch.where(ok, maps[l], 0.), torch.where(ok, A, 0.), 256, 'maps')
    live = [i for i, A in enumerate(expected) if A.requires_grad] # a model may run layers without gradients
    assert live == [i for i, l in enumerate(layers) if maps[l].requires_grad]
    mine = torch.autograd.grad(score(ours, rows).sum(), [maps[layers[i]] for i in live], allow_unused=True)
    own = torch.autograd.grad(score(theirs, rows).sum(), [expected[i] for i in live], allow_unused=True)
    assert [x is None for x in mine] == [x is None for x in own]
    for a, b, ok in zip(mine, own, (keep[i] for i in live)):
        if a is not None: alike(torch.where(ok, a, 0.), torch.where(ok, b, 0.), 4096, 'gradients')
    last = len(calls) - 1
    integrated = 0.
    for k in range(1, steps + 1):
        reference.at, reference.factor = calls[last], k / steps
        scaled = score(reference(inputs), rows).sum()
        integrated = integrated + torch.autograd.grad(scaled, reference.leaf)[0] / steps
    found, allowed = attention_attribution(model, inputs, score, layers=-1, method='integrated_gradients',
                                           steps=steps, reading='standard', part=part)
    ok = keep[last]
    alike(torch.where(ok, found[layers[-1]], 0.), torch.where(ok, integrated * expected[last], 0.), 4096,
          'integrated gradients')


def _queries(inputs, A, part):
    "Return which queries are real tokens, [batch, 1, queries, 1]"
    mask = inputs.get('attention_mask')
    if mask is None or part in ('decoder', 'cross') or A.shape[2] != mask.shape[1]: return torch.ones(1, 1, 1, 1) > 0
    return mask.bool()[:, None, :, None]


def verdict(model_type, runs=lambda: None) -> tuple: # (outcome, reason)
    """Return 'correct', 'rejected' (with the reason that salviz gives), 'not runnable' (no tiny model runs in
    transformers, with its error) or 'unclear' (with the difference)"""
    model = None
    try:
        model = tiny(model_type)
        for side in ('left', 'right'): model(**batch_for(model, side))
    except Exception as e:
        error = f'{type(e).__name__}: {str(e)[:200]}'
        if model is None or 'required positional argument' not in str(e): return 'not runnable', error
    runs() # from here on, salviz is responsible for a timeout
    reasons = []
    for part in attention_parts(model):
        try: check_observable(model, part)
        except ValueError as e: reasons.append(str(e)); continue
        try:
            for side in ('left', 'right'): compare(model, batch_for(model, side), part)
        except Exception as e: return 'unclear', f'{type(e).__name__}: {str(e)[:300]}'
    if reasons: return 'rejected', reasons[0] # the reason for one part; the other parts are compared
    return 'correct', ' '.join(map(str, attention_layers(model)))


def _in_a_fork(model_type, seconds):
    "Return the verdict on `model_type` from a forked process that may use `seconds` of processor time"
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            os.write(write, json.dumps(verdict(model_type, lambda: os.write(write, b'runs\n'))).encode())
        finally: os._exit(0)
    os.close(write)
    with os.fdopen(read, 'rb') as pipe: began, _, answer = pipe.read().rpartition(b'\n')
    os.waitpid(child, 0)
    if answer: return tuple(json.loads(answer))
    return 'unclear' if began else 'not runnable', f'crashed, or took more than {seconds} seconds'


def verdicts(types, seconds=60) -> dict: # {model type: (outcome, reason)}
    "Return the `verdict` on each of `types`; a crash or a timeout affects only one of them"
    verdict('bert') # import once what all of them import
    return {t: _in_a_fork(t, seconds) for t in types}
