#include "weights/layer_jobs.h"

#include <utility>

namespace convene::weights {
namespace {

using kernels::PackedMatrix;
using model::TensorBinding;
using model::TensorRole;
using strategy::Part;

// What is read, and for whom.
struct Reading {
  const StoredTensors& tensors;
  const Share& share;
  const WeightFormats& formats;
  PackJobs& jobs;
};

// Each of `part` as `size` rows or values.
Part Times(Part part, int size) { return {part.first * size, part.size * size}; }

std::vector<float> Cut(const std::vector<float>& values, Part part) {
  if (values.empty()) return {};
  return {values.begin() + part.first, values.begin() + part.first + part.size};
}

// A bias of a sum over parts is added once.
std::vector<float> InFirst(int part, std::vector<float> bias) {
  return part == 0 ? std::move(bias) : std::vector<float>();
}

// Where row `row` of a head's rotated part, in halves, is among `rope_dim` stored rows.
int RotatedRow(const model::LatentSpec& latent, int row) {
  if (!latent.interleaved_rope) return row;
  const int half = latent.rope_dim / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

void LatentJobs(const Reading& reading, const model::AttentionSpec& attention, int layer,
                LayerWeights* weights) {
  using enum TensorRole;
  const auto& [tensors, share, formats, jobs] = reading;
  const model::LatentSpec latent = *attention.latent;
  const Part heads = HeadsOf(attention, share).query;
  const Part query_rows = Times(heads, attention.head_dim);
  LatentWeights& target = *weights->latent;
  // Stored: without position first; here the rotated part is first, as the kernels want it.
  const auto query_row = [latent, head_dim = attention.head_dim](int row) {
    const int head = row / head_dim;
    const int i = row % head_dim;
    const int stored =
        i < latent.rope_dim ? latent.nope_dim + RotatedRow(latent, i) : i - latent.rope_dim;
    return head * head_dim + stored;
  };
  const auto key_row = [latent](int row) {
    return row < latent.rope_dim ? latent.kv_rank + RotatedRow(latent, row) : row - latent.rope_dim;
  };
  const auto as_stored = [](int row) { return row; };
  const PackJobs::RowsOf keys = {PackJobs::All(tensors.Get(kKvDown, layer)), latent.key_dim(),
                                 key_row};
  if (latent.query_rank > 0) {
    jobs.StackRows(
        weights->qkv,
        {{PackJobs::All(tensors.Get(kQueryDown, layer)), latent.query_rank, as_stored}, keys});
    jobs.StackRows(target.query_up,
                   {{{&tensors.Get(kQueryUp, layer), query_rows}, query_rows.size, query_row}});
  } else {
    jobs.StackRows(weights->qkv,
                   {{{&tensors.Get(kQuery, layer), query_rows}, query_rows.size, query_row}, keys});
  }
  weights->query_norm = tensors.Vector(kQueryDownNorm, layer);
  weights->key_norm = tensors.Vector(kKvDownNorm, layer);
  const std::vector<float> query_bias = tensors.Vector(kQueryDownBias, layer);
  const std::vector<float> key_bias = tensors.Vector(kKvDownBias, layer);
  if (!key_bias.empty()) {
    weights->qkv_bias = query_bias;
    weights->qkv_bias.resize(weights->qkv.rows - latent.key_dim());
    for (int row = 0; row < latent.key_dim(); ++row) {
      weights->qkv_bias.push_back(key_bias[key_row(row)]);
    }
  }

  // A head's rows of the stored matrix: those that make its key, then those that make its value.
  const TensorBinding& kv_up = tensors.Get(kKvUp, layer);
  const int stored_rows = latent.nope_dim + attention.value_dim;
  const auto part_of_heads = [&](const PackedMatrix& matrix, int first, int count) {
    const int head_rows = LatentWeights::HeadRows(count);
    const PackJobs::Rows from = {&kv_up, Times(heads, stored_rows)};
    jobs.StackRows(matrix, {{from, matrix.rows, [=](int row) {
                               const int i = row % head_rows;
                               return i < count ? row / head_rows * stored_rows + first + i : -1;
                             }}});
  };
  part_of_heads(target.key_up, 0, latent.nope_dim);
  part_of_heads(target.value_up, latent.nope_dim, attention.value_dim);
  for (int head = 0; head < heads.size; ++head) {
    jobs.TransposedRows(target.query_in[head], kv_up, (heads.first + head) * stored_rows);
  }
}

void QkvJobs(const Reading& reading, const model::AttentionSpec& attention, int layer,
             LayerWeights* weights) {
  using enum TensorRole;
  const StoredTensors& tensors = reading.tensors;
  const HeadParts heads = HeadsOf(attention, reading.share);
  const Part queries = Times(heads.query, attention.head_dim);
  const Part keys = Times(heads.kv, attention.head_dim);
  const Part values = Times(heads.kv, attention.value_dim);
  weights->query_norm = tensors.Vector(kQueryNorm, layer);
  weights->key_norm = tensors.Vector(kKeyNorm, layer);
  if (attention.qk_norm == model::QkNorm::kWholeProjection) {
    weights->query_norm = Cut(weights->query_norm, queries);
    weights->key_norm = Cut(weights->key_norm, keys);
  }
  const auto add_bias = [&](TensorRole role, Part part) {
    const std::vector<float> bias = Cut(tensors.Vector(role, layer), part);
    weights->qkv_bias.insert(weights->qkv_bias.end(), bias.begin(), bias.end());
  };
  add_bias(kQueryBias, queries);
  add_bias(kKeyBias, keys);
  add_bias(kValueBias, values);
  reading.jobs.PackStacked(weights->qkv, {{&tensors.Get(kQuery, layer), queries},
                                          {&tensors.Get(kKey, layer), keys},
                                          {&tensors.Get(kValue, layer), values}});
}

// Biases in the order of the packed rows; of one matrix where there is no gate.
std::vector<float> GateAndUpBias(const std::vector<float>& gate, std::vector<float> up) {
  if (gate.empty()) return up;
  const auto intermediate = static_cast<int>(gate.size());
  std::vector<float> bias(kernels::GateUpRows(intermediate));
  for (int row = 0; row < std::ssize(bias); ++row) {
    const kernels::GateUpRow at = kernels::GateUpRowAt(intermediate, row);
    if (at.row < intermediate) bias[row] = at.is_up ? up[at.row] : gate[at.row];
  }
  return bias;
}

void CrossJobs(const Reading& reading, const model::AttentionSpec& attention, int layer,
               CrossWeights* weights) {
  using enum TensorRole;
  const auto& [tensors, share, formats, jobs] = reading;
  const HeadParts heads = HeadsOf(attention, share);
  weights->norm = tensors.Vector(kCrossNorm, layer);
  jobs.PackStacked(weights->query,
                   {{&tensors.Get(kCrossQuery, layer), Times(heads.query, attention.head_dim)}});
  jobs.PackStacked(weights->kv,
                   {{&tensors.Get(kCrossKey, layer), Times(heads.kv, attention.head_dim)},
                    {&tensors.Get(kCrossValue, layer), Times(heads.kv, attention.value_dim)}});
  jobs.PackStacked(weights->output, {PackJobs::All(tensors.Get(kCrossOutput, layer))},
                   heads.query.first * attention.value_dim);
}

void ExpertBiases(const StoredTensors& tensors, const Share& share, Part slice, int layer,
                  int expert, FfnWeights* ffn) {
  using enum TensorRole;
  ffn->up_bias = GateAndUpBias(Cut(tensors.Vector(kExpertGateBias, layer, expert), slice),
                               Cut(tensors.Vector(kExpertUpBias, layer, expert), slice));
  ffn->down_bias = InFirst(share.expert_slice, tensors.Vector(kExpertDownBias, layer, expert));
}

void RouterJobs(const Reading& reading, int layer, MoeWeights* moe) {
  using enum TensorRole;
  const auto& [tensors, share, formats, jobs] = reading;
  std::vector<PackJobs::Rows> router = {PackJobs::All(tensors.Get(kRouter, layer))};
  const TensorBinding* shared_gate = tensors.Find(kSharedExpertGate, layer);
  if (shared_gate != nullptr) router.push_back(PackJobs::All(*shared_gate));
  jobs.PackStacked(moe->router, router);
  moe->router_bias = tensors.Vector(kRouterBias, layer);
  if (!moe->router_bias.empty()) moe->router_bias.resize(moe->router.rows);
  moe->correction_bias = tensors.Vector(kCorrectionBias, layer);
}

void MoeJobs(const Reading& reading, const model::MoeSpec& spec, int layer, MoeWeights* moe) {
  using enum TensorRole;
  const auto& [tensors, share, formats, jobs] = reading;
  if (share.with_attention) RouterJobs(reading, layer, moe);
  const auto add = [&](const Share& phase, bool is_decode, int first_expert,
                       std::vector<FfnWeights>& experts) {
    const Part slice = SliceOf(spec, phase, formats);
    for (int local = 0; local < std::ssize(experts); ++local) {
      FfnWeights& ffn = experts[local];
      const int expert = first_expert + local;
      ExpertBiases(tensors, phase, slice, layer, expert, &ffn);
      // Those of decode that come from other ranks later, or are those of prefill, have no place.
      if (is_decode && ffn.up.data == nullptr) continue;
      jobs.Ffn(ffn, layer, expert, {kExpertGate, kExpertUp, kExpertDown}, slice);
    }
  };
  add(share, /*is_decode=*/false, moe->first_expert, moe->experts);
  if (share.decode) {
    add(InDecode(share), /*is_decode=*/true, moe->first_decode_expert, moe->decode_experts);
  }
  if (moe->shared) {
    jobs.Ffn(*moe->shared, layer, -1, {kSharedGate, kSharedUp, kSharedDown},
             SharedSliceOf(spec, share, formats));
  }
}

void AttentionJobs(const Reading& reading, const model::LayerSpec& spec, int layer,
                   LayerWeights* weights) {
  using enum TensorRole;
  const auto& [tensors, share, formats, jobs] = reading;
  const Part heads = HeadsOf(spec.attention, share).query;
  weights->attention_norm = tensors.Vector(kAttentionNorm, layer);
  weights->ffn_norm = tensors.Vector(kFfnNorm, layer);
  weights->output_bias = InFirst(share.attention_part, tensors.Vector(kAttentionOutputBias, layer));
  weights->sinks = Cut(tensors.Vector(kSinks, layer), heads);
  if (spec.attention.latent) {
    LatentJobs(reading, spec.attention, layer, weights);
  } else {
    QkvJobs(reading, spec.attention, layer, weights);
  }
  jobs.PackStacked(weights->output, {PackJobs::All(tensors.Get(kAttentionOutput, layer))},
                   heads.first * spec.attention.value_dim);
  if (weights->cross) CrossJobs(reading, *spec.cross_attention, layer, &*weights->cross);
}

void LayerJobs(const Reading& reading, const model::LayerSpec& spec, int layer,
               LayerWeights* weights) {
  using enum TensorRole;
  if (reading.share.with_attention) AttentionJobs(reading, spec, layer, weights);
  if (weights->dense) {
    reading.jobs.Ffn(*weights->dense, layer, -1, {kDenseGate, kDenseUp, kDenseDown},
                     DenseSliceOf(spec, reading.share, reading.formats));
  }
  if (weights->moe) MoeJobs(reading, *spec.moe, layer, &*weights->moe);
}

// The table (num_buckets, num_heads) of a stack, of the heads that the share has.
std::vector<float> RelativeBias(const Reading& reading,
                                const std::vector<model::LayerSpec>& layers) {
  const std::vector<float> table = reading.tensors.Vector(TensorRole::kRelativeBias);
  std::vector<float> columns;
  if (table.empty()) return columns;
  const model::AttentionSpec& attention = layers.front().attention;
  const Part heads = HeadsOf(attention, reading.share).query;
  for (int first = 0; first < std::ssize(table); first += attention.num_heads) {
    const std::vector<float> row = Cut(table, {first + heads.first, heads.size});
    columns.insert(columns.end(), row.begin(), row.end());
  }
  return columns;
}

}  // namespace

void DecoderJobs(const StoredTensors& tensors, const model::ModelSpec& whole, const Share& share,
                 ModelWeights* weights, PackJobs* jobs) {
  const Reading reading{tensors, share, weights->formats, *jobs};
  if (share.with_attention) {
    weights->final_norm = tensors.Vector(TensorRole::kFinalNorm);
    weights->relative_bias = RelativeBias(reading, whole.layers);
  }
  if (share.with_embedding()) {
    jobs->PackStacked(weights->embedding, {PackJobs::All(tensors.Get(TensorRole::kEmbedding))});
  }
  // A head that is the embedding has been packed with it, but on a rank that does not embed.
  if (share.with_head() && !(share.with_embedding() && weights->embedding_is_head())) {
    const TensorRole role = whole.tied_embeddings ? TensorRole::kEmbedding : TensorRole::kHead;
    jobs->PackStacked(weights->head,
                      {{&tensors.Get(role), share.head->TokensOf(whole.vocab_size)}});
  }
  for (int layer = 0; layer < whole.num_layers(); ++layer) {
    if (!share.stage.HasLayer(layer, whole.num_layers())) continue;
    LayerJobs(reading, whole.layers[layer], layer, &weights->layers[layer]);
  }
}

void EncoderJobs(const StoredTensors& tensors, const model::ModelSpec& whole, const Share& share,
                 ModelWeights* weights, PackJobs* jobs) {
  EncoderWeights& encoder = *weights->encoder;
  const Reading reading{tensors, share, weights->formats, *jobs};
  encoder.final_norm = tensors.Vector(TensorRole::kFinalNorm);
  encoder.relative_bias = RelativeBias(reading, whole.encoder_layers);
  if (!whole.tied_embeddings) {
    jobs->PackStacked(encoder.embedding, {PackJobs::All(tensors.Get(TensorRole::kEmbedding))});
  }
  for (int layer = 0; layer < std::ssize(encoder.layers); ++layer) {
    LayerJobs(reading, whole.encoder_layers[layer], layer, &encoder.layers[layer]);
  }
}

}  // namespace convene::weights
