#include "actors/session/group_data.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/values/value_text.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;
using core::Value;

constexpr auto kDeadline = std::chrono::minutes(5);

template <class T>
std::span<std::byte> writable(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// The names and shapes of a dictionary as text, its length first, then the bytes of its tensors.
Result<std::vector<std::byte>> encoded(const core::TensorDict& dict) {
  Value::Map tensors, arrays;
  for (const auto& [name, tensor] : dict.tensors()) {
    tensors.set(name, Value::Map{{"dtype", std::string(core::name_of(tensor.dtype))},
                                 {"shape", Value::List(tensor.shape.begin(), tensor.shape.end())}});
  }
  for (const auto& [name, values] : dict.arrays()) arrays.set(name, Value::List(values));
  const auto head =
      TRY(core::value_text(Value::Map{{"tensors", tensors}, {"arrays", arrays}, {"meta", dict.meta()}}));
  const auto length = static_cast<std::uint64_t>(head.size());
  std::vector<std::byte> bytes(sizeof length);
  std::memcpy(bytes.data(), &length, sizeof length);
  const auto append = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  append(std::as_bytes(std::span(head)));
  for (const auto& [name, tensor] : dict.tensors()) append(tensor.bytes);
  return bytes;
}

Result<core::HostTensor> tensor_from(const Value& head, std::span<const std::byte>& rest) {
  core::HostTensor tensor;
  const auto* dtype = head.find("dtype");
  const auto* shape = head.find("shape");
  CHECK(dtype != nullptr && dtype->as_string() != nullptr && shape != nullptr && shape->as_list() != nullptr,
        "members write what members read");
  tensor.dtype = TRY(core::dtype_from_name(*dtype->as_string()));
  for (const auto& extent : *shape->as_list()) tensor.shape.push_back(extent.as_int().value_or(0));
  const auto elements =
      std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto bytes = static_cast<std::size_t>(elements) * core::size_of(tensor.dtype);
  CHECK(bytes <= rest.size(), "members write what members read");
  tensor.bytes.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(bytes));
  rest = rest.subspan(bytes);
  return tensor;
}

Result<core::TensorDict> decoded(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  CHECK(bytes.size() >= sizeof length, "members write what members read");
  std::memcpy(&length, bytes.data(), sizeof length);
  CHECK(length <= bytes.size() - sizeof length, "members write what members read");
  const auto text = bytes.subspan(sizeof length, length);
  auto rest = bytes.subspan(sizeof length + length);
  const auto head = TRY(core::parse_value({reinterpret_cast<const char*>(text.data()), text.size()}));
  core::TensorDict::Tensors tensors;
  core::TensorDict::Arrays arrays;
  const auto name_of = [](const Value::Entry& entry) { return std::get<std::string>(entry.key); };
  // Bytes are in the order of the names, as in a std::map.
  std::map<std::string, const Value*> heads;
  for (const auto& entry : head.find("tensors")->as_map()->entries()) heads[name_of(entry)] = &entry.value;
  for (const auto& [name, one] : heads) tensors[name] = TRY(tensor_from(*one, rest));
  for (const auto& entry : head.find("arrays")->as_map()->entries())
    arrays[name_of(entry)] = *entry.value.as_list();
  return core::TensorDict::create(std::move(tensors), std::move(arrays), *head.find("meta")->as_map());
}

}  // namespace

struct GroupData::Carried {
  gpu::Buffer memory;
  gpu::Buffer staging;  ///< used if the host cannot access the memory
};

Result<GroupData::Carried> GroupData::carry(std::span<const std::byte> bytes, std::size_t length) {
  Carried carried;
  carried.memory = TRY(device_.allocate(length));
  if (compute_ != nullptr) carried.staging = TRY(device_.allocate_staging(length));
  const auto host = compute_ != nullptr ? carried.staging.view() : carried.memory.view();
  std::copy(bytes.begin(), bytes.end(), host.data);
  if (compute_ != nullptr) gpu::copy(carried.staging.view(), carried.memory.view(), compute_);
  return carried;
}

Result<void> GroupData::fetch(const Carried& carried, std::span<std::byte> bytes) {
  auto host = carried.memory.view();
  if (compute_ != nullptr) {
    gpu::copy(carried.memory.view(), carried.staging.view(), compute_);
    TRY(compute_->synchronize(kDeadline));
    host = carried.staging.view();
  }
  std::copy_n(host.data, bytes.size(), bytes.begin());
  return {};
}

