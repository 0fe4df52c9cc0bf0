#include "actors/session/trainer_tensors.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "actors/planes/step/state.hpp"
#include "core/boxes/integrity.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;

namespace {

Value value_of(const core::Shape& shape) {
  Value::List items;
  for (auto extent : shape) items.emplace_back(extent);
  return items;
}

core::Result<core::Shape> shape_of(const Value* value) {
  core::Shape shape;
  if (value == nullptr || value->as_list() == nullptr)
    return core::fail(Errc::corrupt, "a rank described a tensor without one of its shapes");
  for (const auto& item : *value->as_list()) {
    const auto extent = item.as_int();
    if (!extent) return core::fail(Errc::corrupt, "a rank described a shape that is not of integers");
    shape.push_back(*extent);
  }
  return shape;
}

/// The part that check_integrity() looks at.
Value value_of(const core::ShardedTensor& tensor) {
  Value::Map map{{"key", tensor.key},
                 {"dtype", std::string(core::name_of(tensor.dtype))},
                 {"local", value_of(tensor.local_shape)},
                 {"global", value_of(tensor.global_shape)},
                 {"offset", value_of(tensor.global_offset)},
                 {"replica", value_of(core::Shape(tensor.replica_id.begin(), tensor.replica_id.end()))},
                 {"prepended", tensor.prepend_axis_num}};
  if (tensor.axis_fragmentations) map.set("fragments", value_of(*tensor.axis_fragmentations));
  return map;
}

core::Result<core::ShardedTensor> tensor_of(const Value& value) {
  const auto* key = value.find("key");
  const auto* dtype = value.find("dtype");
  const auto* prepended = value.find("prepended");
  const bool is_whole = key != nullptr && key->as_string() != nullptr && dtype != nullptr &&
                        dtype->as_string() != nullptr && prepended != nullptr && prepended->as_int();
  if (!is_whole) return core::fail(Errc::corrupt, "a rank described a tensor without key, dtype or axes");
  core::ShardedTensor tensor;
  tensor.key = *key->as_string();
  tensor.dtype = TRY(core::dtype_from_name(*dtype->as_string()));
  tensor.local_shape = TRY(shape_of(value.find("local")));
  tensor.global_shape = TRY(shape_of(value.find("global")));
  tensor.global_offset = TRY(shape_of(value.find("offset")));
  const auto replica = TRY(shape_of(value.find("replica")));
  tensor.replica_id.assign(replica.begin(), replica.end());
  tensor.prepend_axis_num = *prepended->as_int();
  if (const auto* fragments = value.find("fragments")) tensor.axis_fragmentations = TRY(shape_of(fragments));
  return tensor;
}

/// A part of a parameter that a rank keeps, and SaveStructure::Tensor::home of it.
struct Registered {
  core::ShardedTensor part;
  std::int64_t home = 0;
};

/// What a rank has told.
struct Told {
  core::RankShards tensors;
  std::vector<Registered> parameters;
};

core::Result<Told> told_of(const std::string& text) {
  Told told;
  const auto described = TRY(core::parse_value(text));
  const auto* tensors = described.find("tensors");
  const auto* parameters = described.find("parameters");
  if (tensors == nullptr || tensors->as_list() == nullptr || parameters == nullptr ||
      parameters->as_list() == nullptr)
    return core::fail(Errc::corrupt, "a rank described its tensors as something that is not two lists");
  for (const auto& tensor : *tensors->as_list()) told.tensors.tensors.push_back(TRY(tensor_of(tensor)));
  for (const auto& parameter : *parameters->as_list()) {
    const auto* home = parameter.find("home");
    if (home == nullptr || !home->as_int())
      return core::fail(Errc::corrupt, "a rank described a parameter without its home");
    auto part = TRY(tensor_of(parameter));
    told.parameters.push_back({std::move(part), *home->as_int()});
  }
  return told;
}

/// One for each part of the model; others register the same as one of them.
bool speaks_for_others(const TrainingPlan& plan, core::Rank rank) {
  const auto alike = plan.options.expert_ranks() > 1 ? core::GroupKind::edp : core::GroupKind::dp_cp;
  return plan.mesh.first_of_group(alike, rank) == rank;
}

core::Result<Value> parameters_of(const SessionContext& in) {
  Value::List described;
  if (!speaks_for_others(in.plan, in.rank())) return Value(std::move(described));
  for (const auto& spec : in.plan.specs) {
    for (const auto& part : TRY(spec.stored_parts())) {
      auto value = *value_of(part).as_map();
      value.set("home", static_cast<std::int64_t>(home_of(spec, in.plan, in.rank())));
      described.emplace_back(std::move(value));
    }
  }
  return Value(std::move(described));
}

/// `ranks` are in the order of their numbers.
core::Result<void> check_parameters_of(const std::vector<Told>& ranks) {
  struct Owner {
    std::size_t rank;
    std::int64_t home;
  };
  std::map<std::string, Owner> owners;
  std::map<std::string, std::set<core::Box>> seen;
  std::vector<core::RankShards> shards(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [part, home] : ranks[rank].parameters) {
      if (home != 0) {
        const auto& [first, of] = owners.try_emplace(part.key, Owner{rank, home}).first->second;
        if (of != home) {
          return core::fail(Errc::mismatch,
                            "ranks {} and {} keep different parts of the model, and both register '{}' as "
                            "theirs; give one of the two another name, or register the second of a tied pair "
                            "with ParameterSpec::is_copy",
                            first, rank, part.key);
        }
      }
      // Ranks may keep the same part of a parameter.
      shards[rank].tensors.push_back(part);
      const bool is_first = seen[part.key].insert(part.box()).second;
      shards[rank].tensors.back().replica_id = {is_first ? 0 : 1};
    }
  }
  if (const auto checked = core::check_integrity(shards); !checked) {
    return core::fail(Errc::mismatch, "what ranks have registered makes up no whole parameters: {}",
                      checked.error().message);
  }
  return {};
}

