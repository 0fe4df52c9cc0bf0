#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "actors/replica/copies.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/session.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

core::Result<void> Session::open_local_tier() {
  if (world_.local_storage() == nullptr) return {};
  local_ = TRY(LocalTier::create(world_, *data_plane_, state_, memory_,
                                 static_cast<std::uint32_t>(job_.buckets.size()), options_.local));
  job_.configuration += "\n" + local_->configuration();
  return {};
}

core::Result<void> Session::connect_local_tier() {
  if (!local_) return {};
  const auto& clique = local_->clique();
  if (clique.size() > 1) {
    auto name = fmt::format("replicas-{}", clique.front().value);
    local_->set_group(TRY(make_host_group(std::move(name), clique)));
  }
  if (world_.rank().value == 0) {
    const auto seed =
        core::hash64(fmt::format("{} {} {}", world_.job(), world_.epoch().value, world_.unique()));
    TRY(rendezvous_->set("replicas/seed", std::to_string(seed)));
  }
  const auto text = TRY(rendezvous_->get("replicas/seed", options_.join_deadline));
  messages::ReplicaSeed message;
  std::from_chars(text.data(), text.data() + text.size(), message.seed);
  post(Role::replica_keeper, 0, message);
  return {};
}

core::Result<std::uint64_t> Session::save_local(const Value& common) {
  if (auto failure = port_.failure()) return tl::unexpected(*failure);
  if (!local_) {
    return core::fail(
        Errc::unavailable,
        "this job has no place for local copies; give ProcessWorldOptions::local_checkpoint_directory");
  }
  adopt();
  auto begun = TRY(save_message(common));
  begun.objects = "[]";
  begun.sequence = ++local_saves_begun_;
  // The shards first: what they hold is released by the writer, in whose name they are asked.
  const messages::Address writer{world_.rank(), Role::local_writer, 0};
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket)
    world_.post({writer, {world_.rank(), Role::parameter_shard, bucket}, world_.epoch(), begun});
  post(Role::local_writer, 0, begun);
  hold_tensors(Role::local_writer, begun.sequence);
  return begun.sequence;
}

std::vector<SaveResult> Session::take_local_saves() {
  std::vector<SaveResult> results;
  for (auto& over : port_.take_local_saves()) {
    SaveResult result;
    result.sequence = over.sequence;
    result.step = core::Step{over.step.value + 1};
    result.bytes = over.bytes;
    if (over.failure.failed) result.committed = tl::unexpected(messages::error_of(over.failure));
    results.push_back(std::move(result));
  }
  return results;
}

core::Result<void> Session::wait_local_saves() {
  // One after the other: each has two phases of one and a half deadlines, and time for the word to come here.
  for (std::uint64_t save = 1; save <= local_saves_begun_; ++save)
    TRY(port_.wait_local_saves(save, 4 * options_.local.deadline));
  return {};
}

/// Copies that its clique has and this rank is to have, its own among them.
core::Result<void> Session::retrieve_local(const core::CopyName& name,
                                           const std::vector<core::CopyTransfer>& transfers) {
  const auto& clique = local_->clique();
  messages::RetrieveBegan wanted{name, {}};
  for (const auto& transfer : transfers) {
    const bool is_ours = std::find(clique.begin(), clique.end(), transfer.from) != clique.end();
    if (is_ours) wanted.transfers.push_back(transfer);
  }
  if (wanted.transfers.empty()) return {};
  post(Role::replica_keeper, 0, wanted);
  auto retrieved = port_.wait_retrieved(3 * options_.local.deadline);
  // What counts is the rank's own copy; that a copy for others did not come is no reason to go back.
  const bool has_own = read_copy_manifest(*world_.local_storage(), name, world_.rank()).has_value();
  return has_own ? core::Result<void>{} : retrieved;
}

/// Every rank has loaded its own copy: the rest of the state comes from the others.
core::Result<Restored> Session::take_over(const std::string& attempt, const core::CopyName& name) {
  const auto deadline = options_.checkpoint.deadline;
  if (world_.rank().value == 0) {
    const auto manifest = TRY(read_copy_manifest(*world_.local_storage(), name, world_.rank()));
    const auto common = TRY(core::parse_value(manifest.common));
    const auto topology = TRY(core::parse_value(manifest.topology));
    TRY(rendezvous_->set(attempt + "values", TRY(core::value_text(Value::List{common, topology}))));
  }
  const auto values = TRY(core::parse_value(TRY(rendezvous_->get(attempt + "values", deadline))));
  const auto* trained = values.find("0.optimizer_steps");
  if (trained == nullptr || !trained->as_int())
    return core::fail(Errc::corrupt, "{} has no 'optimizer_steps' in its common values", directory_of(name));
  data_plane_->gather_parameters();
  TRY(port_.wait_gathered(deadline));
  go_on_after(name.step, *trained->as_int());
  const auto* common = values.find("0.trainer");
  const auto* topology = values.find("1");
  return Restored{directory_of(name),
                  step_,
                  common != nullptr ? *common : Value{},
                  topology != nullptr ? *topology : Value{},
                  {},
                  true};
}

}  // namespace troupe::actors
