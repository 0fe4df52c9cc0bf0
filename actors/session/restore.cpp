#include "actors/session/restore.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "actors/planes/experts/plane.hpp"
#include "actors/planes/replica/copies.hpp"
#include "actors/session/last_step.hpp"
#include "core/checkpoint/sealed_text.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;

namespace {

/// Prefix of the keys of an optimizer's state.
constexpr std::string_view kOptimizerState = "optimizer.state.";

std::string first_complaint(const std::vector<std::string>& complaints) {
  for (std::size_t rank = 0; rank < complaints.size(); ++rank) {
    if (!complaints[rank].empty()) return fmt::format("rank {}: {}", rank, complaints[rank]);
  }
  return {};
}

/// Names two ranks whose hashes differ; ranks without a hash do not count.
std::string first_difference(const std::vector<std::string>& hashes) {
  std::size_t first = 0;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[first].empty()) first = rank;
    if (hashes[rank].empty() || hashes[rank] == hashes[first]) continue;
    return fmt::format("one whose manifest has the hash {} on rank {} and one with {} on rank {}",
                       hashes[first], first, hashes[rank], rank);
  }
  return {};
}

}  // namespace

Restore::Restore(const SessionContext& context, Parts parts, const RestoreOptions& options,
                 std::uint64_t number)
    : in_(context), parts_(parts), options_(options), prefix_(fmt::format("restore/{}/", number)) {
  storage_ = options.from != nullptr ? options.from : in_.world.storage();
  const bool anything = options.from == nullptr && options.name.empty() && options.optimizer;
  if (parts_.local && anything) copies_ = in_.world.local_storage();
  if (copies_ != nullptr) {
    all_copies_ = in_.world.local_storages_beside();
    all_copies_[in_.rank()] = copies_;
  }
  if (parts_.local) search_ = LocalSearch(parts_.local->cliques());
}

core::Result<std::optional<Restore::Loaded>> Restore::run() {
  if (storage_ == nullptr && copies_ == nullptr)
    return core::fail(Errc::unavailable, "this job has no directory to restore from");
  if (!options_.name.empty()) {
    checkpoints_.push_back({options_.name, {}});
  } else if (in_.is_first_rank() && storage_ != nullptr) {
    checkpoints_ = TRY(list_checkpoints(*storage_));
  }
  bool copies_changed = copies_ != nullptr;
  for (std::size_t attempt = 0;; ++attempt) {
    const auto key = fmt::format("{}{}/", prefix_, attempt);
    if (copies_changed) TRY(share_holdings(key));
    const auto choice = TRY(choose(key));
    notes_.insert(notes_.end(), choice.notes.begin(), choice.notes.end());
    if (choice.is_nothing()) break;
    auto loaded = TRY(try_choice(key, choice));
    if (loaded) {
      if (copies_ != nullptr) TRY(make_room(key + "after/", choice));
      return loaded;
    }
    copies_changed = choice.local.has_value();
  }
  if (!passed_over_.empty()) {
    core::Error reason{Errc::corrupt,
                       fmt::format("no checkpoint could be loaded; {}", fmt::join(passed_over_, "; "))};
    // Where nothing was overwritten, the session is as before.
    const auto touched = [](const std::vector<std::string>& words) {
      return std::any_of(words.begin(), words.end(), [](const auto& word) { return !word.empty(); }) ? "yes"
                                                                                                     : "";
    };
    const bool is_as_before =
        TRY(in_.ask(prefix_ + "touched", touched_.empty() ? "" : "yes", touched)).empty();
    in_.end_reading(prefix_);
    return tl::unexpected(is_as_before ? std::move(reason) : in_.abandon(std::move(reason)));
  }
  for (const auto& note : notes_) {
    if (in_.is_first_rank()) in_.world.log(Subsystem::checkpoint).warning("nothing is restored; {}", note);
  }
  return std::optional<Loaded>{};
}

/// Tells rank 0 which local saves this rank holds.
core::Result<void> Restore::share_holdings(const std::string& attempt) {
  Holding holding{TRY(find_all_copies()), core::layout_hash(in_.state.structure)};
  std::erase_if(holding.found.held, [&](const core::HeldCopy& copy) {
    return damaged_.contains({copy.name, copy.owner, copy.beside.value_or(in_.rank())});
  });
  TRY(in_.rendezvous.set(fmt::format("{}holds/{}", attempt, in_.rank().value), TRY(text_of(holding))));
  if (!in_.is_first_rank()) return {};
  std::vector<Holding> all;
  for (std::int32_t rank = 0; rank < in_.world.world_size().value; ++rank) {
    const auto text =
        TRY(in_.rendezvous.get(fmt::format("{}holds/{}", attempt, rank), in_.options.checkpoint.deadline));
    all.push_back(TRY(parse_holding(text)));
  }
  search_.hear(std::move(all));
  return {};
}

