"""Fixtures of switch_transformers: a T5 encoder and decoder with experts, made by make_switch_fixtures.py."""

from fixture import NEW_SPELLING, Fixture

BASES = {
    "switch_transformers": {
        "add_router_probs": False,
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "decoder_start_token_id": 0,
        "dense_act_fn": "relu",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "expert_capacity": 64,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "is_gated_act": False,
        "layer_norm_epsilon": 1e-06,
        "model_type": "switch_transformers",
        "num_selected_experts": 1,
        "output_past": True,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "router_bias": False,
        "router_dtype": "float32",
        "router_ignore_padding_tokens": False,
        "router_jitter_noise": 0.01,
        "router_type": "tokens_masked",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.25.0.dev0",
        "use_cache": True,
    },
}

# Published files hold them. Without tied embeddings transformers 5 would load the three apart.
COPIES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
}

FIXTURES = [
    Fixture(
        name="switch_plain",
        family="switch_transformers",
        awkward="As published: every second encoder layer sparse, tied and scaled embeddings with the copies "
        "of them that published files hold; 5 heads of 12 beside a hidden 44, decoder layer 1 of 3 "
        "sparse, 6 experts of width 37; more tokens than the largest distance.",
        config=dict(
            d_model=44,
            d_kv=12,
            d_ff=37,
            num_heads=5,
            num_layers=4,
            num_sparse_encoder_layers=2,
            num_decoder_layers=3,
            num_sparse_decoder_layers=1,
            num_experts=6,
            vocab_size=110,
        ),
        copies=COPIES,
        gains=dict(tied_embed=9.0, q=0.6, k=0.6, bias=1.0, down=1.2),
        bites={
            "other distance": dict(relative_attention_max_distance=100),
        },
    ),
    Fixture(
        name="switch_untied",
        family="switch_transformers",
        awkward="A head of its own, not scaled; all encoder layers sparse by encoder_sparse_step, decoder "
        "layers 1 and 3, a bias of the router, 10 buckets up to a distance of 20, a large epsilon, 3 "
        "experts, num_decoder_layers null, stored in BF16 in two shards.",
        config=dict(
            d_model=36,
            d_kv=10,
            d_ff=29,
            num_heads=3,
            num_layers=4,
            num_sparse_encoder_layers=2,
            encoder_sparse_step=1,
            num_decoder_layers=None,
            num_sparse_decoder_layers=2,
            num_experts=3,
            router_bias=True,
            relative_attention_num_buckets=10,
            relative_attention_max_distance=20,
            layer_norm_epsilon=0.01,
            tie_word_embeddings=False,
            vocab_size=103,
            dtype="bfloat16",
            transformers_version="5.23.0",
        ),
        without=NEW_SPELLING,
        dtype="bfloat16",
        copies=COPIES,
        shards=2,
        gains=dict(q=0.6, k=0.6, bias=1.0, down=1.0, successor=18.0),
        bites={
            "other distance": dict(relative_attention_max_distance=24),
            "usual epsilon": dict(layer_norm_epsilon=1e-6),
        },
    ),
    Fixture(
        name="switch_capacity",
        family="switch_transformers",
        awkward="An expert takes at most 5 tokens of a sequence in a call, and many tokens are dropped; 4 "
        "experts, every second layer of both stacks sparse.",
        config=dict(
            d_model=40,
            d_kv=8,
            d_ff=33,
            num_heads=4,
            num_layers=2,
            num_sparse_encoder_layers=1,
            num_decoder_layers=2,
            num_sparse_decoder_layers=1,
            num_experts=4,
            expert_capacity=5,
            vocab_size=99,
        ),
        drops=True,
        gains=dict(tied_embed=9.0, q=0.6, k=0.6, bias=1.0),
        bites={
            "nothing dropped": dict(expert_capacity=1000),
            "one more place": dict(expert_capacity=6),
        },
    ),
]
