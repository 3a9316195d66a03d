// Any bytes as what goes between ranks. The first says what the others are: a row on the wire, in
// one of its formats and any length, which decodes to the numbers that the format defines; numbers
// to encode, which come back as the format rounds them; or a step, which rank 0 tells the others.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "comm/wire_format.h"
#include "runtime/step_message.h"
#include "tensor/small_floats.h"

namespace {

namespace comm = convene::comm;
namespace device = convene::device;
namespace runtime = convene::runtime;
namespace tensor = convene::tensor;
using comm::WireFormat;

bool SameNumber(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// What element `i` of a row on the wire stands for, by the format's definition.
float ElementOf(WireFormat format, std::span<const std::byte> wire, size_t i) {
  float number = 0;
  if (format == WireFormat::kF32) {
    std::memcpy(&number, &wire[4 * i], 4);
  } else if (format == WireFormat::kBf16) {
    uint16_t bits = 0;
    std::memcpy(&bits, &wire[2 * i], 2);
    number = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  } else {
    float scale = 0;
    std::memcpy(&scale, &wire[0], 4);
    number = tensor::FloatFromE4m3(static_cast<uint8_t>(wire[4 + i])) * scale;
  }
  return number;
}

// The most columns of a row of at most `bytes` bytes.
size_t ColumnsIn(WireFormat format, size_t bytes) {
  size_t cols = bytes;
  while (cols > 0 && comm::RowBytes(format, cols) > bytes) --cols;
  return cols;
}

void Decode(WireFormat format, std::span<const uint8_t> input) {
  const size_t cols = ColumnsIn(format, input.size());
  const size_t row_bytes = comm::RowBytes(format, cols);
  if (row_bytes > input.size()) return;
  // Of its exact size, and aligned.
  std::vector<std::byte> wire(row_bytes);
  if (row_bytes > 0) std::memcpy(wire.data(), input.data(), row_bytes);
  std::vector<float> floats(cols);
  comm::DecodeRow(format, wire.data(), std::span(floats));
  std::vector<tensor::Bf16> halves(cols);
  comm::DecodeRow(format, wire.data(), std::span(halves));
  for (size_t i = 0; i < cols; ++i) {
    const float expected = ElementOf(format, wire, i);
    CHECK(SameNumber(floats[i], expected), "{} instead of {}", floats[i], expected);
    CHECK(SameNumber(tensor::FloatFromBf16(halves[i]),
                     tensor::FloatFromBf16(tensor::Bf16FromFloat(expected))),
          "{} as bf16 of {}", tensor::FloatFromBf16(halves[i]), expected);
  }
}

void Encode(WireFormat format, std::span<const uint8_t> input) {
  std::vector<float> row(input.size() / sizeof(float));
  if (!row.empty()) std::memcpy(row.data(), input.data(), row.size() * sizeof(float));
  std::vector<std::byte> wire(comm::RowBytes(format, row.size()), std::byte{0xab});
  comm::EncodeRow(format, std::span<const float>(row), wire.data());
  std::vector<float> back(row.size());
  comm::DecodeRow(format, wire.data(), std::span(back));
  float largest = 0;
  for (const float number : row) {
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (format == WireFormat::kF32) {
      CHECK(SameNumber(back[i], row[i]));
    } else if (format == WireFormat::kBf16) {
      CHECK(SameNumber(back[i], tensor::FloatFromBf16(tensor::Bf16FromFloat(row[i]))));
    } else if (std::isfinite(row[i])) {
      // Half a step of E4M3 (four significant bits), or of its smallest numbers; and what the
      // scale may lose where it is among the smallest floats itself.
      const float most =
          std::max(std::abs(row[i]) / 15, largest / 448 / 512) + 500 * 1.17549435e-38f;
      CHECK(std::abs(back[i] - row[i]) <= most, "{} instead of {}", back[i], row[i]);
    } else {
      CHECK(std::isnan(back[i]), "{} instead of NaN", back[i]);
    }
  }
}

// Lists and numbers for a message, taken from `input`.
class Numbers {
 public:
  explicit Numbers(std::span<const uint8_t> input) : input_(input) {}

  bool empty() const { return input_.empty(); }
  int Next() {
    if (input_.empty()) return 0;
    const int number = input_.front();
    input_ = input_.subspan(1);
    return number % 2 == 0 ? number / 2 : -number * 0x10001;
  }
  std::vector<int32_t> List() {
    std::vector<int32_t> list(static_cast<size_t>(std::abs(Next()) % 9));
    for (int32_t& number : list) number = Next();
    return list;
  }

 private:
  std::span<const uint8_t> input_;
};

bool Same(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void TellStep(std::span<const uint8_t> input) {
  Numbers numbers(input);
  std::vector<std::vector<int32_t>> lists;
  std::vector<device::SequenceStep> step;
  std::vector<device::EncoderInput> inputs;
  constexpr size_t kMostSequences = 40;
  lists.reserve(3 * kMostSequences);
  const auto list = [&] { return std::span<const int32_t>(lists.emplace_back(numbers.List())); };
  while (!numbers.empty() && step.size() < kMostSequences) {
    device::SequenceStep& sequence = step.emplace_back();
    sequence.group = numbers.Next();
    sequence.first_position = numbers.Next();
    sequence.prompt_length = numbers.Next();
    sequence.first_logits_token = numbers.Next();
    sequence.encoder_length = numbers.Next();
    sequence.tokens = list();
    sequence.blocks = list();
    sequence.encoder_blocks = list();
    inputs.push_back(
        {.tokens = sequence.tokens, .blocks = sequence.blocks, .group = sequence.group});
  }
  using convene::strategy::Phase;
  const Phase phase = step.size() % 2 == 0 ? Phase::kPrefill : Phase::kDecode;
  const runtime::StepMessage forward =
      runtime::ReadStepMessage(runtime::ForwardMessage(step, phase));
  CHECK(forward.kind == runtime::StepKind::kForward && forward.phase == phase);
  CHECK(forward.step.size() == step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    const device::SequenceStep& told = forward.step[i];
    CHECK(told.group == step[i].group && told.first_position == step[i].first_position &&
          told.prompt_length == step[i].prompt_length &&
          told.first_logits_token == step[i].first_logits_token &&
          told.encoder_length == step[i].encoder_length);
    CHECK(Same(told.tokens, step[i].tokens) && Same(told.blocks, step[i].blocks) &&
          Same(told.encoder_blocks, step[i].encoder_blocks));
  }
  for (const bool with_states : {false, true}) {
    const runtime::StepMessage encode =
        runtime::ReadStepMessage(runtime::EncodeMessage(inputs, with_states));
    CHECK(encode.kind == runtime::StepKind::kEncode && encode.with_states == with_states);
    CHECK(encode.inputs.size() == inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      CHECK(encode.inputs[i].group == inputs[i].group &&
            Same(encode.inputs[i].tokens, inputs[i].tokens) &&
            Same(encode.inputs[i].blocks, inputs[i].blocks));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  constexpr WireFormat kFormats[] = {WireFormat::kF32, WireFormat::kBf16, WireFormat::kE4m3};
  const int choice = data[0] % 7;
  if (choice == 6) {
    TellStep(rest);
  } else if (choice < 3) {
    Decode(kFormats[choice], rest);
  } else {
    Encode(kFormats[choice - 3], rest);
  }
  return 0;
}
