"""A GGUF file of random weights in a real model's shape, for bench/peers.sh.

usage: random_gguf.py CONFIG_JSON OUT.gguf --format bf16|q8_0|q4_0 [--layers N] [--family FAMILY]
       [--tokenizer TOKENIZER_JSON]
needs: pip install gguf==0.19.0 numpy==2.4.6

What is in it is noise: it measures speed and nothing else. Routers and norms are float32 and the head of a 4-bit
file is Q6_K, as llama-quantize leaves them. There is no vocabulary unless --tokenizer gives one (byte-level BPE),
since llama-bench and llama-batched-bench draw token ids; a server needs it.

A peer without OLMoE gets it as qwen3moe (--family qwen3moe): the same matrices and attention; only the norms of
queries and keys run over a head instead of the row, and the gate weights are normalised.
"""

import argparse
import json
import sys

import gguf
import numpy as np

QuantType = gguf.GGMLQuantizationType
POOL_BYTES = 32 << 20  # of distinct random data of a type; larger tensors repeat it
STD = 0.02
# Of the embedding, beside what attention adds from all tokens before: with the others' deviation all tokens would be
# nearly the same to the routers, and choose the same few experts, so that a model in a file would seem to fit memory.
EMBEDDING_STD = 1.0


def raw_pool(quant_type, rng, std):
    """Blocks of a type with elements of this standard deviation (float32: 1), as (num_blocks, bytes of a block)."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[quant_type]
    num_blocks = POOL_BYTES // block_bytes
    if quant_type == QuantType.F32:
        return rng.standard_normal(num_blocks, dtype=np.float32).view(np.uint8).reshape(-1, 4)
    if quant_type == QuantType.BF16:
        values = rng.standard_normal(num_blocks, dtype=np.float32) * np.float32(std)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1, 2)
    blocks = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    if quant_type == QuantType.Q8_0:  # scale f16, 32 of int8
        blocks[:, :2] = np.array([std / 73.9], np.float16).view(np.uint8)
    elif quant_type == QuantType.Q4_0:  # scale f16, 32 of 4 bits
        blocks[:, :2] = np.array([std / 4.6], np.float16).view(np.uint8)
    elif quant_type == QuantType.Q6_K:  # 256 of 6 bits, 16 scales int8, scale f16
        blocks[:, 192:208] = 8
        blocks[:, 208:210] = np.array([std / (8 * 18.5)], np.float16).view(np.uint8)
    else:
        raise ValueError(f"no random blocks for {quant_type.name}")
    return blocks


class RandomBlocks:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.pools = {}

    def take(self, quant_type, shape, std=STD):
        if (quant_type, std) not in self.pools:
            self.pools[quant_type, std] = raw_pool(quant_type, self.rng, std)
        pool = self.pools[quant_type, std]
        block_elements, _ = gguf.GGML_QUANT_SIZES[quant_type]
        num_blocks = int(np.prod(shape)) // block_elements
        start = int(self.rng.integers(0, len(pool)))
        first = pool[start : start + num_blocks]
        parts = [first.tobytes()]
        missing = num_blocks - len(first)
        while missing > 0:
            part = pool[: min(missing, len(pool))]
            parts.append(part.tobytes())
            missing -= len(part)
        return np.frombuffer(b"".join(parts), np.uint8)


def tensor_list(config, num_layers, with_row_norms, weights, head):
    """(name, shape, type) of every tensor; type None stands for a norm of ones."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or hidden // heads
    experts = config.get("num_experts") or config["num_local_experts"]
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    is_mixtral = config["model_type"] == "mixtral"
    tensors = [
        ("token_embd.weight", (vocab, hidden), weights),
        ("output_norm.weight", (hidden,), None),
        ("output.weight", (vocab, hidden), head),
    ]
    for layer in range(num_layers):
        block = f"blk.{layer}."
        tensors += [
            (block + "attn_norm.weight", (hidden,), None),
            (block + "attn_q.weight", (heads * head_dim, hidden), weights),
            (block + "attn_k.weight", (kv_heads * head_dim, hidden), weights),
            (block + "attn_v.weight", (kv_heads * head_dim, hidden), weights),
            (block + "attn_output.weight", (hidden, heads * head_dim), weights),
            (block + "ffn_norm.weight", (hidden,), None),
            (block + "ffn_gate_inp.weight", (experts, hidden), QuantType.F32),
            (block + "ffn_gate_exps.weight", (experts, inner, hidden), weights),
            (block + "ffn_up_exps.weight", (experts, inner, hidden), weights),
            (block + "ffn_down_exps.weight", (experts, hidden, inner), weights),
        ]
        if not is_mixtral:
            tensors += [
                (block + "attn_q_norm.weight", (heads * head_dim if with_row_norms else head_dim,), None),
                (block + "attn_k_norm.weight", (kv_heads * head_dim if with_row_norms else head_dim,), None),
            ]
    return tensors