/// Rank 0's proposal: the newest available, a local save before a checkpoint of the same step.
core::Result<RestoreChoice> Restore::choose(const std::string& attempt) {
  if (in_.is_first_rank()) {
    const bool has_checkpoint = next_checkpoint_ < checkpoints_.size();
    const auto local = search_.best();
    RestoreChoice choice;
    if (local && (!has_checkpoint || checkpoints_[next_checkpoint_].step <= local->step)) {
      choice = TRY(search_.propose());
      search_.failed();
    } else if (has_checkpoint) {
      choice.checkpoint = checkpoints_[next_checkpoint_++].name;
    }
    choice.notes = search_.take_notes();
    TRY(in_.rendezvous.set(attempt + "choice", TRY(text_of(choice))));
  }
  return parse_choice(TRY(in_.rendezvous.get(attempt + "choice", in_.options.checkpoint.deadline)));
}

/// Empty if a rank could not load it; passed_over_ then says why.
core::Result<std::optional<Restore::Loaded>> Restore::try_choice(const std::string& attempt,
                                                                 const RestoreChoice& choice) {
  const auto name = choice.local ? directory_of(*choice.local) : choice.checkpoint;
  Loaded loaded;
  core::Result<void> outcome;
  if (choice.local) {
    outcome = load_local(attempt, choice);
  } else {
    const auto manifest = check_quickly(*storage_, name);
    TRY(compare(attempt, name, manifest));
    joint_ = std::make_unique<JointLoad>(
        JointLoad::Surroundings{in_.world, in_.inbox, in_.rendezvous, in_.data.launches(), parts_.hosts,
                                in_.options.checkpoint.load, in_.options.checkpoint.deadline,
                                in_.plan.is_data_parallel_alone()},
        attempt);
    auto checkpoint = manifest ? load(attempt, name, *manifest) : tl::unexpected(manifest.error());
    if (checkpoint) {
      loaded = std::move(*checkpoint);
    } else {
      TRY(tell_requests(attempt, {}));
      TRY(joint_->withdraw());
      outcome = tl::unexpected(checkpoint.error());
    }
  }
  const auto complaint = TRY(agree(attempt, outcome ? "" : outcome.error().message));
  if (!complaint.empty()) {
    passed_over_.push_back(fmt::format("{}: {}", name, complaint));
    if (choice.local) note_damage(*choice.local);
    return std::optional<Loaded>{};
  }
  if (choice.local) {
    loaded = TRY(take_over(attempt, choice));
  } else {
    TRY(finish_load(name));
  }
  TRY(go_on_after(in_, loaded));
  auto& passed_over = loaded.restored.passed_over;
  passed_over = std::exchange(passed_over_, {});
  passed_over.insert(passed_over.end(), notes_.begin(), notes_.end());
  return std::optional(std::move(loaded));
}

/// All loaded data goes through them if the host cannot access the device's memory.
core::Result<void> Restore::make_uploads() {
  auto& device = in_.world.device();
  if (device.is_host_memory() || uploads_) return {};
  const auto& options = in_.options.checkpoint;
  uploads_ =
      TRY(UploadPool::create(device, options.load.staging_bytes, in_.world.read_threads(), options.deadline));
  return {};
}

/// Ranks that see different checkpoints of one name would continue with a mixture of them. Going back to an
/// earlier one would not help: it comes from the same directories. A rank that sees none complains later.
core::Result<void> Restore::compare(const std::string& attempt, const std::string& name,
                                    const core::Result<core::Manifest>& manifest) {
  const auto hash = manifest ? core::hash_of_sealed(core::to_text(*manifest)) : std::string();
  const auto difference = TRY(in_.ask(attempt + "manifest", hash, first_difference));
  if (difference.empty()) return {};
  return tl::unexpected(in_.abandon(
      {Errc::mismatch,
       fmt::format("expected all ranks to see the same checkpoint {}, found {} (the last line of {}); give "
                   "all ranks the directory of one run, or remove {} where it comes from another one",
                   name, difference, core::kManifestName, name)}));
}

/// Empty if every rank has loaded, otherwise what the first rank that could not reports; the same on all.
core::Result<std::string> Restore::agree(const std::string& attempt, const std::string& complaint) {
  return in_.ask(attempt + "rank", complaint, first_complaint);
}

core::Result<void> go_on_after(const SessionContext& in, const LoadedState& loaded) {
  in.data.updates().restore_steps(loaded.optimizer_steps,
                                  TRY(core::steps_missed_by(in.plan.specs, loaded.steps_missed)));
  for (const auto bucket : in.buckets()) {
    in.post(messages::Role::parameter_shard, bucket.value,
            messages::StateRestored{core::last_step(core::steps_before(loaded.restored.step))});
  }
  return {};
}

