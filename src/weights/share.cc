#include "weights/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace convene::weights {
namespace {

using strategy::Part;
using strategy::PartOf;

bool HeadsFit(const model::AttentionSpec& attention, int parts) {
  const int kv_heads = attention.num_kv_heads;
  if (parts <= kv_heads) return true;
  return parts % kv_heads == 0 && attention.num_heads % parts == 0;
}

// "1 to 4, 8 or 16 fit".
std::string FittingParts(const model::AttentionSpec& attention) {
  const int kv_heads = attention.num_kv_heads;
  std::vector<std::string> fitting = {kv_heads > 1 ? fmt::format("1 to {}", kv_heads) : "1"};
  for (int parts = kv_heads + 1; parts <= attention.num_heads; ++parts) {
    if (HeadsFit(attention, parts)) fitting.push_back(fmt::format("{}", parts));
  }
  std::string text = fitting.front();
  for (size_t i = 1; i < fitting.size(); ++i) {
    text += (i + 1 < fitting.size() ? ", " : " or ") + fitting[i];
  }
  return text + (text == "1" ? " fits" : " fit");
}

// "1 to 4 fit".
std::string FittingUpTo(int most) {
  return most == 1 ? "1 fits" : fmt::format("1 to {} fit", most);
}

// Columns that are cut together.
int SliceUnit(const WeightFormats& formats) {
  return formats.matrices == kernels::WeightFormat::kInt4 ? formats.group : 1;
}

int NumUnits(int intermediate_size, const WeightFormats& formats) {
  const int unit = SliceUnit(formats);
  return (intermediate_size + unit - 1) / unit;
}

// Slice `slice` of `slices`.
Part SliceOfSize(int intermediate_size, int slice, int slices, const WeightFormats& formats) {
  const Part units = PartOf(NumUnits(intermediate_size, formats), slice, slices);
  const int first = units.first * SliceUnit(formats);
  const int end = std::min((units.first + units.size) * SliceUnit(formats), intermediate_size);
  return {first, end - first};
}

Status CutAttention(const Share& share, model::AttentionSpec& attention) {
  if (!HeadsFit(attention, share.attention_parts)) {
    return Error{
        fmt::format("attention with {}, {} of them for keys and values, cannot be divided into {} "
                    "parts; {}",
                    FormatCount(static_cast<uint64_t>(attention.num_heads), "head"),
                    attention.num_kv_heads, share.attention_parts, FittingParts(attention))};
  }
  if (!share.with_attention) {
    attention.num_heads = attention.num_kv_heads = 0;
    attention.latent.reset();
    return {};
  }
  const HeadParts heads = HeadsOf(attention, share);
  attention.num_heads = heads.query.size;
  attention.num_kv_heads = heads.kv.size;
  return {};
}

Status CheckSlices(std::string_view what, int intermediate_size, int slices,
                   const WeightFormats& formats) {
  const int num_units = NumUnits(intermediate_size, formats);
  if (slices <= num_units) return {};
  const std::string unit =
      SliceUnit(formats) == 1
          ? ""
          : fmt::format(" in int4 groups of {} (--int4-group)", SliceUnit(formats));
  return Error{fmt::format("{} with an intermediate size of {}{} cannot be cut into {} slices; {}",
                           what, intermediate_size, unit, slices, FittingUpTo(num_units))};
}

Status CutDense(const Share& share, const WeightFormats& formats, model::LayerSpec& layer) {
  if (share.divides_dense && !layer.moe) {
    const Status fit =
        CheckSlices("dense blocks", layer.dense_intermediate_size, share.attention_parts, formats);
    if (!fit) return fit;
  }
  layer.dense_intermediate_size =
      share.with_attention ? DenseSliceOf(layer, share, formats).size : 0;
  return {};
}

Status CutExperts(const Share& share, const WeightFormats& formats, model::MoeSpec& moe) {
  const strategy::ExpertSplit& shares = share.expert_shares;
  if (shares.FewestExperts(moe.num_experts) == 0) {
    const std::string what = fmt::format(
        "{} cannot be divided into {} shares",
        FormatCount(static_cast<uint64_t>(moe.num_experts), "expert"), shares.num_shares());
    if (shares.num_shares() > moe.num_experts) {
      return Error{fmt::format("{}; {}", what, FittingUpTo(moe.num_experts))};
    }
    return Error{fmt::format(
        "{} of such unequal weights: one would have none; give weights that differ less, or ep{}, "
        "whose shares are alike",
        what, shares.num_shares())};
  }
  const bool divides_shared = share.divides_shared && moe.shared_intermediate_size > 0;
  const int smallest = divides_shared
                           ? std::min(moe.intermediate_size, moe.shared_intermediate_size)
                           : moe.intermediate_size;
  if (Status fit = CheckSlices("experts", smallest, share.expert_slices, formats); !fit) return fit;
  moe.shared_intermediate_size = SharedSliceOf(moe, share, formats).size;
  moe.intermediate_size = share.with_experts ? SliceOf(moe, share, formats).size : 0;
  if (!share.with_attention) {
    moe.shared_intermediate_size = 0;
    moe.shared_expert_gate = false;
  }
  return {};
}

// A layer of another stage: nothing is computed of it, and nothing kept.
void Empty(model::LayerSpec& layer) {
  layer.attention.num_heads = layer.attention.num_kv_heads = 0;
  layer.attention.latent.reset();
  layer.moe.reset();
  layer.dense_intermediate_size = 0;
}

Status CutStage(const Share& share, std::vector<model::LayerSpec>& layers) {
  const auto num_layers = static_cast<int>(layers.size());
  if (share.stage.of > 1 && share.stage.LayersOf(num_layers).size == 0) {
    return Error{fmt::format(
        "{} layers cannot be divided so that each rank has some: use fewer ranks, or weights of "
        "the stages that are less unequal",
        num_layers)};
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    if (!share.stage.HasLayer(layer, num_layers)) Empty(layers[layer]);
  }
  return {};
}

Status CutLayers(const Share& share, const WeightFormats& formats,
                 std::vector<model::LayerSpec>& layers) {
  for (model::LayerSpec& layer : layers) {
    if (Status cut = CutAttention(share, layer.attention); !cut) return cut;
    if (layer.cross_attention) {
      if (Status cut = CutAttention(share, *layer.cross_attention); !cut) return cut;
    }
    if (Status cut = CutDense(share, formats, layer); !cut) return cut;
    if (!layer.moe) continue;
    if (Status cut = CutExperts(share, formats, *layer.moe); !cut) return cut;
  }
  return {};
}

}  // namespace