def write_vocabulary(writer, tokenizer, size):
    """Tokens of a Hugging Face tokenizer.json, and merges; ids that it leaves out are unused."""
    model = tokenizer["model"]
    if model["type"] != "BPE":
        sys.exit(f"the tokenizer is of the type {model['type']}; only byte-level BPE is written")
    names = {token_id: token for token, token_id in model["vocab"].items()}
    types = dict.fromkeys(names, gguf.TokenType.NORMAL)
    for added in tokenizer.get("added_tokens", []):
        names[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    ids = range(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("olmo")
    writer.add_token_list([names.get(token_id, f"<unused{token_id}>") for token_id in ids])
    writer.add_token_types([types.get(token_id, gguf.TokenType.UNUSED) for token_id in ids])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_token_merges(merges)
    ends = [added["id"] for added in tokenizer.get("added_tokens", []) if added["special"]]
    if ends:
        writer.add_eos_token_id(ends[0])


def write_metadata(writer, config, num_layers):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    writer.add_name("random weights")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(inner)
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def main():
    families = {"olmoe": "olmoe", "qwen3_moe": "qwen3moe", "mixtral": "llama"}
    types = {"bf16": QuantType.BF16, "q8_0": QuantType.Q8_0, "q4_0": QuantType.Q4_0}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a model's config.json")
    parser.add_argument("out", help="the GGUF file to write")
    parser.add_argument("--format", required=True, choices=types)
    parser.add_argument("--layers", type=int, help="layers to write (default: as many as the model has)")
    parser.add_argument("--family", help="GGUF's name of the architecture (default: by model_type)")
    parser.add_argument("--tokenizer", help="a tokenizer.json of byte-level BPE")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with open(args.config) as file:
        config = json.load(file)
    if config.get("model_type") not in families:
        sys.exit(f"{args.config}: model_type is {config.get('model_type')!r}; known are {', '.join(families)}")
    family = args.family or families[config["model_type"]]
    num_layers = args.layers or config["num_hidden_layers"]
    weights = types[args.format]
    head = QuantType.Q6_K if weights == QuantType.Q4_0 else weights

    tensors = tensor_list(config, num_layers, family == "olmoe", weights, head)
    writer = gguf.GGUFWriter(args.out, family)
    write_metadata(writer, config, num_layers)
    if args.tokenizer:
        with open(args.tokenizer) as file:
            write_vocabulary(writer, json.load(file), config["vocab_size"])
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, shape, quant_type in tensors:
        stored = QuantType.F32 if quant_type is None else quant_type
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[stored]
        num_bytes = int(np.prod(shape)) // block_elements * block_bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    blocks = RandomBlocks(args.seed)
    for name, shape, quant_type in tensors:
        is_norm = quant_type is None
        std = EMBEDDING_STD if name == "token_embd.weight" else STD
        writer.write_tensor_data(np.ones(shape, np.float32) if is_norm else blocks.take(quant_type, shape, std))
    writer.close()


if __name__ == "__main__":
    main()
