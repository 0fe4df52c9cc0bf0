#include "actors/session/gathered_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "actors/planes/replica/copies.hpp"
#include "actors/session/joint_load.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Result;

Result<void> GatheredCopies::prepare(const std::map<core::Rank, Storage*>& storages) {
  const auto read = read_copies(storages);
  // Others wait for what this rank knows, whether or not it has come so far.
  TRY(hear_structures());
  TRY(Result<void>(read));
  return plan();
}

Result<void> GatheredCopies::read_copies(const std::map<core::Rank, Storage*>& storages) {
  for (std::size_t owner = 0; owner < choice_.givers.size(); ++owner) {
    const auto& giver = choice_.givers[owner];
    if (giver.from != in_.rank()) continue;
    const core::Rank rank{static_cast<std::int32_t>(owner)};
    auto& storage = *storages.at(giver.storage);
    const auto manifest = TRY(read_copy_manifest(storage, *choice_.local, rank));
    auto& copy = copies_[rank];
    copy.structure = TRY(core::parse_structure(manifest.layout));
    std::vector<std::size_t> bytes;
    for (const auto& piece : copy.structure.pieces) bytes.push_back(copy.structure.bytes_of(piece));
    copy.bytes.resize(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
    std::span<std::byte> rest(copy.bytes);
    for (const auto count : bytes) {
      copy.memory.push_back(rest.first(count));
      rest = rest.subspan(count);
    }
    TRY(read_copy(storage, manifest, copy.structure, copy.memory));
    held_.add(copy.structure, copy.memory);
  }
  return {};
}

/// What each copy contains and each rank wants, which the first that knows it tells the others.
Result<void> GatheredCopies::hear_structures() {
  std::map<std::uint64_t, core::Rank> tellers;
  for (const auto& giver : choice_.givers) tellers.try_emplace(giver.layout, giver.from);
  for (std::size_t rank = 0; rank < choice_.wants.size(); ++rank)
    tellers.try_emplace(choice_.wants[rank], core::Rank{static_cast<std::int32_t>(rank)});
  std::map<std::uint64_t, const core::SaveStructure*> own{
      {core::layout_hash(in_.state.structure), &in_.state.structure}};
  for (const auto& [owner, copy] : copies_) own.emplace(core::layout_hash(copy.structure), &copy.structure);
  const auto key = [&](std::uint64_t layout) { return fmt::format("{}structure/{}", attempt_, layout); };
  for (const auto& [layout, teller] : tellers) {
    if (teller != in_.rank()) continue;
    const auto known = own.find(layout);
    // What could not be read does not parse, and this rank says why.
    TRY(in_.rendezvous.set(key(layout), known != own.end() ? core::layout_text(*known->second) : ""));
  }
  for (const auto& [layout, teller] : tellers) {
    const auto text = TRY(in_.rendezvous.get(key(layout), in_.options.checkpoint.deadline));
    if (text.empty() && teller != in_.rank())
      return core::fail(core::Errc::corrupt, "rank {} cannot read a copy that it holds", teller.value);
    if (!text.empty()) structures_.emplace(layout, TRY(core::parse_structure(text)));
  }
  return {};
}

Result<void> GatheredCopies::plan() {
  std::vector<core::SurvivalPart> parts(choice_.wants.size());
  for (const auto& giver : choice_.givers) {
    auto& has = parts[static_cast<std::size_t>(giver.from.value)].has;
    const auto* structure = &structures_.at(giver.layout);
    if (std::find(has.begin(), has.end(), structure) == has.end()) has.push_back(structure);
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    parts[rank].wants = &structures_.at(choice_.wants[rank]);
  survival_ = TRY(core::plan_survival(parts));
  return {};
}

Result<void> GatheredCopies::exchange(UploadPool* uploads) {
  JointLoad load({in_.world, in_.inbox, in_.rendezvous, in_.data.launches(), hosts_,
                  in_.options.checkpoint.load, in_.options.checkpoint.deadline, true},
                 attempt_);
  return load.share(*survival_, {core::targets_of(in_.state.structure), spans_of(in_.memory)}, held_,
                    uploads);
}

}  // namespace troupe::actors
