#include "actors/session/joint_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "actors/planes/checkpoint/reader.hpp"
#include "core/errors.hpp"
#include "gpu/host/memory.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

/// Takes the targets that are in `shared` out of `all`.
LoadExchange::Wanted take_shared(LoadExchange::Wanted& all, const core::SharedTargets& shared,
                                 core::Rank rank) {
  std::set<std::pair<std::string_view, core::Box>> known;
  for (const auto& target : shared.common) known.emplace(target.key, target.box);
  for (const auto& target : shared.own[static_cast<std::size_t>(rank.value)])
    known.emplace(target.key, target.box);
  LoadExchange::Wanted found;
  LoadExchange::Wanted rest;
  for (std::size_t i = 0; i < all.targets.size(); ++i) {
    auto& to = known.contains({all.targets[i].key, all.targets[i].box}) ? found : rest;
    to.targets.push_back(std::move(all.targets[i]));
    to.memory.push_back(all.memory[i]);
  }
  all = std::move(rest);
  return found;
}

std::vector<gpu::BufferView> views_of(const std::vector<std::span<std::byte>>& pieces) {
  std::vector<gpu::BufferView> views;
  for (const auto piece : pieces) views.push_back({piece.data(), piece.size()});
  return views;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

bool JointLoad::may_exchange() const {
  const auto mode = in_.options.mode;
  // Between hosts it needs a network that jobs on GPUs may not have, so there it must be requested.
  const bool may = mode == core::LoadMode::exchange || (mode == core::LoadMode::automatic && !in_.hosts);
  return may && in_.knows_others && in_.world.world_size().value > 1;
}

Result<void> JointLoad::read(Storage& storage, const std::string& name, const core::Manifest& manifest,
                             const core::SharedTargets& shared, std::vector<core::LoadTarget> targets,
                             std::vector<std::span<std::byte>> memory, UploadPool* uploads) {
  LoadExchange::Wanted alone{std::move(targets), std::move(memory)};
  if (may_exchange()) {
    manifest_ = manifest;
    auto plan = core::plan_shared_load(manifest_, shared);
    // The caller then announces that this rank withdraws.
    if (!plan) return tl::unexpected(plan.error());
    const bool exchanges =
        core::choose_load(in_.options.mode, plan->bytes, in_.options.costs) == core::LoadMode::exchange;
    TRY(agree(exchanges ? core::hash_of(*plan) : 0));
    if (exchanges) TRY(prepare_exchange(std::move(*plan), shared, alone));
  }
  ReadOptions reading;
  reading.threads = in_.world.read_threads();
  reading.uploads = uploads;
  if (exchange_) TRY(exchange_->read(storage, name, reading));
  if (exchange_ && alone.targets.empty()) return {};
  return read_tensors(storage, name, manifest, alone.targets, alone.memory, reading);
}

Result<void> JointLoad::withdraw() {
  return may_exchange() && !agreed_ ? agree({}) : Result<void>{};
}

/// A rank that was asked for other things than rank 0 would wait for parts that nobody sends. `plan` is the
/// hash of an exchange, 0 if each rank reads for itself, empty without a plan.
Result<void> JointLoad::agree(std::optional<std::uint64_t> plan) {
  agreed_ = true;
  const auto key = attempt_ + "plan";
  const auto text = plan ? core::hex64(*plan) : "none";
  if (in_.world.rank().value == 0) return in_.rendezvous.set(key, text);
  // A rank without a plan has a better reason to complain.
  if (!plan) return {};
  const auto first = TRY(in_.rendezvous.get(key, in_.deadline));
  if (first == text) return {};
  return core::fail(Errc::mismatch,
                    "this rank would load in another way than rank 0 (plan {}, there {}): they were given "
                    "different options to restore",
                    text, first);
}

/// Everything that may fail on one rank alone comes before all ranks say that they are ready.
Result<void> JointLoad::prepare_exchange(core::SharedLoadPlan plan, const core::SharedTargets& shared,
                                         LoadExchange::Wanted& alone) {
  auto wanted = take_shared(alone, shared, in_.world.rank());
  exchange_ = TRY(LoadExchange::create(manifest_, std::move(plan), in_.world.rank(), in_.world.world_size(),
                                       std::move(wanted), in_.options.exchange_bytes));
  return make_rounds();
}

Result<void> JointLoad::make_rounds() {
  for (auto& round : rounds_) {
    round = std::make_shared<Round>();
    round->outgoing = TRY(in_.world.host_device().allocate(exchange_->round_bytes()));
    round->incoming = TRY(in_.world.host_device().allocate(exchange_->round_bytes()));
  }
  return {};
}

Result<void> JointLoad::share(const core::Survival& survival, LoadExchange::Wanted wanted,
                              const HeldBoxes& held, UploadPool* uploads) {
  // To touch new memory for the first time costs as much as to copy what goes there: a thread is ahead of
  // that.
  const auto pages = uploads == nullptr ? views_of(wanted.memory) : std::vector<gpu::BufferView>{};
  const auto provider = gpu::provide_pages_ahead(pages);
  exchange_ =
      TRY(LoadExchange::create(survival.manifest, survival.plan, in_.world.rank(), in_.world.world_size(),
                               std::move(wanted), in_.options.exchange_bytes));
  TRY(exchange_->take_from(held.lookup(survival.manifest), uploads, held.source()));
  if (exchange_->rounds() == 0) return {};
  TRY(make_rounds());
  return exchange();
}

void JointLoad::post_round(LoadedBytes bytes) {
  if (in_.hosts != nullptr) {
    in_.hosts->exchange(std::move(bytes));
  } else {
    in_.launches.exchange_loaded(std::move(bytes));
  }
}

/// Where the bytes of a round arrive.
gpu::BufferView JointLoad::place_of(std::uint64_t round, std::size_t bytes) const {
  const auto place = exchange_->place_of(round);
  if (!place.empty()) return {place.data(), place.size()};
  return rounds_[round % 2]->incoming.view().subview(0, bytes);
}

/// While a round is in flight, the previous one is unpacked and the next one is packed.
Result<void> JointLoad::exchange() {
  if (!exchange_) return {};
  if (in_.hosts != nullptr) TRY(in_.hosts->open());
  const auto count = exchange_->rounds();
  for (std::uint64_t round = 0; round <= count; ++round) {
    const auto& memory = rounds_[round % 2];
    LoadedBytes bytes;
    if (round < count) {
      bytes.input_counts = exchange_->sent(round);
      bytes.output_counts = exchange_->received(round);
      bytes.output = place_of(round, sum(bytes.output_counts));
      const auto outgoing = memory->outgoing.view().subview(0, sum(bytes.input_counts));
      const auto given = TRY(exchange_->pack({outgoing.data, outgoing.bytes}));
      bytes.input = {given.data(), given.size()};
      bytes.owner = memory;
    }
    if (round > 0) TRY(in_.inbox.wait_shared(in_.deadline));
    if (round < count) post_round(std::move(bytes));
    if (round == 0) continue;
    const auto arrived = place_of(round - 1, sum(exchange_->received(round - 1)));
    TRY(exchange_->unpack({arrived.data, arrived.bytes}));
  }
  return {};
}

}  // namespace troupe::actors
