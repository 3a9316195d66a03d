#include "runtime/step_message.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace convene::runtime {
namespace {

using Halves = std::array<int32_t, sizeof(double) / sizeof(int32_t)>;

class Writer {
 public:
  explicit Writer(StepKind kind) { Number(static_cast<int>(kind)); }

  void Number(int number) { numbers_.push_back(number); }
  void Double(double value) {
    for (const int32_t half : std::bit_cast<Halves>(value)) Number(half);
  }
  void List(std::span<const int32_t> list) {
    Number(static_cast<int>(list.size()));
    numbers_.insert(numbers_.end(), list.begin(), list.end());
  }
  std::vector<std::byte> Take() const {
    const auto bytes = std::as_bytes(std::span(numbers_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::vector<int32_t> numbers_;
};

class Reader {
 public:
  explicit Reader(std::span<const int32_t> numbers) : numbers_(numbers) {}

  int Number() {
    CHECK(!numbers_.empty(), "a step's message ends early");
    const int number = numbers_.front();
    numbers_ = numbers_.subspan(1);
    return number;
  }
  double Double() {
    Halves halves;
    for (int32_t& half : halves) half = Number();
    return std::bit_cast<double>(halves);
  }
  std::span<const int32_t> List() {
    const int count = Number();
    CHECK(count >= 0 && count <= std::ssize(numbers_), "a list of {} numbers", count);
    const auto list = numbers_.first(static_cast<size_t>(count));
    numbers_ = numbers_.subspan(static_cast<size_t>(count));
    return list;
  }

 private:
  std::span<const int32_t> numbers_;
};

strategy::Pipeline ReadPipeline(Reader& reader) {
  strategy::Pipeline pipeline;
  pipeline.chunks = reader.Number();
  pipeline.cut = static_cast<strategy::ChunkCut>(reader.Number());
  pipeline.overlap = reader.Number() != 0;
  pipeline.micro_batches = reader.Number();
  pipeline.order = static_cast<strategy::AttentionOrder>(reader.Number());
  pipeline.dispatch_after_shared = reader.Number() != 0;
  const int num_cuts = reader.Number();
  for (int i = 0; i < num_cuts; ++i) pipeline.cuts.push_back(reader.Double());
  return pipeline;
}

}  // namespace

std::vector<std::byte> EndMessage() { return Writer(StepKind::kEnd).Take(); }

std::vector<std::byte> UsePipelineMessage(const strategy::Pipeline& pipeline) {
  Writer writer(StepKind::kUsePipeline);
  writer.Number(pipeline.chunks);
  writer.Number(static_cast<int>(pipeline.cut));
  writer.Number(pipeline.overlap ? 1 : 0);
  writer.Number(pipeline.micro_batches);
  writer.Number(static_cast<int>(pipeline.order));
  writer.Number(pipeline.dispatch_after_shared ? 1 : 0);
  writer.Number(static_cast<int>(pipeline.cuts.size()));
  for (const double cut : pipeline.cuts) writer.Double(cut);
  return writer.Take();
}

std::vector<std::byte> ChangePhaseMessage(strategy::Phase phase, bool is_recorded) {
  Writer writer(StepKind::kChangePhase);
  writer.Number(is_recorded ? 1 : 0);
  writer.Number(static_cast<int>(phase));
  return writer.Take();
}

std::vector<std::byte> ForwardMessage(std::span<const device::SequenceStep> step,
                                      strategy::Phase phase, bool is_recorded,
                                      bool decode_follows) {
  Writer writer(StepKind::kForward);
  writer.Number(is_recorded ? 1 : 0);
  writer.Number(static_cast<int>(phase));
  writer.Number(decode_follows ? 1 : 0);
  writer.Number(static_cast<int>(step.size()));
  for (const device::SequenceStep& sequence : step) {
    writer.Number(sequence.group);
    writer.Number(sequence.first_position);
    writer.Number(sequence.prompt_length);
    writer.Number(sequence.first_logits_token);
    writer.Number(sequence.largest_suffices ? 1 : 0);
    writer.Number(sequence.encoder_length);
    writer.List(sequence.tokens);
    writer.List(sequence.blocks);
    writer.List(sequence.encoder_blocks);
  }
  return writer.Take();
}

std::vector<std::byte> EncodeMessage(std::span<const device::EncoderInput> inputs, bool with_states,
                                     bool is_recorded) {
  Writer writer(StepKind::kEncode);
  writer.Number(is_recorded ? 1 : 0);
  writer.Number(with_states ? 1 : 0);
  writer.Number(static_cast<int>(inputs.size()));
  for (const device::EncoderInput& input : inputs) {
    writer.Number(input.group);
    writer.List(input.tokens);
    writer.List(input.blocks);
  }
  return writer.Take();
}

StepMessage ReadStepMessage(std::span<const std::byte> bytes) {
  StepMessage message;
  message.numbers.resize(bytes.size() / sizeof(int32_t));
  std::memcpy(message.numbers.data(), bytes.data(), message.numbers.size() * sizeof(int32_t));
  Reader reader(message.numbers);
  message.kind = static_cast<StepKind>(reader.Number());
  if (message.kind == StepKind::kEnd) return message;
  if (message.kind == StepKind::kUsePipeline) {
    message.pipeline = ReadPipeline(reader);
    return message;
  }
  message.is_recorded = reader.Number() != 0;
  if (message.kind == StepKind::kEncode) {
    message.with_states = reader.Number() != 0;
  } else {
    message.phase = static_cast<strategy::Phase>(reader.Number());
  }
  if (message.kind == StepKind::kChangePhase) return message;
  if (message.kind == StepKind::kForward) message.decode_follows = reader.Number() != 0;
  const int count = reader.Number();
  for (int i = 0; i < count; ++i) {
    const int group = reader.Number();
    if (message.kind == StepKind::kEncode) {
      device::EncoderInput& input = message.inputs.emplace_back();
      input.group = group;
      input.tokens = reader.List();
      input.blocks = reader.List();
      continue;
    }
    device::SequenceStep& sequence = message.step.emplace_back();
    sequence.group = group;
    sequence.first_position = reader.Number();
    sequence.prompt_length = reader.Number();
    sequence.first_logits_token = reader.Number();
    sequence.largest_suffices = reader.Number() != 0;
    sequence.encoder_length = reader.Number();
    sequence.tokens = reader.List();
    sequence.blocks = reader.List();
    sequence.encoder_blocks = reader.List();
  }
  return message;
}

}  // namespace convene::runtime