core::Result<std::optional<core::LossScaler::State>> loss_scaling_of(const core::Value* values) {
  if (values == nullptr) return std::optional<core::LossScaler::State>{};
  const auto* scale = values->find("scale");
  const auto* finite = values->find("growth_tracker");
  const auto* left = values->find("hysteresis_tracker");
  if (scale == nullptr || finite == nullptr || left == nullptr || !scale->as_double() || !finite->as_int() ||
      !left->as_int()) {
    return core::fail(
        Errc::mismatch,
        "expected a scale, growth_tracker and hysteresis_tracker in 'loss_scaling' of the common "
        "values; restore weights only to begin anew");
  }
  return std::optional(core::LossScaler::State{*scale->as_double(), *finite->as_int(), *left->as_int()});
}

core::Result<Restore::Loaded> Restore::load(const std::string& attempt, const std::string& name,
                                            const core::Manifest& manifest) {
  const auto* counters = manifest.common.as_map();
  const auto* trained = counters != nullptr ? counters->find("optimizer_steps") : nullptr;
  if (trained == nullptr || !trained->as_int()) {
    return core::fail(Errc::mismatch, "{} has no 'optimizer_steps' in its common values: no session saved it",
                      name);
  }
  Loaded loaded;
  if (options_.optimizer) {
    loaded.optimizer_steps = {*trained->as_int()};
    loaded.steps_missed =
        TRY(core::steps_missed_in(counters->find(core::kStepsMissedKey), loaded.optimizer_steps));
    TRY(core::steps_missed_by(in_.plan.specs, loaded.steps_missed));
  }
  auto wanted = TRY(want(attempt, manifest, loaded.restored));
  TRY(core::plan_load(manifest, wanted.targets));
  touched_.merge(wanted.keys());
  TRY(make_uploads());
  TRY(joint_->read(*storage_, name, manifest, shared_targets(in_.plan, manifest, options_.optimizer),
                   std::move(wanted.targets), spans_of(wanted.memory), uploads_.get()));
  loaded.restored.name = name;
  // Weights alone begin a course of their own, as a new optimizer does.
  loaded.restored.step = options_.optimizer ? core::next_step(manifest.step) : core::Step{0};
  if (const auto* common = counters->find("trainer")) loaded.restored.common = *common;
  loaded.restored.topology = manifest.topology;
  if (!options_.optimizer) return loaded;
  loaded.loss_scaling = TRY(loss_scaling_of(counters->find("loss_scaling")));
  loaded.restored.last = TRY(last_step_of(counters->find(kLastStepKey), manifest.step));
  return loaded;
}

/// What this rank reads, and what it goes without. Every rank reaches the same verdict.
core::Result<Wanted> Restore::want(const std::string& attempt, const core::Manifest& manifest,
                                   Restored& restored) {
  auto wanted = wanted_of(manifest, in_.plan, in_.state, in_.memory, in_.data.tensors(), in_.options.tensors,
                          options_.optimizer);
  core::KeySet stored;
  for (const auto& tensor : manifest.tensors) {
    const bool is_optimizer = tensor.key.starts_with(kOptimizerState);
    if (options_.optimizer || !is_optimizer) stored.insert(tensor.key);
  }
  const auto requests = TRY(all_requests(attempt, manifest));
  // Weights may also be read from the optimizer's fp32 copy.
  for (const auto& request : requests.sets) {
    for (const auto& key : request) {
      if (manifest.find(key) != nullptr) stored.insert(key);
    }
  }
  auto verdict = core::judge_keys(options_.strictness, requests, stored);
  if (verdict.error) return tl::unexpected(*std::move(verdict.error));
  if (verdict.warning && in_.is_first_rank())
    in_.world.log(Subsystem::checkpoint).say(LogLevel::warning, *verdict.warning);
  const auto self = static_cast<std::size_t>(in_.rank().value);
  const auto dropped = requests.keys_of_rank(self, verdict.dropped);
  TRY(check_first_values(dropped));
  own_copies_.clear();
  for (std::size_t i = 0; i < in_.state.pieces.size(); ++i) {
    const bool is_copy = in_.state.pieces[i].kind == StateKind::master;
    if (is_copy && dropped.contains(key_of(manifest, in_.plan, in_.state, i))) own_copies_.push_back(i);
  }
  core::KeySet absent = dropped;
  for (const auto& key : wanted.keys()) {
    if (ExpertPlane::is_key(key) && manifest.find(key) == nullptr) absent.insert(key);
  }
  wanted.drop(absent);
  restored.unexpected = requests.keys_of_rank(self, verdict.unexpected);
  restored.missing = std::move(verdict.missing);
  return wanted;
}

