// What quantization_config says about how a checkpoint stores its matrices. Which of them it means
// is a family's matter; what lies in the files, checkpoint/'s.
#pragma once

#include "model/config_fields.h"
#include "model/model_spec.h"

namespace convene::model {

// kPlain where nothing is said; a mistake where it is not FP8 (E4M3) with blocks of 128 x 128 or
// MXFP4.
Storage ReadStorage(ConfigFields& config);

}  // namespace convene::model
