#include "weights/pack_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "base/is_there.h"
#include "base/read_file.h"
#include "checkpoint/output_directory.h"
#include "weights/finite_weights.h"
#include "weights/layer_jobs.h"
#include "weights/named_weights.h"
#include "weights/pack_batch.h"
#include "weights/packed_file.h"
#include "weights/share.h"
#include "weights/stored_tensors.h"
#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

namespace fs = std::filesystem;

// What an unfinished directory has besides: which matrices are written, and their digests. A line
// that names the checkpoint and the formats, then a line for each batch that is on the disk.
constexpr const char* kPartName = "convene.part";

// So much is packed at a time, or a page where that is larger: work for all threads, and little
// beside the weights.
constexpr uint64_t kMostBatchBytes = uint64_t{64} << 20;
constexpr uint64_t kFewestBatchBytes = uint64_t{4} << 20;
constexpr uint64_t kShareOfMemory = 16;

// Of what lies deeper than that, the one file that is read (text/chat_template.h).
constexpr const char* kMoreTemplates = "additional_chat_templates";
constexpr const char* kToolTemplate = "additional_chat_templates/tool_use.jinja";

// Everything of a model but weights and tables of contents that do not fit the packed file.
bool IsCopied(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!entry.is_regular_file(ignored)) return false;
  const std::string name = entry.path().filename().string();
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json",
                             ".pth", ".pt", ".gguf", ".onnx", ".h5", ".msgpack"}) {
    if (name.ends_with(ending)) return false;
  }
  return name != kFormatsName && name != kPartName;
}

}  // namespace

std::string SourceOfPages(const checkpoint::Checkpoint& checkpoint) {
  std::string configuration;
  for (const char* name : {"config.json", "generation_config.json"}) {
    constexpr uint64_t kMostBytes = uint64_t{64} << 20;
    const Result<std::string> text =
        ReadFile((fs::path(checkpoint.directory()) / name).string(), kMostBytes);
    configuration += fmt::format("{} {}\n", name, text ? *text : "");
  }
  return fmt::format("{} {:016x}", checkpoint.FileStates(),
                     DigestOf(std::as_bytes(std::span(configuration))));
}

namespace {

std::string KeyOf(const checkpoint::Checkpoint& checkpoint, const WeightFormats& formats,
                  const Share& parts) {
  const std::string what =
      fmt::format("{} {} {} {} {} {} {} {}", kPackedVersion, kernels::Name(formats.matrices),
                  formats.group, parts.attention_part, parts.attention_parts, parts.expert_slice,
                  parts.expert_slices, SourceOfPages(checkpoint));
  return fmt::format("{:016x}", DigestOf(std::as_bytes(std::span(what))));
}

// Digests of the matrices that are on the disk; nothing if the notes are of something else.
std::optional<std::vector<uint64_t>> ReadPart(const std::string& path, const std::string& key) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || line != key) return std::nullopt;
  std::vector<uint64_t> digests;
  // A line without its end was under way.
  while (std::getline(file, line) && !file.eof()) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      uint64_t digest = 0;
      const auto [end, error] =
          std::from_chars(word.data(), word.data() + word.size(), digest, /*base=*/16);
      if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
      digests.push_back(digest);
    }
  }
  return digests;
}

class DirectoryPacker {
 public:
  DirectoryPacker(const checkpoint::Checkpoint& checkpoint, const PackTarget& target,
                  hardware::ThreadPool& pool, memory::Ledger& ledger, const LoadProgress& progress)
      : checkpoint_(checkpoint),
        target_(target),
        pool_(pool),
        ledger_(ledger),
        progress_(progress),
        tensors_(checkpoint, /*encoder=*/false),
        encoder_tensors_(checkpoint, /*encoder=*/true),
        jobs_(tensors_),
        encoder_jobs_(encoder_tensors_) {}

