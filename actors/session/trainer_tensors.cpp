#include "actors/session/trainer_tensors.hpp"

#include <fmt/format.h>

#include <utility>

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

core::Result<core::RankShards> shards_of(const std::string& text) {
  core::RankShards shards;
  const auto described = TRY(core::parse_value(text));
  if (described.as_list() == nullptr)
    return core::fail(Errc::corrupt, "a rank described its tensors as something that is not a list");
  for (const auto& tensor : *described.as_list()) shards.tensors.push_back(TRY(tensor_of(tensor)));
  return shards;
}

}  // namespace

core::Result<std::vector<core::KeySet>> agree_on_tensors(const SessionContext& in) {
  Value::List described;
  for (const auto& own : in.options.tensors) {
    for (const auto& part : TRY(core::stacked_parts(own.tensor, own.stacking)))
      described.push_back(value_of(part));
  }
  const auto deadline = in.options.join_deadline;
  TRY(in.rendezvous.set(fmt::format("tensors/{}", in.rank().value), TRY(core::value_text(described))));
  if (in.is_first_rank()) {
    std::vector<core::RankShards> ranks;
    Value::List keys;
    for (std::int32_t rank = 0; rank < in.world.world_size().value; ++rank) {
      ranks.push_back(TRY(shards_of(TRY(in.rendezvous.get(fmt::format("tensors/{}", rank), deadline)))));
      Value::List own;
      for (const auto& tensor : ranks.back().tensors) own.emplace_back(tensor.key);
      keys.emplace_back(std::move(own));
    }
    const auto checked = core::check_integrity(ranks);
    const auto verdict = checked ? Value(std::move(keys)) : Value(checked.error().message);
    TRY(in.rendezvous.set("tensors/verdict", TRY(core::value_text(verdict))));
  }
  const auto verdict = TRY(core::parse_value(TRY(in.rendezvous.get("tensors/verdict", deadline))));
  if (const auto* complaint = verdict.as_string())
    return core::fail(Errc::mismatch, "the trainers' own tensors do not fit together: {}", *complaint);
  if (verdict.as_list() == nullptr)
    return core::fail(Errc::corrupt, "rank 0 told neither tensors nor what is wrong with them");
  std::vector<core::KeySet> of_ranks;
  for (const auto& own : *verdict.as_list()) {
    auto& keys = of_ranks.emplace_back();
    if (own.as_list() == nullptr) continue;
    for (const auto& key : *own.as_list()) {
      if (key.as_string() != nullptr) keys.insert(*key.as_string());
    }
  }
  return of_ranks;
}

}  // namespace troupe::actors
