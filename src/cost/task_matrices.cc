#include "cost/task_matrices.h"

#include <algorithm>

namespace convene::cost {
namespace {

using schedule::TaskKind;
using Split = Matrix::Split;

std::vector<Matrix> Projections(double hidden, const model::AttentionSpec& attention) {
  if (!attention.latent) {
    const double columns =
        attention.query_dim() + attention.kv_dim() + double(attention.value_width());
    return {{columns, hidden, Split::kColumns}};
  }
  const model::LatentSpec& latent = *attention.latent;
  std::vector<Matrix> matrices;
  const double query_rank = latent.query_rank;
  if (query_rank > 0) matrices.push_back({query_rank, hidden});
  matrices.push_back(
      {double(attention.query_dim()), query_rank > 0 ? query_rank : hidden, Split::kColumns});
  matrices.push_back({double(latent.key_dim()), hidden});
  matrices.push_back({double(attention.num_heads) * (latent.nope_dim + attention.value_dim),
                      double(latent.kv_rank), Split::kColumns});
  return matrices;
}

Matrix Output(double hidden, const model::AttentionSpec& attention) {
  return {hidden, double(attention.output_dim()), Split::kInner};
}

std::vector<Matrix> FeedForward(double hidden, double intermediate,
                                const model::ActivationSpec& activation) {
  return {{(activation.gated() ? 2 : 1) * intermediate, hidden, Split::kColumns},
          {hidden, intermediate, Split::kInner}};
}

}  // namespace

std::vector<Matrix> WholeMatricesOf(const schedule::Task& task, const model::ModelSpec& spec,
                                    bool is_projected) {
  const double hidden = spec.hidden_size;
  if (task.kind == TaskKind::kHead) return {{double(spec.vocab_size), hidden, Split::kColumns}};
  if (task.layer < 0) return {};
  const model::LayerSpec& layer = (task.encoder ? spec.encoder_layers : spec.layers)[task.layer];
  switch (task.kind) {
    case TaskKind::kProject:
    case TaskKind::kPreAttention:
      return Projections(hidden, layer.attention);
    case TaskKind::kPostAttention:
      return {Output(hidden, layer.attention)};
    case TaskKind::kAttention: {
      if (task.block == schedule::Block::kCross) {
        const model::AttentionSpec& cross = *layer.cross_attention;
        return {{double(cross.query_dim()), hidden, Split::kColumns}, Output(hidden, cross)};
      }
      std::vector<Matrix> matrices;
      if (!is_projected) matrices = Projections(hidden, layer.attention);
      matrices.push_back(Output(hidden, layer.attention));
      return matrices;
    }
    case TaskKind::kDense:
      return FeedForward(hidden, layer.dense_intermediate_size, layer.dense_activation);
    case TaskKind::kShared:
      return FeedForward(hidden, layer.moe->shared_intermediate_size, layer.moe->activation);
    case TaskKind::kRoute:
      return {{double(layer.moe->num_experts), hidden}};
    default:
      return {};
  }
}

std::vector<Matrix> MatricesOfPart(std::vector<Matrix> whole, double elements, double hidden) {
  double divided = 0;
  double undivided = 0;
  for (const Matrix& matrix : whole) {
    (matrix.split == Split::kNothing ? undivided : divided) += matrix.elements();
  }
  const double part = divided > 0 ? (elements - undivided) / divided : 0;
  // Fewer than what no rank divides: not the matrices that were expected.
  if (divided + undivided <= 0 || part < 0) return {{elements / hidden, hidden}};
  for (Matrix& matrix : whole) {
    if (matrix.split == Split::kColumns) matrix.columns *= part;
    if (matrix.split == Split::kInner) matrix.inner *= part;
  }
  std::erase_if(whole, [](const Matrix& matrix) { return matrix.elements() <= 0; });
  return whole;
}

}  // namespace convene::cost