core::Result<void> check_tensors_of(const std::vector<Told>& ranks) {
  std::vector<core::RankShards> shards;
  for (const auto& told : ranks) shards.push_back(told.tensors);
  if (const auto checked = core::check_integrity(shards); !checked) {
    return core::fail(Errc::mismatch, "the trainers' own tensors do not fit together: {}",
                      checked.error().message);
  }
  return {};
}

/// What rank 0 answers: the keys of all ranks' tensors, each set of them once, or what is wrong. Ranks that
/// follow one another and have the same set share an entry: its number, and how many they are.
core::Result<Value> answer_to(const std::vector<Told>& ranks) {
  if (const auto good = check_parameters_of(ranks); !good) return Value(good.error().message);
  if (const auto good = check_tensors_of(ranks); !good) return Value(good.error().message);
  std::map<core::KeySet, std::int64_t> known;
  Value::List sets;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (const auto& told : ranks) {
    core::KeySet keys;
    for (const auto& tensor : told.tensors.tensors) keys.insert(tensor.key);
    const auto [set, is_new] = known.try_emplace(keys, static_cast<std::int64_t>(known.size()));
    if (is_new) sets.emplace_back(Value::List(keys.begin(), keys.end()));
    if (runs.empty() || runs.back().first != set->second) runs.emplace_back(set->second, 0);
    runs.back().second += 1;
  }
  Value::List of_ranks;
  for (const auto& [set, count] : runs) of_ranks.emplace_back(Value::List{set, count});
  return Value(Value::Map{{"sets", std::move(sets)}, {"of_ranks", std::move(of_ranks)}});
}

core::Result<TensorKeys> keys_of(const Value& answer, std::int64_t world) {
  const auto altered = [] {
    return core::fail(Errc::corrupt, "rank 0 sent neither a list of tensors nor an error");
  };
  const auto* sets = answer.find("sets");
  const auto* of_ranks = answer.find("of_ranks");
  if (sets == nullptr || sets->as_list() == nullptr || of_ranks == nullptr || of_ranks->as_list() == nullptr)
    return altered();
  TensorKeys found;
  for (const auto& set : *sets->as_list()) {
    auto& keys = found.sets.emplace_back();
    if (set.as_list() == nullptr) return altered();
    for (const auto& key : *set.as_list()) {
      if (key.as_string() == nullptr) return altered();
      keys.insert(*key.as_string());
    }
  }
  std::int64_t ranks = 0;
  for (const auto& run : *of_ranks->as_list()) {
    const auto* pair = run.as_list();
    if (pair == nullptr || pair->size() != 2) return altered();
    const auto set = (*pair)[0].as_int(), count = (*pair)[1].as_int();
    const bool is_good = set && *set >= 0 && *set < static_cast<std::int64_t>(found.sets.size()) && count &&
                         *count > 0 && *count <= world - ranks;
    if (!is_good) return altered();
    ranks += *count;
    found.runs.push_back({static_cast<std::size_t>(*set), static_cast<std::size_t>(*count)});
  }
  if (ranks == world) return found;
  return core::fail(Errc::corrupt, "expected the tensors of {} ranks, found {}", world, ranks);
}

}  // namespace

core::KeyRequests TensorKeys::requests() const {
  core::KeyRequests requests{sets, {}};
  for (const auto& run : runs) requests.of_ranks.resize(requests.of_ranks.size() + run.ranks, {run.set});
  return requests;
}

core::Result<TensorKeys> agree_on_tensors(const SessionContext& in) {
  Value::List described;
  for (const auto& own : in.options.tensors) {
    for (const auto& part : TRY(core::stacked_parts(own.tensor, own.stacking)))
      described.push_back(value_of(part));
  }
  const auto deadline = in.options.join_deadline;
  auto parameters = TRY(parameters_of(in));
  const Value told = Value::Map{{"tensors", std::move(described)}, {"parameters", std::move(parameters)}};
  TRY(in.rendezvous.set(fmt::format("tensors/{}", in.rank().value), TRY(core::value_text(told))));
  if (in.is_first_rank()) {
    std::vector<Told> ranks;
    for (std::int32_t rank = 0; rank < in.world.world_size().value; ++rank)
      ranks.push_back(TRY(told_of(TRY(in.rendezvous.get(fmt::format("tensors/{}", rank), deadline)))));
    TRY(in.rendezvous.set("tensors/verdict", TRY(core::value_text(TRY(answer_to(ranks))))));
  }
  const auto verdict = TRY(core::parse_value(TRY(in.rendezvous.get("tensors/verdict", deadline))));
  if (const auto* complaint = verdict.as_string()) {
    in.end_reading("tensors/");
    return core::fail(Errc::mismatch, "{}", *complaint);
  }
  return keys_of(verdict, in.world.world_size().value);
}

}  // namespace troupe::actors
