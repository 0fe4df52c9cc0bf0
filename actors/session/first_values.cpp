#include "actors/session/first_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

/// Copied from a device at once.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// What rank 0 has found: two ranks, and the name of what they share and have different values of.
struct Difference {
  core::Rank first;
  core::Rank second;
  std::string name;
};

/// `texts` are the ranks' lines of a hash and a name.
std::string first_difference_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::pair<std::size_t, std::string>> known;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    std::string hash, name;
    while (lines >> hash && std::getline(lines >> std::ws, name)) {
      const auto& [first, expected] = known.try_emplace(name, rank, hash).first->second;
      if (expected != hash) return fmt::format("{} {} {}", first, rank, name);
    }
  }
  return {};
}

}  // namespace

FirstValuesOfRanks::FirstValuesOfRanks(const SessionContext& context, GroupMaker groups, std::uint64_t number)
    : in_(context),
      groups_(groups),
      replicas_(context),
      copies_(context),
      prefix_(fmt::format("values/{}/", number)) {}

Result<void> FirstValuesOfRanks::compare() {
  if (in_.world.world_size().value == 1) return {};
  const auto own = TRY(replicas_.hashes());
  const auto difference = TRY(first_difference(replicas_.all(), own));
  if (difference.empty()) return {};
  in_.end_reading(prefix_);
  return core::fail(Errc::mismatch,
                    "{}; give all ranks the same first values (one seed, one file), or ask for those of the "
                    "first rank with SessionOptions::first_values",
                    difference);
}

/// The same on all ranks; empty if there is none.
Result<std::string> FirstValuesOfRanks::first_difference(const std::vector<SharedParameters>& all,
                                                         const std::vector<std::uint64_t>& hashes) {
  const auto deadline = 3 * in_.options.step_deadline;
  auto& store = in_.rendezvous;
  std::string text;
  for (const auto& one : all) text += fmt::format("{:016x} {}\n", hash_of(one, hashes), one.name);
  TRY(store.set(fmt::format("{}{}", prefix_, in_.rank().value), text));
  if (in_.is_first_rank()) {
    std::vector<std::string> texts;
    for (std::int32_t rank = 0; rank < in_.world.world_size().value; ++rank)
      texts.push_back(TRY(store.get(fmt::format("{}{}", prefix_, rank), deadline)));
    TRY(store.set(prefix_ + "verdict", first_difference_of(texts)));
  }
  std::istringstream found(TRY(store.get(prefix_ + "verdict", deadline)));
  Difference difference;
  if (!(found >> difference.first.value >> difference.second.value)) return std::string();
  std::getline(found >> std::ws, difference.name);
  const auto key = [&](core::Rank rank) { return fmt::format("{}parameters/{}", prefix_, rank.value); };
  if (in_.rank() == difference.first || in_.rank() == difference.second) {
    std::string own;
    for (const auto& one : all) {
      for (const auto index : one.parameters) {
        if (one.name == difference.name)
          own += fmt::format("{} {}\n", hashes[index.value], in_.plan.specs[index].name);
      }
    }
    TRY(store.set(key(in_.rank()), own));
  }
  std::istringstream ours(TRY(store.get(key(difference.first), deadline)));
  std::istringstream theirs(TRY(store.get(key(difference.second), deadline)));
  std::string our_line, their_line;
  while (std::getline(ours, our_line) && std::getline(theirs, their_line) && our_line == their_line) {
  }
  return fmt::format("rank {} has other first values of '{}' than rank {}", difference.second.value,
                     our_line.substr(std::min(our_line.size(), our_line.find(' ') + 1)),
                     difference.first.value);
}

Result<void> FirstValuesOfRanks::broadcast() {
  TRY(copies_.settle());
  for (const auto& one : replicas_.buckets()) TRY(broadcast(one));
  return compare();
}

Result<void> FirstValuesOfRanks::broadcast(const SharedParameters& shared) {
  auto& device = in_.world.device();
  auto& group = made_[shared.ranks];
  if (!group) {
    std::uint64_t members = 0;
    for (const auto rank : shared.ranks) members = core::hash64(std::to_string(rank.value), members);
    group = TRY(groups_.of_hosts(fmt::format("values-{:016x}", members), shared.ranks));
    sending_ = TRY(in_.world.host_device().create_stream({"first values", 0}));
  }
  gpu::Buffer staging;
  if (!device.is_host_memory()) staging = TRY(device.allocate_staging(kPieceBytes));
  const bool is_first = shared.ranks.front() == in_.rank();
  for (const auto index : shared.parameters) {
    const auto memory = in_.data.tensors().resting_parameter(index).memory;
    for (std::size_t at = 0; at < memory.bytes; at += kPieceBytes) {
      const auto place = memory.subview(at, std::min(kPieceBytes, memory.bytes - at));
      const auto piece = device.is_host_memory() ? place : staging.view().subview(0, place.bytes);
      if (!device.is_host_memory() && is_first) TRY(copies_.copy(place, piece));
      TRY(send(*group, piece, in_.plan.specs[index].dtype, is_first));
      if (!device.is_host_memory() && !is_first) TRY(copies_.copy(piece, place));
    }
  }
  return {};
}

Result<void> FirstValuesOfRanks::send(gpu::Group& group, gpu::BufferView piece, core::DType dtype,
                                      bool is_first) {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::broadcast;
  operation.dtype = dtype;
  if (is_first) operation.input = piece;
  operation.output = piece;
  operation.deadline = in_.options.step_deadline;
  const auto status = TRY(group.post(operation, sending_.get()));
  TRY(copies_.wait(sending_.get()));
  return status->result().value_or(Result<void>{});
}

}  // namespace troupe::actors
