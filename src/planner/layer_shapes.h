// The layers of a model by what decides their costs: layers of one shape take the same time, so
// that one of them is priced for all.
#pragma once

#include <span>
#include <vector>

#include "model/model_spec.h"

namespace convene::planner {

struct LayerShape {
  model::ModelSpec spec;  // DecoderOf with layers of this shape alone
  int count = 0;          // how many layers of the whole model have the shape
  int first = 0;          // the first of them
};

// The decoder of the model with other layers, without tensors: to copy the names of ten thousands
// of them takes longer than to price a step.
model::ModelSpec DecoderOf(const model::ModelSpec& spec, std::vector<model::LayerSpec> layers);

bool AreAlike(const model::LayerSpec& a, const model::LayerSpec& b);

// Of the model's decoder, in the order of their first layers; each with `num_layers` layers in a
// row.
std::vector<LayerShape> LayerShapesOf(const model::ModelSpec& spec, int num_layers);
// Of some of the model's layers: its encoder's.
std::vector<LayerShape> LayerShapesOf(const model::ModelSpec& spec,
                                      std::span<const model::LayerSpec> layers, int num_layers);

// The fewest experts that a layer with experts has; 0: no layer has any.
int FewestExperts(const model::ModelSpec& spec);

}  // namespace convene::planner
