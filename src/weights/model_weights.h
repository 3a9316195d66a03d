// The weights of a model, or of a rank's share of it, packed for the kernels and resident in
// memory. How they are read from a checkpoint is load_weights.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "kernels/packed_matrix.h"
#include "memory/ledger.h"
#include "model/model_spec.h"

namespace convene::weights {

// A feed-forward block, dense, shared or one expert.
struct FfnWeights {
  // (intermediate, hidden); of a gated block gate and up rows interleaved by half panels (pack.h).
  kernels::PackedMatrix up;
  kernels::PackedMatrix down;    // (hidden, intermediate)
  std::vector<float> up_bias;    // (up.rows), in the order of the packed rows, or empty
  std::vector<float> down_bias;  // (hidden) or empty
};

struct MoeWeights {
  // (num_experts, hidden), always f32; one row more for a gated shared expert: its gate.
  kernels::PackedMatrix router;
  std::vector<float> router_bias;      // (router.rows) or empty
  std::vector<float> correction_bias;  // (num_experts) or empty
  std::vector<FfnWeights> experts;     // first_expert and following ones: all, or a rank's share
  int first_expert = 0;
  // The experts as the rank has them in decode, where that is another part of them; none otherwise.
  // Of the two only those have data that lie in memory (phased_weights.h).
  std::vector<FfnWeights> decode_experts = {};
  int first_decode_expert = 0;
  std::optional<FfnWeights> shared;
};

// What latent attention has instead of projections to keys and values (model_spec.h). Each head's
// rows of key_up and value_up begin a panel, so that they are a matrix of their own, too.
struct LatentWeights {
  kernels::PackedMatrix query_up;               // (query_dim, query_rank), or no rows
  kernels::PackedMatrix key_up;                 // (num_heads * padded nope_dim, kv_rank)
  kernels::PackedMatrix value_up;               // (num_heads * padded value_dim, kv_rank)
  std::vector<kernels::PackedMatrix> query_in;  // per head (kv_rank, nope_dim): key_up transposed

  // Rows that a head has in key_up or value_up: `rows` and padding of zeros.
  static int HeadRows(int rows) {
    return (rows + kernels::kPanelRows - 1) / kernels::kPanelRows * kernels::kPanelRows;
  }
  // The rows of heads [first, first + count), `head_rows` each.
  static kernels::PackedMatrix Heads(const kernels::PackedMatrix& up, int first, int count,
                                     int head_rows) {
    kernels::PackedMatrix heads = up;
    heads.data = up.panel(first * head_rows / kernels::kPanelRows).data;
    heads.rows = count * head_rows;
    return heads;
  }
};

// Attention of a decoder's layer to the encoder's output.
struct CrossWeights {
  std::vector<float> norm;       // (hidden)
  kernels::PackedMatrix query;   // (query_dim, hidden)
  kernels::PackedMatrix kv;      // (kv_dim + value_width, hidden)
  kernels::PackedMatrix output;  // (hidden, output_dim)
};

struct LayerWeights {
  std::vector<float> attention_norm;  // (hidden)
  // (query_dim + kv_dim + value_width, hidden). With a latent: of the queries' latent, or of the
  // queries, then of the rotated part of the keys and their latent. There each head of queries and
  // keys begins with its rotated part, in halves.
  kernels::PackedMatrix qkv;
  std::vector<float> qkv_bias;    // (rows of qkv) or empty
  std::vector<float> query_norm;  // (head_dim) or (query_dim) or (query_rank) or empty
  std::vector<float> key_norm;    // (head_dim) or (kv_dim) or (kv_rank) or empty
  std::optional<LatentWeights> latent;
  std::vector<float> sinks;        // (num_heads) or empty
  kernels::PackedMatrix output;    // (hidden, output_dim)
  std::vector<float> output_bias;  // (hidden) or empty
  std::optional<CrossWeights> cross;
  std::vector<float> ffn_norm;  // (hidden)
  std::optional<MoeWeights> moe;
  std::optional<FfnWeights> dense;  // where there is no moe
};

// Which formats a model's matrices have. Routers are always float32 and embeddings, of which a step
// reads a few rows, never integers; the head, which decides between tokens, has at least 8 bits.
struct WeightFormats {
  kernels::WeightFormat matrices = kernels::WeightFormat::kBf16;
  int group = 32;  // kInt4: columns per scale, 32, 64 or 128

  kernels::WeightFormat head() const {
    return kernels::IsInteger(matrices) ? kernels::WeightFormat::kInt8 : matrices;
  }
  kernels::WeightFormat embedding() const {
    return kernels::IsInteger(matrices) ? kernels::WeightFormat::kBf16 : matrices;
  }
};

struct EncoderWeights {
  kernels::PackedMatrix embedding;   // (vocab, hidden)
  std::vector<float> relative_bias;  // (num_buckets, num_heads)
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // (hidden)
};

// Where the experts of a layer change their division between two phases, they lie in a room that is
// large enough for either; besides the rooms of all layers there are some that are free.
struct ExpertRooms {
  uint64_t room_bytes = 0;  // 0: experts stay as they are
  int num_free = 0;
  const std::byte* free = nullptr;  // one behind the other
};

struct ModelWeights {
  model::ModelSpec spec;  // as the rank sees it (share.h)
  WeightFormats formats;
  // (vocab, hidden), or the rows of the rank's tokens; no rows on a rank that makes no logits.
  kernels::PackedMatrix head;
  int first_head_token = 0;  // of the first of its rows
  kernels::PackedMatrix
      embedding;  // (vocab, hidden); the head is in it when tied and of one format
  std::optional<EncoderWeights> encoder;
  std::vector<float> relative_bias;  // of the decoder: (num_buckets, num_heads) or empty
  std::vector<float> final_norm;     // (hidden)
  std::vector<LayerWeights> layers;  // of the decoder
  ExpertRooms rooms;
  // Where both divisions of the experts stay in memory: they were read, and none has to be sent.
  bool has_both_divisions = false;
  // What the packed matrices point into is one of these.
  memory::Reservation storage;  // of mapped weights without memory: what is read of the file
  std::optional<checkpoint::MappedFile> mapped;
  std::span<const std::byte> bytes;  // all packed matrices

  bool embedding_is_head() const {
    return spec.tied_embeddings && formats.embedding() == formats.head();
  }
  // Whether the head has no memory of its own; then, once the embedding has its place: it has, too.
  bool head_is_in_embedding() const {
    return head.rows > 0 && embedding.rows > 0 && embedding_is_head();
  }
  void PlaceHeadInEmbedding() {
    if (!head_is_in_embedding()) return;
    head.data = embedding.panel(first_head_token / kernels::kPanelRows).data;
  }
};

}  // namespace convene::weights
