#include "weights/layer_jobs.h"

namespace convene::weights {
namespace {

using kernels::PackedMatrix;
using model::TensorBinding;
using model::TensorRole;

// Where row `row` of a head's rotated part, in halves, is among `rope_dim` stored rows.
int RotatedRow(const model::LatentSpec& latent, int row) {
  if (!latent.interleaved_rope) return row;
  const int half = latent.rope_dim / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

void LatentJobs(const StoredTensors& tensors, const model::AttentionSpec& attention, int layer,
                LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  const model::LatentSpec latent = *attention.latent;
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
  const TensorBinding& kv_down = tensors.Get(kKvDown, layer);
  if (latent.query_rank > 0) {
    jobs->StackRows(weights->qkv, {{&tensors.Get(kQueryDown, layer), latent.query_rank, as_stored},
                                   {&kv_down, latent.key_dim(), key_row}});
    jobs->StackRows(target.query_up,
                    {{&tensors.Get(kQueryUp, layer), attention.query_dim(), query_row}});
  } else {
    jobs->StackRows(weights->qkv, {{&tensors.Get(kQuery, layer), attention.query_dim(), query_row},
                                   {&kv_down, latent.key_dim(), key_row}});
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
    jobs->StackRows(matrix, {{&kv_up, matrix.rows, [=](int row) {
                                const int i = row % head_rows;
                                return i < count ? row / head_rows * stored_rows + first + i : -1;
                              }}});
  };
  part_of_heads(target.key_up, 0, latent.nope_dim);
  part_of_heads(target.value_up, latent.nope_dim, attention.value_dim);
  for (int head = 0; head < attention.num_heads; ++head) {
    jobs->TransposedRows(target.query_in[head], kv_up, head * stored_rows);
  }
}

void QkvJobs(const StoredTensors& tensors, int layer, LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->query_norm = tensors.Vector(kQueryNorm, layer);
  weights->key_norm = tensors.Vector(kKeyNorm, layer);
  for (const TensorRole role : {kQueryBias, kKeyBias, kValueBias}) {
    const std::vector<float> bias = tensors.Vector(role, layer);
    weights->qkv_bias.insert(weights->qkv_bias.end(), bias.begin(), bias.end());
  }
  jobs->Stack(weights->qkv, {&tensors.Get(kQuery, layer), &tensors.Get(kKey, layer),
                             &tensors.Get(kValue, layer)});
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

void CrossJobs(const StoredTensors& tensors, int layer, CrossWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->norm = tensors.Vector(kCrossNorm, layer);
  jobs->Stack(weights->query, {&tensors.Get(kCrossQuery, layer)});
  jobs->Stack(weights->kv, {&tensors.Get(kCrossKey, layer), &tensors.Get(kCrossValue, layer)});
  jobs->Stack(weights->output, {&tensors.Get(kCrossOutput, layer)});
}

void LayerJobs(const StoredTensors& tensors, const model::LayerSpec& spec, int layer,
               LayerWeights* weights, PackJobs* jobs) {
  using enum TensorRole;
  weights->attention_norm = tensors.Vector(kAttentionNorm, layer);
  weights->ffn_norm = tensors.Vector(kFfnNorm, layer);
  weights->output_bias = tensors.Vector(kAttentionOutputBias, layer);
  weights->sinks = tensors.Vector(kSinks, layer);
  if (spec.attention.latent) {
    LatentJobs(tensors, spec.attention, layer, weights, jobs);
  } else {
    QkvJobs(tensors, layer, weights, jobs);
  }
  jobs->Stack(weights->output, {&tensors.Get(kAttentionOutput, layer)});
  if (weights->cross) CrossJobs(tensors, layer, &*weights->cross, jobs);
  if (weights->dense) {
    jobs->Ffn(*weights->dense, layer, -1, {kDenseGate, kDenseUp, kDenseDown});
    return;
  }
  MoeWeights& moe = *weights->moe;
  std::vector<const TensorBinding*> router = {&tensors.Get(kRouter, layer)};
  const TensorBinding* shared_gate = tensors.Find(kSharedExpertGate, layer);
  if (shared_gate != nullptr) router.push_back(shared_gate);
  jobs->Stack(moe.router, router);
  moe.router_bias = tensors.Vector(kRouterBias, layer);
  if (!moe.router_bias.empty()) moe.router_bias.resize(moe.router.rows);
  moe.correction_bias = tensors.Vector(kCorrectionBias, layer);
  for (int expert = 0; expert < std::ssize(moe.experts); ++expert) {
    FfnWeights& ffn = moe.experts[expert];
    jobs->Ffn(ffn, layer, expert, {kExpertGate, kExpertUp, kExpertDown});
    ffn.up_bias = GateAndUpBias(tensors.Vector(kExpertGateBias, layer, expert),
                                tensors.Vector(kExpertUpBias, layer, expert));
    ffn.down_bias = tensors.Vector(kExpertDownBias, layer, expert);
  }
  if (moe.shared) jobs->Ffn(*moe.shared, layer, -1, {kSharedGate, kSharedUp, kSharedDown});
}

}  // namespace

void DecoderJobs(const StoredTensors& tensors, ModelWeights* weights, PackJobs* jobs) {
  weights->final_norm = tensors.Vector(TensorRole::kFinalNorm);
  weights->relative_bias = tensors.Vector(TensorRole::kRelativeBias);
  const TensorBinding& embedding = tensors.Get(TensorRole::kEmbedding);
  const bool tied = weights->spec.tied_embeddings;
  jobs->Stack(weights->head, {tied ? &embedding : &tensors.Get(TensorRole::kHead)});
  if (!weights->embedding_is_head()) jobs->Stack(weights->embedding, {&embedding});
  for (int layer = 0; layer < weights->spec.num_layers(); ++layer) {
    LayerJobs(tensors, weights->spec.layers[layer], layer, &weights->layers[layer], jobs);
  }
}

void EncoderJobs(const StoredTensors& tensors, const model::ModelSpec& spec,
                 EncoderWeights* weights, PackJobs* jobs) {
  weights->final_norm = tensors.Vector(TensorRole::kFinalNorm);
  weights->relative_bias = tensors.Vector(TensorRole::kRelativeBias);
  if (!spec.tied_embeddings) {
    jobs->Stack(weights->embedding, {&tensors.Get(TensorRole::kEmbedding)});
  }
  for (int layer = 0; layer < std::ssize(weights->layers); ++layer) {
    LayerJobs(tensors, spec.encoder_layers[layer], layer, &weights->layers[layer], jobs);
  }
}

}  // namespace convene::weights