Share ShareOf(const strategy::Roles& roles, int rank) {
  const strategy::Role& role = roles.of(rank);
  const strategy::AttentionRole attention =
      role.attention.value_or(strategy::AttentionRole{.parts = roles.attention_parts()});
  const strategy::ExpertRole experts =
      role.experts.value_or(strategy::ExpertRole{.slices = roles.expert_slices()});
  return {.attention_part = attention.part,
          .attention_parts = attention.parts,
          .expert_share = experts.share,
          .expert_shares = roles.expert_split(),
          .expert_slice = experts.slice,
          .expert_slices = experts.slices,
          .head = role.head,
          .with_attention = role.owns_rows(),
          .with_experts = role.has_experts(),
          .divides_shared = roles.divides_shared(),
          .divides_dense = roles.divides_dense(),
          .stage = role.stage};
}

Share ShareOf(const strategy::Roles& roles, const strategy::Roles& decode_roles, bool beside,
              int rank) {
  Share share = ShareOf(roles, rank);
  const Share decode = ShareOf(decode_roles, rank);
  share.decode = {.share = decode.expert_share,
                  .shares = decode.expert_shares,
                  .slice = decode.expert_slice,
                  .slices = decode.expert_slices,
                  .beside = beside};
  return share;
}

Share PartsOf(const Share& share) {
  return {.attention_part = share.attention_part,
          .attention_parts = share.attention_parts,
          .expert_slice = share.expert_slice,
          .expert_slices = share.expert_slices};
}