  Result<uint64_t> Pack(const WeightFormats& formats) {
    if (Status found = FindJobs(formats); !found) return found.error();
    if (Status begun = Begin(KeyOf(checkpoint_, formats, target_.parts)); !begun)
      return begun.error();
    if (Status packed = PackMatrices(); !packed) return packed.error();
    if (Status same = checkpoint_.CheckUnchanged(); !same) return same.error();
    if (Status ended = file_->Finish(weights_, target_.parts, digests_, pool_); !ended)
      return OnDisk(ended);
    if (Status copied = CopyOthers(); !copied) return OnDisk(copied);
    nlohmann::json json = {{"version", kPackedVersion},
                           {"weights", kernels::Name(formats.matrices)},
                           {"group", formats.group},
                           {"tied_embeddings", weights_.spec.tied_embeddings}};
    if (const Share& parts = target_.parts; parts != Share{}) {
      json["parts"] = {{"attention_part", parts.attention_part},
                       {"attention_parts", parts.attention_parts},
                       {"expert_slice", parts.expert_slice},
                       {"expert_slices", parts.expert_slices}};
    }
    if (Status written = checkpoint::WriteWholeFile(PathOf(kFormatsName), json.dump(2) + "\n");
        !written) {
      return OnDisk(written);
    }
    std::error_code ignored;
    fs::remove(fs::path(target_.directory) / kPartName, ignored);
    if (output_) output_->Keep();
    return PackedFile::SizeBytes(weights_, target_.parts);
  }

 private:
  // What writing has failed of, with what to change where the disk is full.
  Error OnDisk(const Status& failed) const {
    Error error = failed.error();
    if (error.kind != ErrorKind::kResourceExhausted) return error;
    error.message += "; " + target_.remedy;
    if (notes_) error.message += "; what is packed stays, and the same command goes on from there";
    return error;
  }

  Status FindJobs(const WeightFormats& formats) {
    const Share& parts = target_.parts;
    const Result<model::ModelSpec> spec = LocalSpec(checkpoint_.spec(), parts, formats);
    if (!spec) return spec.error();
    LayOut(*spec, formats, nullptr, &weights_, parts);
    if (Status finite = CheckVectors(checkpoint_); !finite) return finite;
    DecoderJobs(tensors_, checkpoint_.spec(), parts, &weights_, &jobs_);
    if (weights_.encoder) {
      EncoderJobs(encoder_tensors_, checkpoint_.spec(), parts, &weights_, &encoder_jobs_);
    }
    std::map<const kernels::PackedMatrix*, const PackJob*> by_target;
    for (PackJobs* jobs : {&jobs_, &encoder_jobs_}) {
      for (const PackJob& job : jobs->jobs()) by_target[job.target] = &job;
    }
    matrices_ = Matrices(weights_);
    for (const NamedMatrix& named : matrices_) {
      const auto job = by_target.find(named.matrix);
      CHECK(job != by_target.end(), "nothing packs {}", named.name);
      of_matrix_.push_back(job->second);
    }
    return {};
  }

  // The file, and from which matrix on it is to be written.
  Status Begin(const std::string& key) {
    const fs::path directory = target_.directory;
    if (target_.resumes) {
      auto digests = ReadPart((directory / kPartName).string(), key);
      if (digests && IsThere((directory / kWeightsName).string())) {
        return Continue(*std::move(digests));
      }
      // Of another checkpoint, or of one that has changed. A directory that lacks what says so is
      // not known to be one of these.
      std::error_code ignored;
      const bool is_known = digests || IsThere((directory / kPartName).string()) ||
                            IsThere((directory / kFormatsName).string());
      if (!is_known && IsThere((directory / kWeightsName).string())) {
        return DataLoss(
            fmt::format("{} lacks {}, without which its weights cannot be read: remove {}, and it "
                        "is made again",
                        target_.directory, kFormatsName, target_.directory));
      }
      for (const char* name : {kPartName, kWeightsName, kFormatsName}) {
        fs::remove(directory / name, ignored);
      }
    }
    auto prepared = checkpoint::OutputDirectory::Prepare(target_.directory);
    if (!prepared) return prepared.error();
    output_.emplace(*std::move(prepared));
    Status room =
        output_->CheckRoom(PackedFile::SizeBytes(weights_, target_.parts), target_.remedy);
    if (!room) return room;
    // Notes first: of a directory without them nobody knows what its weights are.
    if (target_.resumes) {
      Result<checkpoint::OutputFile> notes = checkpoint::OutputFile::Create(PathOf(kPartName), 0);
      if (!notes) return notes.error();
      notes_.emplace(*std::move(notes));
      if (Status noted = Note(key); !noted) return noted;
    }
    Result<PackedFile> file =
        PackedFile::Open(weights_, target_.parts, PathOf(kWeightsName), false);
    if (!file) return OnDisk(file.error());
    file_.emplace(*std::move(file));
    if (!target_.resumes) return {};
    output_->Keep();
    output_.reset();
    return {};
  }

