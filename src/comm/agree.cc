#include "comm/agree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/read_file.h"

namespace convene::comm {

std::vector<std::string> GatherTexts(Group& group, const std::string& mine, std::string what) {
  std::vector<std::string> texts;
  for (const auto& bytes : group.AllGather(std::as_bytes(std::span(mine)), std::move(what)))
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return texts;
}

Status AgreeOnSuccess(Group& group, const Status& mine) {
  if (group.size() == 1) return mine;
  // Success is the empty text; an error is its kind as one character, then its message.
  std::string text;
  if (!mine.ok()) {
    const Error error = mine.error().At(fmt::format("rank {} ({})", group.rank(), HostName()));
    text = static_cast<char>(error.kind) + error.message;
  }
  for (const std::string& theirs : GatherTexts(group, text, "agreeing on success"))
    if (!theirs.empty()) return Error{theirs.substr(1), static_cast<ErrorKind>(theirs[0])};
  return {};
}

Status AgreeOnSame(Group& group, const std::string& mine, const std::string& what) {
  if (group.size() == 1) return {};
  const std::vector<std::string> texts = GatherTexts(group, mine, "comparing " + what);
  const std::vector<std::string> hosts = GatherTexts(group, HostName(), "comparing " + what);
  for (int rank = 1; rank < group.size(); ++rank)
    if (texts[rank] != texts[0])
      return Error{fmt::format(
          "{} differs between ranks: rank 0 ({}) has {}, rank {} ({}) has {}; give all the same",
          what, hosts[0], texts[0], rank, hosts[rank], texts[rank])};
  return {};
}

namespace {

// Each digest, the length of its name, the name.
std::vector<std::byte> Serialize(std::span<const NamedDigest> digests) {
  std::vector<std::byte> bytes;
  const auto add = [&](const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  for (const NamedDigest& named : digests) {
    const uint64_t length = named.name.size();
    add(&named.digest, sizeof(named.digest));
    add(&length, sizeof(length));
    add(named.name.data(), length);
  }
  return bytes;
}

// By name; of Serialize's making.
std::map<std::string, uint64_t> Deserialize(std::span<const std::byte> bytes) {
  std::map<std::string, uint64_t> digests;
  const auto take = [&](void* to, size_t size) {
    CHECK(size <= bytes.size(), "{} bytes where {} are left", size, bytes.size());
    std::memcpy(to, bytes.data(), size);
    bytes = bytes.subspan(size);
  };
  while (!bytes.empty()) {
    uint64_t digest = 0;
    uint64_t length = 0;
    take(&digest, sizeof(digest));
    take(&length, sizeof(length));
    CHECK(length <= bytes.size(), "a name of {} bytes", length);
    std::string name(length, '\0');
    take(name.data(), length);
    digests[std::move(name)] = digest;
  }
  return digests;
}

// Of one thing, the ranks that name it and what they have.
struct Holders {
  std::vector<std::pair<int, uint64_t>> digests;  // by rank

  bool agree() const {
    return std::ranges::all_of(
        digests, [&](const auto& of_rank) { return of_rank.second == digests.front().second; });
  }
  // The digest that most have, of several the lowest rank's.
  uint64_t usual() const {
    uint64_t best = 0;
    int64_t most = 0;
    for (const auto& of_rank : digests) {
      const int64_t count = std::ranges::count_if(
          digests, [&](const auto& other) { return other.second == of_rank.second; });
      if (count > most) best = of_rank.second;
      most = std::max(most, count);
    }
    return best;
  }
};

Error Difference(const std::string& kind, const std::string& name, const Holders& holders,
                 const std::vector<std::string>& hosts) {
  const uint64_t usual = holders.usual();
  int rank = -1;   // with something else
  int other = -1;  // with what is usual
  uint64_t theirs = 0;
  for (const auto& [holder, digest] : holders.digests) {
    if (digest == usual && other < 0) other = holder;
    if (digest == usual || rank >= 0) continue;
    rank = holder;
    theirs = digest;
  }
  std::string what = "has another copy than";
  if (theirs == 0) what = "has none, unlike";
  if (usual == 0) what = "has one, unlike";
  return Error{
      fmt::format("{} {} differs between ranks: rank {} ({}) {} rank {} ({}); all ranks must have "
                  "the same copy of the model: copy it again to where it differs",
                  kind, Quote(name), rank, hosts[rank], what, other, hosts[other])};
}

}  // namespace

Status AgreeOnDigests(Group& group, std::span<const NamedDigest> mine, const std::string& kind) {
  if (group.size() == 1) return {};
  // Mostly all have the same, and one number says so.
  const std::vector<std::byte> own = Serialize(mine);
  const uint64_t digest_of_all = DigestOf(own);
  const std::string what = "comparing digests of " + kind + "s";
  const auto alls = group.AllGather(std::as_bytes(std::span(&digest_of_all, 1)), what);
  if (std::all_of(alls.begin(), alls.end(), [&](const auto& all) { return all == alls.front(); })) {
    return {};
  }
  std::map<std::string, Holders> by_name;
  const auto lists = group.AllGather(own, what);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const auto& [name, digest] : Deserialize(lists[rank])) {
      by_name[name].digests.emplace_back(rank, digest);
    }
  }
  const std::vector<std::string> hosts = GatherTexts(group, HostName(), what);
  for (const auto& [name, holders] : by_name) {
    if (!holders.agree()) return Difference(kind, name, holders, hosts);
  }
  return {};
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown host";
  return name;
}

std::string MachineName() {
  constexpr uint64_t kMostBytes = 4096;
  const Result<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", kMostBytes);
  return HostName() + " " + (boot ? *boot : "");
}

}  // namespace convene::comm