Share InDecode(const Share& share) {
  Share decode = share;
  decode.decode.reset();
  if (!share.decode) return decode;
  decode.expert_share = share.decode->share;
  decode.expert_shares = share.decode->shares;
  decode.expert_slice = share.decode->slice;
  decode.expert_slices = share.decode->slices;
  return decode;
}

Result<model::ModelSpec> WidestSpec(const model::ModelSpec& whole, const Share& share,
                                    const WeightFormats& formats) {
  Result<model::ModelSpec> widest = LocalSpec(whole, share, formats);
  if (!widest || !share.decode) return widest;
  const Result<model::ModelSpec> decode = LocalSpec(whole, InDecode(share), formats);
  if (!decode) return decode.error().At("decode");
  for (size_t layer = 0; layer < widest->layers.size(); ++layer) {
    if (!widest->layers[layer].moe) continue;
    int& size = widest->layers[layer].moe->intermediate_size;
    size = std::max(size, decode->layers[layer].moe->intermediate_size);
  }
  return widest;
}

Result<model::ModelSpec> LocalSpec(const model::ModelSpec& whole, const Share& share,
                                   const WeightFormats& formats) {
  if (whole.has_encoder() && !(share.with_attention && share.with_experts)) {
    return Error{
        "the experts of an encoder-decoder model cannot be on other ranks than its attention, "
        "since "
        "an encoder's inputs stay whole: use a layout without --disaggregate, such as "
        "attention=dp2,experts=ep2"};
  }
  if (whole.has_encoder() && share.stage.of > 1) {
    return Error{
        "the layers of an encoder-decoder model cannot be divided over ranks, since its decoder "
        "waits for the whole encoder: use a layout such as attention=dp2,experts=ep2"};
  }
  if (share.head && share.head->parts > 1) {
    const int most =
        (whole.vocab_size + strategy::kHeadPanelTokens - 1) / strategy::kHeadPanelTokens;
    if (share.head->parts > most) {
      return Error{fmt::format(
          "a head with a vocabulary of {} cannot be divided into {} parts of whole panels of {} "
          "tokens; {}: use fewer ranks, or a layout without head=tp{}",
          whole.vocab_size, share.head->parts, strategy::kHeadPanelTokens, FittingUpTo(most),
          share.head->parts)};
    }
  }
  model::ModelSpec local = whole;
  if (Status cut = CutLayers(share, formats, local.encoder_layers); !cut) return cut.error();
  if (Status cut = CutLayers(share, formats, local.layers); !cut) return cut.error();
  if (Status cut = CutStage(share, local.layers); !cut) return cut.error();
  return local;
}

HeadParts HeadsOf(const model::AttentionSpec& whole, const Share& share) {
  const strategy::AttentionRole role{.part = share.attention_part, .parts = share.attention_parts};
  return role.HeadsOf(whole);
}

Part ExpertsOf(const model::MoeSpec& whole, const Share& share) {
  if (!share.with_experts) return {};
  return share.expert_shares.experts(share.expert_share, whole.num_experts);
}

Part SliceOf(const model::MoeSpec& whole, const Share& share, const WeightFormats& formats) {
  return SliceOfSize(whole.intermediate_size, share.expert_slice, share.expert_slices, formats);
}

Part SharedSliceOf(const model::MoeSpec& whole, const Share& share, const WeightFormats& formats) {
  if (!share.divides_shared) return {0, whole.shared_intermediate_size};
  return SliceOfSize(whole.shared_intermediate_size, share.expert_slice, share.expert_slices,
                     formats);
}

Part DenseSliceOf(const model::LayerSpec& whole, const Share& share, const WeightFormats& formats) {
  if (!share.divides_dense) return {0, whole.dense_intermediate_size};
  return SliceOfSize(whole.dense_intermediate_size, share.attention_part, share.attention_parts,
                     formats);
}

}  // namespace convene::weights
