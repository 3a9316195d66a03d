// A model directory whose weights are already packed: config.json, tokenizer and so on as they
// were, `convene.json` with the formats and `convene.safetensors` with the matrices as they lie in
// memory, so that it is mapped, or copied, instead of read, converted and packed. Made by `convene
// quantize`.
//
// convene.json: {"version": 4, "weights": "int4", "group": 32, "tied_embeddings": false}. Where the
// matrices are not whole, but a rank's parts of heads and experts (of pages that ranks make for
// themselves), also {"parts":
// {"attention_part": 0, "attention_parts": 2, "expert_slice": 0, "expert_slices": 2}}.
// convene.safetensors: a U8 tensor for each packed matrix, in the order of named_weights.h, which
// is that of execution, then the norms and biases as F32, then U64 `checksums`: the digest of each
// matrix, norm and bias (tensor_digests.h). What tasks read together is a page: one expert, say. A
// page begins at a multiple of 4,096 bytes of the file, so that it can be read from the disk
// directly (memory/page_reader.h): the tensor of its last matrix has zeros behind the matrix, up to
// such a multiple, which are in no digest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "weights/model_weights.h"
#include "weights/share.h"
#include "weights/tensor_digests.h"

namespace convene::weights {

// Whether `directory` says that it is one.
bool IsPackedDirectory(const std::string& directory);

// An opened and checked packed directory; nothing of the matrices is read yet.
struct PackedDirectory {
  checkpoint::ModelConfiguration configuration;
  WeightFormats formats;
  Share parts = {};  // of whole layers, of the model that `configuration` says (PartsOf)
  checkpoint::MappedFile file;
  // Of the file, without the checksums; their size_bytes are without zeros at their ends.
  std::vector<checkpoint::StoredTensor> tensors;
  std::vector<NamedDigest> checksums;  // of `tensors`, as stored
};

// Errors: files that are missing or malformed, another version, tensors that are not those of the
// model in these formats.
Result<PackedDirectory> OpenPackedDirectory(const std::string& directory);

// Of a tensor whose checksum is `found`: what it is, its file, and what to do.
Error Damaged(const PackedDirectory& directory, const NamedDigest& stored, uint64_t found);

// Reads the tensors that `share` has, or all of them, and compares them with their checksums.
// Error: Damaged.
Status VerifyPacked(const PackedDirectory& directory, const std::optional<Share>& share,
                    hardware::ThreadPool& pool, const LoadProgress& progress);

// Its steps, on what the files hold. The formats that convene.json, parsed, gives; it says, too,
// whether the embeddings of `spec` are tied. Errors as above.
Result<WeightFormats> ParsePackedFormats(const nlohmann::json& json, model::ModelSpec* spec);
// Its parts, which the model may not fit (LocalSpec says so).
Result<Share> ParsePackedParts(const nlohmann::json& json);

// The tensors of convene.safetensors, after its list was found to be that of the model, `spec`
// being LocalSpec of its parts: the matrices from a multiple of 4,096 bytes on, then norms and
// biases, then the checksums; the sizes of matrices are without the zeros behind them. `prefix` is
// the file's beginning (all of it is fine), `file_size` the size of the whole file. Errors as
// above, and those of ParseSafetensors.
Result<std::vector<checkpoint::StoredTensor>> FindPackedWeights(const model::ModelSpec& spec,
                                                                const WeightFormats& formats,
                                                                std::span<const std::byte> prefix,
                                                                uint64_t file_size,
                                                                const Share& parts = {});

// Error: the share has parts of matrices, which are packed whole there.
Status CheckWholeMatrices(const Share& share);
// Error: the matrices of the share are not those of a directory with such parts.
Status CheckParts(const Share& parts, const Share& share);

// Of the weights of a directory, which has all that a share with its parts may have, leaves what
// the share has. `whole` is the model of the checkpoint.
Status KeepShare(const model::ModelSpec& whole, const Share& share, ModelWeights& weights);

// The weights, which keep the file mapped and what `share` is of it reserved in `ledger`. Reads the
// norms and biases alone; place_packed.h brings the matrices into memory. Errors: those of
// CheckParts and LocalSpec; memory that cannot be had; norms and biases that are NaN or infinite.
Result<ModelWeights> MapWeights(PackedDirectory directory, memory::Ledger& ledger,
                                const Share& share = {});

}  // namespace convene::weights