  Status Continue(std::vector<uint64_t> digests) {
    const size_t count = digests.size();
    if (count > matrices_.size() || (count > 0 && !matrices_[count - 1].ends_page)) {
      return DataLoss(
          fmt::format("{} holds notes of another model; remove the directory", target_.directory));
    }
    digests_ = std::move(digests);
    Result<PackedFile> file = PackedFile::Open(weights_, target_.parts, PathOf(kWeightsName), true);
    if (!file) return file.error();
    file_.emplace(*std::move(file));
    Result<checkpoint::OutputFile> notes = checkpoint::OutputFile::Continue(PathOf(kPartName));
    if (!notes) return notes.error();
    notes_.emplace(*std::move(notes));
    // Behind the last line that is whole.
    notes_bytes_ = 17 * (1 + count);  // 16 digits and what is behind them, of the key, too
    return {};
  }

  // From digests_.size() on, batch by batch.
  Status PackMatrices() {
    uint64_t total_bytes = 0;
    uint64_t done_bytes = 0;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      total_bytes += matrices_[i].matrix->size_bytes();
      if (i < digests_.size()) done_bytes = total_bytes;
    }
    const std::vector<size_t> ends = BatchEnds();
    if (ends.empty()) return {};
    uint64_t most_bytes = 0;
    for (size_t i = 0, begin = digests_.size(); i < ends.size(); begin = ends[i++]) {
      most_bytes = std::max(most_bytes, BytesOf(begin, ends[i]));
    }
    Result<memory::Reservation> staging = ledger_.Allocate(memory::Use::kStaging, most_bytes);
    if (!staging) {
      Error error = staging.error();
      error.message += "; free memory, or choose a smaller format";
      return error;
    }
    Result<BatchPacker> packer = BatchPacker::Create(of_matrix_, pool_, ledger_);
    if (!packer) return packer.error();
    for (size_t i = 0, begin = digests_.size(); i < ends.size(); begin = ends[i++]) {
      if (i + 1 < ends.size()) ReadAhead(ends[i], ends[i + 1]);
      if (Status packed = PackOne(begin, ends[i], staging->data(), *packer); !packed) return packed;
      done_bytes += BytesOf(begin, ends[i]);
      if (progress_) progress_(done_bytes, total_bytes);
    }
    return {};
  }

  Status PackOne(size_t begin, size_t end, std::byte* staging, BatchPacker& packer) {
    std::vector<const PackJob*> batch;
    std::vector<std::span<const std::byte>> contents;
    std::byte* next = staging;
    for (size_t i = begin; i < end; ++i) {
      const PackJob* job = of_matrix_[i];
      const_cast<kernels::PackedMatrix*>(job->target)->data = next;
      contents.push_back({next, job->target->size_bytes()});
      next += job->target->size_bytes();
      batch.push_back(job);
    }
    const Status packed = packer.Pack(batch);
    for (const PackJob* job : batch) {
      EvictSources(*job);
      const_cast<kernels::PackedMatrix*>(job->target)->data = nullptr;
    }
    if (!packed) return packed;
    if (Status written = file_->WriteMatrices(begin, contents, pool_, &digests_); !written) {
      return OnDisk(written);
    }
    if (!notes_) return {};
    if (Status flushed = file_->Flush(); !flushed) return OnDisk(flushed);
    std::vector<std::string> words;
    for (size_t i = begin; i < end; ++i) words.push_back(fmt::format("{:016x}", digests_[i]));
    const Status noted = Note(fmt::format("{}", fmt::join(words, " ")));
    return noted ? noted : OnDisk(noted);
  }

  // Appends a line.
  Status Note(const std::string& words) {
    const std::string line = words + "\n";
    if (Status written = notes_->WriteAt(notes_bytes_, std::as_bytes(std::span(line))); !written) {
      return written;
    }
    notes_bytes_ += line.size();
    return notes_->Flush();
  }

  // Ends of batches of whole pages, the first of which begins at digests_.size().
  std::vector<size_t> BatchEnds() const {
    const uint64_t most_bytes =
        std::clamp(ledger_.available_bytes() / kShareOfMemory, kFewestBatchBytes, kMostBatchBytes);
    std::vector<size_t> ends;
    uint64_t batch_bytes = 0;
    uint64_t page_bytes = 0;
    size_t page = digests_.size();
    for (size_t i = page; i < matrices_.size(); ++i) {
      page_bytes += matrices_[i].matrix->size_bytes();
      if (!matrices_[i].ends_page) continue;
      if (batch_bytes > 0 && batch_bytes + page_bytes > most_bytes) {
        ends.push_back(page);
        batch_bytes = 0;
      }
      batch_bytes += std::exchange(page_bytes, 0);
      page = i + 1;
    }
    if (batch_bytes > 0) ends.push_back(matrices_.size());
    return ends;
  }

  uint64_t BytesOf(size_t begin, size_t end) const {
    uint64_t total = 0;
    for (size_t i = begin; i < end; ++i) total += matrices_[i].matrix->size_bytes();
    return total;
  }

  void ReadAhead(size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      for (const PackSource& source : of_matrix_[i]->sources) checkpoint::WillNeed(source.bytes);
    }
  }

  Status CopyOthers() {
    const fs::path source = checkpoint_.directory();
    std::error_code error;
    for (fs::directory_iterator at(source, error), end; !error && at != end;) {
      if (IsCopied(*at)) CopyOne(at->path().filename().string(), error);
      if (!error) at.increment(error);
    }
    std::error_code ignored;
    if (!error && fs::is_regular_file(source / kToolTemplate, ignored)) {
      fs::create_directory(PathOf(kMoreTemplates), error);
      if (!error) CopyOne(kToolTemplate, error);
    }
    if (!error) return {};
    return Error{fmt::format("cannot copy the files of {} to {}: {}", checkpoint_.directory(),
                             target_.directory, error.message()),
                 KindOfErrno(error.value())};
  }

  void CopyOne(const std::string& name, std::error_code& error) {
    const std::string path = PathOf(name);
    // One of a run that was killed may be as read-only as its source.
    fs::remove(path, error);
    if (!error) fs::copy_file(fs::path(checkpoint_.directory()) / name, path, error);
  }

  // Of a file that is about to be written.
  std::string PathOf(const std::string& name) {
    if (output_) return output_->Add(name);
    return (fs::path(target_.directory) / name).string();
  }

  const checkpoint::Checkpoint& checkpoint_;
  const PackTarget& target_;
  hardware::ThreadPool& pool_;
  memory::Ledger& ledger_;
  const LoadProgress& progress_;
  const StoredTensors tensors_;
  const StoredTensors encoder_tensors_;
  PackJobs jobs_;
  PackJobs encoder_jobs_;
  ModelWeights weights_;  // shapes, norms and biases; matrices have data while they are in work
  std::vector<NamedMatrix> matrices_;
  std::vector<const PackJob*> of_matrix_;
  std::optional<checkpoint::OutputDirectory> output_;  // where nothing is kept but what is complete
  std::optional<PackedFile> file_;
  std::optional<checkpoint::OutputFile> notes_;
  uint64_t notes_bytes_ = 0;
  std::vector<uint64_t> digests_;  // of the matrices that are written
};

}  // namespace

Result<uint64_t> PackDirectory(const checkpoint::Checkpoint& checkpoint,
                               const WeightFormats& formats, const PackTarget& target,
                               hardware::ThreadPool& pool, memory::Ledger& ledger,
                               const LoadProgress& progress) {
  return DirectoryPacker(checkpoint, target, pool, ledger, progress).Pack(formats);
}

}  // namespace convene::weights