/// What each rank requests. The more ranks keep the same part of the model, the less this grows with them.
core::Result<core::KeyRequests> Restore::all_requests(const std::string& attempt,
                                                      const core::Manifest& manifest) {
  auto requests = parts_.tensor_keys.requests();
  for (auto& keys : requests.sets) {
    // A checkpoint from before experts had tensors of their own lacks them.
    std::erase_if(keys, [&](const std::string& key) {
      return ExpertPlane::is_key(key) && manifest.find(key) == nullptr;
    });
  }
  auto own = requested_keys(manifest, in_.plan, options_.optimizer);
  TRY(tell_requests(attempt, own));
  std::map<int, std::size_t> of_parts{{in_.plan.part_of_model(in_.rank()), requests.sets.size()}};
  requests.sets.push_back(std::move(own));
  for (std::size_t rank = 0; rank < requests.of_ranks.size(); ++rank) {
    const int part = in_.plan.part_of_model({static_cast<std::int32_t>(rank)});
    const auto [known, is_new] = of_parts.try_emplace(part, requests.sets.size());
    if (is_new) requests.sets.push_back(TRY(requests_of_part(attempt, part)));
    requests.of_ranks[rank].push_back(known->second);
  }
  return requests;
}

/// Ranks that keep other parts of the model do not know this rank's parameters.
core::Result<void> Restore::tell_requests(const std::string& attempt, const core::KeySet& keys) {
  const auto& options = in_.plan.options;
  const bool tells =
      (options.pipeline_parallel > 1 || options.expert_ranks() * options.expert_columns() > 1) &&
      in_.plan.first_of_part(in_.rank()) == in_.rank();
  if (!tells || told_ == attempt) return {};
  core::Value::List list;
  for (const auto& key : keys) list.emplace_back(key);
  const auto name = fmt::format("{}keys/{}", attempt, in_.plan.part_of_model(in_.rank()));
  // What cannot be sent must not keep the others waiting: this rank then withdraws.
  TRY(in_.rendezvous.set(name, TRY(core::value_text(list))));
  told_ = attempt;
  return {};
}

core::Result<core::KeySet> Restore::requests_of_part(const std::string& attempt, int part) {
  const auto text =
      TRY(in_.rendezvous.get(fmt::format("{}keys/{}", attempt, part), in_.options.checkpoint.deadline));
  const auto list = TRY(core::parse_value(text));
  core::KeySet keys;
  if (list.as_list() == nullptr)
    return core::fail(Errc::corrupt, "part {} of the model sent keys that are not a list", part);
  for (const auto& key : *list.as_list()) {
    if (key.as_string() != nullptr) keys.insert(*key.as_string());
  }
  return keys;
}

/// What a checkpoint lacks keeps its initial values, unless a damaged checkpoint has overwritten them.
core::Result<void> Restore::check_first_values(const core::KeySet& dropped) const {
  for (const auto& key : dropped) {
    if (touched_.contains(key)) {
      return core::fail(Errc::mismatch,
                        "'{}' is not in it, and its first values are lost to a checkpoint that could not be "
                        "loaded; name the checkpoint to restore from",
                        key);
    }
  }
  return {};
}

/// A checkpoint of a job that gathers parameters differently has other values of them.
core::Result<void> Restore::round_parameters() {
  if (!in_.data.updates().rounds_parameters()) return {};
  in_.data.updates().round_parameters();
  return in_.inbox.wait_gathered(in_.options.checkpoint.deadline);
}

/// Every rank has read its part of the checkpoint.
core::Result<void> Restore::finish_load(const std::string& name) {
  const auto exchanged = joint_->exchange();
  joint_.reset();
  if (!exchanged) {
    // No rank continues with a partial load, and no rank waits for this one.
    auto reason = in_.abandon(exchanged.error());
    reason.message =
        fmt::format("while the ranks exchanged what they had read of {}: {}", name, reason.message);
    return tl::unexpected(std::move(reason));
  }
  for (auto i : own_copies_) {
    const auto& piece = in_.state.pieces[i];
    in_.data.updates().adopt(piece.bucket,
                             {piece.first, piece.first + in_.state.structure.pieces[i].box.elements()});
  }
  TRY(round_parameters());
  // Each rank has read the part that its optimizer steps of parameters that are not read whole.
  const auto& launches = in_.data.program().launches();
  const bool some_rest_elsewhere = std::any_of(launches.begin(), launches.end(), [&](const auto& launch) {
    return !launch.is_verdict() && launch.publishes() && in_.plan.has_sharded_parameters(*launch.bucket);
  });
  if (!some_rest_elsewhere) return {};
  in_.data.launches().gather_parameters();
  return in_.inbox.wait_gathered(in_.options.checkpoint.deadline);
}

}  // namespace troupe::actors