Result<std::vector<std::byte>> GroupData::gather(std::span<const std::byte> own,
                                                 TrainerGroup::Counts counts) {
  const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto input = TRY(carry(own, own.size()));
  const auto output = TRY(carry({}, total));
  TRY(group_.wait(
      TRY(group_.all_gather(input.memory.view(), output.memory.view(), core::DType::u8, std::move(counts)))));
  std::vector<std::byte> all(total);
  TRY(fetch(output, all));
  return all;
}

Result<void> GroupData::reduce(std::span<std::byte> values, core::DType dtype,
                               TrainerGroup::Reduction reduction) {
  const auto carried = TRY(carry(values, values.size()));
  TRY(group_.wait(TRY(group_.all_reduce(carried.memory.view(), dtype, reduction))));
  return fetch(carried, values);
}

Result<std::vector<std::vector<std::byte>>> GroupData::all_gather(std::span<const std::byte> bytes) {
  const auto members = static_cast<std::size_t>(group_.size());
  const auto length = static_cast<std::uint64_t>(bytes.size());
  const auto all_lengths =
      TRY(gather(std::as_bytes(std::span(&length, 1)), TrainerGroup::Counts(members, sizeof length)));
  TrainerGroup::Counts counts(members);
  for (std::size_t i = 0; i < members; ++i) {
    std::uint64_t one = 0;
    std::memcpy(&one, all_lengths.data() + i * sizeof one, sizeof one);
    counts[i] = one;
  }
  const auto all = TRY(gather(bytes, counts));
  std::vector<std::vector<std::byte>> parts;
  auto at = all.begin();
  for (const auto count : counts) {
    const auto end = at + static_cast<std::ptrdiff_t>(count);
    parts.emplace_back(at, end);
    at = end;
  }
  return parts;
}

Result<core::TensorDict> GroupData::all_gather(const core::TensorDict& own) {
  std::vector<core::TensorDict> members;
  for (const auto& bytes : TRY(all_gather(TRY(encoded(own))))) members.push_back(TRY(decoded(bytes)));
  return core::gather(members, static_cast<std::size_t>(group_.index()));
}

Result<Value::Map> GroupData::all_gather(const Value::Map& own, core::MissingNames missing) {
  const auto text = TRY(core::value_text(own));
  std::vector<Value::Map> members;
  for (const auto& bytes : TRY(all_gather(std::as_bytes(std::span(text))))) {
    const auto value = TRY(core::parse_value({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    CHECK(value.as_map() != nullptr, "members write what members read");
    members.push_back(*value.as_map());
  }
  return core::gather_values(members, missing);
}

Result<GroupData::VocabResults> GroupData::vocab(const core::LogitsShard& logits,
                                                 std::span<const std::int64_t> targets) {
  TRY(logits.check());
  if (!targets.empty() && static_cast<std::int64_t>(targets.size()) != logits.rows)
    return core::fail(Errc::invalid_argument, "expected one target for each of {} rows, found {}",
                      logits.rows, targets.size());
  VocabResults results;
  results.max = core::vocab_max(logits);
  TRY(reduce(writable(results.max), core::DType::f32, TrainerGroup::Reduction::max));
  auto& sums = results.sums = core::vocab_sums(logits, results.max, targets);
  std::vector<double> all;
  for (const auto* part : {&sums.exponentials, &sums.weighted, &sums.targets})
    all.insert(all.end(), part->begin(), part->end());
  TRY(reduce(writable(all), core::DType::f64, TrainerGroup::Reduction::sum));
  auto at = all.begin();
  for (auto* part : {&sums.exponentials, &sums.weighted, &sums.targets}) {
    std::copy_n(at, part->size(), part->begin());
    at += static_cast<std::ptrdiff_t>(part->size());
  }
  results.entropy = core::vocab_entropy(sums);
  if (!targets.empty()) results.log_probabilities = core::vocab_log_probabilities(sums);
  return results;
}

Result<core::MaskedSum> GroupData::sum(const core::MaskedSum& own) {
  core::MaskedSum total;
  for (const auto& bytes : TRY(all_gather(std::as_bytes(std::span(&own, 1))))) {
    core::MaskedSum one;
    CHECK(bytes.size() == sizeof one, "members write what members read");
    std::memcpy(&one, bytes.data(), sizeof one);
    total += one;
  }
  return total;
}

Result<GroupData::Moments> GroupData::masked_moments(std::span<const float> x, std::span<const float> mask,
                                                     bool unbiased) {
  Moments moments;
  moments.mean = TRY(core::masked_mean(TRY(sum(core::masked_sum(x, mask)))));
  const auto squares = TRY(sum(core::masked_squares(x, mask, moments.mean)));
  moments.variance = TRY(core::masked_variance(squares, unbiased));
  return moments;
}

}  // namespace troupe::actors
