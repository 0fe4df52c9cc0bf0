#include "actors/session/replica_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using core::Errc;
using core::Rank;
using core::Result;

namespace {

/// In an all_reduce by the largest: a hash, and its complement, whose largest is the complement of the least.
constexpr std::size_t kWordsOfShared = 2;
/// For ranks that know the same to say so.
constexpr std::chrono::seconds kPatience{5};

std::string text_of(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{} {}", i == 0 ? "" : i + 1 == ranks.size() ? " and" : ",", ranks[i].value);
  return text;
}

std::vector<std::int32_t> numbers_of(const std::vector<Rank>& ranks) {
  std::vector<std::int32_t> numbers;
  for (const auto rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

/// Ranks by the hash that they have; those that more have come first.
std::vector<std::vector<std::size_t>> parties_of(const std::vector<std::vector<std::uint64_t>>& hashes,
                                                 std::size_t name) {
  std::map<std::uint64_t, std::vector<std::size_t>> by_hash;
  for (std::size_t i = 0; i < hashes.size(); ++i) by_hash[hashes[i].at(name)].push_back(i);
  std::vector<std::vector<std::size_t>> parties;
  for (auto& [hash, party] : by_hash) parties.push_back(std::move(party));
  std::ranges::stable_sort(parties, std::ranges::greater(), [](const auto& party) { return party.size(); });
  return parties;
}

}  // namespace

ReplicaDifference difference_of(const std::vector<Rank>& ranks, const std::vector<std::string>& names,
                                const std::vector<std::vector<std::uint64_t>>& hashes) {
  ReplicaDifference found;
  std::set<Rank> differing;
  bool is_undecided = false;
  for (std::size_t name = 0; name < names.size(); ++name) {
    const auto parties = parties_of(hashes, name);
    if (parties.size() == 1) continue;
    if (found.parameter.empty()) found.parameter = names[name];
    const bool has_most = parties[0].size() > parties[1].size();
    is_undecided = is_undecided || !has_most;
    for (std::size_t party = has_most ? 1 : 0; party < parties.size(); ++party)
      for (const auto i : parties[party]) differing.insert(ranks[i]);
  }
  found.differing.assign(differing.begin(), differing.end());
  if (!is_undecided) std::ranges::set_difference(ranks, found.differing, std::back_inserter(found.agreeing));
  return found;
}

Result<void> ReplicaCheck::meet() {
  std::size_t most = 0;
  for (auto& shared : replicas_.all()) {
    auto& list = members_[shared.ranks].shared;
    list.push_back(std::move(shared));
    most = std::max(most, list.size());
  }
  for (auto& [ranks, member] : members_) {
    std::uint64_t hash = 0;
    for (const auto rank : ranks) hash = core::hash64(std::to_string(rank.value), hash);
    auto group = TRY(groups_.of_hosts(fmt::format("replicas-{:016x}", hash), ranks));
    std::lock_guard lock(mutex_);
    if (aborted_) group->abort(*aborted_);
    groups_made_.push_back(group.get());
    member.group = std::move(group);
  }
  if (most > 0) {
    auto& device = in_.world.host_device();
    stream_ = TRY(device.create_stream({"replica check", 0}));
    words_ = TRY(device.allocate(most * kWordsOfShared * sizeof(std::int64_t)));
  }
  has_met_ = true;
  return {};
}

void ReplicaCheck::abort(const core::Error& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  for (auto* const group : groups_made_) group->abort(reason);
}

Result<bool> ReplicaCheck::is_alike(Member& member, const std::vector<std::uint64_t>& hashes) {
  const auto count = member.shared.size() * kWordsOfShared;
  const auto view = words_.view().subview(0, count * sizeof(std::int64_t));
  const auto words = view.as<std::int64_t>();
  for (std::size_t i = 0; i < member.shared.size(); ++i) {
    words[kWordsOfShared * i] = std::bit_cast<std::int64_t>(hash_of(member.shared[i], hashes));
    words[kWordsOfShared * i + 1] = ~words[kWordsOfShared * i];
  }
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::all_reduce;
  operation.dtype = core::DType::i64;
  operation.reduce = gpu::ReduceOp::max;
  operation.input = view;
  operation.output = view;
  operation.deadline = in_.options.step_deadline;
  const auto status = TRY(member.group->post(operation, stream_.get()));
  TRY(copies_.wait(stream_.get()));
  TRY(status->result().value_or(Result<void>{}));
  for (std::size_t i = 0; i < member.shared.size(); ++i)
    if (words[kWordsOfShared * i] != ~words[kWordsOfShared * i + 1]) return false;
  return true;
}

Result<void> ReplicaCheck::run(core::StepCount over) {
  if (in_.world.world_size().value == 1) return {};
  if (!has_met_) TRY(meet());
  if (members_.empty()) return {};
  const auto hashes = TRY(replicas_.hashes());
  const Member* differing = nullptr;
  // All take part in all, so that nobody waits for a rank that has seen enough.
  for (auto& [ranks, member] : members_)
    if (!TRY(is_alike(member, hashes))) differing = &member;
  return differing == nullptr ? Result<void>{} : name(*differing, hashes, over);
}

/// By the members alone; other ranks are told how it ends.
Result<void> ReplicaCheck::name(const Member& member, const std::vector<std::uint64_t>& hashes,
                                core::StepCount over) {
  auto& store = in_.rendezvous;
  const auto deadline = in_.options.step_deadline;
  const auto& ranks = member.shared.front().ranks;
  const auto prefix = fmt::format("replicas/{}/", fmt::join(numbers_of(ranks), "-"));
  const auto key = [&](Rank rank) { return fmt::format("{}{}", prefix, rank.value); };
  std::string own;
  std::vector<std::string> names;
  for (const auto& shared : member.shared) {
    for (const auto index : shared.parameters) {
      own += fmt::format("{} ", hashes[index.value]);
      names.push_back(in_.plan.specs[index].name);
    }
  }
  TRY(store.set(key(in_.rank()), own));
  std::vector<std::vector<std::uint64_t>> all;
  for (const auto rank : ranks) {
    std::istringstream text(TRY(store.get(key(rank), deadline)));
    auto& list = all.emplace_back();
    for (std::uint64_t hash = 0; text >> hash;) list.push_back(hash);
    if (list.size() != names.size())
      return core::fail(Errc::mismatch, "rank {} compares {} parameters with others, this rank {}",
                        rank.value, list.size(), names.size());
  }
  TRY(store.set(key(in_.rank()) + "/read", {}));
  const auto found = difference_of(ranks, names, all);
  if (found.agreeing.empty()) {
    return tl::unexpected(
        in_.abandon({Errc::mismatch,
                     fmt::format("{} have other values of '{}' after {} steps, and no majority says which "
                                 "are right; go on from a checkpoint",
                                 text_of(found.differing), found.parameter, over.value)}));
  }
  const auto text = fmt::format(
      "after {} steps {} {} other values of '{}' than {}: a faulty memory or processor, or a write of the "
      "trainer's, has changed them",
      over.value, text_of(found.differing), found.differing.size() == 1 ? "has" : "have", found.parameter,
      text_of(found.agreeing));
  if (std::ranges::find(found.differing, in_.rank()) == found.differing.end()) {
    // The others tell all ranks.
    const auto told = in_.inbox.wait_farewell(deadline);
    return told ? core::fail(Errc::peer_lost, "{}", text) : Result<void>(tl::unexpected(told.error()));
  }
  // Others that differ must know it before all are told.
  for (const auto rank : ranks)
    core::disregard(store.get(key(rank) + "/read", kPatience), "then another was faster, or is lost");
  in_.abandon({Errc::peer_lost, text});
  return core::fail(Errc::corrupt, "{}", text);
}

}  // namespace troupe::actors
